"""Time intervals, as sorted NumPy columns: their unions and intersections, and their nesting.

An interval is half open, `[start_ns, end_ns)`. A set of intervals is two int64 arrays of the same
length. A *merged* set is sorted and has no overlapping, touching or empty intervals, so two merged
sets are equal if and only if they cover the same time.

Host ranges that are recorded on one thread nest: two ranges are disjoint, or one contains the
other. For recordings that violate this rule, there are three definitions of a parent: the innermost
earlier range that is open when a range starts (`parents`), the innermost range that fully contains
it (`containing`), and the innermost range that contains it up to clock rounding (`around`). If all
ranges nest, the three are equal.

Large recordings are processed in windows of ranges. Only the few ranges that may still be open are
passed on to the next window, where they come first, so each window is a small tree. Nearest marked
attributes (`NearestMarked`) are passed on in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import BLOCK, Column, Packed, Packing

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


Indexes = NDArray[np.int64]

NONE = -1

# Maximum rounding error of a range: profilers round start and end to microseconds.
ROUNDING_NS = 2_000


def call_order(
    thread: NDArray[np.int64], start_ns: Times, end_ns: Times, rank: NDArray[np.int64] | None = None
) -> Indexes:
    """Return the order by thread, start, and decreasing length: parents before children.

    If two ranges are equal, the one with the smaller `rank` is the parent; without ranks, the
    first.
    """
    keys = (-end_ns, start_ns, thread)
    return np.lexsort(keys if rank is None else (rank, *keys))


def parents(thread: NDArray[np.int64], start_ns: Times, end_ns: Times) -> Indexes:
    """Return the innermost earlier range that is open at the start of each range, or NONE.

    The columns must be in `call_order`. At its end, a range is not open.
    """
    return _nearest_reaching(thread, end_ns, start_ns + 1)


def around(
    thread: NDArray[np.int64], start_ns: Times, end_ns: Times, rounding_ns: int = ROUNDING_NS
) -> Indexes:
    """Return the innermost earlier range that is open until the end of each range, or NONE.

    The columns are in `call_order`. A range may end later than its parent by at most `rounding_ns`.
    If it ends even later, the two ranges only overlap (for example, a step that begins in a hook of
    the previous optimizer), and the parent is the range around both.
    """
    return _nearest_reaching(thread, end_ns, np.maximum(start_ns + 1, end_ns - rounding_ns))


def containing(thread: NDArray[np.int64], end_ns: Times) -> Indexes:
    """Return the innermost range that fully contains each range, or NONE; in `call_order`."""
    return _nearest_reaching(thread, end_ns, end_ns)


def _nearest_reaching(thread: NDArray[np.int64], end_ns: Times, bound_ns: Times) -> Indexes:
    """Return the nearest earlier range on the thread that ends at the bound of each range or later.

    Each candidate is replaced by its own candidate in parallel, so that the distance doubles in
    each round. This misses nothing: ranges between two candidates end before the bound of the
    nearer one, which is not above the bound of the ranges that skip it (bounds are starts, which
    rise, or at most ends of ranges that were skipped because they end earlier).
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


def nearest_marked(parent: Indexes, marked: NDArray[np.bool_]) -> Indexes:
    """Return, for each range, the range itself or its nearest ancestor that is marked, or -1."""
    ends = marked | (parent == NONE)
    found = _last(np.where(ends, np.arange(len(parent)), parent))
    return np.where(marked[found], found, NONE)


def _last(following: Indexes) -> Indexes:
    """Return the end of the chain that starts at each index; an end follows itself.

    The steps double in each round, so that deep nesting does not take quadratic time.
    """
    while True:
        further = following[following]
        if np.array_equal(further, following):
            return further
        following = further


