"""Hardware counters of tasks: held until the tasks have their numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.gpu.numbers import Int64s

Floats = NDArray[np.float64]


class Counters:
    """Values by task; three numbers each are held in memory.

    A task is named by a number of the decoder's own, GPU_TASK `counted`. What a counter counted in
    several places of the device adds up.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Int64s, Int64s, Floats]] = []
        self._owners = self._names = np.empty(0, np.int64)
        self._values = np.empty(0, np.float64)

    def add(self, owners: Int64s, names: Int64s, values: Floats) -> None:
        """Take values: of which task, string id of the counter, value."""
        if len(owners):
            self._parts.append((owners, names, values))

    def owners(self) -> Int64s:
        """Return the numbers of all that have counters, in order."""
        self._settle()
        return np.unique(self._owners)

    def of(self, owners: Int64s, ids: Int64s) -> tuple[Int64s, Int64s, Floats]:
        """Return the counters of some tasks: (the task's id, the counter's name, value)."""
        self._settle()
        first = np.searchsorted(self._owners, owners, "left")
        count = np.searchsorted(self._owners, owners, "right") - first
        total = int(count.sum())
        before = np.cumsum(count) - count
        at = np.arange(total) - np.repeat(before, count) + np.repeat(first, count)
        return np.repeat(ids, count), self._names[at], self._values[at]

    def _settle(self) -> None:
        """Sort what came since, and add up values of one counter and task."""
        if not self._parts:
            return
        parts = [*self._parts, (self._owners, self._names, self._values)]
        owners, names, values = map(np.concatenate, zip(*parts, strict=True))
        self._parts.clear()
        order = np.lexsort((names, owners))
        owners, names, values = owners[order], names[order], values[order]
        new = np.ones(len(owners), bool)
        new[1:] = (np.diff(owners) != 0) | (np.diff(names) != 0)
        starts = np.flatnonzero(new)
        self._owners, self._names = owners[starts], names[starts]
        self._values = np.add.reduceat(values, starts)
