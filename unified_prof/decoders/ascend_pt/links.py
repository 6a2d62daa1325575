"""CONNECTION_IDS: which operators belong together, and what they launched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import lookup
from unified_prof.decoders.ascend_pt.operators import MARK, NONE, Operators
from unified_prof.decoders.ascend_pt.queue import Intervals, Queue

Ints = NDArray[np.int64]

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
    place = lookup.find(forward[0], backward[0])
    both = place != lookup.NOWHERE
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
    place = lookup.find(
        queue.enqueues.correlation[order], queue.dequeues.correlation[dequeue[known]]
    )
    there = place != lookup.NOWHERE
    result[known[there]] = order[place[there]]
    return result


def _first_free(queue: Queue) -> int:
    used = [int(side.correlation.max()) for side in (queue.enqueues, queue.dequeues) if len(side)]
    return FIRST_OF_FRAMEWORK + max(used, default=-1) + 1


def _last_by_number(numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return every number once, ascending, with its last row."""
    distinct, first = np.unique(numbers[::-1], return_index=True)
    return distinct, rows[::-1][first]
