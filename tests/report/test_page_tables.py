"""Tables of the page in a browser: sorting, search, copying and saving."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device, run_time_report
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import SCRIPT, click, table_names, write_page

pytestmark = [pytest.mark.slow, browser.needed]


def test_columns_are_sorted_with_unmeasured_values_last(window: Browser, page: Path) -> None:
    window.open(page)
    click(window, "th[data-key=backward_ns] button")
    assert table_names(window)[0] == "linear"
    header = "return document.querySelector('th[data-key=backward_ns]').ariaSort"
    assert window.run(header) == "descending"
    click(window, "th[data-key=backward_ns] button")
    assert window.run(header) == "ascending"
    assert table_names(window)[0] == "linear", "the only measured value stays first"
    click(window, "th[data-key=name] button")
    found = table_names(window)
    assert found == sorted(found, key=lambda name: (name.lower(), name)) or found[0] == SCRIPT


def test_search_narrows_the_table(window: Browser, page: Path) -> None:
    window.open(page)
    window.run("document.querySelector('#search').focus()")
    window.press(*"OP_14")
    assert table_names(window) == [
        f"op_{n}" for n in (149, 148, 147, 146, 145, 144, 143, 142, 141, 140, 14)
    ]
    assert window.run("return document.querySelector('#matches').textContent").startswith("11 of ")
    assert window.run("return document.querySelector('mark').textContent") == "op_14"
    window.press(*"zzz")
    assert table_names(window) == ["No matches."]


def test_symbol_is_shown_short_and_found_by_its_full_name(window: Browser, tmp_path: Path) -> None:
    symbol = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
    )
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 150, kernel=(symbol, symbol))
        device.task(200, 300, kernel=("other", "other"))
    window.open(write_page(tmp_path / "msprof_1.db"))
    click(window, "#table button[data-value=kernel]")
    cell = "const c = document.querySelector('#table tbody td'); return [c.textContent, c.title]"
    short = "vectorized_elementwise_kernel<...FillFunctor>"
    assert window.run(cell) == [short, symbol]
    window.run("document.querySelector('#search').focus()")
    window.press(*"fillf")
    assert window.run(cell) == [short, symbol]
    window.press(*"unctor<float")
    assert window.run(cell) == [symbol, ""]


def test_names_and_lines_take_one_line_if_possible(window: Browser, tmp_path: Path) -> None:
    operation = ("torch::autograd::AccumulateGrad", 1.5, 3.0, [("resnet50_profiler.py", 46)])
    window.open(write_page(run_time_report(tmp_path / "run_time.sqlite", [operation])))
    height, left = window.run(
        "const s = document.querySelector('#table .scroll'); return "
        "[s.querySelector('tbody tr').offsetHeight, s.scrollWidth - s.clientWidth]"
    )
    assert (height < 40, left) == (True, 0)


COLUMNS = (
    "return [[...document.querySelectorAll('#table th')].filter((one) => !one.hidden)"
    ".map((one) => one.dataset.key), document.querySelector('#table .scroll').scrollWidth"
    " - document.querySelector('#table .scroll').clientWidth]"
)


def test_least_important_columns_are_dropped_if_narrow(window: Browser, tmp_path: Path) -> None:
    page = write_page(run_time_report(tmp_path / "run_time.sqlite"))
    window.open(page)
    whole, over = window.run(COLUMNS)
    assert over == 0
    assert whole[-1] == "detail"
    window.open(page, width=640)
    narrow, over = window.run(COLUMNS)
    assert over == 0
    # The average, then the backward time, which one of two rows has, then the line.
    assert narrow == ["name", "count", "total_ns", "percent", "forward_ns"]
    click(window, "#table .tools button:nth-child(2)")
    assert window.run(COLUMNS)[0] == whole
    click(window, "#table .tools button:nth-child(2)")
    assert window.run(COLUMNS) == [narrow, 0]


def test_figures_are_formatted_like_those_of_the_terminal(window: Browser, page: Path) -> None:
    window.open(page, width=1920)
    shown = window.run(
        "return [...document.querySelectorAll('#table tbody tr')]"
        ".find((row) => row.cells[0].textContent.startsWith('linear')).innerText.split('\\t')"
    )
    assert shown[1:7] == ["1", "4.50 ms", "3.8 %", "4.50 ms", "1.50 ms", "3.00 ms"]


def test_tables_are_copied_and_saved_in_full(window: Browser, page: Path, document: Any) -> None:
    window.open(page)
    window.run(
        "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#'; };"
        "document.querySelector('#table [aria-label^=Save]').click();"
    )
    text = window.run("return saved[0].text()")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = document[0]["breakdowns"]["operation"]["rows"]
    assert len(rows) == len(expected) > 100, "including rows that are not drawn"
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


def test_counters_have_units_and_no_constant_zeros(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("mm", "MatMul"))
        device.task(200, 300, kernel=("add", "Add"))
        for task, counter, value in (
            (0, "aic_mac_ratio", 0.5),
            (0, "aic_total_cycles", 900),
            (0, "aic_total_time", 1500),
            (1, "aic_mac_ratio", 0.25),
            (1, "aic_total_time", 2500),
            (0, "aic_never", 0),
            (1, "aic_never", 0),
        ):
            device.row("TASK_PMU_INFO", globalTaskId=task, name=device.text(counter), value=value)
        for kind, hbm in (("device", 0), ("app", 5)):
            row: dict[str, Any] = {"type": device.text(kind), "hbm": [hbm, hbm], "deviceId": 0}
            device.writer.write("NPU_MEM", row | {"timestampNs": device.T0 + np.array([0, 100])})
    window.open(write_page(tmp_path / "msprof_1.db"))
    heads = window.run(
        "return [...document.querySelectorAll('#counters th')].map((one) => one.textContent)"
    )
    assert heads == [
        "operator type", "tasks", "aic_mac_ratio", "aic_total_time", "aic_total_cycles (cycles)",
    ]  # fmt: skip
    assert window.run(
        "return [...document.querySelectorAll('#counters tbody tr')].map((one) => one.innerText)"
    ) == ["Add\t1\t25.0 %\t2.50 µs\t-", "MatMul\t1\t50.0 %\t1.50 µs\t900"]
    assert "1 of 4 counters are always 0 and left out" in window.run(
        "return document.querySelector('#counters').textContent"
    )
    legend = window.run("return document.querySelector('#memory .legend').textContent")
    assert "app" in legend
    assert "device" not in legend
    assert window.console() == []
