"""Commands that get no report name the command for the given file."""

import io
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.analysis.builders import Device
from tests.cli.test_report import refused, uprof
from tests.sql import execute
from unified_prof.cli.output import put_error
from unified_prof.errors import UprofError

COMMANDS = [
    ("report", "{}"),
    ("trace", "{}", "-o", "o.json"),
    ("diff", "{}", "{}"),
    ("gate", "{}", "{}"),
]


@pytest.fixture(params=COMMANDS, ids=[command[0] for command in COMMANDS])
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


def with_path(command: tuple[str, ...], path: Path) -> list[str]:
    return [part.format(path) for part in command]


@pytest.mark.skipif(not (which("sqlite3") and which("sed")), reason="needs the sqlite3 shell")
def test_command_for_a_damaged_report_recovers_it(tmp_path: Path) -> None:
    path = tmp_path / "a report.db"
    with Device(path) as device:
        device.task(20, 30, kernel=("relu", "K"))
    ((root,),) = execute(path, "SELECT rootpage FROM sqlite_master WHERE name = 'STRING_IDS'")
    content = bytearray(path.read_bytes())
    content[4096 * (root - 1) + 3 : 4096 * root] = b"x" * 4093  # More rows than fit in the page.
    path.write_bytes(content)
    printed = uprof("report", path).stderr
    command = printed.partition("recover it: `")[2].partition("`")[0]
    subprocess.run(command, shell=True, check=False, stderr=subprocess.DEVNULL)
    assert uprof("report", path.with_name("a report.recovered.db")).returncode == 0


def test_message_to_a_stream_that_the_script_closed_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    put_error(UprofError("nothing was measured"))


def test_messages_are_wrapped_between_words_and_not_in_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    with Device(tmp_path / "run.db") as device:
        device.task(20, 30, kernel=("relu", "K"))
    arguments = ("advise", tmp_path / "run.db", "--device", "foo")
    whole = uprof(*arguments).stderr
    monkeypatch.setenv("COLUMNS", "60")
    wrapped = uprof(*arguments).stderr
    assert max(map(len, whole.splitlines())) > 500
    assert max(map(len, wrapped.splitlines())) <= 60
    assert " ".join(wrapped.split()) == " ".join(whole.split())
    missing = tmp_path / "a run"
    missing.mkdir()
    (missing / "info.json").write_text("{}")
    monkeypatch.setenv("COLUMNS", "40")
    printed = uprof("report", missing).stderr
    assert len(printed.splitlines()) > 2
    assert all(line.count("`") % 2 == 0 for line in printed.splitlines())


def test_hint_for_a_raw_recording_is_to_build_it(command: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "PROF_000001_20260101000000000_ABCDEFGH"
    (folder / "host" / "data").mkdir(parents=True)
    (folder / "host" / "info.json").write_text("{}")
    for path in (folder, tmp_path):
        first = f"run `uprof convert {folder if path == folder else tmp_path}` first"
        refused(uprof(*with_path(command, path)), 7, "no readable report", first)


def test_nsight_recordings_are_recognized(command: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    execute(path, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
    refused(uprof(*with_path(command, path)), 7, "is not a report but an Nsight Systems export")
    assert f"run `uprof convert {path}` first" in uprof(*with_path(command, path)).stderr
    raw = tmp_path / "run.nsys-rep"
    raw.write_bytes(b"\x00\x01\x02 something")
    printed = uprof(*with_path(command, raw)).stderr
    assert "it is an Nsight Systems recording" in printed
    assert f"nsys export --type sqlite -o {tmp_path / 'run.sqlite'} {raw}" in printed
