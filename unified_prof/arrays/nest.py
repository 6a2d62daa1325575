"""The call tree of more ranges than are worth holding whole: worked out a window at a time.

Ranges are in `nesting.call_order`. Of the ranges before a window only those matter that may still
be open in it, and they are few; with them as its first ranges, a window is a small tree of its own.
What a range has from those around it (`Inherited`) is carried from window to window the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import nesting
from unified_prof.arrays.packed import BLOCK, Column, Packed, Packing

Indexes = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = nesting.NONE
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
        return np.equal(self.parent[len(self.opened) :], NONE)


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
        at = nesting.nearest_marked(window.parent, np.concatenate((np.ones(before, bool), marked)))
        values = np.concatenate((self._of_opened, np.arange(window.low, window.high)))
        found: Indexes = np.where(at == NONE, NONE, values[at])
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
        outermost = ~stop & ((parent == NONE) | stops[parent])
        top = self._top.of(window, outermost)
        self._stops = stops[window.kept]
        return np.where(stop, NONE, top)


class Distances(Column):
    """Ranges that belong to ranges, kept as how far before them they stand; NONE is none."""

    def __init__(self) -> None:
        self._packing = Packing(_SMALL, hole=NONE)
        self._rows = 0
        self._done: Packed | None = None

    def add(self, ranges: Indexes) -> None:
        """Take those of the next ranges."""
        own = np.arange(self._rows, self._rows + len(ranges))
        self._packing.add(np.where(ranges == NONE, NONE, own - ranges))
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
        return np.where(distance == NONE, NONE, own - distance.astype(np.int64))


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
            parent = nesting.around(threads, starts, ends)
            found = parent[len(opened) :]
            parents.add(np.where(found == NONE, NONE, ids[found]))
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
            local[outside] = np.where(above[outside] == NONE, NONE, place)
            parent = np.concatenate((np.full(len(opened), NONE, np.int64), local))
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
