"""One-pass and two-pass decoding of slices give equal events."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import (
    PID,
    TID,
    Event,
    RowSink,
    call,
    complete,
    copy,
    decode,
    kernel,
    operation,
    write,
)
from unified_prof.decoders import compression
from unified_prof.decoders.kineto.events import KnownSlices
from unified_prof.decoders.kineto.slices import TraceReader

FLOW = {"cat": "ac2g", "name": "ac2g", "id": 7, "pid": PID, "tid": TID, "ts": 12}
MEMORY = {"Bytes": 8, "Addr": 1, "Device Id": 0, "Device Type": 1, "Total Allocated": 8}
INSTANT = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "pid": PID, "tid": TID}


def known_events() -> list[Event]:
    """Return events of every known kind, also without arguments."""
    bare = operation("aten::bare", 25, 1)
    del bare["args"]
    shapes = {"Input Dims": [[2, 3], []], "Input type": ["float", ""], "Concrete Inputs": ["", "1"]}
    return [
        operation("aten::mm", 0, 20, args=shapes | {"External id": 1}),
        bare,
        complete("user_annotation", "ProfilerStep#1", 0, 90),
        complete("python_function", "a.py(1): f", 0, 90, args={"Python id": 1}),
        complete("python_gc", "collect", 22, 1),
        complete("gpu_user_annotation", "x", 30, 9, pid=0, tid=7, args={"External id": 1}),
        complete("cuda_sync", "Stream Sync", 50, 1, pid=0, tid=7, args={"stream": 7}),
        call(2, 1, 5),
        call(4, 1, 6),
        kernel(30, 2, 5),
        copy(35, 2, 6, "Memcpy HtoD (Pinned -> Device)", 64),
        INSTANT | {"name": "[memory]", "ts": 3, "args": MEMORY},
        INSTANT | {"name": "mark", "ts": 3.5, "args": {"note": "x"}},
        *({"ph": ph} | FLOW for ph in "sf"),
    ]


UNKNOWN_EVENTS: dict[str, Callable[[], Event]] = {
    "collective": lambda: kernel(60, 1, 8, args={"Collective name": "send", "dtype": "Float"}),
    "parameters": lambda: operation("record_param_comms", 61, 1, args={"Collective name": "send"}),
    "begin": lambda: {"ph": "B", "cat": "cpu_op", "name": "b", "pid": PID, "tid": TID, "ts": 62},
    "label": lambda: {"ph": "M", "name": "thread_name", "pid": PID, "tid": TID, "args": {}},
    "category": lambda: complete("Operator", "aten::old", 63, 1),
    "arguments": lambda: operation("aten::text", 64, 1, args="text"),
    "null": lambda: operation("aten::null", 64, 1, args=None),
    "unknown": lambda: complete("unknown_category", "x", 65, 1),
}


def decode_with(path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool, size: int) -> RowSink:
    with monkeypatch.context() as patch:
        patch.setattr(compression, "_PLAIN_PIECE_BYTES", size)
        if not known:
            patch.setattr(KnownSlices, "decode", lambda *_: None)
        return decode(path, slice_bytes=size)


@pytest.mark.parametrize("unknown", [None, *UNKNOWN_EVENTS])
@pytest.mark.parametrize("size", [400, 1 << 20])
def test_one_pass_and_two_pass_decoding_give_equal_rows(
    unknown: str | None, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        *known_events(),
        *known_events(),
        *([UNKNOWN_EVENTS[unknown]()] if unknown else []),
        *known_events(),
    ]
    path = write(tmp_path / "trace.json", events)
    one, other = (decode_with(path, monkeypatch, known=known, size=size) for known in (True, False))
    assert repr(one.tables) == repr(other.tables)  # NaN is not itself
    assert one.anomalies == other.anomalies
    assert [one.text(n) for n in range(5)] == [other.text(n) for n in range(5)]


def read_slices(path: Path, size: int) -> TraceReader:
    reader = TraceReader(path, lambda *_: None, size)
    for _ in reader.slices():
        pass
    return reader


def test_known_events_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_PLAIN_PIECE_BYTES", 1000)
    path = write(tmp_path / "trace.json", known_events() * 40)
    assert read_slices(path, 4000).known.decoded > 15


def test_one_pass_decoding_is_tried_less_often_after_failures(tmp_path: Path) -> None:
    tried: list[Any] = []
    slices = KnownSlices()
    for _ in range(300):
        before = slices._skip
        assert slices.decode(memoryview(b'[{"ph": "X", "cat": "Operator"}]')) is None
        tried.append(not before)
    assert sum(tried) < 15
    while slices._skip:
        slices.decode(memoryview(b"[]"))
    assert slices.decode(memoryview(b'[{"ph": "s", "cat": "ac2g"}]')) is not None
