"""Reads the task queue, joins operators with their launches, and writes PYTORCH_API.

Also writes the tables that PYTORCH_API refers to, STEP_TIME and GC_RECORD.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

from unified_prof.arrays import grouping
from unified_prof.arrays.grouping import Bools, Ints, Runs
from unified_prof.base.columns import API_NAMES, API_OPERATION, API_PYTHON, API_QUEUE, Sink
from unified_prof.decoders.ascend_pt.folder import DAMAGED, Layout, read_records
from unified_prof.decoders.ascend_pt.operators import (
    MARK,
    NO_TEXT,
    NONE,
    STEP,
    Clock,
    Frames,
    Operators,
    Texts,
    string_ids,
)
from unified_prof.decoders.spool import row_type

LAYOUTS = (Layout(row_type("time <i8, category <u8, correlation <u8, tid <u8, pid <u8")),)
_KIND = 2
_NAME = 1
_CATEGORIES = 4
_END = 1  # Added to the category of a start.


class Intervals(Struct, frozen=True, eq=False):
    """Enqueues or dequeues, sorted by end."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    correlation: Ints
    name: Ints  # Index of the kernel's name in `Queue.names`.
    pid: int | None  # Process id in the first row.

    def __len__(self) -> int:
        return len(self.start_ns)


class Queue:
    """Enqueues and dequeues of the task queue."""

    def __init__(self, names: Texts, enqueues: Intervals, dequeues: Intervals) -> None:
        self.names, self.enqueues, self.dequeues = names, enqueues, dequeues

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Queue:
        """Read the begin and end marks from a file; return an empty queue if the file is missing.

        Raises RawFormatError if the file cannot be read.
        """
        names = Texts()
        columns: dict[str, list[Ints]] = {name: [] for name in _COLUMNS}
        for batch in () if path is None else read_records(path, _KIND, LAYOUTS, (_NAME,), sink):
            for name in LAYOUTS[0].fixed.names or ():
                columns[name].append(batch.fixed[name].astype(np.int64))
            columns["name"].append(names.numbers(batch.data, *batch.fields[_NAME]))
        marks = {name: np.concatenate([_NO_ROWS, *parts]) for name, parts in columns.items()}
        marks["time"] = clock(marks["time"])
        unknown = (marks["category"] < 0) | (marks["category"] >= _CATEGORIES)
        if unknown.any():
            detail = f"{path}: a mark with the unknown category {marks['category'][unknown][0]}"
            sink.anomaly(DAMAGED, int(unknown.sum()), detail)
            marks = {name: values[~unknown] for name, values in marks.items()}
        order, is_pair = _pairs(marks)
        sink.anomaly(
            "unpaired_mark", len(order) - 2 * int(is_pair.sum()), f"{path}: marks of the task queue"
        )
        enqueues = _intervals(marks, order, is_pair, 0)
        return cls(names, enqueues, _intervals(marks, order, is_pair, 2))

    @property
    def is_used(self) -> bool:
        """True if operators were launched through the task queue."""
        return bool(len(self.enqueues) and len(self.dequeues))


def _pairs(marks: dict[str, Ints]) -> tuple[Ints, Bools]:
    """Sort the marks; return their order and a mask of the ends whose start directly precedes them.

    An end belongs to the latest open start with the same side, thread and name; older starts are
    dropped.
    """
    category = marks["category"]
    side = category // 2
    order = np.lexsort((marks["time"], marks["name"], marks["tid"], side))
    runs = Runs(side[order], marks["tid"][order], marks["name"][order])
    is_end = category[order] % 2 == _END
    pairs = is_end & ~np.append(True, is_end[:-1])[: len(is_end)]
    pairs[runs.starts] = False
    return order, pairs


def _intervals(marks: dict[str, Ints], order: Ints, is_pair: Bools, category: int) -> Intervals:
    place = np.flatnonzero(is_pair)
    place = place[marks["category"][order[place]] == category + _END]
    begin, end = order[place - 1], order[place]
    by_end = np.lexsort((end, marks["time"][end]))
    begin, end = begin[by_end], end[by_end]
    return Intervals(
        marks["time"][begin],
        marks["time"][end],
        marks["tid"][end],
        marks["correlation"][end],
        marks["name"][end],
        int(marks["pid"][end[0]]) if len(end) else None,
    )


_COLUMNS = ("time", "category", "correlation", "tid", "pid", "name")
_NO_ROWS = np.zeros(0, np.int64)

