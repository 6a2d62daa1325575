"""Python call chains of operations, including backward operations."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.decoders.kineto.builders import (
    RowSink,
    complete,
    decode,
    decode_events,
    operation,
    write,
)
from unified_prof.cli.app import app
from unified_prof.decoders.gpu import joins
from unified_prof.pipeline.convert import convert


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


def frames_by_operation(sink: RowSink) -> dict[str, list[str]]:
    """Return the frames of each operation, innermost first."""
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


def test_operations_and_their_children_have_the_enclosing_python_frames(tmp_path: Path) -> None:
    sink = decode_events(tmp_path, *TRACE)
    found = frames_by_operation(sink)
    outer = ["model.py(9): forward", "train.py(5): main"]
    assert found["aten::linear"] == ["linear.py(3): forward", *outer]
    assert found["aten::addmm"] == found["aten::linear"]
    assert found["aten::relu"] == outer
    assert found["aten::zero_"] == ["train.py(5): main"]

    assert found["AddmmBackward0"] == found["aten::mm"] == found["aten::linear"]
    rows = sink.rows("UPROF_PYTHON_FRAMES", "startNs", "endNs", "name", texts=["name"])
    assert rows == [  # calls of 0.2 ms or more
        (0, 1_000_000, "train.py(5): main"),
        (10_000, 210_000, "model.py(9): forward"),
        (300_000, 700_000, "train.py(8): backward"),
    ]


def test_backward_on_the_calling_thread_has_frames_of_its_forward_operation(tmp_path: Path) -> None:
    trace = [*TRACE[:7], backward("AddmmBackward0", 400, 50, sequence=7, tid=101)]
    found = frames_by_operation(decode_events(tmp_path, *trace))
    assert found["AddmmBackward0"] == found["aten::linear"]


def test_backward_node_belongs_to_the_last_operation_of_its_sequence_number(tmp_path: Path) -> None:
    trace = [
        frame("a.py(1): a", 0, 50),
        forward("aten::detach", 10, 10, sequence=3),
        frame("b.py(1): b", 60, 50),
        forward("aten::mul", 70, 10, sequence=3),
        backward("MulBackward0", 200, 10, sequence=3),
    ]
    assert frames_by_operation(decode_events(tmp_path, *trace))["MulBackward0"] == ["b.py(1): b"]


def test_sequence_number_on_two_threads_is_counted_as_ambiguous(tmp_path: Path) -> None:
    trace = [
        frame("a.py(1): a", 0, 50),
        forward("aten::mul", 10, 10, sequence=3),
        frame("b.py(1): b", 0, 50, tid=102),
        forward("aten::add", 11, 10, sequence=3, tid=102),
        backward("MulBackward0", 200, 10, sequence=3),
        backward("UnseenBackward0", 220, 10, sequence=4),
    ]
    sink = decode_events(tmp_path, *trace)
    assert frames_by_operation(sink)["MulBackward0"] == []
    assert sink.anomalies == {"ambiguous_forward_operation": 1, "backward_without_forward": 1}


def test_call_chains_do_not_depend_on_the_window_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "trace.json", TRACE)
    whole = decode(trace)
    monkeypatch.setattr("unified_prof.decoders.gpu.rows.RUN_BYTES", 1)
    monkeypatch.setattr("unified_prof.decoders.spool._MIN_BLOCK_ROWS", 1)
    monkeypatch.setattr(joins, "WINDOW_ROWS", 1)
    assert frames_by_operation(decode(trace)) == frames_by_operation(whole)


def test_call_stack_argument_of_old_traces_becomes_frames(tmp_path: Path) -> None:
    stack = {"Call stack": "linear.py(3): forward;model.py(9): forward;train.py(5): main"}
    found = frames_by_operation(
        decode_events(tmp_path, operation("aten::linear", 1, 1, args=stack))
    )
    assert found["aten::linear"] == stack["Call stack"].split(";")


def test_builtin_frames_with_different_addresses_are_one_frame(tmp_path: Path) -> None:
    trace = []
    for i in range(3):
        trace.append(frame(f"<built-in method item of Tensor object at 0x7f00{i}>", 10 * i, 5))
        trace.append(operation(f"aten::item{i}", 10 * i + 1, 1))
    found = frames_by_operation(decode_events(tmp_path, *trace))
    assert set(map(tuple, found.values())) == {("<built-in method item of Tensor object>",)}


@pytest.mark.parametrize("functions", [True, False])
def test_report_says_that_lines_are_those_of_functions(tmp_path: Path, functions: bool) -> None:
    events = [frame("train.py(5): main", 0, 1000)] if functions else []
    trace = write(tmp_path / "trace.json", [*events, forward("aten::relu", 100, 10, sequence=1)])
    database = convert(trace, tmp_path / "out.db").database
    done = CliRunner().invoke(app, ["report", str(database), "--by", "line"])
    assert ("torch.profiler records functions" in done.stdout) == functions
