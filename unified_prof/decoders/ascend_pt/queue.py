"""Reads the task queue (enqueues and dequeues) and joins operators with their launches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unified_prof.arrays import grouping
from unified_prof.arrays.grouping import Bools, Ints, Runs
from unified_prof.base.columns import Sink
from unified_prof.decoders.ascend_pt.folder import DAMAGED, Layout, read_records
from unified_prof.decoders.ascend_pt.operators import MARK, NONE, Clock, Operators, Texts
from unified_prof.decoders.spool import row_type

LAYOUTS = (Layout(row_type("time <i8, category <u8, correlation <u8, tid <u8, pid <u8")),)
_KIND = 2
_NAME = 1
_CATEGORIES = 4
# Added to the category of a start.
_END = 1


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Enqueues or dequeues, sorted by end."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    correlation: Ints
    name: Ints
    """Index of the kernel's name in `Queue.names`."""
    pid: int | None
    """Process id in the first row."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Queue:
    """Enqueues and dequeues of the task queue."""

    def __init__(self, names: Texts, enqueues: Intervals, dequeues: Intervals) -> None:
        self.names = names
        self.enqueues = enqueues
        self.dequeues = dequeues

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Queue:
        """Read the begin and end marks from a file; return an empty queue if the file is missing.

        Raises:
            RawFormatError: the file cannot be read.
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
        if unpaired := len(order) - 2 * int(is_pair.sum()):
            sink.anomaly("unpaired_mark", unpaired, f"{path}: marks of the task queue")
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
    pid: int | None,
    marks: dict[str, Ints] | None = None,
) -> tuple[Ints, Ints]:
    """Return the connections of operators as pairs (row of the operator, connection number).

    All arguments belong to one process. `launches` are the calls of CANN that launched tasks, and
    `marks` those that were also recorded on the device (None for a text export), as the methods of
    `RecordingSink` return them.
    """
    backward, forward = forward_and_backward(operators)
    used = [int(side.correlation.max()) for side in (queue.enqueues, queue.dequeues) if len(side)]
    numbers = np.arange(len(backward)) + FIRST_OF_FRAMEWORK + max(used, default=-1) + 1
    launched = launch_connections(operators, queue, launches, pid)
    found = [(forward, numbers), (backward, numbers), launched]
    if marks is not None:
        found.append(mark_connections(operators, queue, marks, pid))
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
    tid, start, end, connection = _of_process(launches, pid)
    if queue.is_used:
        tid, start, end, connection = _enqueued(queue, tid, start, end, connection)
    operator = operators.around(tid, start, end)
    known = operator != NONE
    return operator[known], connection[known]


def mark_connections(
    operators: Operators, queue: Queue, marks: dict[str, Ints], pid: int | None
) -> tuple[Ints, Ints]:
    """Return pairs of `mstx_*` operators and the MSTX_EVENTS.connectionId of their marks.

    Without a task queue the result is empty, as in torch_npu.
    """
    if not queue.is_used:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    tid, start, end, connection = _enqueued(queue, *_of_process(marks, pid))
    chosen = operators.match(lambda name: name.startswith(MARK))
    operator = operators.around(tid, start, end, chosen)
    known = operator != NONE
    return operator[known], connection[known]


def _of_process(calls: dict[str, Ints], pid: int | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start, end and connection of the calls of a process (None: all processes)."""
    start, end = calls["startNs"], calls["endNs"]
    connection = calls["connectionId"]
    tid = calls["globalTid"] & _THREAD_BITS
    if pid is not None:
        of_pid = (calls["globalTid"] >> 32) & _THREAD_BITS == pid & _THREAD_BITS
        start, end, connection, tid = start[of_pid], end[of_pid], connection[of_pid], tid[of_pid]
    return tid, start, end, connection


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
    threads, starts = dequeues.tid[order], dequeues.start_ns[order]
    found = np.full(len(tid), NONE, np.int64)
    for thread in np.unique(tid).tolist():
        low = int(np.searchsorted(threads, thread, "left"))
        high = int(np.searchsorted(threads, thread, "right"))
        of_thread = np.flatnonzero(tid == thread)
        slot = np.searchsorted(starts[low:high], at_ns[of_thread], "right") - 1
        there = slot >= 0
        found[of_thread[there]] = order[low + slot[there]]
    return found


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
