"""Export of msprof's own database after the recording."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.backends.test_npu import msprof
from tests.prof_generator import Recipe, generate
from tests.sql import execute
from unified_prof.backends import msprof_outcome
from unified_prof.errors import CaptureError

__all__ = ["msprof"]


@pytest.fixture(autouse=True)
def toolkit(msprof: Path) -> Path:
    return msprof


@pytest.fixture
def prof(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return generate(folder, Recipe(seed=1, operators=3)).path


def contents(prof: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(prof)): path.read_bytes() if path.is_file() else None
        for path in sorted(prof.rglob("*"))
    }


def export(prof: Path, **options: float) -> Path:
    return msprof_outcome.export(prof, lambda _: None, **options)


def test_export_returns_the_database_that_msprof_wrote(prof: Path) -> None:
    database = export(prof)
    assert database.parent == prof
    assert execute(database, "SELECT value FROM META_DATA") == [("stand-in msprof",)]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("export_fails", "msprof's export failed: Analysis data failed."),
        pytest.param("export_crashes", "failed: Exec format error", marks=pytest.mark.slow),
        pytest.param("vnpu", "failed: This function is not supported", marks=pytest.mark.slow),
        pytest.param("on_device", "unrecognized option '--export=on'", marks=pytest.mark.slow),
        pytest.param("old", "unrecognized option '--type=db'", marks=pytest.mark.slow),
    ],
)
def test_failed_export_has_a_reason_and_leaves_no_file(
    failure: str, words: str, prof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", failure)
    before = contents(prof)
    with pytest.raises(CaptureError) as caught:
        export(prof)
    assert words in str(caught.value)
    assert contents(prof) == before


FAILED = "[ERROR] Running profiling failed. Please check log for more info."


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "failed without a reason"),
        (
            ["[WARNING] You are root.", "[WARNING] No analysis script found in msprof.py", FAILED],
            r"(?m)failed: No analysis script found in msprof\.py$",
        ),
        (None, "was not found"),
    ],
)
def test_last_message_of_msprof_is_the_reason(
    lines: list[str] | None, message: str, prof: Path, toolkit: Path
) -> None:
    if lines is None:
        toolkit.unlink()
    else:
        commands = "".join(f"echo '{line}'\n" for line in lines)
        toolkit.write_text(f"#!/bin/sh\n{commands}exit {255 if lines else 0}\n")
    with pytest.raises(CaptureError, match=message):
        export(prof)


@pytest.fixture
def hanging(toolkit: Path) -> None:
    """Let msprof write a part of its output, and hang."""
    toolkit.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        'cd "${last#--output=}" && mkdir new && touch new/part msprof_1.db ../hangs\n'
        "exec sleep 500\n"
    )


@pytest.mark.usefixtures("hanging")
def test_hanging_exporter_is_stopped(prof: Path) -> None:
    before, began = contents(prof), time.monotonic()
    with pytest.raises(CaptureError, match=r"took more than 0\.5 s"):
        export(prof, limit_s=0.5)
    assert 0.5 < time.monotonic() - began < 50
    assert contents(prof) == before


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_export_and_is_delivered_afterwards(
    number: signal.Signals, prof: Path
) -> None:
    before, received = contents(prof), []

    def send_signal() -> None:
        deadline = time.monotonic() + 400
        while not (prof.parent / "hangs").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    handler = signal.signal(number, lambda which, _: received.append(which))
    sender = threading.Thread(target=send_signal)
    sender.start()
    exporter = msprof_outcome.Exporter(lambda _: None)
    try:
        for _ in range(2):  # The next recording is not exported.
            with pytest.raises(CaptureError, match="interrupted"):
                exporter.export(prof)
    finally:
        signal.signal(number, handler)
        sender.join()
    assert received == [number]
    assert contents(prof) == before


def test_database_of_an_earlier_export_is_kept(prof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = export(prof)
    monkeypatch.setenv("STAND_IN_MSPROF", "export_fails")
    with pytest.raises(CaptureError):
        export(prof)
    assert first.exists()


def test_msprof_is_called_as_documented(
    prof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    export(prof)
    assert stand_in_msprof.starts(tmp_path / "log") == [
        ["--export=on", "--type=db", f"--output={prof}"]
    ]
