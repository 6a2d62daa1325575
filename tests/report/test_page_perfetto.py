"""The page passes its timeline to Perfetto only if requested."""

import json
import time
from pathlib import Path

import pytest

from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import click, recording_of_steps, recording_of_tasks, write_page

pytestmark = [pytest.mark.slow, browser.needed]


def test_timeline_is_passed_to_perfetto_on_request(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording_of_steps(tmp_path / "msprof_1.db")))
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
    assert window.run(answer, "https://elsewhere.example") == "string", "no trace for others"
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


def test_trace_file_is_requested_if_tasks_are_merged(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording_of_tasks(tmp_path / "msprof_1.db", 120_000)))
    assert window.run("return document.querySelectorAll('#perfetto').length") == 0
    assert window.run("return document.querySelector('#perfetto-file').type") == "file"


def test_trace_for_perfetto_has_threads_and_arrows(window: Browser, launch_page: Path) -> None:
    window.open(launch_page)
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
