"""Temporary files of killed processes are removed, those of running ones are kept."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from unified_prof.base.signals import ended_by_signals
from unified_prof.sqlite import atomic
from unified_prof.sqlite.atomic import AtomicFile, replacing

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(), reason="needs /proc to find running processes"
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


def start_writer(target: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a process that writes `target` and never finishes; return it and its file name."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("name", ["out.db", "\N{SNOWMAN}" * 85, "a.b [x] (1).db"])
def test_next_writer_removes_files_of_a_killed_one(tmp_path: Path, name: str) -> None:
    process, partial_name = start_writer(tmp_path / name)
    kill(process)
    assert names(tmp_path) == sorted([partial_name, f"{partial_name}-journal"])
    (tmp_path / partial_name).unlink()
    (tmp_path / partial_name / "of a directory").mkdir(parents=True)
    with replacing(tmp_path / name) as partial:
        partial.write_text("new")
    assert names(tmp_path) == [name]


def test_files_of_a_running_process_are_kept(tmp_path: Path) -> None:
    process, partial_name = start_writer(tmp_path / "out.db")
    try:
        with replacing(tmp_path / "out.db") as partial:
            partial.write_text("new")
        assert names(tmp_path) == sorted(["out.db", partial_name, f"{partial_name}-journal"])
    finally:
        kill(process)


def test_files_of_a_zombie_process_are_removed(tmp_path: Path) -> None:
    process, _ = start_writer(tmp_path / "out.db")
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It is a zombie now.
    AtomicFile(tmp_path / "out.db").discard()
    assert names(tmp_path) == []
    kill(process)


def test_two_writers_of_one_process_do_not_conflict(tmp_path: Path) -> None:
    first = AtomicFile(tmp_path / "out.db")
    second = AtomicFile(tmp_path / "out.db")
    assert first.partial.exists()
    for file in (first, second):
        file.discard()
    assert names(tmp_path) == []


def test_only_partial_files_of_the_same_target_and_machine_are_removed(tmp_path: Path) -> None:
    process, partial_name = start_writer(tmp_path / "out.db")
    kill(process)
    owner = atomic.TAG.search(partial_name)
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


def test_reused_process_id_is_no_sign_of_life() -> None:
    current = atomic.tag()
    match = atomic.TAG.fullmatch(current)
    assert match is not None
    assert not atomic.is_abandoned(current)
    assert atomic.is_abandoned(f"{match[1]}-{match[2]}-{int(match[3], 16) - 1:x}")


@pytest.mark.parametrize("owner", ["", "x", "00000000-1-1", "00000000-" + "f" * 40 + "-1"])
def test_unknown_owner_is_not_abandoned(owner: str) -> None:
    assert not atomic.is_abandoned(owner)
    domain = atomic.tag().partition("-")[0]
    assert not atomic.is_abandoned(f"{domain}-{'f' * 40}-1"), "no process has this number"


def test_nothing_is_removed_without_process_information(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, partial_name = start_writer(tmp_path / "out.db")
    kill(process)
    monkeypatch.setattr(atomic, "_domain", lambda: None)
    AtomicFile(tmp_path / "out.db").discard()
    assert partial_name in names(tmp_path)


def test_temporary_directories_of_dead_processes_are_removed(
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
    (partial_name,) = names(tmp_path)
    assert re.fullmatch(rf"uprof-{atomic.TAG.pattern}-.*", partial_name)
    (tmp_path / "uprof-of-something-else").mkdir()
    with atomic.temporary_folder() as folder:
        assert names(tmp_path) == sorted([folder.name, "uprof-of-something-else"])
    assert names(tmp_path) == ["uprof-of-something-else"]


def test_temporary_directory_is_removed_if_descriptors_run_out(tmp_path: Path) -> None:
    script = (
        "import os, resource\n"
        "from unified_prof.sqlite.atomic import temporary_folder\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "with temporary_folder() as folder:\n"
        "    (folder / 'copy').touch()\n"
        "    while True:\n"
        "        os.dup(0)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, env=environment, capture_output=True, text=True
    )
    assert "Too many open files" in done.stderr
    assert names(tmp_path) == []


def test_signal_during_removal_of_a_directory_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = os.unlink

    def interrupted(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)
        unlink(*arguments, **options)

    def end() -> None:
        with ended_by_signals(), atomic.temporary_folder() as folder:
            made.append(folder)
            (folder / "a").touch()
            (folder / "b").touch()
            monkeypatch.setattr(os, "unlink", interrupted)

    made: list[Path] = []
    with pytest.raises(SystemExit):
        end()
    assert not made[0].exists()
