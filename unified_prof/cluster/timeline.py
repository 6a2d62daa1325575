"""Time that a set of intervals covers, asked for many stretches at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]


class Cover:
    """A merged set of intervals with the sums that questions about stretches need."""

    def __init__(self, merged: IntervalSet, starts: Ints | None = None) -> None:
        """Keep a set.

        Args:
            merged: the set.
            starts: begins of the single pieces behind it, ascending.
        """
        self.set = merged
        self._starts = merged.start_ns if starts is None else starts
        self._before = np.zeros(len(merged) + 1, np.int64)
        np.cumsum(merged.end_ns - merged.start_ns, out=self._before[1:])

    def until(self, at: Ints) -> Ints:
        """Return how much of the time before each point is covered."""
        if not len(self.set):
            return np.zeros(len(at), np.int64)
        place = np.searchsorted(self.set.start_ns, at, side="right") - 1
        inside = np.minimum(at, self.set.end_ns[np.maximum(place, 0)])
        inside = inside - self.set.start_ns[np.maximum(place, 0)]
        return np.where(place >= 0, self._before[np.maximum(place, 0)] + inside, 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Return how much of each stretch is covered."""
        return self.until(end) - self.until(start)

    def begun(self, start: Ints, end: Ints) -> Ints:
        """Return how many pieces begin in each stretch."""
        return np.asarray(
            np.searchsorted(self._starts, end) - np.searchsorted(self._starts, start), np.int64
        )

    def stretches(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Return for each stretch the time before the first piece, covered, after the last one.

        A stretch that is not covered at all lies before a first piece as a whole.
        """
        covered = self.within(start, end)
        length = end - start
        if not len(self.set):
            return length, covered, np.zeros(len(start), np.int64)
        following = np.searchsorted(self.set.end_ns, start, side="right")
        begin = self.set.start_ns[np.minimum(following, len(self.set) - 1)]
        lead = np.where(following < len(self.set), np.maximum(begin - start, 0), length)
        before = np.searchsorted(self.set.start_ns, end, side="left") - 1
        finish = self.set.end_ns[np.maximum(before, 0)]
        tail = np.where(before >= 0, np.maximum(end - finish, 0), length)
        nothing = covered == 0
        return (
            np.where(nothing, length, np.minimum(lead, length)),
            covered,
            np.where(nothing, 0, np.minimum(tail, length)),
        )