# Added to connection numbers of the framework, so that they differ from those of CANN_API.
FIRST_OF_FRAMEWORK = 5 << 28
_THREAD_BITS = 0xFFFF_FFFF


def queue_connections(intervals: Intervals) -> Ints:
    """Return connection numbers; an enqueue and its dequeue have the same number."""
    return intervals.correlation + FIRST_OF_FRAMEWORK


def operator_connections(
    operators: Operators,
    queue: Queue,
    launches: dict[str, Ints],
    marks: dict[str, Ints] | None = None,
) -> tuple[Ints, Ints]:
    """Return the connections of operators as pairs (row of the operator, connection number).

    `launches` are the calls of CANN that launched tasks, and `marks` those that were also recorded
    on the device (None for a text export), as the methods of `RecordingSink` return them.
    """
    backward, forward = forward_and_backward(operators)
    used = [int(side.correlation.max()) for side in (queue.enqueues, queue.dequeues) if len(side)]
    numbers = np.arange(len(backward)) + FIRST_OF_FRAMEWORK + max(used, default=-1) + 1
    launched = launch_connections(operators, queue, launches, operators.pid)
    found = [(forward, numbers), (backward, numbers), launched]
    if marks is not None:
        found.append(mark_connections(operators, queue, marks, operators.pid))
    rows, connections = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(connections)


def forward_and_backward(operators: Operators) -> tuple[Ints, Ints]:
    """Return the backward and the forward operator for each sequence number that has both.

    If there are several, the last recorded (outermost) operator is used.
    """
    rows = np.flatnonzero(
        (operators.sequence >= 0) & ~operators.match(lambda name: name.startswith(MARK))
    )
    rows = rows[np.argsort(operators.number[rows], kind="stable")]
    is_forward = operators.forward_tid[rows] == 0
    sequence = operators.sequence[rows]
    forward = _last_by_number(sequence[is_forward], rows[is_forward])
    backward = _last_by_number(sequence[~is_forward], rows[~is_forward])
    place = grouping.find(forward[0], backward[0])
    both = place != grouping.NOWHERE
    backward_rows, forward_rows = backward[1][both], forward[1][place[both]]
    # In the order of the first occurrence of the numbers.
    distinct, first = np.unique(sequence, return_index=True)
    order = np.argsort(first[np.searchsorted(distinct, backward[0][both])], kind="stable")
    return backward_rows[order], forward_rows[order]


def launch_connections(
    operators: Operators, queue: Queue, launches: dict[str, Ints], pid: int | None
) -> tuple[Ints, Ints]:
    """Return pairs of operators and the CANN_API.connectionId of their launches.

    With a task queue, a launch inside a dequeue belongs to the operator that encloses the matching
    enqueue; other launches have no operator. Without a queue, a launch belongs to the operator that
    encloses it.
    """
    calls = _of_process(launches, pid)
    return _around(operators, *(_enqueued(queue, *calls) if queue.is_used else calls))


def mark_connections(
    operators: Operators, queue: Queue, marks: dict[str, Ints], pid: int | None
) -> tuple[Ints, Ints]:
    """Return pairs of `mstx_*` operators and the MSTX_EVENTS.connectionId of their marks.

    Without a task queue the result is empty, as in torch_npu.
    """
    if not queue.is_used:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    chosen = operators.match(lambda name: name.startswith(MARK))
    return _around(operators, *_enqueued(queue, *_of_process(marks, pid)), chosen)


def _around(
    operators: Operators,
    tid: Ints,
    start_ns: Ints,
    end_ns: Ints,
    connection: Ints,
    chosen: Bools | None = None,
) -> tuple[Ints, Ints]:
    """Return pairs of the innermost (`chosen`) operator around a call, and its connection."""
    operator = operators.around(tid, start_ns, end_ns, chosen)
    known = operator != NONE
    return operator[known], connection[known]


