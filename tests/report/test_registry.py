"""Formats of `uprof report` and the files that they are written to."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.analysis.builders import run_time_report
from tests.cli.test_report import refused, uprof
from unified_prof.report import formats


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return run_time_report(tmp_path / "r.sqlite")


@pytest.mark.parametrize("name", formats.FORMAT_NAMES)
def test_format_has_name_extensions_and_output(report: Path, name: str) -> None:
    one = formats.find_format(name)
    for suffix in one.suffixes:
        output = report.with_name(f"o{suffix.upper()}")
        done = uprof("report", report, "-o", output)
        assert done.returncode == 0
        assert f": {name}, " in done.stderr
        assert b"linear" in output.read_bytes()
    assert name in uprof("report", "--help").stdout


@pytest.mark.parametrize("ending", ["pdf", "xlsx", "db", "sqlite", "jsn"])
def test_unknown_extension_is_refused(report: Path, ending: str) -> None:
    output = report.with_name(f"o.{ending}")
    done = uprof("report", report, "-o", output)
    refused(done, 2, f"unknown extension .{ending}", ".html", "--format")
    assert not output.exists()


def test_format_that_contradicts_the_extension_is_refused(report: Path) -> None:
    page = report.with_name("o.html")
    refused(uprof("report", report, "-o", page, "--format", "csv"), 2, "o.html", "html", "csv")
    refused(uprof("report", report, "-o", page, "--json"), 2, "o.html")
    assert not page.exists()


@pytest.mark.parametrize("name", ["o.txt", "o.log", "o", "o.pdf"])
def test_format_option_applies_to_files_without_a_known_extension(report: Path, name: str) -> None:
    output = report.with_name(name)
    assert uprof("report", report, "-o", output, "--format", "markdown").returncode == 0
    assert output.read_text(encoding="utf-8").startswith("## ")


def test_file_without_extension_is_text(report: Path) -> None:
    output = report.with_name("o")
    assert uprof("report", report, "-o", output).returncode == 0
    assert "6.25 ms in 3 calls" in output.read_text(encoding="utf-8")


def test_command_line_precedes_the_variables(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPROF_REPORT_FORMAT", "csv")
    assert uprof("report", report).stdout.startswith("report,by")
    assert uprof("report", report, "-o", report.with_name("o.html")).returncode == 0
    assert report.with_name("o.html").read_text(encoding="utf-8").startswith("<!doctype")
    assert uprof("report", report, "--json").stdout.startswith("{")
    monkeypatch.setenv("UPROF_REPORT_JSON", "1")
    assert uprof("report", report, "--format", "markdown").stdout.startswith("## ")
    assert uprof("report", report, "-o", report.with_name("o.md")).returncode == 0
    assert report.with_name("o.md").read_text(encoding="utf-8").startswith("## ")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", formats.FORMAT_NAMES)
def test_full_disk_behind_stdout_exits_with_code_9(report: Path, form: str) -> None:
    with Path("/dev/full").open("w") as full:
        streams: dict[str, Any] = {"stdout": full, "stderr": subprocess.PIPE}
        done = processes.uprof("report", report, "--format", form, capture_output=False, **streams)
    message = "stdout cannot be written: No space left on device [uprof:stdout]"
    assert (done.returncode, done.stderr) == (9, f"uprof: error: {message}\n")


@pytest.mark.slow
def test_closed_pipe_is_no_error(report: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        streams: dict[str, Any] = {"stdout": write, "stderr": subprocess.PIPE}
        done = processes.uprof("report", report, capture_output=False, **streams)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_unwritable_stderr_does_not_fail_the_command(report: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = ("report", report, "-o", report.with_name("o.json"))
        done = processes.uprof(*words, capture_output=False, stderr=full)
    assert done.returncode == 0
    assert report.with_name("o.json").exists()
