"""Export of msprof's own database after the recording."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.backends.test_npu import msprof
from tests.prof_generator import Recipe, generate
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
    said: list[str] = []
    return msprof_outcome.export(prof, said.append, **options)


def test_the_database_is_msprof_s(prof: Path) -> None:
    made = export(prof)
    assert made.parent == prof
    with closing(sqlite3.connect(made)) as db:
        assert db.execute("SELECT value FROM META_DATA").fetchall() == [("stand-in msprof",)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("export_fails", "msprof's export failed: Analysis data failed."),
        pytest.param("export_crashes", "failed: Exec format error", marks=pytest.mark.slow),
        pytest.param("vnpu", "failed: This function is not supported", marks=pytest.mark.slow),
        pytest.param("on_device", "unrecognized option '--export=on'", marks=pytest.mark.slow),
        pytest.param("old", "unrecognized option '--type=db'", marks=pytest.mark.slow),
    ],
)
def test_an_export_that_fails_says_why_and_leaves_nothing(
    how: str, words: str, prof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", how)
    before = contents(prof)
    with pytest.raises(CaptureError) as caught:
        export(prof)
    assert words in str(caught.value)
    assert contents(prof) == before


def test_an_export_without_a_word_is_told_as_that(prof: Path, toolkit: Path) -> None:
    toolkit.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(CaptureError, match="failed without a reason"):
        export(prof)


def test_the_last_of_msprof_s_words_is_the_reason(prof: Path, toolkit: Path) -> None:
    said = ["[WARNING] You are root.", "[WARNING] No analysis script found in msprof.py"]
    said += ["[ERROR] Running profiling failed. Please check log for more info."]
    lines = "".join(f"echo '{line}'\n" for line in said)
    toolkit.write_text(f"#!/bin/sh\n{lines}exit 255\n")
    with pytest.raises(CaptureError, match=r"(?m)failed: No analysis script found in msprof\.py$"):
        export(prof)


def test_without_msprof(prof: Path, toolkit: Path) -> None:
    toolkit.unlink()
    with pytest.raises(CaptureError, match="was not found"):
        export(prof)


@pytest.mark.slow
def test_an_exporter_that_hangs_is_ended(prof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "export_hangs")
    before = contents(prof)
    began = time.monotonic()
    with pytest.raises(CaptureError, match="took more than 2 s"):
        export(prof, limit_s=2)
    assert time.monotonic() - began < 20
    assert contents(prof) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_export_and_is_delivered_afterwards(
    number: signal.Signals, prof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "export_hangs")
    before, came = contents(prof), []

    def press() -> None:
        deadline = time.monotonic() + 30
        while not (prof.parent / "hangs").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    handler = signal.signal(number, lambda which, _: came.append(which))
    presser = threading.Thread(target=press)
    presser.start()
    exporter = msprof_outcome.Exporter(lambda _: None)
    try:
        for _ in range(2):  # the next recording is not begun
            with pytest.raises(CaptureError, match="interrupted"):
                exporter.export(prof)
    finally:
        signal.signal(number, handler)
        presser.join()
    assert came == [number]
    assert contents(prof) == before


def test_a_database_of_an_earlier_export_is_not_taken_for_a_new_one(
    prof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = export(prof)
    monkeypatch.setenv("STAND_IN_MSPROF", "export_fails")
    with pytest.raises(CaptureError):
        export(prof)
    assert first.exists()


def test_msprof_is_called_as_its_help_says(
    prof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    export(prof)
    assert stand_in_msprof.starts(tmp_path / "log") == [
        ["--export=on", "--type=db", f"--output={prof}"]
    ]
