"""Host threads on the timeline of the page, with arrows to their tasks."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import arrow_count, click, drag, selected_text, write_page

pytestmark = [pytest.mark.slow, browser.needed]


def test_host_threads_are_above_streams_with_arrows(window: Browser, launch_page: Path) -> None:
    window.open(launch_page)
    lanes = "return [...document.querySelectorAll('.lanes div')].map((one) => one.textContent)"
    assert window.run(lanes) == [
        "thread 1",
        "",
        "thread 2",
        "",
        "stream 2",
        "stream 5",
        "idle",
        "critical path",
    ]
    assert arrow_count(window) == 3
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press(*"\ue015" * 4)
    assert selected_text(window) == (
        "second: 100 ns, from 800 ns, stream 2; launched by cudaLaunchKernel, thread 1, "
        "500 ns earlier"
    )
    window.press("p", "l")
    assert selected_text(window) == (
        "cudaLaunchKernel: 100 ns, from 100 ns, thread 1; launched first, 400 ns later"
    )
    click(window, "#chosen button")
    assert selected_text(window).startswith("first: 200 ns, from 500 ns, stream 2; launched by")
    for _ in range(7):
        window.press("+")
    assert arrow_count(window) == 1, (
        "the arrow of the selection, although its other end is not visible"
    )
    assert arrow_count(window) == 1, "that of what is chosen, however far its other end is away"
    click(window, "#host-shown")
    assert window.run(lanes) == ["stream 2", "stream 5", "idle", "critical path"]
    assert arrow_count(window) == 0
    assert "host=no" in window.run("return location.hash")
    window.open(launch_page)
    window.run("location.hash = '#host=no'")
    time.sleep(0.2)
    assert window.run(lanes) == ["stream 2", "stream 5", "idle", "critical path"]
    assert window.console() == []


def test_host_ranges_are_searched_and_summed_like_tasks(window: Browser, launch_page: Path) -> None:
    window.open(launch_page)
    window.run("document.querySelector('#find').focus()")
    window.press(*"launch")
    found = "return document.querySelector('#found').textContent"
    assert window.run(found) == ("0 tasks match, 0 ns in total; 3 host ranges; Enter: next match.")
    window.press("\ue007", "\ue007", "\ue007")
    assert selected_text(window).startswith(
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
    assert "busy 250 ns" in window.run("return document.querySelector('#selected').textContent")
    assert window.console() == []


def test_page_states_which_host_ranges_are_left_out(window: Browser, tmp_path: Path) -> None:
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
    page = write_page(tmp_path / "msprof_1.db")
    assert page.stat().st_size < 1_200_000
    window.open(page)
    assert "shortest idle gaps" in window.run("return document.body.textContent")
    text = window.run("return document.querySelector('#host-left-out').textContent")
    assert text.startswith("15,000 of 40,000 host ranges are drawn: all from ")
    click(window, "#host-left-out button")
    window.run("document.querySelector('#timeline canvas').focus()")
    for _ in range(7):
        window.press("+")
    assert 50 < arrow_count(window) <= 300
    assert window.console() == []


def test_host_only_recording_has_a_timeline(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::mm")
        device.call(20, 60, "aten::add")
    window.open(write_page(tmp_path / "msprof_1.db"))
    assert window.run("return document.querySelector('#timeline h2').innerText") == "Host timeline"
    click(window, "[aria-label='Sum the visible part']")
    time.sleep(0.4)
    rows = window.run(
        "return [...document.querySelectorAll('#selection tbody tr')]"
        ".map((row) => [...row.cells].slice(0, 3).map((cell) => cell.textContent))"
    )
    assert rows == [["aten::mm", "1", "60 ns"], ["aten::add", "1", "40 ns"]]
    assert window.console() == []


def test_threads_are_labeled_distinctly_on_a_phone(window: Browser, tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for thread in (3_140_046, 3_140_047):
            device.call(0, 100, "aten::mm", thread=thread)
    page = write_page(tmp_path / "msprof_1.db")
    names_shown = "return [...document.querySelectorAll('.lanes div')].map((one) => one.innerText)"
    for width, shown in ((390, ""), (1280, "thread ")):
        window.open(page, width=width)
        assert window.run(names_shown) == [f"{shown}3140046", f"{shown}3140047"]
        assert not window.run(
            "return [...document.querySelectorAll('.lanes div')]"
            ".some((one) => one.scrollWidth > one.clientWidth)"
        )


def test_long_titles_of_lanes_are_shortened_on_a_narrow_screen(
    window: Browser, launch_page: Path
) -> None:
    text = launch_page.read_text(encoding="utf-8")
    longer = {
        "thread 1": "process 1110046 thread 1110046",
        "stream 2": "device 0 stream 2",
        "stream 5": "device 10 stream 15",
    }
    for title, long in longer.items():
        assert f'"{title}"' in text
        text = text.replace(f'"{title}"', f'"{long}"')
    launch_page.write_text(text, encoding="utf-8")
    shown = "return [...document.querySelectorAll('.lanes div')].map((one) => one.innerText)"
    for width in (390, 600):
        window.open(launch_page, width=width)
        assert window.run(shown) == [
            *("p1110046 t1110046", "", "2", "", "d0 s2", "d10 s15", "idle", "critical path")
        ]
        assert not window.run(
            "return [...document.querySelectorAll('.lanes div')]"
            ".some((one) => one.scrollWidth > one.clientWidth)"
        )
    window.open(launch_page, width=1280)
    assert window.run(shown)[4] == "device 0 stream 2"


def test_a_pinned_lane_stays_while_others_scroll(window: Browser, launch_page: Path) -> None:
    window.open(launch_page)
    names = "return [...document.querySelectorAll('.lanes div')].map((one) => one.textContent)"
    window.run("document.querySelectorAll('.lanes div')[5].click()")
    assert window.run(names)[:3] == ["stream 5", "thread 1", ""]
    window.run("document.querySelector('.timeline').style.maxHeight = '120px'")
    place = (
        "const box = document.querySelector('.timeline');"
        "box.scrollTop = 60;"
        "const lane = document.querySelectorAll('.lanes div')[0];"
        "return lane.getBoundingClientRect().top - box.getBoundingClientRect().top"
    )
    before = window.run(place)
    window.run("document.querySelector('#timeline canvas').focus()")
    # The name, the drawn tasks and what the pointer hits move together.
    pixel = (
        "const box = document.querySelector('.timeline').getBoundingClientRect();"
        "const canvas = document.querySelector('#timeline canvas');"
        "const own = canvas.getBoundingClientRect();"
        "const lane = document.querySelectorAll('.lanes div')[0].getBoundingClientRect();"
        "const ratio = canvas.width / own.width;"
        "const y = (lane.top + lane.height / 2 - own.top) * ratio;"
        "const row = canvas.getContext('2d').getImageData(0, y, canvas.width, 1).data;"
        "const colors = new Set();"
        "for (let at = 0; at < row.length; at += 4) colors.add(row.slice(at, at + 3).join());"
        "return colors.size"
    )
    assert before >= 0
    assert window.run(pixel) > 2, "tasks of the pinned stream are drawn beside its name"
    window.press("t")
    assert window.run(names)[:3] == ["thread 1", "", "thread 2"]
    assert window.console() == []
