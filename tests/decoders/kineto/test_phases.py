"""Begin/end events and other phases."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import (
    PID,
    TID,
    Event,
    call,
    complete,
    decode,
    decode_events,
    kernel,
    operation,
    write,
)
from unified_prof.decoders.kineto import events


def begin(name: str, ts: object, cat: str | None = "cpu_op", ph: str = "B", **more: Any) -> Event:
    event = {"ph": ph, "name": name, "pid": PID, "tid": TID, "ts": ts}
    return event | ({} if cat is None else {"cat": cat}) | more


def end(ts: object, ph: str = "E", **more: Any) -> Event:
    return {"ph": ph, "pid": PID, "tid": TID, "ts": ts} | more


def decode_operations(events: list[Event], tmp_path: Path, **options: Any) -> set[tuple[Any, ...]]:
    sink = decode(write(tmp_path / "t.json", events), **options)
    return set(sink.rows("PYTORCH_API", "name", "startNs", "endNs", texts=["name"]))


@pytest.mark.parametrize("slice_bytes", [64, 1 << 20])
def test_begin_and_end_events_nest_by_thread(tmp_path: Path, slice_bytes: int) -> None:
    found = decode_operations(
        [
            begin("outer", 10),
            begin("inner", "20.25"),
            begin("elsewhere", 25, tid=TID + 1),
            end(30.5),
            end(26, tid=TID + 1),
            end(100),
        ],
        tmp_path,
        slice_bytes=slice_bytes,
    )
    assert found == {
        ("outer", 10_000, 100_000),
        ("inner", 20_250, 30_500),
        ("elsewhere", 25_000, 26_000),
    }


def test_arguments_of_begin_and_end_events_are_combined(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        begin("aten::mm", 10, args={"Input Dims": [[2, 3]]}),
        call(12, 1, 7),
        end(20, args={"Input type": ["float"]}),
        kernel(30, 1, 7),
    )
    columns = ["opType", "inputShapes", "inputDataTypes"]
    assert sink.rows("COMPUTE_TASK_INFO", *columns, texts=columns) == [
        ("aten::mm", '"2,3"', "FLOAT")
    ]
    assert sink.anomalies == {}


def test_begin_without_end_is_extended_and_end_without_begin_skipped(tmp_path: Path) -> None:
    sink = decode_events(tmp_path, end(5), begin("open", 10), operation("last", 20, 30))
    assert set(sink.rows("PYTORCH_API", "name", "endNs", texts=["name"])) == {
        ("open", 50_000),
        ("last", 50_000),
    }
    assert sink.anomalies == {"end_without_begin": 1, "begin_without_end": 1, "unfinished_event": 1}


def test_impossible_durations_are_counted(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        *(begin("backwards", 10), end(5), begin("never", 20), end("soon")),
        operation("good", 1, 1),
    )
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("good",)]
    assert sink.anomalies == {"negative_duration": 1, "event_without_duration": 1}


@pytest.mark.parametrize(("first", "second"), [("b", "e"), ("S", "F")])
def test_asynchronous_events_are_paired_by_id(first: str, second: str, tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::mm", 0, 1),
        begin("one", 10, "comm", ph=first, id="0x1", args={"bytes": 8}),
        begin("two", 11, "comm", ph=first, id="0x2"),
        end(20, ph=second, cat="comm", id="0x1", tid=TID + 5),
        end(30, ph=second, cat="comm", id="0x2"),
        begin("bare", 40, None, ph=first, id=3),
        end(41, ph=second, id=3),
    )
    columns = ("name", "category", "startNs", "endNs", "args")
    found = sink.rows("UPROF_TRACE_EVENTS", *columns, texts=["name", "category"])
    assert sorted(found) == [
        ("bare", "async", 40_000, 41_000, None),
        ("one", "comm", 10_000, 20_000, '{"bytes":8}'),
        ("two", "comm", 11_000, 30_000, None),
    ]
    assert sink.anomalies == {}


def test_flow_events_are_no_anomaly(tmp_path: Path) -> None:
    flow = {"cat": "ac2g", "name": "ac2g", "id": 7, "ts": 12}
    sink = decode_events(
        tmp_path,
        call(12, 1, 7),
        kernel(30, 1, 7),
        *({"ph": ph, "pid": PID, "tid": TID} | flow for ph in "stf"),
    )
    assert sink.anomalies == {}
    assert "UPROF_TRACE_EVENTS" not in sink.tables


def test_number_of_open_events_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_OPEN", 5)
    sink = decode_events(tmp_path, *(begin(f"op{i}", i) for i in range(20)), operation("z", 30, 1))
    assert sink.anomalies["too_many_open_events"] == 15
    assert sink.anomalies["begin_without_end"] == 5


def test_steps_recorded_as_operations_are_steps(tmp_path: Path) -> None:
    """Old torch recorded steps as operations, in either category."""
    sink = decode_events(
        tmp_path,
        complete("Operator", "ProfilerStep#1", 0, 100),
        operation("ProfilerStep#2", 100, 50),
        begin("ProfilerStep#3", 200, "user_annotation"),
        operation("aten::mm", 10, 5),
        end(300),
    )
    assert sorted(sink.rows("STEP_TIME", "id", "startNs", "endNs")) == [
        (1, 0, 100_000),
        (2, 100_000, 150_000),
        (3, 200_000, 300_000),
    ]
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("aten::mm",)]


def test_events_open_at_a_cut_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = json.dumps([begin("outer", 10), begin("inner", 20), end(30), begin("next", 40)])
    path.write_text(text[:-30])
    sink = decode(path)
    assert set(sink.rows("PYTORCH_API", "name", "endNs", texts=["name"])) == {
        ("inner", 30_000),
        ("outer", 30_000),
    }
    assert sink.anomalies["cut_off"] == 1