def _of_process(calls: dict[str, Ints], pid: int | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start, end and connection of the calls of a process (None: all processes)."""
    if pid is not None:
        of_pid = (calls["globalTid"] >> 32) & _THREAD_BITS == pid & _THREAD_BITS
        calls = {name: values[of_pid] for name, values in calls.items()}
    tid = calls["globalTid"] & _THREAD_BITS
    return tid, calls["startNs"], calls["endNs"], calls["connectionId"]


def _enqueued(
    queue: Queue, tid: Ints, start_ns: Ints, end_ns: Ints, connection: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start and end of the enqueue for each call, and the connection of the call.

    Calls outside dequeues are dropped.
    """
    enqueue = enqueue_of(queue, dequeue_around(queue.dequeues, tid, start_ns, end_ns))
    known = enqueue != NONE
    enqueue, connection = enqueue[known], connection[known]
    side = queue.enqueues
    return side.tid[enqueue], side.start_ns[enqueue], side.end_ns[enqueue], connection


def dequeue_around(dequeues: Intervals, tid: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the dequeue on a thread that strictly encloses each interval, or NONE.

    Dequeues on a thread do not overlap, so only the last earlier one is checked.
    """
    found = dequeue_begun(dequeues, tid, start_ns - 1)
    known = np.flatnonzero(found != NONE)
    over = dequeues.end_ns[found[known]] <= end_ns[known]
    found[known[over]] = NONE
    return found


def dequeue_begun(dequeues: Intervals, tid: Ints, at_ns: Ints) -> Ints:
    """Return the last dequeue on a thread that started at or before each time, or NONE."""
    order = np.lexsort((dequeues.start_ns, dequeues.tid))
    last = grouping.last_not_after(dequeues.tid[order], dequeues.start_ns[order], tid, at_ns)
    return np.append(order, NONE)[last]


def enqueue_of(queue: Queue, dequeue: Ints) -> Ints:
    """Return the enqueue with the correlation id of each dequeue, or NONE."""
    order = np.argsort(queue.enqueues.correlation, kind="stable")
    result = np.full(len(dequeue), NONE, np.int64)
    known = np.flatnonzero(dequeue != NONE)
    correlation = queue.enqueues.correlation[order]
    place = grouping.find(correlation, queue.dequeues.correlation[dequeue[known]])
    there = place != grouping.NOWHERE
    result[known[there]] = order[place[there]]
    return result


def _last_by_number(numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the distinct numbers in ascending order, and the last row of each number."""
    distinct, first = np.unique(numbers[::-1], return_index=True)
    return distinct, rows[::-1][first]


_ROWS = 200_000


def write_types(sink: Sink) -> None:
    """Write the rows that torch_npu adds to ENUM_API_TYPE."""
    sink.write("ENUM_API_TYPE", {"id": list(API_NAMES), "name": list(API_NAMES.values())})


def write_operators(
    operators: Operators, names: Ints, connections: tuple[Ints, Ints], pid: int, sink: Sink
) -> int:
    """Write operators, their connections and call stacks; return the number of connection ids.

    `names` are the string ids of the operators, `connections` pairs of operator and connection
    number, `pid` is the process of all rows.
    """
    rows, numbers = connections
    connected, place = np.unique(rows, return_inverse=True)
    _write_connections(place.reshape(-1), numbers, sink)
    connection = np.full(len(operators), NONE, np.int64)
    connection[connected] = np.arange(len(connected))
    types = _optional(operators.types, operators.type, sink)
    shapes = _optional(operators.shapes, operators.shape, sink)
    for first in range(0, len(operators), _ROWS):
        part = slice(first, first + _ROWS)
        sink.write(
            "PYTORCH_API",
            {
                "startNs": operators.start_ns[part],
                "endNs": operators.end_ns[part],
                "globalTid": _threads(pid, operators.tid[part]),
                "connectionId": np.ma.masked_equal(connection[part], NONE),
                "name": names[part],
                "sequenceNumber": operators.sequence[part],
                "fwdThreadId": operators.forward_tid[part],
                "inputDtypes": types[part],
                "inputShapes": shapes[part],
                "callchainId": np.ma.MaskedArray(
                    operators.stack[part], operators.stack[part] == NO_TEXT
                ),
                "type": API_OPERATION,
            },
        )
    _write_stacks(operators.stacks, sink)
    return len(connected)


def write_queue(queue: Queue, pid: int, first_id: int, sink: Sink) -> None:
    """Write the enqueues and dequeues of the task queue."""
    plain = sink.strings.intern("Enqueue")
    kernels = queue.names.all
    dequeue_names, enqueue_names = (
        np.append(
            sink.strings.intern_all(f"{side}@{name}" for name in kernels),
            sink.strings.intern(f"{side}@"),
        )
        for side in ("Dequeue", "Enqueue")
    )
    # The last dequeue with the same correlation id.
    distinct, last = _last_by_number(queue.dequeues.correlation, np.arange(len(queue.dequeues)))
    partner = np.append(last, NONE)[grouping.find(distinct, queue.enqueues.correlation)]
    names = np.full(len(queue.enqueues), plain, np.int64)
    has = partner != NONE
    names[has] = enqueue_names[queue.dequeues.name[partner[has]]]
    write_queue_side(queue.enqueues, names, pid, first_id, sink)
    names = dequeue_names[queue.dequeues.name]
    write_queue_side(queue.dequeues, names, pid, first_id + len(queue.enqueues), sink)


def write_frames(frames: Frames, sink: Sink) -> None:
    """Write calls of Python functions and modules."""
    names = sink.strings.intern_all(frames.names)
    for first in range(0, len(frames.start_ns), _ROWS):
        part = slice(first, first + _ROWS)
        sink.write(
            "PYTORCH_API",
            {
                "startNs": frames.start_ns[part],
                "endNs": frames.end_ns[part],
                "globalTid": _threads(frames.pid[part], frames.tid[part]),
                "name": names[frames.name[part]],
                "type": API_PYTHON,
            },
        )


def write_collections(start_ns: Ints, end_ns: Ints, pid: Ints, sink: Sink) -> None:
    """Write GC_RECORD: the runs of Python's garbage collector."""
    if len(start_ns):
        columns = {"startNs": start_ns, "endNs": end_ns, "globalTid": _threads(pid, pid)}
        sink.write("GC_RECORD", columns)


def write_steps(operators: Operators, sink: Sink) -> None:
    """Write STEP_TIME: step operators outside any other operator, as torch_npu does."""
    rows = np.flatnonzero(operators.match(lambda name: STEP in name))
    is_outermost = operators.parent[rows] == NONE if len(rows) else np.zeros(0, bool)
    if inside := int((~is_outermost).sum()):
        name = operators.names.all[operators.name[rows[~is_outermost][0]]]
        detail = f"{name} started inside another operator and is not a step for torch_npu"
        sink.anomaly("step_inside_operator", inside, detail)
    rows = rows[is_outermost]
    rows = rows[np.argsort(operators.start_ns[rows], kind="stable")]
    texts = operators.names.all
    numbers = [texts[name].rpartition("#")[2] for name in operators.name[rows].tolist()]
    usable = np.array([text.isascii() and text.isdigit() and len(text) < 19 for text in numbers])
    usable = usable.astype(bool)
    if odd := len(rows) - int(usable.sum()):
        sink.anomaly("step_without_number", odd, texts[operators.name[rows[~usable][0]]])
    rows = rows[usable]
    if len(rows):
        sink.write(
            "STEP_TIME",
            {
                "id": [int(text) for text, good in zip(numbers, usable, strict=True) if good],
                "startNs": operators.start_ns[rows],
                "endNs": operators.end_ns[rows],
            },
        )


def write_queue_side(side: Intervals, names: Ints, pid: int, first_id: int, sink: Sink) -> None:
    """Write enqueues or dequeues with connection ids from `first_id` on."""
    if not len(side):
        return
    ids = first_id + np.arange(len(side))
    sink.write(
        "PYTORCH_API",
        {
            "startNs": side.start_ns,
            "endNs": side.end_ns,
            "globalTid": _threads(pid, side.tid),
            "connectionId": ids,
            "name": names,
            "type": API_QUEUE,
        },
    )
    _write_connections(ids, queue_connections(side), sink)


def _write_connections(ids: Ints, numbers: Ints, sink: Sink) -> None:
    if len(ids):
        order = np.argsort(ids, kind="stable")
        sink.write("CONNECTION_IDS", {"id": ids[order], "connectionId": numbers[order]})


def _write_stacks(stacks: Texts, sink: Sink) -> None:
    """Write each distinct call stack, innermost frame first."""
    frames = [text.split(";\r\n") for text in stacks.all]
    sizes = np.array([len(stack) for stack in frames], np.int64)
    if not len(sizes):
        return
    chain = np.repeat(np.arange(len(sizes)), sizes)
    sink.write(
        "PYTORCH_CALLCHAINS",
        {
            "id": chain,
            "stack": sink.strings.intern_all(text for stack in frames for text in stack),
            "stackDepth": Runs(chain).rank(),
        },
    )


def _optional(
    texts: Texts, numbers: Ints, sink: Sink
) -> np.ma.MaskedArray[tuple[int], np.dtype[np.int64]]:
    return np.ma.MaskedArray(string_ids(sink.strings, texts, numbers), numbers == NO_TEXT)


def _threads(pid: int | Ints, tid: Ints) -> Ints:
    """Return globalTid (process << 32 | thread); numbers beyond 64 bits wrap."""
    if isinstance(pid, int):
        pid = np.array(pid & 0x7FFF_FFFF_FFFF_FFFF, np.int64)
    return (pid << 32) | tid
