"""The task queue of torch_npu: enqueues, dequeues, launches and marks."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.ascend_pt.builders import PID, Framework
from tests.decoders.ascend_pt.rows import RowSink, decode
from unified_prof.base.columns import Column
from unified_prof.decoders.ascend_pt import queue as links
from unified_prof.decoders.ascend_pt.operators import Operators
from unified_prof.decoders.ascend_pt.queue import Queue
from unified_prof.decoders.ascend_pt.recording import RecordingSink

NUMBER = 5 << 28


def launches(*calls: tuple[int, int, int, int]) -> dict[str, Any]:
    """Return calls from (start, end, tid, connection)."""
    start, end, tid, connection = (np.array(part, np.int64) for part in zip(*calls, strict=True))
    return {
        "startNs": start,
        "endNs": end,
        "globalTid": PID << 32 | tid,
        "connectionId": connection,
    }


def read(
    framework: Framework, folder: Path, sink: RowSink | None = None
) -> tuple[Operators, Queue]:
    folder, sink = framework.write(folder) / "FRAMEWORK", sink or RowSink()
    operators, marks = folder / "torch.op_range", folder / "torch.op_mark"
    return (
        Operators.read(operators if operators.exists() else None, lambda raw: raw, sink),
        Queue.read(marks if marks.exists() else None, lambda raw: raw, sink),
    )


def operator_by_launch(
    framework: Framework, folder: Path, *calls: tuple[int, int, int, int]
) -> dict[int, str]:
    """Return the operator of every connection."""
    operators, queue = read(framework, folder)
    rows, numbers = links.launch_connections(operators, queue, launches(*calls), PID)
    names = operators.names.all
    return {
        int(number): names[operators.name[row]] for row, number in zip(rows, numbers, strict=True)
    }


def test_enqueue_and_dequeue_share_a_number_and_the_kernel_name(tmp_path: Path) -> None:
    framework = Framework()
    framework.enqueue(10, 12, 3, 1, "aclnnMm")
    framework.enqueue(20, 22, 4, 1, "lost")
    framework.dequeue(30, 40, 3, 2, "aclnnMatmul")
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name", "startNs", "endNs", "type", "sequenceNumber") == [
        ("Dequeue@aclnnMatmul", 30, 40, 50002, None),
        ("Enqueue", 20, 22, 50002, None),
        ("Enqueue@aclnnMatmul", 10, 12, 50002, None),
    ]
    assert sink.links() == {
        "Enqueue@aclnnMatmul": [NUMBER + 3],
        "Dequeue@aclnnMatmul": [NUMBER + 3],
        "Enqueue": [NUMBER + 4],
    }
    ids = sink.table("PYTORCH_API", "connectionId")
    assert len(set(ids)) == len(ids)


def test_launch_belongs_to_the_innermost_operator_around_its_enqueue(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("inner", 11, 19, 1)
    framework.operator("outer", 10, 20, 1)
    framework.operator("other thread", 12, 18, 3)
    framework.enqueue(13, 15, 8, 1)
    framework.dequeue(100, 120, 8, 2)
    calls = ((101, 119, 2, 50), (100, 119, 2, 51), (101, 120, 2, 52), (130, 131, 2, 53))
    assert operator_by_launch(framework, tmp_path, *calls) == {50: "inner"}


def test_interleaved_queues_do_not_mix_partners(tmp_path: Path) -> None:
    framework = Framework()
    for number, (start, thread) in enumerate(((100, 2), (110, 3), (120, 2))):
        framework.operator(f"op{number}", 10 * number, 10 * number + 9, 1)
        framework.enqueue(10 * number + 1, 10 * number + 2, number, 1)
        framework.dequeue(start, start + (50 if thread == 3 else 9), number, thread)
    calls = ((101, 102, 2, 50), (121, 122, 2, 52), (111, 112, 3, 51))
    assert operator_by_launch(framework, tmp_path, *calls) == {50: "op0", 51: "op1", 52: "op2"}


def test_launch_without_queue_belongs_to_the_enclosing_operator(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("inner", 11, 19, 1)
    framework.operator("outer", 10, 20, 1)
    calls = ((12, 18, 1, 50), (11, 18, 1, 51), (10, 12, 1, 52), (12, 18, 2, 53))
    assert operator_by_launch(framework, tmp_path, *calls) == {50: "inner", 51: "outer"}


def test_launches_of_another_process_have_no_operator(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("a", 10, 20, 1)
    operators, queue = read(framework, tmp_path)
    foreign = launches((12, 13, 1, 5)) | {"globalTid": np.array([(PID + 1) << 32 | 1])}
    assert len(links.launch_connections(operators, queue, foreign, PID)[0]) == 0


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(1, 2)), max_size=14)


@given(RANGES, RANGES)
def test_innermost_interval_is_the_last_begun_around_a_time(
    ranges: list[tuple[int, int, int]], queries: list[tuple[int, int, int]]
) -> None:
    """Ranges of a thread may cross, which a search by nesting would get wrong."""
    framework = Framework()
    for number, (start, length, tid) in enumerate(ranges):
        framework.operator(str(number), start, start + length, tid)
    with tempfile.TemporaryDirectory() as folder:
        operators, _ = read(framework, Path(folder))
    starts, lengths, tids = (np.array([row[k] for row in queries], np.int64) for k in (0, 1, 2))
    found = operators.around(tids, starts, starts + lengths)
    names = operators.names.all
    for (begin, lasts, thread), row in zip(queries, found.tolist(), strict=True):
        around = [
            start
            for start, length, tid in ranges
            if tid == thread and start < begin and start + length > begin + lasts
        ]
        got = None if row < 0 else ranges[int(names[operators.name[row]])][0]
        assert got == max(around, default=None)


MARKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 2), st.integers(1, 2)),
    max_size=20,
)


@given(MARKS)
def test_marks_are_paired_with_one_open_start(marks: list[tuple[int, int, int, int]]) -> None:
    framework = Framework()
    for time, category, correlation, tid in marks:
        framework.mark(time, category, correlation, tid, "k")
    with tempfile.TemporaryDirectory() as folder:
        _, queue = read(framework, Path(folder), sink := RowSink())
    opened: dict[tuple[int, int], int] = {}
    expected = []
    for time, category, correlation, tid in sorted(marks, key=lambda mark: mark[0]):
        key = (category // 2, tid)
        if category % 2 == 0:
            opened[key] = time
        elif key in opened:
            expected.append((category // 2, opened.pop(key), time, tid, correlation))
    found = [
        (side, int(s), int(e), int(t), int(c))
        for side, rows in enumerate((queue.enqueues, queue.dequeues))
        for s, e, t, c in zip(rows.start_ns, rows.end_ns, rows.tid, rows.correlation, strict=True)
    ]
    assert sorted(found) == sorted(expected)
    assert sink.cases("unpaired_mark") == len(marks) - 2 * len(expected)


FIRST_MARK = 4_000_000_001


def operator_by_mark(
    framework: Framework, folder: Path, *calls: tuple[int, int, int, int]
) -> dict[int, str]:
    """Return the operator of every connected mark."""
    operators, queue = read(framework, folder)
    rows, numbers = links.mark_connections(operators, queue, launches(*calls), PID)
    names = operators.names.all
    return {
        int(number): names[operators.name[row]] for row, number in zip(rows, numbers, strict=True)
    }


def test_mark_belongs_to_the_mstx_operator_that_enqueued_it(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("mstx_range_start_op", 5, 30, 1)
    framework.operator("aten::mm", 8, 20, 1)  # Only mstx_* operators set marks.
    framework.enqueue(10, 12, 3, 1)
    framework.operator("aten::add", 40, 60, 1)
    framework.enqueue(45, 50, 4, 1)
    framework.dequeue(100, 120, 3, 2)
    framework.dequeue(130, 140, 4, 2)
    calls = [
        (105, 106, 2, FIRST_MARK),
        (132, 133, 2, FIRST_MARK + 1),  # Enqueued by an operator that sets no marks.
        (125, 126, 2, FIRST_MARK + 2),  # In no dequeue.
        (100, 106, 2, FIRST_MARK + 3),  # Not strictly inside.
    ]
    assert operator_by_mark(framework, tmp_path, *calls) == {FIRST_MARK: "mstx_range_start_op"}


def test_marks_without_queue_are_not_connected(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("mstx_mark_op", 5, 30, 1)
    assert operator_by_mark(framework, tmp_path, (10, 12, 1, FIRST_MARK)) == {}


def test_rows_that_are_joined_with_operators_are_kept_while_decoding() -> None:
    sink = RowSink()
    watched = RecordingSink(sink, None)
    launch, other = map(watched.strings.intern, ("launch", "event"))
    columns: dict[str, Column] = {"startNs": [1, 3], "endNs": [2, 4], "globalTid": 7}
    for name in (launch, other):
        for level in (10_000, 20_000):
            kind: dict[str, Column] = {"connectionId": [level, name], "type": level, "name": name}
            watched.write("CANN_API", columns | kind)
    watched.write("MSTX_EVENTS", {**columns, "connectionId": [FIRST_MARK - 1, FIRST_MARK]})
    watched.write("MSTX_EVENTS", {**columns, "connectionId": [1, 2]})
    watched.write("NPU_OP_MEM", {"operatorName": [launch], "size": [-5], "deviceId": 1})
    watched.write("RANK_DEVICE_MAP", {"rankId": 4, "deviceId": [0]})
    call = {"startNs": [1, 3], "endNs": [2, 4], "globalTid": [7, 7]}
    last = {name: values[1:] for name, values in call.items()}
    names = "addr", "type", "timestampNs", "totalAllocate", "totalReserve"
    missing = {name: [0] for name in names}
    for found, expected in (
        (watched.launches(), call | {"connectionId": [10_000, launch]}),
        (watched.marks(), last | {"connectionId": [FIRST_MARK]}),
        (
            watched.allocations(),
            missing | {"operatorName": [launch], "size": [-5], "deviceId": [1]},
        ),
    ):
        assert {name: column.tolist() for name, column in found.items()} == expected
    assert [(table, len(rows)) for table, rows in sink.rows.items()] == [
        ("CANN_API", 8), ("MSTX_EVENTS", 4), ("NPU_OP_MEM", 1), ("RANK_DEVICE_MAP", 1)
    ]  # fmt: skip
    assert sink.rows["RANK_DEVICE_MAP"] == [{"rankId": -1, "deviceId": 0}]
