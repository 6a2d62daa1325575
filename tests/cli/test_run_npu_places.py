"""Paths, encodings and processes that msprof restricts, from the shell."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.conftest import ROOT
from tests.processes import run
from tests.sql import execute
from unified_prof.backends import npu
from unified_prof.backends.msprof_plan import Offer

INIT = "from tests.backends import stand_in_acl\nstand_in_acl.init()\n"
COMMAND = [sys.executable, "-m", "unified_prof", "run", "--backend", "npu", "--json"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    command = stand_in_msprof.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def uprof(*words: str | bytes, **more: str) -> subprocess.CompletedProcess[bytes]:
    command = [*map(os.fsencode, COMMAND), *map(os.fsencode, words)]
    environment = {**os.environ, **more}
    return subprocess.run(command, capture_output=True, timeout=400, env=environment, check=False)


def databases(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr
    found: list[str] = json.loads(done.stdout)["files"]["timeline"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["C.UTF-8", "C"])
def test_paths_and_arguments_that_are_not_utf_8_work(place: Path, encoding: str) -> None:
    folder = os.fsencode(place) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102
    script = folder + b"/tr\xffain.py"
    with open(script, "w") as file:  # noqa: PTH123
        file.write(INIT + "import os, sys\nprint(os.getcwdb(), os.fsencode(sys.argv[1]))\n")
    os.chdir(folder)
    done = uprof(script, b"an \xfe argument", LC_ALL=encoding)
    assert len(databases(done)) == 1
    assert rf"{folder!r} b'an \xfe argument'".encode() in done.stderr
    created = [name for name in os.listdir(folder) if name.startswith(b"uprof_")]  # noqa: PTH208
    assert len(created) == 1
    below = [one for _, names, _ in os.walk(folder + b"/" + created[0]) for one in names]
    assert len([name for name in below if name.startswith(b"PROF_")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("output", ["out", "../below/any", "höhle mit raum/日本", "a  b"])
def test_database_is_written_to_the_output_directory(place: Path, output: str) -> None:
    (place / "work.py").write_text(INIT)
    (database,) = databases(uprof("-o", output, "work.py"))
    assert Path(database).is_relative_to(output)
    assert Path(database).exists()
    (start,) = stand_in_msprof.starts(place.parent / "log")
    assert f"--output={(place / output).resolve()}" in start


@pytest.mark.slow
def test_group_writable_directories_are_accepted(place: Path) -> None:
    (place / "work.py").write_text(INIT)
    before = os.umask(0o002)
    try:
        assert len(databases(uprof("-o", "out", "work.py"))) == 1
    finally:
        os.umask(before)


@pytest.mark.slow
def test_temporary_directory_may_contain_a_blank(place: Path) -> None:
    (place / "work.py").write_text(INIT)
    temporary = place / "tmp with blank"
    temporary.mkdir()
    assert len(databases(uprof("-o", "out", "work.py", TMPDIR=str(temporary)))) == 1
    assert [*temporary.iterdir()] == []


@pytest.mark.slow
def test_child_process_has_a_separate_recording(place: Path) -> None:
    source = f"""{INIT}
import subprocess, sys
child = "from tests.backends import stand_in_acl; stand_in_acl.init(index=2)"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    (place / "work.py").write_text(source)
    assert len(databases(uprof("-o", "out", "work.py"))) == 2


@pytest.mark.slow
def test_devices_of_one_process_are_recorded_together(place: Path) -> None:
    source = "from tests.backends import stand_in_acl\nstand_in_acl.init(devices=(0, 3))\n"
    (place / "work.py").write_text(source)
    (database,) = databases(uprof("-o", "out", "work.py"))
    found = execute(database, "SELECT DISTINCT deviceId FROM TASK ORDER BY 1")
    assert found == [(0,), (3,)]


@pytest.mark.slow
def test_ranks_started_with_one_msprof_each_are_recorded(place: Path) -> None:
    (place / "work.py").write_text(INIT)
    ranks = [
        subprocess.Popen(
            [*COMMAND, "-o", "out", "work.py"],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    found = []
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
        (database,) = json.loads(out)["files"]["timeline"]
        assert f"rank{rank}" in database
        found.append(database)
    assert len({*found}) == 2
    assert {"rank0", "rank1", "run.json"} <= {path.name for path in (place / "out").iterdir()}


@pytest.mark.slow
def test_torchrun_under_one_msprof_is_recorded(place: Path) -> None:
    source = """\
import os
from tests.backends import stand_in_acl
stand_in_acl.init(index=1 + int(os.environ["RANK"]))
"""
    (place / "work.py").write_text(source)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert len(databases(uprof("-o", "out", *launcher, "work.py"))) == 2


@pytest.mark.slow
def test_msprof_exports_without_no_op_program(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    command = npu.command_line(Path("msprof"), ["--l2=on"], place, ["bash"], Offer())
    assert command == ["msprof", f"--output={place}", "--type=db", "--l2=on", "bash"]


@pytest.mark.slow
def test_no_files_of_a_killed_msprof_are_left(place: Path) -> None:
    """Its list of recordings stays behind when SIGTERM ends it."""
    killing = INIT + "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)\n"
    (place / "work.py").write_text(killing)
    done = uprof("-o", "out", "work.py")
    assert len(databases(done)) == 1
    assert not [*(place / "out").glob("*_profiling_output_record")]


def dry_run(*options: str) -> tuple[int, str]:
    """Return exit code and output of a run of nothing."""
    Path("work.py").touch()
    command = [*COMMAND[:-1], "--dry-run", *options, "work.py"]
    done = run(*command)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--preset", "full", "--npu-chip", "910B", "--l2", "off"),
        ("--preset", "minimal", "--npu-chip", "310P", "--msprof-arg=--a=b", "--msprof-arg=--c=d"),
    ],
)
@pytest.mark.usefixtures("place")
def test_pairs_are_equal_to_options_with_full_names(options: tuple[str, ...]) -> None:
    pairs: list[str] = []
    words = iter(options)
    for word in words:
        name, separator, value = word.removeprefix("--").partition("=")
        pairs += ["--npu", f"{name}={value if separator else next(words)}"]
    code, full = dry_run(*options)
    assert code == 0
    assert without_time(dry_run(*pairs)[1]) == without_time(full)
    assert "msprof" in full


def without_time(text: str) -> str:
    return re.sub(r"\d{8}_\d{6}", "TIME", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("--npu", "prest=full"), "--npu 'prest=full': expected KEY=VALUE"),
        (("--npu", "preset"), "--npu 'preset': expected KEY=VALUE"),
        (("--npu", "preset=full", "--preset", "minimal"), "contradict each other"),
        (("--npu", "npu=preset=full"), "expected KEY=VALUE"),
        (("--npu", "pid=x"), "expected a whole number"),
    ],
)
@pytest.mark.usefixtures("place")
def test_wrong_pair_is_a_usage_error(pairs: tuple[str, ...], message: str) -> None:
    code, text = dry_run(*pairs)
    assert code == 2
    assert message in text
