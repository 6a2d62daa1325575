"""Allocator events of all versions of torch."""

from pathlib import Path
from typing import Any

from tests.decoders.kineto.builders import PID, TID, Event, decode_events, operation

ANOTHER = PID + 1


def memory(ts: int, size: int, *, pid: object = PID, **more: Any) -> Event:
    args = {"Bytes": size, "Device Type": 1, "Device Id": 0} | more
    place = {"pid": pid, "tid": TID, "ts": ts}
    return {"ph": "i", "s": "t", "name": "[memory]", "args": args} | place


def test_allocations_without_addresses_are_summed_but_not_paired(tmp_path: Path) -> None:
    """torch 1.8 and 1.9 write no addresses."""
    sink = decode_events(
        tmp_path,
        operation("aten::empty", 0, 30),
        memory(10, 512),
        memory(20, 64),
        memory(40, -512),
        memory(45, 8, **{"Device Type": 0, "Device Id": -1}),
    )
    assert sink.rows("MEMORY_RECORD", "timestamp", "totalAllocated", "deviceId") == [
        (10_000, 512, 0),
        (20_000, 576, 0),
        (40_000, 64, 0),
        (45_000, 8, -1),
    ]
    assert "OP_MEMORY" not in sink.tables
    assert sink.anomalies == {"allocation_without_address": 4, "memory_added_up": 1}


def test_equal_addresses_in_two_processes_are_separate_allocations(tmp_path: Path) -> None:
    totals = {"Total Allocated": 8, "Total Reserved": 16}
    sink = decode_events(
        tmp_path,
        memory(10, 8, Addr=77, **totals),
        memory(20, 8, Addr=77, pid=ANOTHER, **totals),
        memory(30, -8, Addr=77, **totals),
        memory(40, -8, Addr=77, pid=ANOTHER, **totals),
    )
    assert sorted(sink.rows("OP_MEMORY", "allocationTime", "releaseTime")) == [
        (10_000, 30_000),
        (20_000, 40_000),
    ]
    assert sink.anomalies == {}


def test_out_of_memory_events_are_counted(tmp_path: Path) -> None:
    event = memory(10, 1 << 30) | {"name": "[OutOfMemory]", "cat": "cpu_instant_event"}
    sink = decode_events(tmp_path, operation("aten::empty", 0, 30), event)
    assert sink.anomalies == {"out_of_memory": 1}
    assert sink.rows("UPROF_TRACE_EVENTS", "startNs", "endNs") == [(10_000, None)]


def test_text_and_float_thread_ids_match_integer_ones(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::empty", 0, 30, tid=str(TID), pid=str(PID)),
        memory(10, 512, Addr=1),
        memory(20, -512, Addr=1, pid=str(PID)) | {"tid": float(TID)},
    )
    assert sink.rows("OP_MEMORY", "name", "duration", texts=["name"]) == [("aten::empty", 10_000)]
    assert len(sink.tables["UPROF_THREADS"]) == 1
