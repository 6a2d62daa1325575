"""The task queue: what Python's threads put in, and what the launching threads took out.

CONNECTION_IDS: which operators belong together, and what they launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import grouping
from unified_prof.arrays.grouping import Runs
from unified_prof.arrays.types import Ints
from unified_prof.base.columns import Sink
from unified_prof.decoders.ascend_pt.folder import DAMAGED, Layout, read_records
from unified_prof.decoders.ascend_pt.operators import MARK, NONE, Clock, Operators, Texts

_LAYOUTS = (
    Layout(
        np.dtype(
            [
                ("time", "<i8"),
                ("category", "<u8"),
                ("correlation", "<u8"),
                ("tid", "<u8"),
                ("pid", "<u8"),
            ]
        )
    ),
)
_KIND = 2
_NAME = 1
_CATEGORIES = 4
_END = 1
"""Added to the category of a start."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Enqueues, or dequeues, by their end."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    correlation: Ints
    name: Ints
    """Of the kernel: a number in `Queue.names`."""
    pid: int | None
    """Process of the first."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Queue:
    """What went through the queue, on both sides."""

    def __init__(self, names: Texts, enqueues: Intervals, dequeues: Intervals) -> None:
        self.names = names
        self.enqueues = enqueues
        self.dequeues = dequeues

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Queue:
        """Read marks, each of which begins or ends an interval; without a file there are none.

        Raises:
            RawFormatError: the file cannot be read.
        """
        names = Texts()
        columns: dict[str, list[Ints]] = {name: [] for name in _COLUMNS}
        for batch in () if path is None else read_records(path, _KIND, _LAYOUTS, (_NAME,), sink):
            for name in _LAYOUTS[0].fixed.names or ():
                columns[name].append(batch.fixed[name].astype(np.int64))
            columns["name"].append(names.numbers(batch.data, *batch.fields[_NAME]))
        marks = {name: np.concatenate([_NO_ROWS, *parts]) for name, parts in columns.items()}
        marks["time"] = clock(marks["time"])
        unknown = (marks["category"] < 0) | (marks["category"] >= _CATEGORIES)
        if unknown.any():
            told = f"{path}: a mark of category {marks['category'][unknown][0]}"
            sink.anomaly(DAMAGED, int(unknown.sum()), told)
            marks = {name: values[~unknown] for name, values in marks.items()}
        order, is_pair = _pairs(marks)
        if unpaired := len(order) - 2 * int(is_pair.sum()):
            sink.anomaly("unpaired_mark", unpaired, f"{path}: marks of the task queue")
        enqueues = _intervals(marks, order, is_pair, 0)
        return cls(names, enqueues, _intervals(marks, order, is_pair, 2))

    @property
    def is_used(self) -> bool:
        """Whether launches went through it."""
        return bool(len(self.enqueues) and len(self.dequeues))


def _pairs(marks: dict[str, Ints]) -> tuple[Ints, NDArray[np.bool_]]:
    """Return an order of the marks, and which of it ends what the one before begins.

    An end takes the latest start of its side, thread and name that is open; older ones are lost.
    """
    category = marks["category"]
    side = category // 2
    order = np.lexsort((marks["time"], marks["name"], marks["tid"], side))
    runs = Runs(side[order], marks["tid"][order], marks["name"][order])
    is_end = category[order] % 2 == _END
    pairs = is_end & ~np.append(True, is_end[:-1])[: len(is_end)]
    pairs[runs.starts] = False
    return order, pairs


def _intervals(
    marks: dict[str, Ints], order: Ints, is_pair: NDArray[np.bool_], category: int
) -> Intervals:
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


FIRST_OF_FRAMEWORK = 5 << 28
"""Added to numbers of the framework's own, so that they are none of CANN_API's."""
_THREAD_BITS = 0xFFFF_FFFF


def queue_connections(intervals: Intervals) -> Ints:
    """Return the number that an enqueue and its dequeue share."""
    return intervals.correlation + FIRST_OF_FRAMEWORK


def operator_connections(
    operators: Operators,
    queue: Queue,
    launches: dict[str, Ints],
    pid: int | None,
    marks: dict[str, Ints] | None = None,
) -> tuple[Ints, Ints]:
    """Return operators and the number of each of their connections.

    Args:
        operators: of one process.
        queue: its task queue.
        launches: calls of CANN that launched something, as `Watched.launches` returns them.
        pid: the process.
        marks: marks with a half on the device, as `Watched.marks` returns them; None: a text
            export, which does not have them.
    """
    backward, forward = forward_and_backward(operators)
    numbers = np.arange(len(backward)) + _first_free(queue)
    launched = launch_connections(operators, queue, launches, pid)
    found = [(forward, numbers), (backward, numbers), launched]
    if marks is not None:
        found.append(mark_connections(operators, queue, marks, pid))
    rows, connections = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(connections)


def forward_and_backward(operators: Operators) -> tuple[Ints, Ints]:
    """Return the backward and the forward operator of every sequence number that has both.

    Of several on one side the last that was recorded, which is the outermost.
    """
    rows = np.flatnonzero(
        (operators.sequence >= 0) & ~operators.named(lambda name: name.startswith(MARK))
    )
    rows = rows[np.argsort(operators.number[rows], kind="stable")]
    is_forward = operators.forward_tid[rows] == 0
    sequence = operators.sequence[rows]
    forward = _last_by_number(sequence[is_forward], rows[is_forward])
    backward = _last_by_number(sequence[~is_forward], rows[~is_forward])
    place = grouping.find(forward[0], backward[0])
    both = place != grouping.NOWHERE
    backward_rows, forward_rows = backward[1][both], forward[1][place[both]]
    # In the order in which the numbers first appear.
    distinct, first = np.unique(sequence, return_index=True)
    order = np.argsort(first[np.searchsorted(distinct, backward[0][both])], kind="stable")
    return backward_rows[order], forward_rows[order]


def launch_connections(
    operators: Operators, queue: Queue, launches: dict[str, Ints], pid: int | None
) -> tuple[Ints, Ints]:
    """Return operators and CANN_API.connectionId of what they launched.

    With a task queue a launch belongs to the operator that put it in; a launch that no dequeue
    holds to nobody. Without one it belongs to the operator round it.
    """
    tid, start, end, connection = _of_process(launches, pid)
    if queue.is_used:
        tid, start, end, connection = _put_in(queue, tid, start, end, connection)
    operator = operators.around(tid, start, end)
    known = operator != NONE
    return operator[known], connection[known]


def mark_connections(
    operators: Operators, queue: Queue, marks: dict[str, Ints], pid: int | None
) -> tuple[Ints, Ints]:
    """Return operators `mstx_*` and MSTX_EVENTS.connectionId of the marks that they put in.

    Without a task queue torch_npu connects none: a mark is set where it stands in the program.
    """
    if not queue.is_used:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    tid, start, end, connection = _put_in(queue, *_of_process(marks, pid))
    chosen = operators.named(lambda name: name.startswith(MARK))
    operator = operators.around(tid, start, end, chosen)
    known = operator != NONE
    return operator[known], connection[known]


def _of_process(calls: dict[str, Ints], pid: int | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start, end and connection of the calls of a process; None: of all."""
    start, end = calls["startNs"], calls["endNs"]
    connection = calls["connectionId"]
    tid = calls["globalTid"] & _THREAD_BITS
    if pid is not None:
        own = (calls["globalTid"] >> 32) & _THREAD_BITS == pid & _THREAD_BITS
        start, end, connection, tid = start[own], end[own], connection[own], tid[own]
    return tid, start, end, connection


