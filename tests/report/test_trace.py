"""Traces: slices on tracks, arrows from launches to tasks, and counters."""

import json
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device
from tests.cli.test_report import refused, uprof
from tests.sql import execute
from unified_prof.explain.api import open_analyses
from unified_prof.report import viewer_traces


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A launch of two tasks, overlapping tasks on a stream, host ranges and a counter."""
    with Device(tmp_path / "msprof_1.db") as device:
        t0 = device.T0
        device.task(1000, 1500, connection=9, kernel=("mm", "MatMul"))
        device.task(1500, 1600, connection=9, kernel=("add", "Add"))
        device.task(1550, 1900, kernel=("beside", "Add"))
        device.task(1200, 1300, "EVENT_WAIT", stream=7)
        device.collective(1100, 1700, "all_reduce_1", "all_reduce")
        thread = (5 << 32) | 6
        device.runtime(500, 700, "launch", 9, thread=thread)
        device.call(400, 900, "aten::linear", thread=thread)
        device.call(450, 901, "aten::addmm", thread=thread)  # ends 1 ns too late by rounding
        device.call(460, 470, "Enqueue", thread=thread, kind=50002)
        row: dict[str, Any] = {"type": device.text("device"), "hbm": [5, 7], "deviceId": 0}
        device.writer.write("NPU_MEM", row | {"timestampNs": [t0 + 10, t0 + 20]})
    return tmp_path / "msprof_1.db"


EXPECTED = {
    ("device 0", "collectives", "all_reduce_1", 1100, 1700),
    ("device 0", "stream 2", "mm", 1000, 1500),
    ("device 0", "stream 2", "add", 1500, 1600),
    ("device 0", "stream 2 (overlapping 1)", "beside", 1550, 1900),
    ("device 0", "stream 7", "EVENT_WAIT", 1200, 1300),
    ("process 5", "thread 6 PyTorch", "aten::linear", 400, 900),
    ("process 5", "thread 6 PyTorch", "aten::addmm", 450, 900),
    ("process 5", "thread 6 queue", "Enqueue", 460, 470),
    ("process 5", "thread 6 runtime", "launch", 500, 700),
}


def test_perfetto_trace_has_every_slice_flow_and_counter(recording: Path, tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "o.perfetto-trace"
    with open_analyses(recording) as (analysis,):
        written = viewer_traces.write_perfetto_trace(path, [("", analysis)])
    assert (written.slices, written.flows, written.counters) == (9, 2, 2)
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    described: dict[int, Any] = {}
    names: dict[int, str] = {}
    opened: dict[int, list[tuple[str, int]]] = defaultdict(list)
    found, begun, ended, values = set(), [], [], []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        event, at = packet.track_event, packet.timestamp - Device.T0
        track = described[event.track_uuid]
        if event.type == protos.TrackEvent.TYPE_COUNTER:
            values.append((track.name, track.counter.unit_name, at, event.double_counter_value))
        elif event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append((names[event.name_iid], at))
            begun += [(flow, names[event.name_iid]) for flow in event.flow_ids]
            ended += [(flow, names[event.name_iid]) for flow in event.terminating_flow_ids]
        else:
            name, start = opened[event.track_uuid].pop()
            group = described[track.parent_uuid].name
            found.add((group, track.name, name, start, at))
    assert found == EXPECTED
    assert not any(opened.values()), "every slice ends"
    assert sorted(begun) == [(1, "launch"), (2, "launch")]
    assert sorted(ended) == [(1, "mm"), (2, "add")]
    assert values == [
        ("HBM device", "B", 10, 5.0),
        ("HBM device", "B", 20, 7.0),
        ("queue of stream 2", "launches", 500, 1.0),
        ("queue of stream 2", "launches", 1000, 0.0),
    ]


def test_chrome_trace_has_every_slice_flow_and_counter(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    with open_analyses(recording) as (analysis,):
        viewer_traces.write_chrome_trace(path, [("", analysis)])
    trace = json.loads(path.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    named = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    since = trace["baseTimeNanoseconds"] - Device.T0
    assert since == 10
    found = {
        (
            named[event["pid"], None],
            named[event["pid"], event["tid"]],
            event["name"],
            round(event["ts"] * 1000) + since,
            round((event["ts"] + event["dur"]) * 1000) + since,
        )
        for event in events
        if event["ph"] == "X"
    }
    assert found == EXPECTED
    assert all(isinstance(event["ts"], float) for event in events if "ts" in event)
    flows = [(event["ph"], event["id"]) for event in events if event["ph"] in "sf"]
    assert [flow for flow in flows if flow[0] == "f"] == [("f", 1), ("f", 2)]
    values = [(event["name"], event["args"]["value"]) for event in events if event["ph"] == "C"]
    assert values == [
        ("HBM device (B)", 5.0),
        ("HBM device (B)", 7.0),
        ("queue of stream 2 (launches)", 1.0),
        ("queue of stream 2 (launches)", 0.0),
    ]


def test_ranks_in_one_trace_have_separate_groups_and_flows(recording: Path, tmp_path: Path) -> None:
    with open_analyses(recording) as (one,), open_analyses(recording) as (other,):
        viewer_traces.write_chrome_trace(tmp_path / "o.json", [("a: ", one), ("b: ", other)])
    events = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))["traceEvents"]
    groups = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert groups == {"a: device 0", "a: process 5", "b: device 0", "b: process 5"}
    assert [event["id"] for event in events if event["ph"] == "f"] == [1, 2, 3, 4]


@pytest.mark.parametrize("ending", [".json", ".perfetto-trace"])
def test_critical_path_option_adds_a_track(recording: Path, tmp_path: Path, ending: str) -> None:
    done = uprof("trace", recording, "-o", tmp_path / f"a{ending}", "--json")
    plain = json.loads(done.stdout)
    done = uprof("trace", recording, "-o", tmp_path / f"b{ending}", "--json", "--path")
    found = json.loads(done.stdout)
    assert found["tracks"] == plain["tracks"] + 1
    if ending != ".json":
        return
    events = json.loads((tmp_path / "b.json").read_text("utf-8"))["traceEvents"]
    (track,) = (
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "critical path"
    )
    slices = [
        event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == track
    ]
    assert found["slices"] == plain["slices"] + len(slices)
    # From the launch to the end of the last task, without a gap.
    ends = [round(event["ts"] * 1000 + event["dur"] * 1000) for event in slices]
    begins = [round(event["ts"] * 1000) for event in slices]
    assert begins[1:] == ends[:-1]
    assert {event["cat"] for event in slices} >= {"launch", "kernel"}


def test_damaged_rank_is_left_out_of_the_trace(recording: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        shutil.copy(recording, folder / f"msprof_rank{rank}.db")
    cut = folder / "msprof_rank1.db"
    cut.write_bytes(cut.read_bytes()[:5000])
    done = uprof("trace", folder, "-o", tmp_path / "o.json")
    assert done.returncode == 7
    assert f"error: 2 of 3 ranks; rank 1: {cut} is cut off" in done.stderr
    assert slice_count(tmp_path / "o.json") == 18


@pytest.mark.parametrize("ending", [".json", ".perfetto-trace"])
def test_rank_with_a_damaged_table_is_partial(recording: Path, tmp_path: Path, ending: str) -> None:
    if ending != ".json":
        pytest.importorskip("perfetto")
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        shutil.copy(recording, folder / f"msprof_rank{rank}.db")
    damage_table(folder / "msprof_rank1.db", "PYTORCH_API")
    output = tmp_path / f"o{ending}"
    done = uprof("trace", folder, "-o", output)
    assert done.returncode == 7
    assert "error: 2 of 3 ranks; rank 1: " in done.stderr
    assert "the trace is incomplete" in done.stderr
    assert output.exists()
    if ending == ".json":
        assert slice_count(output) == 9 + 5 + 9, "tracks before the damage, and the other ranks"
    refused(uprof("trace", folder / "msprof_rank1.db", "-o", tmp_path / f"p{ending}"), 7, "damaged")
    assert not (tmp_path / f"p{ending}").exists()


def slice_count(path: Path) -> int:
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sum(event["ph"] == "X" for event in events)


def damage_table(path: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    ((root,),) = execute(path, query, table)
    ((page_bytes,),) = execute(path, "PRAGMA page_size")
    content = bytearray(path.read_bytes())
    content[(root - 1) * page_bytes : root * page_bytes] = b"\xa5" * page_bytes
    path.write_bytes(content)


@pytest.mark.slow
def test_thirty_thousand_streams_are_written_within_forty_seconds(tmp_path: Path) -> None:
    count = 30_000
    ids = np.arange(2 * count)
    with Device(tmp_path / "msprof_1.db") as device:
        names = np.array([device.text(f"kernel_{number}") for number in range(1000)])
        start = device.T0 + ids * 100
        row: dict[str, Any] = {"startNs": start, "endNs": start + 50, "globalTaskId": ids}
        row |= {"taskType": device.text("KERNEL_AICORE"), "streamId": ids % count, "deviceId": 0}
        device.writer.write("TASK", row | {"connectionId": -1})
        row = {"globalTaskId": ids, "name": names[ids % 1000], "opType": names[ids % 7]}
        device.writer.write("COMPUTE_TASK_INFO", row)
    began = time.monotonic()
    done = uprof("trace", tmp_path / "msprof_1.db", "-o", tmp_path / "o.json")
    assert "60,000 slices on 30,000 tracks" in done.stderr
    assert time.monotonic() - began < 40, "4 s on two cores"
