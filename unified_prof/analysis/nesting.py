"""Who contains whom among nested ranges: the call tree of host ranges, one thread at a time.

Ranges that a profiler records on one thread nest: two of them are disjoint or one contains the
other. Where a recording breaks that rule by a few nanoseconds (clocks are rounded), a range belongs
to the innermost earlier one that is still open when it starts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Indexes = NDArray[np.int64]

NONE = -1


def call_order(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Return the order thread, then start, then the longer range first: parents before children."""
    return np.lexsort((-end_ns, start_ns, thread))


def parents(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Return for every range the index of the innermost range around it, or -1.

    Args:
        thread: any number that tells threads apart.
        start_ns: start of each range.
        end_ns: end of each range, not before its start.

    All three must be in `call_order`.
    """
    result = _parents_of_nested(thread, start_ns, end_ns)
    inner = np.flatnonzero(result != NONE)
    outer = result[inner]
    if np.all(end_ns[inner] <= end_ns[outer]) and np.all(start_ns[inner] < end_ns[outer]):
        return result
    return _parents_one_by_one(thread, start_ns, end_ns)


def _parents_of_nested(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Find parents level by level; right where all ranges nest properly."""
    _, owner = np.unique(thread, return_inverse=True)
    first = np.searchsorted(owner, np.arange(int(owner.max(initial=-1)) + 2))
    depth = np.zeros(len(start_ns), np.int64)
    for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        # Open at a start: all that began before it, less those that have ended by then. An empty
        # range ends a moment late, so that it does not count as ended when it begins.
        ends = np.sort(np.maximum(end_ns[low:high], start_ns[low:high] + 1))
        ended = np.searchsorted(ends, start_ns[low:high], side="right")
        depth[low:high] = np.arange(high - low) - ended
    result = np.full(len(start_ns), NONE, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=-1)) + 2))
    for level in range(1, len(bounds) - 1):
        outer = by_depth[bounds[level - 1] : bounds[level]]
        inner = by_depth[bounds[level] : bounds[level + 1]]
        before = np.searchsorted(outer, inner) - 1
        result[inner] = np.where(before >= 0, outer[np.maximum(before, 0)], NONE)
    return result


def _parents_one_by_one(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Sweep over the ranges with a stack of open ones; right for any ranges."""
    found = [NONE] * len(start_ns)
    open_index: list[int] = []
    open_end: list[int] = []
    current: int | None = None
    rows = zip(thread.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for index, (owner, start, end) in enumerate(rows):
        if owner != current:
            current = owner
            open_index.clear()
            open_end.clear()
        while open_end and open_end[-1] <= start:
            open_end.pop()
            open_index.pop()
        if open_index:
            found[index] = open_index[-1]
        open_index.append(index)
        open_end.append(end)
    return np.array(found, np.int64)


def climb(parent: Indexes, stop: NDArray[np.bool_]) -> Indexes:
    """Return for every range the outermost of itself and its ancestors below a stopping one.

    A range marked in `stop` (a structural annotation, say) is nobody's outermost range; ancestors
    beyond it are not looked at. The result is -1 for the ranges marked in `stop` themselves.
    """
    top = np.where(stop, NONE, np.arange(len(parent)))
    moving = np.flatnonzero(~stop)
    while len(moving):
        above = parent[top[moving]]
        goes_on = (above != NONE) & ~stop[above]
        moving, above = moving[goes_on], above[goes_on]
        top[moving] = above
    return top


def nearest_marked(parent: Indexes, marked: NDArray[np.bool_]) -> Indexes:
    """Return for every range the innermost of itself and its ancestors that is marked, or -1."""
    result = np.where(marked, np.arange(len(parent)), NONE)
    looking = np.flatnonzero(~marked & (parent != NONE))
    at = parent[looking]
    while len(looking):
        found = marked[at]
        result[looking[found]] = at[found]
        looking, at = looking[~found], parent[at[~found]]
        inside = at != NONE
        looking, at = looking[inside], at[inside]
    return result


def innermost_at(
    thread: NDArray[np.int64],
    start_ns: Times,
    end_ns: Times,
    parent: Indexes,
    at_thread: NDArray[np.int64],
    at_ns: Times,
) -> Indexes:
    """Return for every point (thread, time) the innermost range that contains it, or -1.

    The ranges are in `call_order` with their `parents`; a range contains its start and its end.
    """
    if not len(start_ns):
        return np.full(len(at_ns), NONE, np.int64)
    threads, owner = np.unique(np.concatenate((thread, at_thread)), return_inverse=True)
    owner, at_owner = owner[: len(thread)], owner[len(thread) :]
    found = np.full(len(at_ns), NONE, np.int64)
    first = np.searchsorted(owner, np.arange(len(threads) + 1))
    for number in range(len(threads)):
        low, high = int(first[number]), int(first[number + 1])
        points = np.flatnonzero(at_owner == number)
        if low == high or not len(points):
            continue
        slot = np.searchsorted(start_ns[low:high], at_ns[points], side="right") - 1
        found[points] = np.where(slot >= 0, slot + low, NONE)
    # The last range to start may have ended already: then one of those around it is the answer.
    while True:
        ended = (found != NONE) & (end_ns[found] < at_ns)
        if not ended.any():
            return found
        found[ended] = parent[found[ended]]