def _put_in(
    queue: Queue, tid: Ints, start_ns: Ints, end_ns: Ints, connection: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start and end of what put each call into the queue, and its connection.

    Calls that no dequeue holds are left out.
    """
    enqueue = enqueue_of(queue, dequeue_round(queue.dequeues, tid, start_ns, end_ns))
    known = enqueue != NONE
    enqueue, connection = enqueue[known], connection[known]
    put_in = queue.enqueues
    return put_in.tid[enqueue], put_in.start_ns[enqueue], put_in.end_ns[enqueue], connection


def dequeue_round(dequeues: Intervals, tid: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the dequeue on a thread strictly round each interval, or NONE.

    Those of one thread follow each other: it is the last that began before.
    """
    found = dequeue_begun(dequeues, tid, start_ns - 1)
    known = np.flatnonzero(found != NONE)
    over = dequeues.end_ns[found[known]] <= end_ns[known]
    found[known[over]] = NONE
    return found


def dequeue_begun(dequeues: Intervals, tid: Ints, at_ns: Ints) -> Ints:
    """Return the dequeue of a thread that began last, not after each moment, or NONE."""
    order = np.lexsort((dequeues.start_ns, dequeues.tid))
    threads, starts = dequeues.tid[order], dequeues.start_ns[order]
    found = np.full(len(tid), NONE, np.int64)
    for thread in np.unique(tid).tolist():
        low = int(np.searchsorted(threads, thread, "left"))
        high = int(np.searchsorted(threads, thread, "right"))
        asked = np.flatnonzero(tid == thread)
        slot = np.searchsorted(starts[low:high], at_ns[asked], "right") - 1
        there = slot >= 0
        found[asked[there]] = order[low + slot[there]]
    return found


def enqueue_of(queue: Queue, dequeue: Ints) -> Ints:
    """Return the enqueue of the same correlation id as each dequeue, or NONE."""
    order = np.argsort(queue.enqueues.correlation, kind="stable")
    result = np.full(len(dequeue), NONE, np.int64)
    known = np.flatnonzero(dequeue != NONE)
    place = grouping.find(
        queue.enqueues.correlation[order], queue.dequeues.correlation[dequeue[known]]
    )
    there = place != grouping.NOWHERE
    result[known[there]] = order[place[there]]
    return result


def _first_free(queue: Queue) -> int:
    used = [int(side.correlation.max()) for side in (queue.enqueues, queue.dequeues) if len(side)]
    return FIRST_OF_FRAMEWORK + max(used, default=-1) + 1


def _last_by_number(numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return every number once, ascending, with its last row."""
    distinct, first = np.unique(numbers[::-1], return_index=True)
    return distinct, rows[::-1][first]
