"""Unions and intersections of time intervals, as sorted NumPy columns.

An interval is half open, `[start_ns, end_ns)`. A set of intervals is two int64 arrays of the same
length. A *merged* set is sorted and has no overlapping, touching or empty intervals, so two merged
sets are equal if and only if they cover the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSet:
    """Merged set of half-open intervals."""

    start_ns: Times
    end_ns: Times

    @property
    def total_ns(self) -> int:
        """Covered time."""
        return int((self.end_ns - self.start_ns).sum())

    def __len__(self) -> int:
        return len(self.start_ns)


EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def merge(start_ns: Times, end_ns: Times, *, keep_empty: bool = False) -> IntervalSet:
    """Return the union of any intervals; empty and inverted ones (end <= start) cover nothing.

    If `keep_empty` is true, empty intervals that touch no other interval are kept as points in
    time.
    """
    keep = end_ns >= start_ns if keep_empty else end_ns > start_ns
    if not keep.all():
        start_ns, end_ns = start_ns[keep], end_ns[keep]
    if len(start_ns) == 0:
        return EMPTY
    if np.any(start_ns[1:] < start_ns[:-1]):
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    # A new interval begins if a start is after all previous ends.
    first = np.empty(len(start_ns), bool)
    first[0] = True
    np.greater(start_ns[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    last = np.append(heads[1:], len(start_ns)) - 1
    return IntervalSet(start_ns[heads], reach[last])


def union(*sets: IntervalSet) -> IntervalSet:
    """Return the time covered by any of the sets."""
    filled = [intervals for intervals in sets if len(intervals)]
    if len(filled) <= 1:
        return filled[0] if filled else EMPTY
    return merge(
        np.concatenate([intervals.start_ns for intervals in filled]),
        np.concatenate([intervals.end_ns for intervals in filled]),
    )


def hull(intervals: IntervalSet) -> IntervalSet:
    """Return the time from the start to the end of a set; empty for an empty set."""
    return IntervalSet(intervals.start_ns[:1], intervals.end_ns[-1:])


def intersect(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the time that both sets cover."""
    if not len(a) or not len(b):
        return EMPTY
    return IntervalSet(*overlaps(a, b)[:2])


def subtract(intervals: IntervalSet, removed: IntervalSet) -> IntervalSet:
    """Return the time of the first set that the second does not cover."""
    edges = np.concatenate([intervals.start_ns, intervals.end_ns, removed.start_ns, removed.end_ns])
    # For the time after each boundary: open intervals of the first set minus twice those of the
    # second.
    steps = np.repeat([1, -1, -2, 2], [len(intervals), len(intervals), len(removed), len(removed)])
    order = np.argsort(edges, kind="stable")
    edges, level = edges[order], np.cumsum(steps[order])
    wanted = np.flatnonzero((level[:-1] == 1) & (edges[1:] > edges[:-1]))
    return merge(edges[wanted], edges[wanted + 1])


def covered_before(intervals: IntervalSet, at_ns: Times) -> Times:
    """Return the time that a set covers before each timestamp."""
    if not len(intervals):
        return np.zeros(len(at_ns), np.int64)
    before = np.append(0, np.cumsum(intervals.end_ns - intervals.start_ns))
    which = np.searchsorted(intervals.start_ns, at_ns, side="right")
    last = np.maximum(which - 1, 0)
    covered = np.minimum(at_ns, intervals.end_ns[last]) - intervals.start_ns[last]
    return np.where(which > 0, before[last] + covered, 0)


def covered(intervals: IntervalSet, start_ns: Times, end_ns: Times) -> Times:
    """Return the time that a set covers between each start and end."""
    return covered_before(intervals, end_ns) - covered_before(intervals, start_ns)


def holding(intervals: IntervalSet, at_ns: Times) -> Times:
    """Return the index of the interval that contains each timestamp, -1 if there is none.

    The intervals are in order and disjoint, but may be empty or touch.
    """
    last = np.searchsorted(intervals.start_ns, at_ns, side="right") - 1
    return np.where((last >= 0) & (at_ns < np.append(intervals.end_ns, 0)[last]), last, -1)


def overlaps(a: IntervalSet, b: IntervalSet) -> tuple[Times, Times, Times, Times]:
    """Return the intersections of two sets as (start, end, index in `a`, index in `b`).

    The intervals of `a` are in order and disjoint, but may be empty or touch.
    """
    low = np.searchsorted(b.end_ns, a.start_ns, side="right")
    high = np.searchsorted(b.start_ns, a.end_ns, side="left")
    count = np.maximum(high - low, 0)
    left = np.repeat(np.arange(len(a)), count)
    right = np.arange(int(count.sum())) + np.repeat(low - (np.cumsum(count) - count), count)
    start = np.maximum(a.start_ns[left], b.start_ns[right])
    end = np.minimum(a.end_ns[left], b.end_ns[right])
    filled = end > start
    return start[filled], end[filled], left[filled], right[filled]


def clip(intervals: IntervalSet, start_ns: int, end_ns: int) -> IntervalSet:
    """Return the part of a set within `[start_ns, end_ns)`."""
    return intersect(
        intervals, merge(np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64))
    )


def part(intervals: IntervalSet, start_ns: int, end_ns: int) -> IntervalSet:
    """Like `clip`, but in logarithmic time; the result may share memory with the set."""
    low = int(np.searchsorted(intervals.end_ns, start_ns, side="right"))
    high = int(np.searchsorted(intervals.start_ns, end_ns, side="left"))
    if low >= high or start_ns >= end_ns:
        return EMPTY
    start, end = intervals.start_ns[low:high], intervals.end_ns[low:high]
    if start[0] < start_ns:
        start = start.copy()
        start[0] = start_ns
    if end[-1] > end_ns:
        end = end.copy()
        end[-1] = end_ns
    return IntervalSet(start, end)
