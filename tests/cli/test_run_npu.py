"""`uprof run --backend npu` from the shell, with a stand-in for msprof."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes
from tests.backends import stand_in_msprof
from tests.sql import execute

INIT = "from tests.backends import stand_in_acl\nstand_in_acl.init()\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a space in its name; msprof is on PATH."""
    command = stand_in_msprof.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    folder = tmp_path / "a place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def start(place: Path, source: str, *options: str) -> subprocess.Popen[str]:
    (place / "work.py").write_text(source)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "unified_prof", "run", "--backend", "npu"),
            *("-o", "out", "--json", *options, "work.py"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def uprof(place: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    process = start(place, source, *options)
    out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def facts_of(database: Path) -> dict[str, str]:
    return dict(execute(str(database), "SELECT name, value FROM UPROF_RUN"))


def report_text(database: Path) -> str:
    return processes.uprof("report", database, check=True).stdout


@pytest.mark.slow
def test_successful_run_leaves_one_database_of_uprof(place: Path) -> None:
    done = uprof(place, INIT)
    assert done.returncode == 0, done.stderr
    (database,) = json.loads(done.stdout)["files"]["timeline"]
    assert execute(database, "SELECT count(*) > 0 FROM TASK") == [(1,)]
    facts = facts_of(Path(database))
    assert (facts["backend"], facts["target"]) == ("npu", "work.py")
    assert "failure" not in facts
    assert [p.name for p in Path(database).parent.glob("*msprof_*")] == [Path(database).name]
    assert "timeline report" in done.stderr


@pytest.mark.slow
def test_native_exporter_keeps_the_database_of_msprof(place: Path) -> None:
    done = uprof(place, INIT, "--exporter", "native")
    assert done.returncode == 0, done.stderr
    (database,) = json.loads(done.stdout)["files"]["timeline"]
    assert execute(database, "SELECT value FROM META_DATA") == [("stand-in msprof",)]


UNKNOWN_FILE = (
    INIT
    + """
import pathlib
prof = next(pathlib.Path('out').glob('PROF_*'))
(prof / 'host' / 'data' / 'aging.additional.newer_info.slice_0').write_bytes(b'more' * 16)
"""
)


@pytest.mark.slow
def test_recording_with_unknown_files_is_exported_by_msprof(place: Path) -> None:
    done = uprof(place, UNKNOWN_FILE)
    assert done.returncode == 0, done.stderr
    (database,) = json.loads(done.stdout)["files"]["timeline"]
    assert execute(database, "SELECT value FROM META_DATA") == [("stand-in msprof",)]
    assert "newer_info" in done.stderr
    assert "the database of the vendor's exporter is kept" in done.stderr


@pytest.mark.slow
def test_uprof_builds_what_msprof_does_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "export_crashes")
    done = uprof(place, UNKNOWN_FILE)
    assert done.returncode == 0, done.stderr
    (database,) = json.loads(done.stdout)["files"]["timeline"]
    assert execute(database, "SELECT count(*) > 0 FROM TASK") == [(1,)]
    assert "so the database does not contain them: msprof's export failed" in done.stderr
    assert not [*Path(database).parent.rglob("sqlite")]


@pytest.mark.slow
def test_option_the_chip_lacks_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_PLATFORM", "4")
    done = uprof(place, "open('started', 'w')", "--sys-io-profiling", "on")
    assert done.returncode == 2
    assert "--sys-io-profiling: not supported by msprof here" in done.stderr
    assert not (place / "started").exists()
    assert not (place / "out").exists()


@pytest.mark.slow
def test_each_recording_gives_one_database(place: Path) -> None:
    done = uprof(place, INIT + "stand_in_acl.init(index=2)")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["files"]["timeline"]) == 2


@pytest.mark.slow
def test_failing_application_keeps_its_exit_code_and_its_recording(place: Path) -> None:
    done = uprof(place, INIT + "raise SystemExit(7)")
    assert done.returncode == 7
    assert "the workload exited with code 7" in done.stderr
    assert len(json.loads(done.stdout)["files"]["timeline"]) == 1


@pytest.mark.slow
def test_full_disk_exits_with_code_9(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "full_while_recording")
    done = uprof(place, INIT)
    assert done.returncode == 9
    assert "is full" in done.stderr
    (database,) = (place / "out").glob("PROF_*/msprof_*.db")
    assert "is full: the recording is incomplete" in facts_of(database)["failure"]
    assert "the recording may be incomplete" in report_text(database)


KILLS_MSPROF = (
    INIT
    + """
import json, os, time
os.kill(json.loads(os.environ['PROFILER_SAMPLECONFIG'])['msprofBinPid'], 9)
time.sleep(0.5)
"""
)


@pytest.mark.slow
def test_database_of_a_run_whose_msprof_was_killed_has_the_failure(place: Path) -> None:
    done = uprof(place, KILLS_MSPROF)
    assert done.returncode == 0, done.stderr
    assert "msprof was killed by signal 9 during the recording" in done.stderr
    (database,) = json.loads(done.stdout)["files"]["timeline"]
    assert execute(database, "SELECT count(*) > 0 FROM TASK") == [(1,)]
    failure = facts_of(Path(database))["failure"]
    assert failure.startswith("msprof was killed by signal 9 during the recording")
    assert failure in report_text(Path(database))


@pytest.mark.slow
def test_failing_export_is_harmless_if_built(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "export_fails")
    done = uprof(place, INIT)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["files"]["timeline"]) == 1


@pytest.mark.slow
def test_failing_export_is_reported_if_native(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "export_fails")
    done = uprof(place, INIT, "--exporter", "native")
    assert done.returncode == 5
    assert "msprof's export failed" in done.stderr


@pytest.mark.slow
def test_run_without_npu_work_exits_with_code_5(place: Path) -> None:
    done = uprof(place, "print('no NPU here')")
    assert done.returncode == 5
    assert "never initialized an NPU (no aclInit)" in done.stderr
    assert done.stdout == ""
    assert not (place / "out").exists()


@pytest.mark.slow
def test_interrupted_run_keeps_the_recorded_data(place: Path) -> None:
    process = start(place, INIT + "import time\nopen('up', 'w')\ntime.sleep(60)\n")
    while not (place / "up").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 130
    assert "the run was interrupted" in err
    assert "Traceback" not in err
    assert len(json.loads(out)["files"]["timeline"]) == 1


@pytest.mark.slow
def test_invalid_options_are_refused_before_the_workload_starts(place: Path) -> None:
    done = uprof(place, "open('started', 'w')", "--task-time", "l9")
    assert done.returncode == 2
    assert "--task-time: expected one of l0, l1, l2, on, off, found 'l9'" in done.stderr
    assert sorted(p.name for p in place.iterdir()) == ["work.py"]
