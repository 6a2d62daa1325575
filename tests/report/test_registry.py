"""What holds for every format of `uprof report`, and for the file that it is written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.builders import run_time_report
from tests.cli.test_report import refused, uprof
from unified_prof.report import formats


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return run_time_report(tmp_path / "r.sqlite")


@pytest.mark.parametrize("name", ["text", "json", "csv", "markdown", "html", "parquet", "arrow"])
def test_each_format_has_its_name_its_endings_and_something_to_say(report: Path, name: str) -> None:
    one = formats.find_format(name)
    for suffix in one.suffixes:
        output = report.with_name(f"o{suffix.upper()}")
        done = uprof("report", report, "-o", output)
        assert done.returncode == 0
        assert f": {name}, " in done.stderr
        assert b"linear" in output.read_bytes()
    assert name in uprof("report", "--help").stdout


def test_every_format_is_listed_above() -> None:
    assert formats.FORMAT_NAMES == ("text", "json", "csv", "markdown", "html", "parquet", "arrow")


@pytest.mark.parametrize("ending", ["pdf", "xlsx", "db", "sqlite", "jsn"])
def test_an_ending_that_is_no_format_is_refused(report: Path, ending: str) -> None:
    output = report.with_name(f"o.{ending}")
    refused(
        uprof("report", report, "-o", output),
        2,
        f"unknown extension .{ending}",
        ".html",
        "--format",
    )
    assert not output.exists()


def test_a_format_and_an_ending_that_contradict_are_refused(report: Path) -> None:
    page = report.with_name("o.html")
    refused(uprof("report", report, "-o", page, "--format", "csv"), 2, "o.html", "html", "csv")
    refused(uprof("report", report, "-o", page, "--json"), 2, "o.html")
    assert not page.exists()


@pytest.mark.parametrize("name", ["o.txt", "o.log", "o", "o.pdf"])
def test_what_the_user_says_of_a_file_without_a_format_of_its_own_is_done(
    report: Path, name: str
) -> None:
    output = report.with_name(name)
    assert uprof("report", report, "-o", output, "--format", "markdown").returncode == 0
    assert output.read_text(encoding="utf-8").startswith("## ")


def test_a_file_without_an_ending_is_text(report: Path) -> None:
    output = report.with_name("o")
    assert uprof("report", report, "-o", output).returncode == 0
    assert "6.25 ms in 3 calls" in output.read_text(encoding="utf-8")


def test_a_setting_gives_way_to_what_is_typed(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPROF_REPORT_FORMAT", "csv")
    assert uprof("report", report).stdout.startswith("report,by")
    assert uprof("report", report, "-o", report.with_name("o.html")).returncode == 0
    assert report.with_name("o.html").read_text(encoding="utf-8").startswith("<!doctype")
    assert uprof("report", report, "--json").stdout.startswith("{")
    monkeypatch.setenv("UPROF_REPORT_JSON", "1")
    assert uprof("report", report, "--format", "markdown").stdout.startswith("## ")
    assert uprof("report", report, "-o", report.with_name("o.md")).returncode == 0
    assert report.with_name("o.md").read_text(encoding="utf-8").startswith("## ")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "unified_prof", *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", formats.FORMAT_NAMES)
def test_a_full_disk_behind_stdout_is_told_and_has_its_exit_code(report: Path, form: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("report", report, "--format", form),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        9,
        "uprof: error: stdout cannot be written: No space left on device [uprof:stdout]\n",
    )


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(report: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command("report", report),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_stderr_never_decides(report: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("report", report, "-o", report.with_name("o.json")),
            stderr=full,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
    assert report.with_name("o.json").exists()
