"""Work as unions of intervals, a stretch of time after another.

Sets of intervals of millions of tasks are large. Sums over them need no set as a whole: time is cut
into stretches, work that goes on at the end of one is carried into the next, and each stretch gives
its part of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL
from unified_prof.analysis.read.task_rows import FOREVER
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import EMPTY, IntervalSet

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The work of a stretch of time, cut at both of its ends."""

    begin_ns: int
    until_ns: int
    compute: IntervalSet
    communication: IntervalSet
    copies: IntervalSet
    busy: IntervalSet
    """All three together."""


class Sweep:
    """Takes tasks in order of time, and gives the work of one stretch after another."""

    def __init__(self, communication: IntervalSet = EMPTY, *, parts: bool) -> None:
        """Begin before all work.

        Args:
            communication: collectives as a whole.
            parts: whether tasks of collectives count beside them.
        """
        self._communication = communication
        self._kinds = (KERNEL, COPY, COMMUNICATION) if parts else (KERNEL, COPY)
        self._carried = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        self._begin_ns = 0

    def take(
        self, kind: NDArray[np.int8], start_ns: Ints, end_ns: Ints, until_ns: int = FOREVER
    ) -> Stretch:
        """Return the work until a moment; no task that is taken later starts before it."""
        begin_ns, self._begin_ns = self._begin_ns, until_ns
        now = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        for what in self._kinds:
            chosen = kind == what
            found = intervals.union(
                self._carried[what], intervals.merge(start_ns[chosen], end_ns[chosen])
            )
            now[what] = intervals.part(found, begin_ns, until_ns)
            self._carried[what] = intervals.part(found, until_ns, FOREVER)
        communication = intervals.part(self._communication, begin_ns, until_ns)
        communication = intervals.union(communication, now[COMMUNICATION])
        busy = intervals.union(now[KERNEL], communication, now[COPY])
        return Stretch(begin_ns, until_ns, now[KERNEL], communication, now[COPY], busy)

    def rest(self) -> Stretch:
        """Return the work after all that was taken."""
        nothing = np.zeros(0, np.int64)
        return self.take(nothing.astype(np.int8), nothing, nothing)


@dataclass(slots=True)
class Sums:
    """Time of work, stretch by stretch."""

    compute_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0
    """Communication that ran while a compute kernel did."""
    copy_ns: int = 0
    busy_ns: int = 0
    communicates: bool = False
    span_ns: tuple[int, int] | None = field(default=None)
    """From the start of the first work to the end of the last; None: there is none."""

    def add(self, one: Stretch, within: IntervalSet | None = None) -> None:
        """Add the work of a stretch, all of it or what lies within some time."""
        compute, communication, copies, busy = one.compute, one.communication, one.copies, one.busy
        if within is not None:
            here = intervals.part(within, one.begin_ns, one.until_ns)
            compute, communication = (
                intervals.intersect(here, each) for each in (compute, communication)
            )
            copies, busy = (intervals.intersect(here, each) for each in (copies, busy))
        self.compute_ns += compute.total_ns
        self.copy_ns += copies.total_ns
        self.busy_ns += compute.total_ns if busy is compute else busy.total_ns
        if len(one.communication):
            self.communicates = True
            self.communication_ns += communication.total_ns
            self.overlap_ns += intervals.intersect(compute, communication).total_ns
        if len(busy):
            first = int(busy.start_ns[0]) if self.span_ns is None else self.span_ns[0]
            self.span_ns = first, int(busy.end_ns[-1])

    @property
    def span(self) -> IntervalSet:
        """The same as a set."""
        ends = [] if self.span_ns is None else [self.span_ns]
        return IntervalSet(*(np.array([one[at] for one in ends], np.int64) for at in (0, 1)))
