"""Temporary files of killed processes are removed, those of running ones are kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from unified_prof.sqlite import atomic
from unified_prof.sqlite.atomic import AtomicFile, replacing

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(), reason="needs /proc to know what lives"
)

WRITE_AND_WAIT = """
import sys, time
from unified_prof.sqlite.atomic import AtomicFile
output = AtomicFile(sys.argv[1], overwrite=True)
output.partial.with_name(output.partial.name + "-journal").touch()
print(output.partial.name, flush=True)
time.sleep(60)
"""


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def writer(target: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a process that writes `target` and never comes to its end; return its file's name."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("name", ["out.db", "\N{SNOWMAN}" * 85, "a.b [x] (1).db"])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, name: str) -> None:
    process, left = writer(tmp_path / name)
    end(process)
    assert names(tmp_path) == sorted([left, f"{left}-journal"])
    with replacing(tmp_path / name) as partial:
        partial.write_text("new")
    assert names(tmp_path) == [name]


def test_what_a_live_process_writes_stays(tmp_path: Path) -> None:
    process, left = writer(tmp_path / "out.db")
    try:
        with replacing(tmp_path / "out.db") as partial:
            partial.write_text("new")
        assert names(tmp_path) == sorted(["out.db", left, f"{left}-journal"])
    finally:
        end(process)


def test_a_writer_that_ended_but_was_not_waited_for_is_dead(tmp_path: Path) -> None:
    process, _ = writer(tmp_path / "out.db")
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    AtomicFile(tmp_path / "out.db").discard()
    assert names(tmp_path) == []
    end(process)


def test_two_writers_of_one_process_leave_each_other_alone(tmp_path: Path) -> None:
    first = AtomicFile(tmp_path / "out.db")
    second = AtomicFile(tmp_path / "out.db")
    assert first.partial.exists()
    for file in (first, second):
        file.discard()
    assert names(tmp_path) == []


def test_only_files_that_the_name_says_were_on_their_way_are_removed(tmp_path: Path) -> None:
    process, left = writer(tmp_path / "out.db")
    end(process)
    owner = atomic.TAG.search(left)
    assert owner is not None
    other_machine = owner[0].replace(owner[1], "0" * 8)
    kept = [
        "out.db.bak",
        "out.db.partial",
        f"out.db.{owner[0]}.partial",
        f"out.db.{other_machine}.00000000.partial",
        f"out.db.{owner[0]}.00000000.partial.txt",
        f"other.out.db.{owner[0]}.00000000.partial",
        f"out.db.old.{owner[0]}.00000000.partial",
    ]
    for name in kept:
        (tmp_path / name).touch()
    AtomicFile(tmp_path / "out.db").discard()
    assert names(tmp_path) == sorted(kept)


def test_a_number_that_another_process_has_now_is_no_sign_of_life() -> None:
    mine = atomic.tag()
    match = atomic.TAG.fullmatch(mine)
    assert match is not None
    assert not atomic.is_abandoned(mine)
    assert atomic.is_abandoned(f"{match[1]}-{match[2]}-{int(match[3], 16) - 1:x}")


@pytest.mark.parametrize("owner", ["", "x", "00000000-1-1", "00000000-" + "f" * 40 + "-1"])
def test_of_what_is_not_known_nobody_is_taken_for_dead(owner: str) -> None:
    assert not atomic.is_abandoned(owner)


def test_a_number_no_process_can_have_is_nobodys() -> None:
    domain = atomic.tag().partition("-")[0]
    assert not atomic.is_abandoned(f"{domain}-{'f' * 40}-1")


def test_where_the_system_says_nothing_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, left = writer(tmp_path / "out.db")
    end(process)
    monkeypatch.setattr(atomic, "_domain", lambda: None)
    AtomicFile(tmp_path / "out.db").discard()
    assert left in names(tmp_path)


def test_temporary_copies_of_dead_processes_go_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = (
        "import os, time\n"
        "from unified_prof.sqlite.atomic import temporary_folder\n"
        "with temporary_folder() as folder:\n"
        "    (folder / 'copy').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=False, env=environment)
    (left,) = names(tmp_path)
    assert re.fullmatch(rf"uprof-{atomic.TAG.pattern}-.*", left)
    (tmp_path / "uprof-of-something-else").mkdir()
    with atomic.temporary_folder() as folder:
        assert names(tmp_path) == sorted([folder.name, "uprof-of-something-else"])
    assert names(tmp_path) == ["uprof-of-something-else"]
