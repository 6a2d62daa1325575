"""Files with any name are read and written, and their names are escaped in output."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.builders import training_step

# Invalid UTF-8, a line break, a terminal escape, markup and a right-to-left override.
NAME = b"caf\xe9\nuprof: error: forged\x1b]0;owned\x07[bold]x[bold]\xe2\x80\xaedb.exe"
RAW = (b"\x1b", b"\x07", "\u202e".encode(), b"\nuprof: error: forged")


def command(*arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "unified_prof", *arguments],
        capture_output=True,
        timeout=400,
        check=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    path = os.path.join(os.fsencode(tmp_path), NAME)  # noqa: PTH118 (bytes)
    shutil.copy(os.fsencode(training_step(tmp_path / "r.db")), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "csv", "markdown", "html"])
def test_report_with_any_file_name_is_printed_and_written(file: bytes, form: str) -> None:
    shown = command("report", file, "--format", form)
    output = file + b".out"
    written = command("report", file, "--format", form, "-o", output)
    for done in (shown, written):
        assert done.returncode == 0, done.stderr
        assert not any(raw in done.stdout + done.stderr for raw in RAW)
    assert written.stderr.count(b"\n") == 1
    assert os.path.getsize(output) == len(shown.stdout)  # noqa: PTH202 (bytes)


@pytest.mark.slow
def test_trace_with_any_file_name_is_written(file: bytes) -> None:
    done = command("trace", file, "-o", file + b".json")
    assert done.returncode == 0, done.stderr
    assert not any(raw in done.stderr for raw in RAW)


@pytest.mark.slow
def test_damaged_report_with_any_file_name_is_named_on_one_line(file: bytes) -> None:
    os.truncate(file, 500)
    done = command("report", file)
    assert done.returncode == 7
    assert not any(raw in done.stderr for raw in RAW)
    assert b"is cut off" in done.stderr
    os.rename(file, file + b"_rank1.db")  # noqa: PTH104 (bytes)
    for form in ("text", "html"):
        done = command("report", os.path.dirname(file), "--format", form)  # noqa: PTH120
        assert done.returncode == 7
        assert not any(raw in done.stdout + done.stderr for raw in RAW)