def paths(parent: Indexes, label: NDArray[np.integer]) -> tuple[Indexes, Indexes, Indexes]:
    """Number the label paths from outermost range to each range; equal paths share a number.

    Labels are not negative; the parent of an outermost range is NONE.

    Returns:
        The path number of each range; for each path the number of its parent path (NONE for paths
        of one range) and its last label. A path comes after its parent.
    """
    number = np.full(len(parent), NONE, np.int64)
    above: list[Indexes] = [np.zeros(0, np.int64)]
    own: list[Indexes] = [np.zeros(0, np.int64)]
    labels = int(label.max(initial=0)) + 1
    known = 0
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        up = np.where(parent[level] == NONE, NONE, number[parent[level]])
        pairs, which = np.unique((up + 1) * labels + label[level], return_inverse=True)
        number[level] = known + which
        above.append(pairs // labels - 1)
        own.append(pairs % labels)
        known += len(pairs)
    return number, np.concatenate(above), np.concatenate(own)


def depths(parent: Indexes) -> Indexes:
    """Return the number of ranges around each range."""
    above = np.where(parent == NONE, np.arange(len(parent)), parent)
    depth = np.where(parent == NONE, 0, 1)
    while True:
        further = above[above]
        if np.array_equal(further, above):
            return depth
        depth += depth[above]
        above = further


def inherit(values: NDArray[Any], parent: Indexes) -> NDArray[Any]:
    """Replace missing values (NONE) by the value of the nearest ancestor that has one."""
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
    """Return the innermost range that contains each point (thread, time), or -1.

    The ranges are in `call_order` with their `parents`; a range contains its start and its end.
    """
    if not len(start_ns):
        return np.full(len(at_ns), NONE, np.int64)
    threads, owner = np.unique(np.concatenate((thread, at_thread)), return_inverse=True)
    owner, at_owner = owner[: len(thread)], owner[len(thread) :]
    result = np.full(len(at_ns), NONE, np.int64)
    first = np.searchsorted(owner, np.arange(len(threads) + 1))
    for number in range(len(threads)):
        low, high = int(first[number]), int(first[number + 1])
        points = np.flatnonzero(at_owner == number)
        if low == high or not len(points):
            continue
        slot = np.searchsorted(start_ns[low:high], at_ns[points], side="right") - 1
        result[points] = np.where(slot >= 0, slot + low, NONE)
    # If the last range to start has ended, the result is one of its ancestors.
    while True:
        ended = (result != NONE) & (end_ns[result] < at_ns)
        if not ended.any():
            return result
        result[ended] = parent[result[ended]]


Flags = NDArray[np.bool_]

NO_PARENT = NONE
# Ranges per window.
WINDOW = 2 * BLOCK
_SMALL = np.dtype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Consecutive ranges, preceded by the ranges that may still be open around them."""

    low: int  # First range.
    high: int  # End of the ranges.
    opened: Indexes  # Ranges before `low` that may be open in the window.
    # Parent of each range as a position in `ids`; undefined for ranges before the window.
    parent: Indexes
    kept: Indexes  # Positions in `ids` of ranges that may be open in the next window.

    @property
    def ids(self) -> Indexes:
        """Open ranges, followed by the ranges of the window."""
        return np.concatenate((self.opened, np.arange(self.low, self.high)))

    @property
    def rows(self) -> slice:
        """Rows of the window among all ranges."""
        return slice(self.low, self.high)

    @property
    def is_outermost(self) -> Flags:
        """Mask of the window's ranges that have no parent."""
        return np.equal(self.parent[len(self.opened) :], NO_PARENT)


class NearestMarked:
    """`nearest_marked`, computed window by window."""

    def __init__(self) -> None:
        self._of_opened = np.zeros(0, np.int64)

    def next_window(self, window: Window, marked: Flags) -> Indexes:
        """Return the nearest marked range of each range of the next window; NONE if there is none.

        All windows must be passed in order.
        """
        before = len(window.opened)
        at = nearest_marked(window.parent, np.concatenate((np.ones(before, bool), marked)))
        values = np.concatenate((self._of_opened, np.arange(window.low, window.high)))
        result: Indexes = np.where(at == NO_PARENT, NO_PARENT, values[at])
        self._of_opened = result[window.kept]
        return result[before:]


class Below:
    """Finds outermost ancestors below stopping ranges, window by window.

    A range marked in `stop` (such as a structural annotation) is never the result, and its
    ancestors are ignored.
    """

    def __init__(self) -> None:
        self._top = NearestMarked()
        self._stops = np.zeros(0, bool)

    def next_window(self, window: Window, stop: Flags) -> Indexes:
        """Return the outermost ancestor (or itself) of each range; -1 for those in `stop`."""
        before = len(window.opened)
        stops = np.concatenate((self._stops, stop))
        parent = window.parent[before:]
        outermost = ~stop & ((parent == NO_PARENT) | stops[parent])
        top = self._top.next_window(window, outermost)
        self._stops = stops[window.kept]
        return np.where(stop, NO_PARENT, top)


class Distances(Column):
    """Column of indexes of earlier ranges, stored as distances; NONE means no range."""

    def __init__(self) -> None:
        self._packing = Packing(_SMALL, hole=NO_PARENT)
        self._rows = 0
        self._done: Packed | None = None

    def add(self, ranges: Indexes) -> None:
        """Append the ranges of the next rows."""
        own = np.arange(self._rows, self._rows + len(ranges))
        self._packing.add(np.where(ranges == NO_PARENT, NO_PARENT, own - ranges))
        self._rows += len(ranges)

    def done(self) -> Distances:
        """Finish the column."""
        self._done = self._packing.done()
        return self

    def __len__(self) -> int:
        return self._rows

    def at(self, rows: NDArray[np.integer]) -> Indexes:
        """Return the range indexes of the given rows."""
        assert self._done is not None
        return self._before(rows, self._done.at(rows))

    def _between(self, low: int, high: int) -> Indexes:
        assert self._done is not None
        return self._before(np.arange(low, high), self._done[low:high])

    @staticmethod
    def _before(own: NDArray[np.integer], distance: NDArray[np.integer]) -> Indexes:
        return np.where(distance == NO_PARENT, NO_PARENT, own - distance.astype(np.int64))


class Nest:
    """Parents of ranges as returned by `around`, computed in windows."""

    def __init__(self, thread: Packed, start_ns: Packed, duration_ns: Packed) -> None:
        self._rows = len(thread)
        parents = Distances()
        self._kept: list[Indexes] = []
        opened = np.zeros(0, np.int64)
        open_thread, open_start, open_end = opened, opened, opened
        for low in range(0, self._rows, WINDOW):
            rows = slice(low, low + WINDOW)
            begin = start_ns[rows]
            threads = np.concatenate((open_thread, thread[rows]))
            starts = np.concatenate((open_start, begin))
            ends = np.concatenate((open_end, begin + duration_ns[rows]))
            ids = np.concatenate((opened, np.arange(low, low + len(begin))))
            parent = around(threads, starts, ends)
            found = parent[len(opened) :]
            parents.add(np.where(found == NO_PARENT, NO_PARENT, ids[found]))
            kept = _still_open(threads, starts, ends)
            self._kept.append(kept)
            opened = ids[kept]
            open_thread, open_start, open_end = threads[kept], starts[kept], ends[kept]
        self.parent: Distances = parents.done()

    def windows(self) -> Iterator[Window]:
        """Yield all ranges, WINDOW at a time."""
        opened = np.zeros(0, np.int64)
        for number, low in enumerate(range(0, self._rows, WINDOW)):
            high = min(low + WINDOW, self._rows)
            above = self.parent[low:high]
            outside = above < low
            local = above - low + len(opened)
            place = np.searchsorted(opened, above[outside])
            local[outside] = np.where(above[outside] == NO_PARENT, NO_PARENT, place)
            parent = np.concatenate((np.full(len(opened), NO_PARENT, np.int64), local))
            window = Window(low, high, opened, parent, self._kept[number])
            yield window
            opened = window.ids[window.kept]

    def nearest(self, marked: Callable[[Window], Flags]) -> Distances:
        """Return `nearest_marked` for all ranges."""
        nearest, result = NearestMarked(), Distances()
        for window in self.windows():
            result.add(nearest.next_window(window, marked(window)))
        return result.done()


def _still_open(
    thread: NDArray[np.integer], start_ns: Indexes, end_ns: Indexes
) -> NDArray[np.int64]:
    """Return the positions of ranges that may contain a range after the last one.

    These are on the thread of the last range and end after its start, and no later range ends as
    late.
    """
    if not len(end_ns):
        return np.zeros(0, np.int64)
    latest = np.maximum.accumulate(end_ns[::-1])
    behind = np.append(np.iinfo(np.int64).min, latest[:-1])
    last = np.append(True, thread[::-1][1:] != thread[::-1][:-1])
    of_last_thread = np.logical_not(np.logical_or.accumulate(np.append(False, last[1:])))
    wanted = (end_ns[::-1] > behind) & (end_ns[::-1] > start_ns[-1]) & of_last_thread
    return np.flatnonzero(wanted[::-1])
