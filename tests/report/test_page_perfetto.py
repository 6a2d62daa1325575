"""The page hands its timeline to Perfetto's page, when asked and to nobody else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import click, many_tasks, stepping, written

pytestmark = [pytest.mark.slow, browser.needed]


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
