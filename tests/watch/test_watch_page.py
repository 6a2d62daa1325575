"""The page of a watched run in a browser, while the run goes on and afterwards."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.builders import training_step
from tests.report import axe, browser
from tests.report.browser import Browser
from tests.report.on_page import embedded_data
from tests.watch.runs import CAPTURED, MS, eventful, step, write_run
from unified_prof.base.loopback import Served
from unified_prof.cli import report
from unified_prof.cli.app import app
from unified_prof.errors import UprofError
from unified_prof.sqlite.watch_file import WatchEvent

SCRIPT = "<img src=x onerror=document.title='hacked'>"


@pytest.fixture
def window() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def text_of(window: Browser, selector: str) -> str:
    """Return the text of the first element."""
    return str(window.run(f"return document.querySelector('{selector}').textContent"))


def until(window: Browser, selector: str, wanted: str) -> None:
    """Wait until an element has a text."""
    end_s = time.monotonic() + 60
    while wanted not in text_of(window, selector):
        assert time.monotonic() < end_s, text_of(window, selector)
        time.sleep(0.1)


def test_lines_have_the_extremes_of_all_steps(tmp_path: Path) -> None:
    write_run(tmp_path, 3_000, eventful, events=CAPTURED)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(page)]).exit_code == 0
    data = embedded_data(page.read_text())
    lines = {(line["chart"], line["name"]): line for line in data["lines"]}
    assert {chart for chart, _ in lines} == {"steps", "parts", "memory"}
    length = lines["steps", "rank 0"]
    assert (length["max"], max(length["value"]), length["samples"]) == (70 * MS, 70 * MS, 3_000)
    place = length["value"].index(70 * MS)
    assert length["time_ns"][place] == 500 * 10 * MS
    assert length["time_ns"] == sorted(length["time_ns"])
    assert all(300 <= len(line["value"]) <= 600 for line in lines.values())
    assert data["live"] is False


def test_only_captures_of_events_are_served(tmp_path: Path) -> None:
    events = (
        WatchEvent(0, 1, 5, "slow_step", "slow", "captures/good", "ready", "x"),
        WatchEvent(1, 1, 6, "slow_step", "slow", "captures/broken", "ready", "x"),
        WatchEvent(2, 1, 7, "slow_step", "slow", "captures/failed", "failed", "x"),
    )
    write_run(tmp_path, events=events)
    for name in ("good", "failed", "other"):
        (tmp_path / "captures" / name).mkdir(parents=True)
        training_step(tmp_path / "captures" / name / "timeline.db")
    with Served(report._watched(tmp_path)) as served:
        for name, code in {
            "": 200, "captures/good": 200, "captures/broken": 404,
            "captures/failed": 404, "captures/other": 404, "../x": 404, "watch_rank0.db": 404,
        }.items():  # fmt: skip
            try:
                with urllib.request.urlopen(served.url_of(name), timeout=30) as answer:
                    found = answer.status
            except urllib.error.HTTPError as error:
                found = error.code
            assert (name, found) == (name, code)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_without_readable_files_is_refused(tmp_path: Path, *, is_empty: bool) -> None:
    if not is_empty:
        (tmp_path / "watch_rank0.db").write_bytes(b"SQLite format 3\0")
    done = CliRunner().invoke(app, ["view", str(tmp_path)])
    assert isinstance(done.exception, UprofError)


@pytest.mark.slow
@browser.needed
def test_the_page_follows_a_run_and_shows_its_captures(tmp_path: Path, window: Browser) -> None:
    event = WatchEvent(0, 1, 9, "slow_step", SCRIPT, "captures/slow", "ready", "load ahead")
    file = write_run(tmp_path, 60, events=(event,), is_over=False)
    write_run(tmp_path, 60, lambda _: {"length_ns": 12 * MS}, rank=1)
    (tmp_path / "captures/slow").mkdir(parents=True)
    training_step(tmp_path / "captures/slow/timeline.db")
    with Served(report._watched(tmp_path)) as served:
        window.go(served.url)
        assert "rank 1 is slowest (1.09 of the median rank)" in text_of(window, "#headline")
        assert "refreshed while the run goes on" in text_of(window, "#state")
        assert window.run("return document.querySelectorAll('#steps path').length") == 2
        for section in ("mean-step", "parts", "memory", "ranks", "events"):
            assert window.run(f"return document.querySelector('#{section}') !== null"), section
        assert SCRIPT in text_of(window, "#events")
        window.run("document.querySelector('#steps .legend button').click()")
        file.append([step(number, length_ns=20 * MS) for number in range(60, 600)])
        until(window, "#headline", "rank 0 is slowest")
        assert "20.0 ms" in text_of(window, "[data-figure=median_ns]")
        pressed = "return document.querySelector('#steps .legend button').ariaPressed"
        assert window.run(pressed) == "false"  # as the user left it
        file.close({"exit_code": "0", "ended_ns": "2"})
        until(window, "#state", "the run has ended")
        assert window.run("return document.documentElement.scrollWidth") <= 1280
        assert window.run("return document.title") != "hacked"
        address = window.run("return document.querySelector('#events a').href")
        assert address == served.url_of("captures/slow")
        window.go(address)
        assert window.run("return document.querySelector('#timeline') !== null")
    assert window.console() == []


@pytest.mark.slow
@browser.needed
@pytest.mark.skipif(axe.missing() is not None, reason=axe.missing() or "")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_report_is_accessible(tmp_path: Path, window: Browser, width: int) -> None:
    for rank in range(3):
        write_run(tmp_path, 300, eventful, rank=rank, events=CAPTURED, device="cuda")
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(page)]).exit_code == 0
    window.open(page, width=width)
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert [one for one in axe.violations(window) if one.startswith(axe.SERIOUS)] == []
    assert re.search(r"by the clock of the device", text_of(window, "#mean-step"))
    assert window.run("return document.querySelectorAll('#events a').length") == 0
    window.screenshot(tmp_path / "page.png")
    assert window.console() == []
