"""Who contains whom among nested ranges: the call tree of host ranges, one thread at a time.

Ranges that a profiler records on one thread nest: two of them are disjoint or one contains the
other. Where a recording breaks that rule, there are three answers: the innermost earlier range that
is still open when a range starts (`parents`), the innermost one that contains it wholly
(`containing`), and the innermost one that contains it but for what clocks are rounded by
(`around`). Where all nest, they are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Indexes = NDArray[np.int64]

NONE = -1

ROUNDING_NS = 2_000
"""Profilers round times to microseconds: start and end of one range, both up to one off."""


def call_order(
    thread: NDArray[np.int64],
    start_ns: Times,
    end_ns: Times,
    rank: NDArray[np.int64] | None = None,
) -> Indexes:
    """Return the order thread, then start, then the longer range first: parents before children.

    Of two equal ranges the one of smaller `rank` is outside; without ranks, the first.
    """
    keys = (-end_ns, start_ns, thread)
    return np.lexsort(keys if rank is None else (rank, *keys))


def parents(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Return for every range the innermost earlier one that is open when it starts, or NONE.

    Args:
        thread: any number that tells threads apart.
        start_ns: start of each range.
        end_ns: end of each range, not before its start; a range that ends at a moment is not open
            then.

    All three must be in `call_order`.
    """
    return _nearest_reaching(thread, end_ns, start_ns + 1)


def around(
    thread: NDArray[np.int64], start_ns: Times, end_ns: Times, rounding_ns: int = ROUNDING_NS
) -> Indexes:
    """Return for every range the innermost earlier one that is open until it ends, or NONE.

    A range that ends later than the other by no more than `rounding_ns` is within it; one that
    ends later than that only crosses it, as a step does that begins in a hook of the last one's
    optimizer, and is of what is around both.

    Args:
        thread: of ranges in `call_order`, as the others.
        start_ns: start of each range.
        end_ns: end of each range.
        rounding_ns: how much later a range may end than what it is in.
    """
    return _nearest_reaching(thread, end_ns, np.maximum(start_ns + 1, end_ns - rounding_ns))


def containing(thread: NDArray[np.int64], end_ns: Times) -> Indexes:
    """Return for every range the innermost one that contains it wholly, or NONE.

    Args:
        thread: of ranges in `call_order`.
        end_ns: of the same.
    """
    return _nearest_reaching(thread, end_ns, end_ns)


def _nearest_reaching(thread: NDArray[np.int64], end_ns: Times, bound_ns: Times) -> Indexes:
    """Return the nearest range before each one, on its thread, that ends at its bound or later.

    Candidates jump from one to the candidate's own candidate, all at once, so that the distance
    doubles in each round. Nothing is missed: what lies between two candidates ends before the
    bound of the nearer one, which is not above the bound of whoever passes over it (bounds are
    starts, which rise, or at most ends of ranges that were passed because they end earlier).
    """
    count = len(end_ns)
    candidate = np.arange(-1, count - 1, dtype=np.int64)
    if count:
        candidate[np.append(True, thread[1:] != thread[:-1])] = NONE
    active = np.flatnonzero(candidate != NONE)
    while len(active):
        active = active[end_ns[candidate[active]] < bound_ns[active]]
        candidate[active] = candidate[candidate[active]]
        active = active[candidate[active] != NONE]
    return candidate


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


def paths(parent: Indexes, label: NDArray[np.integer]) -> tuple[Indexes, Indexes, Indexes]:
    """Return what the path of labels down to each range is, paths alike having one number.

    Args:
        parent: the range around each range, or NONE.
        label: of each range, not negative.

    Returns:
        The number of each range's path; of each path, the number of the one above it (NONE: it is
        of one range) and the label that it ends with. A path comes after the one above it.
    """
    number = np.full(len(parent), NONE, np.int64)
    above: list[Indexes] = [np.zeros(0, np.int64)]
    own: list[Indexes] = [np.zeros(0, np.int64)]
    labels = int(label.max(initial=0)) + 1
    known = 0
    level = np.flatnonzero(parent == NONE)
    waiting = np.flatnonzero(parent != NONE)
    while len(level):
        up = np.where(parent[level] == NONE, NONE, number[parent[level]])
        pairs, which = np.unique((up + 1) * labels + label[level], return_inverse=True)
        number[level] = known + which
        above.append(pairs // labels - 1)
        own.append(pairs % labels)
        known += len(pairs)
        ready = number[parent[waiting]] != NONE
        level, waiting = waiting[ready], waiting[~ready]
    return number, np.concatenate(above), np.concatenate(own)


def inherit(values: NDArray[Any], parent: Indexes) -> NDArray[Any]:
    """Give each range without a value (NONE) that of the nearest range around it."""
    if not len(values):
        return values.copy()
    at = nearest_marked(parent, values != NONE)
    result: NDArray[Any] = values[at]
    result[at == NONE] = NONE
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
