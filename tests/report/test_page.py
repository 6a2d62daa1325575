"""The page in a real browser: it does what it says, and its figures are those of the JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from tests.report import browser as chromium
from tests.report.browser import Browser
from unified_prof.analysis.load import open_analyses, open_reports
from unified_prof.analysis.views.idle import IN_WORDS, REASONS
from unified_prof.report import html, words
from unified_prof.report.figures import as_document, collect
from unified_prof.report.formats import Request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.missing() is not None, reason=chromium.missing() or ""),
]

WIDTHS = {"phone": 390, "laptop": 1280, "wide": 1920}
SCRIPT = "<script>document.title = 'hacked'</script>"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's two Skyline reports and an msprof database."""
    folder = tmp_path_factory.mktemp("page")
    frames = [("model.py", 12), ("train.py", 3)]
    run_time_report(
        folder / "run_time.sqlite",
        [
            ("linear", 1.5, 3.0, frames),
            (SCRIPT, 2.25, None, frames),
            *((f"op_{n}", 0.01 * n, None, [("model.py", 20 + n)]) for n in range(150)),
        ],
        modules=[("encoder.layers.0", "Linear"), ("encoder", "Encoder"), *[None] * 150],
        anomalies=[("unmatched_iterations", 2, "number 3")],
    )
    memory_report(folder / "memory.sqlite")
    training_step(folder / "msprof_20260101000000.db")
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    with open_reports(folder) as opened:
        (folder / "page.html").write_text(html.produce(opened, Request()), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture(scope="module")
def document(folder: Path) -> Any:
    with open_analyses(folder) as analyses:
        found = as_document([collect(analysis) for analysis in analyses])
    return json.loads(json.dumps(found))["reports"]


def choose_report(window: Browser, number: int) -> None:
    window.run(
        "const s = document.querySelector('.bar select'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))",
        str(number),
    )
    drawn = "return !document.querySelector('canvas:not([data-from])')"
    while not window.run(drawn):
        time.sleep(0.02)


def names(window: Browser) -> list[str]:
    return [
        str(text)
        for text in window.run(
            "return [...document.querySelectorAll('#table tbody tr')]"
            ".map((row) => row.cells[0].dataset.value ?? row.textContent)"
        )
    ]


def click(window: Browser, selector: str) -> None:
    window.run("document.querySelector(arguments[0]).click()", selector)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_it_loads_without_complaint_and_fits_the_window(
    window: Browser, page: Path, width: int, dark: bool
) -> None:
    window.open(page, width=width, dark=dark)
    for number in (0, 1):
        choose_report(window, number)
        assert window.run("return document.documentElement.scrollWidth") <= width
        assert window.run("return document.querySelectorAll('section.card').length") >= 4
    assert window.run("return document.documentElement.dataset.theme") == (
        "dark" if dark else "light"
    )
    assert window.console() == []
    picture = window.screenshot(page.with_name(f"page_{width}_{dark}.png"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_an_operation_called_script_is_only_shown(window: Browser, page: Path) -> None:
    window.open(page)
    assert SCRIPT in names(window)
    assert window.run("return document.title") != "hacked"
    assert window.run("return document.scripts.length") == 2


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
    assert names(window) == ["Nothing matches."]


def test_the_timeline_zooms_moves_and_tells_by_keyboard(window: Browser, page: Path) -> None:
    window.open(page)
    choose_report(window, 1)
    view = (
        "const c = document.querySelector('#timeline canvas');"
        "return [Number(c.dataset.from), Number(c.dataset.to)]"
    )
    assert window.run(view) == [0, 5000]
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("+")
    assert window.run(view) == [1250, 3750]
    window.press("\ue014")  # right
    assert window.run(view) == [1750, 4250]
    window.press("-")
    assert window.run(view) == [0, 5000]
    click(window, "#timeline button[aria-label='Zoom in']")
    window.press("0")
    assert window.run(view) == [0, 5000]
    window.press(*"\ue015" * 9, "\ue012", "\ue012", "\ue012", "n")
    chosen = window.run("return document.querySelector('#chosen').textContent")
    assert "stream 2" in chosen
    assert " ns, from " in chosen


def many_tasks(path: Path, count: int) -> Path:
    """Write a recording of so many tasks, with memory that peaks in its middle."""
    with Device(path) as device:
        ids = np.arange(count)
        start = device.T0 + 50_000 + ids * 1000
        names = np.array([device.text(f"kernel_{number}") for number in range(50)])
        row: dict[str, Any] = {"startNs": start, "endNs": start + 400, "globalTaskId": ids}
        row |= {"deviceId": 0, "taskType": device.text("KERNEL_AICORE"), "streamId": ids % 4}
        device.writer.write("TASK", row | {"connectionId": -1})
        row = {"globalTaskId": ids, "name": names[ids % 50], "opType": names[ids % 7]}
        device.writer.write("COMPUTE_TASK_INFO", row)
        at = device.T0 + np.array([0, 60_000, 90_000, 120_000])
        row = {"type": device.text("device"), "hbm": [1, 5, 90, 5], "deviceId": 0}
        device.writer.write("NPU_MEM", row | {"timestampNs": at})
    return path


def written(path: Path) -> Path:
    with open_reports(path) as opened:
        page = path.with_suffix(".html")
        page.write_text(html.produce(opened, Request()), encoding="utf-8")
    return page


VIEWS = """
    return [...document.querySelectorAll('canvas, svg.chart')]
        .map((one) => [Number(one.dataset.from), Number(one.dataset.to)])
"""


def test_charts_and_timeline_have_one_zero_and_one_zoom(window: Browser, tmp_path: Path) -> None:
    window.open(written(many_tasks(tmp_path / "msprof_1.db", 100)))
    whole = 50_000 + 99_400  # memory is known 50 µs before the first task
    assert window.run(VIEWS) == [[0, whole], [0, whole]]
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("\ue015")
    assert "from 75.0 µs" in window.run("return document.querySelector('#chosen').textContent")
    window.press("+")
    assert window.run(VIEWS) == [[whole / 4, whole * 3 / 4]] * 2
    peak = window.run(
        """
        const picture = document.querySelector('svg.chart');
        const points = picture.querySelector('path').getAttribute('d').match(/[-\\d.]+ [-\\d.]+/g)
            .map((one) => one.split(' ').map(Number));
        const highest = points.reduce((a, b) => (b[1] < a[1] ? b : a));
        const [from, to] = [Number(picture.dataset.from), Number(picture.dataset.to)];
        return from + (to - from) * (highest[0] - 74) / (picture.clientWidth - 86);
        """
    )
    assert peak == pytest.approx(90_000, rel=0.01), "where it is, in the timeline's own time"


def test_of_too_many_tasks_the_busiest_part_and_the_way_to_all_are_offered(
    window: Browser, tmp_path: Path
) -> None:
    path = many_tasks(tmp_path / "msprof_1.db", 300_000)
    window.open(written(path))
    note = window.run("return document.querySelector('#merged').textContent")
    assert "300,000 tasks are too many to draw one by one" in note
    assert f"uprof trace {path} -o out.perfetto-trace" in note
    click(window, "#merged button")
    window.run("document.querySelector('#timeline canvas').focus()")
    for _ in range(12):
        window.press("+")
    window.press("\ue015", "n", "n")
    chosen = window.run("return document.querySelector('#chosen').textContent")
    assert chosen.startswith("kernel_"), "one task, not a block of several"
    assert ": 400 ns, from " in chosen
    assert window.console() == []


def test_the_page_says_what_it_holds_and_holds_no_secret(window: Browser, tmp_path: Path) -> None:
    command = json.dumps(["uprof", "run", "train.py", "--token", "hunter2hunter2", "--lr", "0.1"])
    path = run_time_report(
        tmp_path / "run_time.sqlite",
        facts={"command": command, "host": "gpu7", "HF_TOKEN": "hunter2hunter2"},
    )
    page = written(path)
    assert "hunter2" not in page.read_text(encoding="utf-8")
    window.open(page)
    said = window.run("return document.querySelector('#contents').textContent")
    assert said == (
        "Whoever has this page can read: the figures above; the names of operations and source "
        "files; the command line and the name of the host, with what looks like a secret masked; "
        "no source code."
    )
    shown = window.run("return document.querySelector('dl.provenance').textContent")
    assert '"--token", "***", "--lr", "0.1"' in shown


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


def test_the_icicle_divides_and_zooms_by_keyboard(window: Browser, page: Path) -> None:
    window.open(page)

    def labels() -> list[str]:
        return [
            str(one)
            for one in window.run(
                "return [...document.querySelectorAll('.node')].map((one) => one.ariaLabel)"
            )
        ]

    assert labels()[0].startswith("everything: ")
    encoder = next(one for one in labels() if one.startswith("encoder: "))
    assert encoder.startswith("encoder: 6.75 ms, ")
    window.run("document.querySelector('.node').focus()")
    window.press("\ue015")  # down: the largest part
    focused = window.run("return document.activeElement.ariaLabel")
    assert "(outside any module)" in focused
    window.press("\ue007")  # enter
    width = window.run("return document.activeElement.style.width")
    assert width == "100%"
    window.press("\ue00c")  # escape
    assert window.run("return document.activeElement.ariaLabel").startswith("everything")
    click(window, "#icicle button[data-value=size_bytes]")
    assert labels()[0] == "everything: 8.63 KiB, 100.0 %"
    click(window, "#icicle button[data-value=line]")
    assert any(one.startswith("model.py:30: ") for one in labels())


def test_everything_is_named_for_those_who_cannot_see_it(window: Browser, page: Path) -> None:
    window.open(page)
    for number in (0, 1):
        choose_report(window, number)
        nameless = window.run(
            "return [...document.querySelectorAll('button, input, select, canvas, [role=img],"
            " [role=region]')].filter((one) => !(one.ariaLabel || one.textContent.trim()"
            " || one.getAttribute('aria-labelledby'))).length"
        )
        assert nameless == 0
    assert window.run("return document.documentElement.lang") == "en"


def test_figures_are_worded_like_those_of_the_terminal(window: Browser, page: Path) -> None:
    window.open(page)
    shown = window.run(
        "return [...document.querySelectorAll('#table tbody tr')]"
        ".find((row) => row.cells[0].textContent.startsWith('linear')).innerText.split('\\t')"
    )
    assert shown[1:7] == ["1", "4.50 ms", "3.8 %", "4.50 ms", "1.50 ms", "3.00 ms"]


def test_a_hundred_thousand_tasks_stay_below_three_megabytes(
    window: Browser, tmp_path: Path
) -> None:
    count = 100_000
    rng = np.random.default_rng(1)
    with Device(tmp_path / "msprof_1.db") as device:
        start = device.T0 + np.cumsum(rng.integers(500, 30_000, count))
        ids = np.arange(count)
        kernels = [device.text(f"aclnn_kernel_number_{n}_of_many") for n in range(500)]
        types = [device.text(f"Type{n}") for n in range(60)]
        device.writer.write(
            "TASK",
            {
                "startNs": start,
                "endNs": start + rng.integers(500, 60_000, count),
                "deviceId": 0,
                "globalTaskId": ids,
                "taskType": device.text("KERNEL_AICORE"),
                "streamId": rng.integers(0, 6, count),
                "connectionId": -1,
            },
        )
        chosen = rng.integers(0, 500, count)
        device.writer.write(
            "COMPUTE_TASK_INFO",
            {
                "globalTaskId": ids,
                "name": np.array(kernels)[chosen],
                "opType": np.array(types)[chosen % 60],
            },
        )
    with open_reports(tmp_path / "msprof_1.db") as opened:
        text = html.produce(opened, Request())
    assert len(text.encode()) < 3_000_000
    large = tmp_path / "page.html"
    large.write_text(text, encoding="utf-8")
    window.open(large)
    assert "100,000 tasks are too many" not in window.run("return document.body.textContent")
    took = window.run(
        "const c = document.querySelector('#timeline canvas'); const t = performance.now();"
        "for (let i = 0; i < 5; i += 1) c.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));"
        "return performance.now() - t"
    )
    assert took < 2000, "five redraws"
    assert window.console() == []


def test_words_of_the_page(window: Browser, page: Path, folder: Path) -> None:
    window.open(page)
    choose_report(window, 1)
    labels = "return [...document.querySelectorAll('.figure .what')].map((one) => one.textContent)"
    assert "Idle in steps" in window.run(labels)
    assert window.run("return document.title").endswith(" - uprof")
    with Device(folder.parent / "msprof_words.db") as device:
        device.task(0, 100, kernel=("one", "one"))
        device.task(300, 400, kernel=("two", "two"))
    window.open(written(folder.parent / "msprof_words.db"))
    assert "Idle in window" in window.run(labels)


def test_an_address_keeps_what_is_shown(window: Browser, page: Path) -> None:
    window.open(page)
    click(window, "#table button[data-value=line]")
    click(window, "th[data-key=name] button")
    window.run("document.querySelector('#search').focus()")
    window.press(*"py:1")
    before = names(window)
    address = window.run("return location.hash")
    assert address == "#by=line&sort=name&order=up&q=py%3A1"
    window.open(page)
    window.run("location.hash = arguments[0]", address)
    time.sleep(0.2)
    assert names(window) == before
    assert window.run("return document.querySelector('#search').value") == "py:1"
    pressed = "return document.querySelector('#table [aria-pressed=true]').dataset.value"
    assert window.run(pressed) == "line"
    choose_report(window, 1)
    assert window.run("return location.hash") == "#report=1", "of the other report nothing holds"
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
    assert "1 of 3 counters, 0 throughout, left out" in window.run(
        "return document.querySelector('#counters').textContent"
    )
    legend = window.run("return document.querySelector('#memory .legend').textContent")
    assert "app" in legend
    assert "device" not in legend
    assert window.console() == []


def test_steps_are_marked_and_charted_with_the_reasons_for_idle(
    window: Browser, tmp_path: Path
) -> None:
    path = stepping(tmp_path / "msprof_1.db")
    with open_analyses(path) as analyses:
        (analysis,) = analyses
        (expected,) = json.loads(json.dumps(as_document([collect(analysis)])))["reports"]
    window.open(written(path))
    bars = window.run(
        "return [...document.querySelectorAll('#steps .step')].map((one) => one.ariaLabel)"
    )
    rows = expected["breakdowns"]["step"]["rows"]
    assert len(bars) == len(rows) == 3
    for bar, row in zip(bars, rows, strict=True):
        assert bar.startswith(f"step {row['name']}: {words.duration(row['total_ns'])}; compute ")
        assert "idle: " in bar
    (whole,) = (one for one in expected["why_idle"] if one["step"] is None)
    legend = window.run("return document.querySelector('#split .legend').textContent")
    for reason, text in IN_WORDS.items():
        told = f"idle: {text} {words.duration(whole[f'{reason}_ns'])}"
        assert (told in legend) == (whole[f"{reason}_ns"] > 0)
    window.run("document.querySelector('#steps .step').focus()")
    window.press("\ue014")
    said = window.run("return document.querySelector('#step-chosen').textContent")
    assert said == bars[1]
    window.press("\ue007")
    begin, end = window.run(VIEWS)[0]
    assert end - begin == rows[1]["total_ns"]
    assert window.console() == []


def test_a_task_is_searched_and_a_span_is_summed_up(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("gemm_one", "mm"))
        device.task(200, 300, kernel=("copy_it", "cp"))
        device.task(400, 1000, kernel=("gemm_two", "mm"))
    page = written(tmp_path / "msprof_1.db")
    window.open(page)
    window.run("document.querySelector('#find').focus()")
    window.press(*"gemm")
    found = "return document.querySelector('#found').textContent"
    assert window.run(found).startswith("2 tasks match, 700 ns in all")
    window.press("\ue007")
    chosen = "return document.querySelector('#chosen').textContent"
    assert window.run(chosen).startswith("gemm_one: 100 ns")
    window.press("\ue007")
    assert window.run(chosen).startswith("gemm_two: 600 ns")
    window.press("\ue007")
    assert window.run(chosen).startswith("gemm_one"), "after the last the first again"
    click(window, "[aria-label='Sum up what is shown']")
    time.sleep(0.4)
    assert selected(window) == {
        "gemm_two": ("1", "600 ns"), "gemm_one": ("1", "100 ns"), "copy_it": ("1", "100 ns"),
    }  # fmt: skip
    said = window.run("return document.querySelector('#selected').textContent")
    assert said == (
        "1.00 µs selected, from 0 ns: work ran for 800 ns (80.0 %), nothing for 200 ns."
    )
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("\ue00c")
    time.sleep(0.4)
    assert selected(window) == {}
    hold_shift(window, "ArrowRight", 15)  # 2 % each, from the chosen task's start
    time.sleep(0.4)
    assert selected(window) == {"gemm_one": ("1", "100 ns"), "copy_it": ("1", "100 ns")}
    assert "span=0-300" in window.run("return location.hash")
    assert "find=gemm" in window.run("return location.hash")
    drag(window, 450, 950)
    time.sleep(0.4)
    ((name, (count, _)),) = selected(window).items()
    assert (name, count) == ("gemm_two", "1")
    assert window.console() == []


def stepping(path: Path) -> Path:
    """Write three steps, each a while of work that the host launches late."""
    with Device(path) as device:
        row: dict[str, Any] = {"type": device.text("device"), "hbm": [1, 5], "deviceId": 0}
        at = device.T0 + np.array([500, 1500])
        device.writer.write("NPU_MEM", row | {"timestampNs": at})
        for step in range(3):
            begin = 10_000 * step
            rows = {"id": step, "startNs": device.T0 + begin, "endNs": device.T0 + begin + 9_000}
            device.writer.write("STEP_TIME", {name: [value] for name, value in rows.items()})
            for task in range(3):
                device.task(
                    begin + 500 + 2000 * task, begin + 1500 + 2000 * task, kernel=("mm", "MatMul")
                )
    return path


def selected(window: Browser) -> dict[str, tuple[str, str]]:
    found = window.run(
        "return [...document.querySelectorAll('#selection tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {cells[0]: (cells[1], cells[2]) for cells in found}


def hold_shift(window: Browser, key: str, times: int) -> None:
    window.run(
        "for (let i = 0; i < arguments[1]; i += 1) document.querySelector('#timeline canvas')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], shiftKey: true}))",
        key,
        times,
    )


def drag(window: Browser, begin: int, end: int) -> None:
    """Drag with shift from one moment to another."""
    window.run(
        """
        const canvas = document.querySelector('#timeline canvas');
        canvas.setPointerCapture = () => {};
        const box = canvas.getBoundingClientRect();
        const [from, to] = [Number(canvas.dataset.from), Number(canvas.dataset.to)];
        const at = (time) => box.left + box.width * (time - from) / (to - from);
        const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, {
            clientX: x, clientY: box.top + 60, shiftKey: true, pointerId: 1, bubbles: true }));
        send('pointerdown', at(arguments[0]));
        send('pointermove', at((arguments[0] + arguments[1]) / 2));
        send('pointermove', at(arguments[1]));
        send('pointerup', at(arguments[1]));
        """,
        begin,
        end,
    )


def test_the_roofline_has_a_dot_for_each_operation_and_a_line_for_each_peak(
    window: Browser, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "mm [64,64]", "total_ns": 2000, "count": 2, "detail": "bf16, 989 TFLOP/s"}
        | {"compute_tflop_per_s": 200.0, "intensity_flops_per_byte": 400.0, "of_peak_percent": 20},
        {"name": "add [64]", "total_ns": 500, "count": 1, "detail": "memory, 3,350 GB/s"}
        | {"compute_tflop_per_s": 0.1, "intensity_flops_per_byte": 0.08, "of_peak_percent": 4},
        {"name": "copy", "total_ns": 100, "count": 1, "detail": "memory, 3,350 GB/s"},
    ]
    path = written(stepping(tmp_path / "msprof_1.db"))
    found = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    breakdown = {"total_ns": 2600, "size_bytes": None, "rows_left_out": 0, "rows": rows}
    data["reports"][0]["figures"]["breakdowns"]["roofline"] = breakdown
    page = path.read_text("utf-8").replace(found[1], json.dumps(data).replace("<", "\\u003c"))
    path.write_text(page, "utf-8")
    for dark in (False, True):
        window.open(path, width=390, dark=dark)
        assert window.run("return document.documentElement.scrollWidth") <= 390
    sections = "return [...document.querySelectorAll('section.card')].map((one) => one.id)"
    shown = window.run(sections)
    assert {"roofline", "timeline", "table", "memory", "provenance"} <= set(shown)
    assert len(shown) == len(set(shown))
    dots = "return [...document.querySelectorAll('#roofline .dot')].map((one) => one.dataset.name)"
    assert window.run(dots) == ["mm [64,64]", "add [64]"]
    limits = "return [...document.querySelectorAll('.limit')].map((one) => one.dataset.limit)"
    assert window.run(limits) == ["bf16, 989 TFLOP/s", "memory, 3,350 GB/s"]
    window.run("document.querySelector('.roofline').focus()")
    window.press("\ue014", "\ue014")
    said = window.run("return document.querySelector('#roofline-chosen').textContent")
    assert said.startswith("add [64]: 100 GFLOP/s, 0.08 FLOP/byte, 500 ns in 1 calls, 4.0 % of")
    # The dot of memory-bound work lies below the slope of the memory: 0.08 x 3,350 GB/s is more.
    below = window.run(
        "const dot = document.querySelectorAll('#roofline .dot')[1];"
        "const path = document.querySelector('[data-limit^=memory]');"
        "const length = path.getTotalLength(), x = Number(dot.getAttribute('cx'));"
        "for (let at = 0; at <= length; at += 0.25) {"
        "  const point = path.getPointAtLength(at);"
        "  if (point.x >= x) return Number(dot.getAttribute('cy')) - point.y; } return null"
    )
    assert below > 0
    cells = "return [...document.querySelectorAll('#roofline td:first-child')].length"
    assert window.run(cells) == 2
    assert window.console() == []


def test_the_timeline_is_handed_to_perfetto_when_asked(window: Browser, tmp_path: Path) -> None:
    window.open(written(stepping(tmp_path / "msprof_1.db")))
    window.run(
        "window.opened = []; window.posted = [];"
        "window.open = (address) => { opened.push(address);"
        " return {postMessage: (message, origin) => posted.push([message, origin])}; };"
    )
    assert window.run("return opened") == []
    click(window, "#perfetto")
    time.sleep(0.4)
    assert window.run("return opened") == ["https://ui.perfetto.dev"]
    assert window.run("return posted[0]") == ["PING", "https://ui.perfetto.dev"]
    answer = (
        "window.dispatchEvent(new MessageEvent('message',"
        " {data: 'PONG', origin: arguments[0]})); return typeof posted[posted.length - 1][0]"
    )
    assert window.run(answer, "https://elsewhere.example") == "string", "nobody else gets it"
    assert window.run(answer, "https://ui.perfetto.dev") == "object"
    trace = json.loads(
        window.run(
            "const [{perfetto}, origin] = posted[posted.length - 1];"
            "return new TextDecoder().decode(perfetto.buffer)"
        )
    )
    tasks = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert len(tasks) == 9
    assert {one["name"] for one in tasks} == {"mm"}
    assert sum(one["dur"] for one in tasks) == pytest.approx(9.0)
    assert window.console() == []


def test_of_merged_tasks_the_trace_beside_the_page_is_asked_for(
    window: Browser, tmp_path: Path
) -> None:
    window.open(written(many_tasks(tmp_path / "msprof_1.db", 120_000)))
    assert window.run("return document.querySelectorAll('#perfetto').length") == 0
    assert window.run("return document.querySelector('#perfetto-file').type") == "file"


@pytest.fixture
def launched(tmp_path: Path) -> Path:
    """Two launches by an operation, one by another thread."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 1000, "aten::mm")
        device.runtime(100, 200, "cudaLaunchKernel", 7)
        device.runtime(300, 400, "cudaLaunchKernel", 8)
        device.call(0, 1500, "aten::add", thread=2)
        device.runtime(1200, 1300, "hipLaunchKernel", 9, thread=2)
        device.task(500, 700, connection=7, kernel=("first", "mm"))
        device.task(800, 900, connection=8, kernel=("second", "mm"))
        device.task(1600, 2000, connection=9, kernel=("third", "add"), stream=5)
    return written(tmp_path / "msprof_1.db")


def arrows(window: Browser) -> int:
    return int(window.run("return document.querySelector('#timeline canvas').dataset.arrows"))


def chosen(window: Browser) -> str:
    return str(window.run("return document.querySelector('#chosen').firstChild.textContent"))


def test_threads_of_the_host_stand_above_with_arrows_to_what_they_launched(
    window: Browser, launched: Path
) -> None:
    window.open(launched)
    lanes = "return [...document.querySelectorAll('.lanes div')].map((one) => one.textContent)"
    assert window.run(lanes) == [
        "thread 1",
        "",
        "thread 2",
        "",
        "stream 2",
        "stream 5",
        "idle",
    ]
    assert arrows(window) == 3
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press(*"\ue015" * 4)
    assert chosen(window) == (
        "second: 100 ns, from 800 ns, stream 2; launched by cudaLaunchKernel, thread 1, "
        "500 ns before"
    )
    window.press("p", "l")
    assert chosen(window) == (
        "cudaLaunchKernel: 100 ns, from 100 ns, thread 1; launched first, 400 ns later"
    )
    click(window, "#chosen button")
    assert chosen(window).startswith("first: 200 ns, from 500 ns, stream 2; launched by")
    for _ in range(7):
        window.press("+")
    time.sleep(0.2)
    assert arrows(window) == 1, "that of what is chosen, however far its other end is away"
    click(window, "#host-shown")
    assert window.run(lanes) == ["stream 2", "stream 5", "idle"]
    assert arrows(window) == 0
    assert window.run("return location.hash").endswith("host=no")
    window.open(launched)
    window.run("location.hash = '#host=no'")
    time.sleep(0.2)
    assert window.run(lanes) == ["stream 2", "stream 5", "idle"]
    assert window.console() == []


def test_the_host_is_searched_and_summed_up_as_the_device_is(
    window: Browser, launched: Path
) -> None:
    window.open(launched)
    window.run("document.querySelector('#find').focus()")
    window.press(*"launch")
    found = "return document.querySelector('#found').textContent"
    assert window.run(found) == (
        "0 tasks match, 0 ns in all; 3 ranges of the host; Enter shows the next."
    )
    window.press("\ue007", "\ue007", "\ue007")
    assert chosen(window).startswith(
        "hipLaunchKernel: 100 ns, from 1.20 µs, thread 2; launched third"
    )
    drag(window, 150, 850)
    time.sleep(0.4)
    tables = window.run(
        "return [...document.querySelectorAll('#selection table')].map((table) =>"
        " [...table.querySelectorAll('tbody tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.textContent)))"
    )
    assert [row[:3] for row in tables[0]] == [["first", "1", "200 ns"], ["second", "1", "50 ns"]]
    assert [[row[0], row[1], row[2], row[4], row[5]] for row in tables[1]] == [
        ["aten::add", "1", "700 ns", "700 ns", "thread 2"],
        ["aten::mm", "1", "550 ns", "700 ns", "thread 1"],
        ["cudaLaunchKernel", "2", "150 ns", "150 ns", "thread 1"],
    ]
    assert "work ran for 250 ns" in window.run(
        "return document.querySelector('#selected').textContent"
    )
    assert window.console() == []


def test_of_many_calls_the_page_says_which_are_left_out(window: Browser, tmp_path: Path) -> None:
    count = 40_000
    with Device(tmp_path / "msprof_1.db") as device:
        ids = np.arange(count)
        start = device.T0 + 2000 * ids
        row: dict[str, Any] = {"startNs": start + 100, "globalTid": 1, "type": 5000}
        row |= {"endNs": start + 300, "connectionId": ids, "name": device.text("cudaLaunchKernel")}
        device.writer.write("CANN_API", row)
        row = {"startNs": start + 900, "endNs": start + 1200, "globalTaskId": ids, "deviceId": 0}
        row |= {"taskType": device.text("KERNEL_AICORE"), "streamId": 2, "connectionId": ids}
        device.writer.write("TASK", row)
    page = written(tmp_path / "msprof_1.db")
    assert page.stat().st_size < 1_200_000
    window.open(page)
    assert "of the shortest idle times" in window.run("return document.body.textContent")
    said = window.run("return document.querySelector('#host-left-out').textContent")
    assert said.startswith("15,000 of 40,000 ranges of the host are drawn: all that begin from ")
    click(window, "#host-left-out button")
    window.run("document.querySelector('#timeline canvas').focus()")
    for _ in range(7):
        window.press("+")
    assert 50 < arrows(window) <= 300
    assert window.console() == []


def test_a_recording_of_the_host_alone_has_a_timeline(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::mm")
        device.call(20, 60, "aten::add")
    window.open(written(tmp_path / "msprof_1.db"))
    assert (
        window.run("return document.querySelector('#timeline h2').textContent") == "Host timeline"
    )
    click(window, "[aria-label='Sum up what is shown']")
    time.sleep(0.4)
    rows = window.run(
        "return [...document.querySelectorAll('#selection tbody tr')]"
        ".map((row) => [...row.cells].slice(0, 3).map((cell) => cell.textContent))"
    )
    assert rows == [["aten::mm", "1", "60 ns"], ["aten::add", "1", "40 ns"]]
    assert window.console() == []


def test_perfetto_is_handed_the_threads_and_their_arrows_too(
    window: Browser, launched: Path
) -> None:
    window.open(launched)
    window.run(
        "window.posted = [];"
        "window.open = () => ({postMessage: (message) => posted.push(message)});"
        "document.querySelector('#perfetto').click();"
        "window.dispatchEvent(new MessageEvent('message',"
        " {data: 'PONG', origin: 'https://ui.perfetto.dev'}))"
    )
    events = json.loads(
        window.run("return new TextDecoder().decode(posted[posted.length - 1].perfetto.buffer)")
    )["traceEvents"]
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["ph"] == "M"}
    assert sorted(tracks.values()) == [
        "device", "host", "stream 2", "stream 5", "thread 1", "thread 2",
    ]  # fmt: skip
    slices = [one for one in events if one["ph"] == "X"]
    assert len(slices) == 5 + 3
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    for begin in (one for one in events if one["ph"] == "s"):
        end = ends.pop(begin["id"])
        found = []
        for arrow in (begin, end):
            (name,) = (
                one["name"]
                for one in slices
                if (one["pid"], one["tid"], one["ts"]) == (arrow["pid"], arrow["tid"], arrow["ts"])
            )
            found.append((name, tracks[arrow["pid"], arrow["tid"]]))
        assert tuple(found) in {
            (("cudaLaunchKernel", "thread 1"), ("first", "stream 2")),
            (("cudaLaunchKernel", "thread 1"), ("second", "stream 2")),
            (("hipLaunchKernel", "thread 2"), ("third", "stream 5")),
        }
    assert ends == {}


def test_when_and_why_a_device_was_idle_is_seen_chosen_and_summed_up(
    window: Browser, launched: Path
) -> None:
    with open_analyses(launched.with_suffix(".db")) as (analysis,):
        (whole,) = analysis.why_idle()
    window.open(launched)
    legend = window.run("return document.querySelector('#timeline .legend').textContent")
    assert "idle: waiting for the host" in legend
    assert "idle: launched, not yet begun" in legend
    click(window, "[aria-label='Sum up what is shown']")
    time.sleep(0.4)
    said = window.run("return document.querySelector('#selected-idle').textContent")
    parts = [
        f"{IN_WORDS[reason]} {words.duration(getattr(whole, f'{reason}_ns'))}"
        for reason in IN_WORDS
        if getattr(whole, f"{reason}_ns")
    ]
    assert len(parts) > 1
    assert all(one in said for one in parts)
    assert len(said) == len("Idle in it: ") + len(", ".join(parts)) + len(".")
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press(*"\ue015" * 6)
    assert re.match(
        r"(waiting for the host|launched, not yet begun): \d+ ns, from ", chosen(window)
    )
    assert window.console() == []


def test_threads_are_told_apart_on_a_phone(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for thread in (3_140_046, 3_140_047):
            device.call(0, 100, "aten::mm", thread=thread)
    page = written(tmp_path / "msprof_1.db")
    names_shown = "return [...document.querySelectorAll('.lanes div')].map((one) => one.innerText)"
    for width, shown in ((390, ""), (1280, "thread ")):
        window.open(page, width=width)
        assert window.run(names_shown) == [f"{shown}3140046", f"{shown}3140047"]
        assert not window.run(
            "return [...document.querySelectorAll('.lanes div')]"
            ".some((one) => one.scrollWidth > one.clientWidth)"
        )


def test_the_reasons_of_the_page_are_those_of_the_analysis() -> None:
    script = files("unified_prof.report").joinpath("page", "steps.js").read_text("utf-8")
    found = re.search(r"const REASONS = (\[.*\]);", script)
    assert found is not None
    assert tuple(json.loads(found[1])) == REASONS
