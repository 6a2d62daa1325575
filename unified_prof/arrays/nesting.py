"""Who contains whom among nested ranges: the call tree of host ranges, one thread at a time.

Ranges that a profiler records on one thread nest: two of them are disjoint or one contains the
other. Where a recording breaks that rule, there are three answers: the innermost earlier range that
is still open when a range starts (`parents`), the innermost one that contains it wholly
(`containing`), and the innermost one that contains it but for what clocks are rounded by
(`around`). Where all nest, they are the same.

The call tree of more ranges than are worth holding whole: worked out a window at a time.

Ranges are in `nesting.call_order`. Of the ranges before a window only those matter that may still
be open in it, and they are few; with them as its first ranges, a window is a small tree of its own.
What a range has from those around it (`Inherited`) is carried from window to window the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import BLOCK, Column, Packed, Packing

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


Flags = NDArray[np.bool_]

NO_PARENT = NONE
WINDOW = 2 * BLOCK
"""Ranges of a window."""
_SMALL = np.dtype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Some ranges that follow one another, behind those that may be open around them."""

    low: int
    """The first range."""
    high: int
    """The one behind the last."""
    opened: Indexes
    """The ranges before `low` that may be open in the window."""
    parent: Indexes
    """The range around each, by place in `ids`; of ranges before the window it says nothing."""
    kept: Indexes
    """Places in `ids` of what may be open in the next window."""

    @property
    def ids(self) -> Indexes:
        """What was opened before, then the ranges of the window."""
        return np.concatenate((self.opened, np.arange(self.low, self.high)))

    @property
    def rows(self) -> slice:
        """The ranges of the window, among all."""
        return slice(self.low, self.high)

    @property
    def is_outermost(self) -> Flags:
        """Which ranges of the window lie in no other."""
        return np.equal(self.parent[len(self.opened) :], NO_PARENT)


class Inherited:
    """What ranges have from the nearest of themselves and those around them that is marked."""

    def __init__(self) -> None:
        self._of_opened = np.zeros(0, np.int64)

    def of(self, window: Window, marked: Flags) -> Indexes:
        """Return the nearest marked range of each range of the next window, NONE without one.

        Args:
            window: all windows are to be given, in their order.
            marked: which ranges of the window are.
        """
        before = len(window.opened)
        at = nearest_marked(window.parent, np.concatenate((np.ones(before, bool), marked)))
        values = np.concatenate((self._of_opened, np.arange(window.low, window.high)))
        found: Indexes = np.where(at == NO_PARENT, NO_PARENT, values[at])
        self._of_opened = found[window.kept]
        return found[before:]


class Below:
    """The outermost of each range and those around it, up to a range that stops: see `climb`."""

    def __init__(self) -> None:
        self._top = Inherited()
        self._stops = np.zeros(0, bool)

    def of(self, window: Window, stop: Flags) -> Indexes:
        """Return what `nesting.climb` does, for the ranges of the next window."""
        before = len(window.opened)
        stops = np.concatenate((self._stops, stop))
        parent = window.parent[before:]
        outermost = ~stop & ((parent == NO_PARENT) | stops[parent])
        top = self._top.of(window, outermost)
        self._stops = stops[window.kept]
        return np.where(stop, NO_PARENT, top)


class Distances(Column):
    """Ranges that belong to ranges, kept as how far before them they stand; NONE is none."""

    def __init__(self) -> None:
        self._packing = Packing(_SMALL, hole=NO_PARENT)
        self._rows = 0
        self._done: Packed | None = None

    def add(self, ranges: Indexes) -> None:
        """Take those of the next ranges."""
        own = np.arange(self._rows, self._rows + len(ranges))
        self._packing.add(np.where(ranges == NO_PARENT, NO_PARENT, own - ranges))
        self._rows += len(ranges)

    def done(self) -> Distances:
        """Say that there are no more."""
        self._done = self._packing.done()
        return self

    def __len__(self) -> int:
        return self._rows

    def at(self, rows: NDArray[np.integer]) -> Indexes:
        """Return what belongs to any ranges."""
        assert self._done is not None
        return self._before(rows, self._done.at(rows))

    def _between(self, low: int, high: int) -> Indexes:
        assert self._done is not None
        return self._before(np.arange(low, high), self._done[low:high])

    @staticmethod
    def _before(own: NDArray[np.integer], distance: NDArray[np.integer]) -> Indexes:
        return np.where(distance == NO_PARENT, NO_PARENT, own - distance.astype(np.int64))


class Nest:
    """Who contains whom, as `nesting.around` says it."""

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
        """Return the nearest of each range and those around it that is marked."""
        nearest, result = Inherited(), Distances()
        for window in self.windows():
            result.add(nearest.of(window, marked(window)))
        return result.done()


def _still_open(
    thread: NDArray[np.integer], start_ns: Indexes, end_ns: Indexes
) -> NDArray[np.int64]:
    """Return the places of ranges that may contain one behind the last.

    These are on its thread and end after it begins; and none behind them ends as late, which would
    be nearer to whatever is asked for.
    """
    if not len(end_ns):
        return np.zeros(0, np.int64)
    latest = np.maximum.accumulate(end_ns[::-1])
    behind = np.append(np.iinfo(np.int64).min, latest[:-1])
    last = np.append(True, thread[::-1][1:] != thread[::-1][:-1])
    of_last_thread = np.logical_not(np.logical_or.accumulate(np.append(False, last[1:])))
    wanted = (end_ns[::-1] > behind) & (end_ns[::-1] > start_ns[-1]) & of_last_thread
    return np.flatnonzero(wanted[::-1])
