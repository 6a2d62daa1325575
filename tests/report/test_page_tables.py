"""Tables of the page in a browser: the figures of the JSON, sorted, searched, copied and saved."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import SCRIPT, choose_report, click, names, written

pytestmark = [pytest.mark.slow, browser.needed]


@pytest.mark.parametrize("number", [0, 1])
def test_the_figures_are_those_of_the_json(
    window: Browser, page: Path, document: Any, number: int
) -> None:
    window.open(page)
    choose_report(window, number)
    expected = document[number]
    headline = window.run(
        "return Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
        ".map((one) => [one.dataset.figure, one.title]))"
    )
    for key, value in expected["totals"].items():
        if key in headline:
            assert headline[key].split()[0] == str(value), key
        else:
            assert value is None or not key.startswith(("total", "forward", "peak")), key
    for device in expected["devices"][:1]:
        of = device["steps"] or device
        assert headline["idle_ns"] == f"{of['idle_ns']} ns"
    for by, breakdown in expected["breakdowns"].items():
        click(window, f"#table button[data-value={by}]")
        if len(breakdown["rows"]) > 100:
            window.run(
                "[...document.querySelectorAll('#table button')]"
                ".find((one) => one.textContent.startsWith('Show all')).click()"
            )
        shown = window.run(
            "const keys = [...document.querySelectorAll('#table th')].map((h) => h.dataset.key);"
            "return [...document.querySelectorAll('#table tbody tr')].map((row) =>"
            " Object.fromEntries([...row.cells].map((cell, i) =>"
            " [keys[i], keys[i] === 'name' ? cell.dataset.value : cell.title])))"
        )
        assert len(shown) == len(breakdown["rows"])
        for cells, row in zip(shown, breakdown["rows"], strict=True):
            assert cells["name"] == row["name"]
            for key, text in cells.items():
                if key in ("name", "detail"):
                    continue
                if row[key] is None:
                    assert text == "not measured"
                else:
                    assert float(text.split()[0]) == pytest.approx(row[key])


def test_columns_sort_and_what_was_not_measured_stands_last(window: Browser, page: Path) -> None:
    window.open(page)
    click(window, "th[data-key=backward_ns] button")
    assert names(window)[0] == "linear"
    header = "return document.querySelector('th[data-key=backward_ns]').ariaSort"
    assert window.run(header) == "descending"
    click(window, "th[data-key=backward_ns] button")
    assert window.run(header) == "ascending"
    assert names(window)[0] == "linear", "the only one that was measured stays first"
    click(window, "th[data-key=name] button")
    found = names(window)
    assert found == sorted(found, key=lambda name: (name.lower(), name)) or found[0] == SCRIPT


def test_searching_narrows_the_table(window: Browser, page: Path) -> None:
    window.open(page)
    window.run("document.querySelector('#search').focus()")
    window.press(*"OP_14")
    assert names(window) == [
        f"op_{n}" for n in (149, 148, 147, 146, 145, 144, 143, 142, 141, 140, 14)
    ]
    assert window.run("return document.querySelector('#matches').textContent").startswith("11 of ")
    assert window.run("return document.querySelector('mark').textContent") == "op_14"
    window.press(*"zzz")
    assert names(window) == ["No matches."]


def test_a_symbol_is_shown_short_and_found_whole(window: Browser, tmp_path: Path) -> None:
    symbol = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
    )
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 150, kernel=(symbol, symbol))
        device.task(200, 300, kernel=("other", "other"))
    window.open(written(tmp_path / "msprof_1.db"))
    click(window, "#table button[data-value=kernel]")
    cell = "const c = document.querySelector('#table tbody td'); return [c.textContent, c.title]"
    short = "vectorized_elementwise_kernel<...FillFunctor>"
    assert window.run(cell) == [short, symbol]
    window.run("document.querySelector('#search').focus()")
    window.press(*"fillf")
    assert window.run(cell) == [short, symbol]
    window.press(*"unctor<float")
    assert window.run(cell) == [symbol, ""]


def test_figures_are_worded_like_those_of_the_terminal(window: Browser, page: Path) -> None:
    window.open(page)
    shown = window.run(
        "return [...document.querySelectorAll('#table tbody tr')]"
        ".find((row) => row.cells[0].textContent.startsWith('linear')).innerText.split('\\t')"
    )
    assert shown[1:7] == ["1", "4.50 ms", "3.8 %", "4.50 ms", "1.50 ms", "3.00 ms"]


def test_tables_are_copied_and_saved_whole(window: Browser, page: Path, document: Any) -> None:
    window.open(page)
    window.run(
        "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#'; };"
        "document.querySelector('#table [aria-label^=Save]').click();"
    )
    text = window.run("return saved[0].text()")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = document[0]["breakdowns"]["operation"]["rows"]
    assert len(rows) == len(expected) > 100, "those that are not drawn too"
    for row, one in zip(rows, expected, strict=True):
        assert row["name"] == one["name"]
        for key in ("count", "total_ns", "backward_ns"):
            assert row[key] == ("" if one[key] is None else str(one[key]))
    window.run(
        "Object.defineProperty(navigator, 'clipboard', {configurable: true, value:"
        " {writeText: (text) => { window.copied = text; return Promise.resolve(); }}});"
        "document.querySelector('#table [aria-label^=Copy]').click();"
    )
    copied = str(window.run("return window.copied"))
    assert copied.splitlines()[0].startswith("name\tcount\ttotal_ns")
    assert len(copied.splitlines()) == len(expected) + 1


def test_counters_have_units_and_none_that_was_never_counted(
    window: Browser, tmp_path: Path
) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("mm", "MatMul"))
        device.task(200, 300, kernel=("add", "Add"))
        for task, counter, value in (
            (0, "aic_mac_ratio", 0.5),
            (0, "aic_total_cycles", 900),
            (0, "aic_never", 0),
            (1, "aic_never", 0),
        ):
            device.writer.write(
                "TASK_PMU_INFO",
                {"globalTaskId": task, "name": device.text(counter), "value": [value]},
            )
        for kind, hbm in (("device", 0), ("app", 5)):
            row: dict[str, Any] = {"type": device.text(kind), "hbm": [hbm, hbm], "deviceId": 0}
            device.writer.write("NPU_MEM", row | {"timestampNs": device.T0 + np.array([0, 100])})
    window.open(written(tmp_path / "msprof_1.db"))
    heads = window.run(
        "return [...document.querySelectorAll('#counters th')].map((one) => one.textContent)"
    )
    assert heads == [
        "operator type", "tasks", "aic_mac_ratio (share of 1)", "aic_total_cycles (cycles)",
    ]  # fmt: skip
    assert "1 of 3 counters are always 0 and left out" in window.run(
        "return document.querySelector('#counters').textContent"
    )
    legend = window.run("return document.querySelector('#memory .legend').textContent")
    assert "app" in legend
    assert "device" not in legend
    assert window.console() == []
