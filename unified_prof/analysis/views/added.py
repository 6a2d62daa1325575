"""Times summed up by numbers that may lie far apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN
from unified_prof.analysis.views.steps import Ints

_SPARSE = 8
"""Numbers that lie so many times as far apart as there are some are looked up one by one."""


class Added:
    """Times added up for each of many numbers, in four bytes each for as long as these do."""

    def __init__(self, size: int) -> None:
        self._sums: NDArray[np.integer] = np.zeros(size, np.uint32)
        self._known = np.zeros(size, bool)

    def add(self, key: Ints, times_ns: NDArray[np.integer]) -> None:
        """Add times, each to its number."""
        if not len(key):
            return
        self._known[key] = True
        first, behind = int(key.min()), int(key.max()) + 1
        if behind - first > _SPARSE * len(key):
            keys, place = np.unique(key, return_inverse=True)
        else:
            keys, place = np.arange(first, behind), key - first
        more = np.bincount(place, weights=times_ns, minlength=len(keys)).astype(np.int64)
        more += self._sums[keys]
        if more.max() > np.iinfo(self._sums.dtype).max:
            self._sums = self._sums.astype(np.int64)
        self._sums[keys] = more

    def total_ns(self, rows: slice) -> Ints:
        """Return the sums of some numbers."""
        return self._sums[rows].astype(np.int64)

    def known_ns(self, rows: slice) -> Ints:
        """Return the same, UNKNOWN where nothing was added."""
        return np.where(self._known[rows], self.total_ns(rows), UNKNOWN)
