"""Python call chains of operations, including backward operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders.kineto.made import (
    KeepingSink,
    complete,
    decode,
    decode_events,
    operation,
    write,
)
from unified_prof.decoders.gpu import hosts


def frame(name: str, ts: object, dur: object, tid: int = 101) -> dict[str, object]:
    return complete("python_function", name, ts, dur, tid=tid)


def forward(name: str, ts: object, dur: object, sequence: int, tid: int = 101) -> dict[str, object]:
    args = {"Sequence number": sequence, "Fwd thread id": 0}
    return operation(name, ts, dur, args=args, tid=tid)


def backward(
    name: str, ts: object, dur: object, sequence: int, tid: int = 201
) -> dict[str, object]:
    args = {"Sequence number": sequence, "Fwd thread id": 1}
    return operation(name, ts, dur, args=args, tid=tid)


def chains(sink: KeepingSink) -> dict[str, list[str]]:
    """Operation -> its frames, innermost first."""
    frames: dict[int, list[str]] = {}
    rows = sink.rows("PYTORCH_CALLCHAINS", "id", "stack", "stackDepth", texts=["stack"])
    for chain, text, depth in rows:
        frames.setdefault(chain, []).append(text)
        assert depth == len(frames[chain]) - 1
    found = sink.rows("PYTORCH_API", "name", "callchainId", texts=["name"])
    return {name: frames.get(chain, []) for name, chain in found}


TRACE = [
    frame("train.py(5): main", 0, 1000),
    frame("model.py(9): forward", 10, 200),
    frame("linear.py(3): forward", 20, 50),
    forward("aten::linear", 30, 30, sequence=7),
    operation("aten::addmm", 35, 10),
    forward("aten::relu", 100, 10, sequence=8),
    frame("train.py(8): backward", 300, 400),
    backward("AddmmBackward0", 400, 50, sequence=7),
    operation("aten::mm", 410, 20, tid=201),
    operation("aten::zero_", 800, 10),
]


def test_operations_get_the_functions_around_them(tmp_path: Path) -> None:
    found = chains(decode_events(tmp_path, *TRACE))
    outer = ["model.py(9): forward", "train.py(5): main"]
    assert found["aten::linear"] == ["linear.py(3): forward", *outer]
    assert found["aten::addmm"] == found["aten::linear"]
    assert found["aten::relu"] == outer
    assert found["aten::zero_"] == ["train.py(5): main"]


def test_backward_operations_get_their_forward_operations_chain(tmp_path: Path) -> None:
    found = chains(decode_events(tmp_path, *TRACE))
    assert found["AddmmBackward0"] == found["aten::linear"]
    assert found["aten::mm"] == found["aten::linear"], "and so does what runs inside of them"


def test_that_holds_on_the_calling_thread_too(tmp_path: Path) -> None:
    trace = [*TRACE[:7], backward("AddmmBackward0", 400, 50, sequence=7, tid=101)]
    found = chains(decode_events(tmp_path, *trace))
    assert found["AddmmBackward0"] == found["aten::linear"]


def test_the_last_operation_with_a_number_made_the_node(tmp_path: Path) -> None:
    trace = [
        frame("a.py(1): a", 0, 50),
        forward("aten::detach", 10, 10, sequence=3),
        frame("b.py(1): b", 60, 50),
        forward("aten::mul", 70, 10, sequence=3),
        backward("MulBackward0", 200, 10, sequence=3),
    ]
    assert chains(decode_events(tmp_path, *trace))["MulBackward0"] == ["b.py(1): b"]


def test_a_number_used_on_two_threads_is_not_guessed(tmp_path: Path) -> None:
    trace = [
        frame("a.py(1): a", 0, 50),
        forward("aten::mul", 10, 10, sequence=3),
        frame("b.py(1): b", 0, 50, tid=102),
        forward("aten::add", 11, 10, sequence=3, tid=102),
        backward("MulBackward0", 200, 10, sequence=3),
        backward("UnseenBackward0", 220, 10, sequence=4),
    ]
    sink = decode_events(tmp_path, *trace)
    assert chains(sink)["MulBackward0"] == []
    assert sink.anomalies == {"ambiguous_forward_operation": 1, "backward_without_forward": 1}


def test_windows_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write(tmp_path / "trace.json", TRACE)
    whole = decode(trace)
    monkeypatch.setattr("unified_prof.decoders.gpu.rows.RUN_BYTES", 1)
    monkeypatch.setattr("unified_prof.decoders.spool._MIN_BLOCK_ROWS", 1)
    monkeypatch.setattr(hosts, "WINDOW_ROWS", 1)
    assert chains(decode(trace)) == chains(whole)


def test_older_operations_carry_their_call_stack(tmp_path: Path) -> None:
    stack = {"Call stack": "linear.py(3): forward;model.py(9): forward;train.py(5): main"}
    found = chains(decode_events(tmp_path, operation("aten::linear", 1, 1, args=stack)))
    assert found["aten::linear"] == [
        "linear.py(3): forward",
        "model.py(9): forward",
        "train.py(5): main",
    ]


def test_addresses_of_builtins_do_not_make_new_frames(tmp_path: Path) -> None:
    trace = []
    for i in range(3):
        trace.append(frame(f"<built-in method item of Tensor object at 0x7f00{i}>", 10 * i, 5))
        trace.append(operation(f"aten::item{i}", 10 * i + 1, 1))
    found = chains(decode_events(tmp_path, *trace))
    assert set(map(tuple, found.values())) == {("<built-in method item of Tensor object>",)}


def test_long_calls_of_python_functions_are_written(tmp_path: Path) -> None:
    sink = decode_events(tmp_path, *TRACE)
    rows = sink.rows("UPROF_PYTHON_FRAMES", "startNs", "endNs", "name", texts=["name"])
    assert rows == [(0, 1_000_000, "train.py(5): main")]
