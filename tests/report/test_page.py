"""The page in a browser: layout, escaping, provenance and address."""

import json
import time
from pathlib import Path

import pytest

from tests.analysis.builders import Device, run_time_report
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import SCRIPT, VIEWS, click, select_report, table_names, write_page

pytestmark = [pytest.mark.slow, browser.needed]

WIDTHS = {"phone": 390, "laptop": 1280, "wide": 1920}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_page_fits_every_width(window: Browser, page: Path, width: int, dark: bool) -> None:
    window.open(page, width=width, dark=dark)
    for number in (0, 1):
        select_report(window, number)
        assert window.run("return document.documentElement.scrollWidth") <= width
        assert window.run("return document.querySelectorAll('section.card').length") >= 4
    assert window.run("return document.documentElement.dataset.theme") == (
        "dark" if dark else "light"
    )
    assert window.console() == []
    picture = window.screenshot(page.with_name(f"page_{width}_{dark}.png"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_operation_named_like_a_script_is_not_executed(window: Browser, page: Path) -> None:
    window.open(page)
    assert SCRIPT in table_names(window)
    assert window.run("return document.title") != "hacked"
    assert window.run("return document.scripts.length") == 2


def test_page_lists_its_contents_and_redacts_secrets(window: Browser, tmp_path: Path) -> None:
    command = json.dumps(["uprof", "run", "train.py", "--token", "hunter2hunter2", "--lr", "0.1"])
    path = run_time_report(
        tmp_path / "run_time.sqlite",
        facts={"command": command, "host": "gpu7", "HF_TOKEN": "hunter2hunter2"},
    )
    page = write_page(path)
    assert "hunter2" not in page.read_text(encoding="utf-8")
    window.open(page)
    contents = window.run("return document.querySelector('#contents').textContent")
    assert contents == (
        "This page contains the figures above; the names of operations and source "
        "files; the command line and the host name, with secrets masked; "
        "no source code."
    )
    shown = window.run("return document.querySelector('dl.provenance').textContent")
    assert '"--token", "***", "--lr", "0.1"' in shown


def test_idle_figure_names_its_basis(window: Browser, page: Path, folder: Path) -> None:
    window.open(page)
    select_report(window, 1)
    labels = "return [...document.querySelectorAll('.figure .what')].map((one) => one.textContent)"
    assert "Idle in steps" in window.run(labels)
    assert window.run("return document.title").endswith(" - uprof")
    with Device(folder.parent / "msprof_words.db") as device:
        device.task(0, 100, kernel=("one", "one"))
        device.task(300, 400, kernel=("two", "two"))
    window.open(write_page(folder.parent / "msprof_words.db"))
    assert "Idle in window" in window.run(labels)


def test_address_keeps_breakdown_order_search_and_view(window: Browser, page: Path) -> None:
    window.open(page)
    click(window, "#table button[data-value=line]")
    click(window, "th[data-key=name] button")
    window.run("document.querySelector('#search').focus()")
    window.press(*"py:1")
    before = table_names(window)
    address = window.run("return location.hash")
    assert address == "#by=line&sort=name&order=up&q=py%3A1"
    window.open(page)
    window.run("location.hash = arguments[0]", address)
    time.sleep(0.2)
    assert table_names(window) == before
    assert window.run("return document.querySelector('#search').value") == "py:1"
    pressed = "return document.querySelector('#table [aria-pressed=true]').dataset.value"
    assert window.run(pressed) == "line"
    select_report(window, 1)
    assert window.run("return location.hash") == "#report=1", "reset for the other report"
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("+")
    time.sleep(0.4)
    assert window.run("return location.hash") == "#report=1&from=1250&to=3750"
    window.open(page)
    window.run("location.hash = '#report=1&from=1250&to=3750'")
    time.sleep(0.2)
    assert window.run(VIEWS)[0] == [1250, 3750]
    click(window, "nav a[href='#timeline']")
    assert window.run("return location.hash").endswith("&at=timeline")
    assert window.console() == []
