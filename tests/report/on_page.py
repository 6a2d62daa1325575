"""Actions on a page in a browser, and the recordings of these pages."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.builders import Device
from tests.report.browser import Browser
from unified_prof.explain.api import open_reports
from unified_prof.report import html_page as html
from unified_prof.report.formats import ReportRequest

SCRIPT = "<script>document.title = 'hacked'</script>"


def select_report(window: Browser, number: int) -> None:
    window.run(
        "const s = document.querySelector('.bar select'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))",
        str(number),
    )
    drawn = "return !document.querySelector('canvas:not([data-from])')"
    while not window.run(drawn):
        time.sleep(0.02)


def table_names(window: Browser) -> list[str]:
    return [
        str(text)
        for text in window.run(
            "return [...document.querySelectorAll('#table tbody tr')]"
            ".map((row) => row.cells[0].dataset.value ?? row.textContent)"
        )
    ]


def click(window: Browser, selector: str) -> None:
    window.run("document.querySelector(arguments[0]).click()", selector)


def queued_launches(path: Path) -> Path:
    """Write three launches queued behind a long kernel; return the page."""
    with Device(path) as device:
        for number in range(3):
            device.runtime(number * 100, number * 100 + 50, "cudaLaunchKernel", number + 1)
            start = 1000 + 1000 * number
            device.task(start, start + 1000, connection=number + 1, kernel=("k", "mm"))
    return write_page(path)


def recording_of_tasks(path: Path, count: int) -> Path:
    """Write a recording of `count` tasks, with a memory peak in its middle."""
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


def write_page(path: Path) -> Path:
    """Write the page of a report beside it, or of a directory into it."""
    page = path / "page.html" if path.is_dir() else path.with_suffix(".html")
    with open_reports(path) as opened:
        page.write_text(html.produce_page(opened, ReportRequest()), encoding="utf-8")
    return page


def embedded_data(page: str) -> dict[str, Any]:
    """Return the JSON data in the text of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


VIEWS = """
    return [...document.querySelectorAll('canvas, svg.chart')]
        .map((one) => [Number(one.dataset.from), Number(one.dataset.to)])
"""


def recording_of_steps(path: Path) -> Path:
    """Write three steps with tasks that the host launches late."""
    with Device(path) as device:
        row: dict[str, Any] = {"type": device.text("device"), "hbm": [1, 5], "deviceId": 0}
        at = device.T0 + np.array([500, 1500])
        device.writer.write("NPU_MEM", row | {"timestampNs": at})
        for step in range(3):
            begin = 10_000 * step
            device.step(step, begin, begin + 9_000)
            for start in range(begin + 500, begin + 6500, 2000):
                device.task(start, start + 1000, kernel=("mm", "MatMul"))
    return path


def selection_sums(window: Browser) -> dict[str, tuple[str, str]]:
    found = window.run(
        "return [...document.querySelectorAll('#selection tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {cells[0]: (cells[1], cells[2]) for cells in found}


def press_shift(window: Browser, key: str, times: int) -> None:
    window.run(
        "for (let i = 0; i < arguments[1]; i += 1) document.querySelector('#timeline canvas')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], shiftKey: true}))",
        key,
        times,
    )


def drag(window: Browser, begin: int, end: int) -> None:
    """Drag with shift from one time to another."""
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


def arrow_count(window: Browser) -> int:
    return int(window.run("return document.querySelector('#timeline canvas').dataset.arrows"))


def selected_text(window: Browser) -> str:
    return str(window.run("return document.querySelector('#chosen').firstChild.textContent"))
