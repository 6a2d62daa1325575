"""Timeline of the page in a browser: zoom, search, selection and idle reasons."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.builders import Device
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import (
    click,
    drag,
    press_shift,
    recording_of_tasks,
    select_report,
    selected_text,
    selection_sums,
    write_page,
)
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import html_page as html
from unified_prof.report import names
from unified_prof.report.formats import ReportRequest

pytestmark = [pytest.mark.slow, browser.needed]


def test_timeline_is_zoomed_moved_and_read_by_keyboard(window: Browser, page: Path) -> None:
    window.open(page)
    select_report(window, 1)
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
    selected_text = window.run("return document.querySelector('#chosen').textContent")
    assert "stream 2" in selected_text
    assert " ns, from " in selected_text


def test_timeline_begins_with_the_time_of_the_work(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(100_000, 130_000, kernel=("first", "mm"))
        device.memory(0, "torch", 10)  # Recorded from long before the work until long after it.
        device.memory(400_000, "torch", 20)
    window.open(write_page(tmp_path / "msprof_1.db"))
    view = (
        "const c = document.querySelector('#timeline canvas');"
        "return [Number(c.dataset.from), Number(c.dataset.to)]"
    )
    assert window.run(view) == [100_000, 130_000]
    click(window, "#timeline button[aria-label='Show everything']")
    assert window.run(view) == [0, 400_000]


def test_busiest_part_is_offered_for_too_many_tasks(window: Browser, tmp_path: Path) -> None:
    path = recording_of_tasks(tmp_path / "msprof_1.db", 300_000)
    window.open(write_page(path))
    note = window.run("return document.querySelector('#merged').textContent")
    assert "300,000 tasks are too many to draw one by one" in note
    assert f"uprof export {path} -o out.perfetto-trace" in note
    click(window, "#merged button")
    window.run("document.querySelector('#timeline canvas').focus()")
    for _ in range(12):
        window.press("+")
    window.press("\ue015", "n", "n")
    selected_text = window.run("return document.querySelector('#chosen').textContent")
    assert selected_text.startswith("kernel_"), "a single task, not a merged block"
    assert ": 400 ns, from " in selected_text
    assert window.console() == []


def test_page_of_a_hundred_thousand_tasks_is_below_3_mb(window: Browser, tmp_path: Path) -> None:
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
        selected_text = rng.integers(0, 500, count)
        device.writer.write(
            "COMPUTE_TASK_INFO",
            {
                "globalTaskId": ids,
                "name": np.array(kernels)[selected_text],
                "opType": np.array(types)[selected_text % 60],
            },
        )
    with open_reports(tmp_path / "msprof_1.db") as opened:
        text = html.produce_page(opened, ReportRequest())
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


def test_tasks_are_searched_and_selected_spans_are_summed(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("gemm_one", "mm"))
        device.task(200, 300, kernel=("copy_it", "cp"))
        device.task(400, 1000, kernel=("gemm_two", "mm"))
    page = write_page(tmp_path / "msprof_1.db")
    window.open(page)
    window.run("document.querySelector('#find').focus()")
    window.press(*"gemm")
    found = "return document.querySelector('#found').textContent"
    assert window.run(found).startswith("2 tasks match, 700 ns in total")
    window.press("\ue007")
    selected_text = "return document.querySelector('#chosen').textContent"
    assert window.run(selected_text).startswith("gemm_one: 100 ns")
    window.press("\ue007")
    assert window.run(selected_text).startswith("gemm_two: 600 ns")
    window.press("\ue007")
    assert window.run(selected_text).startswith("gemm_one"), "the search wraps around"
    click(window, "[aria-label='Sum the visible part']")
    time.sleep(0.4)
    assert selection_sums(window) == {
        "gemm_two": ("1", "600 ns"), "gemm_one": ("1", "100 ns"), "copy_it": ("1", "100 ns"),
    }  # fmt: skip
    text = window.run("return document.querySelector('#selected').textContent")
    assert text == "1.00 µs selected, from 0 ns: busy 800 ns (80.0 %), idle 200 ns."
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("\ue00c")
    time.sleep(0.4)
    assert selection_sums(window) == {}
    press_shift(window, "ArrowRight", 15)  # 2 % each, from the start of the selected task
    time.sleep(0.4)
    assert selection_sums(window) == {"gemm_one": ("1", "100 ns"), "copy_it": ("1", "100 ns")}
    assert "span=0-300" in window.run("return location.hash")
    assert "find=gemm" in window.run("return location.hash")
    drag(window, 450, 950)
    time.sleep(0.4)
    ((name, (count, _)),) = selection_sums(window).items()
    assert (name, count) == ("gemm_two", "1")
    assert window.console() == []


def test_critical_path_is_the_last_lane(window: Browser, launch_page: Path) -> None:
    with open_analyses(launch_page.parent / "msprof_1.db") as (analysis,):
        path = analysis.path_track()
    assert path is not None
    window.open(launch_page)
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press(*"\ue015" * 20, "n")
    chosen = window.run("return document.querySelector('#chosen').textContent")
    segments = zip(path.label.tolist(), (path.end_ns - path.start_ns).tolist(), strict=True)
    texts = [f"{path.labels[at]}: {names.format_duration(length)}" for at, length in segments]
    assert chosen.startswith(tuple(texts))
    assert chosen.endswith("critical path")
    swatches = "[...document.querySelectorAll('#timeline .legend .swatch')]"
    colors = window.run(f"return {swatches}.map((one) => one.style.background)")
    assert len(colors) == len(set(colors)), "the path has the colors of what is on it"
    assert "var(--compute)" in colors


def test_idle_reasons_are_drawn_selected_and_summed(window: Browser, launch_page: Path) -> None:
    with open_analyses(launch_page.with_suffix(".db")) as (analysis,):
        (whole,) = analysis.why_idle()
    window.open(launch_page)
    legend = window.run("return document.querySelector('#timeline .legend').textContent")
    assert "idle: host-bound" in legend
    assert "idle: launch latency" in legend
    click(window, "[aria-label='Sum the visible part']")
    time.sleep(0.4)
    idle = window.run("return document.querySelector('#selected-idle').textContent")
    parts = [
        f"{IN_WORDS[reason]} {names.format_duration(getattr(whole, f'{reason}_ns'))}"
        for reason in IN_WORDS
        if getattr(whole, f"{reason}_ns")
    ]
    assert len(parts) > 1
    assert all(one in idle for one in parts)
    assert len(idle) == len("Idle: ") + len(", ".join(parts)) + len(".")
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press(*"\ue015" * 6)
    assert re.match(r"(host-bound|launch latency): \d+ ns, from ", selected_text(window))
    assert window.console() == []
