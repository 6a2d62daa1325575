"""Which host range has which connection, and columns asked for at places that may be none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import nesting
from unified_prof.arrays.lookup import find
from unified_prof.arrays.nest import WINDOW, Distances
from unified_prof.arrays.packed import Packed
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import API_PYTHON

Ints = NDArray[np.int64]

NONE = nesting.NONE

_SPARSE = 4
"""Ids so many times as many as there are ranges are looked up by searching, not by their place."""


class Holders:
    """The range that has each id in CONNECTION_IDS.

    Of several the last one: children come after their parents.
    """

    def __init__(self, ids: Packed, kinds: Packed) -> None:
        self._dense: NDArray[np.int32] | None = None
        self._sorted = self._ranges = np.zeros(0, np.int64)
        dense = ids.least >= 0 and ids.most < _SPARSE * len(ids) + 1024
        if dense:
            self._dense = np.full(ids.most + 3, NONE, np.int32)
        parts = []
        for low in range(0, len(ids), WINDOW):
            own = ids[low : low + WINDOW]
            mine = np.flatnonzero((own != MISSING) & (kinds[low : low + WINDOW] != API_PYTHON))
            if self._dense is not None:
                self._dense[own[mine] + 1] = mine + low
            else:
                parts.append(np.array([own[mine], mine + low]))
        if self._dense is None:
            found = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
            self._sorted, self._ranges = last_of_each(found)

    def of(self, ids: Ints) -> Ints:
        """Return the range of each id, NONE where there is none."""
        if self._dense is not None:
            return self._dense.take(np.maximum(ids, -1) + 1, mode="clip").astype(np.int64)
        return of_those(self._ranges, find(self._sorted, ids))


class Makers:
    """The range that made each autograd node, of several the last to start."""

    def __init__(self, sequence: Packed, start_ns: Packed) -> None:
        """Begin without any; both columns are of all ranges."""
        self._start_ns = start_ns
        self._dense: NDArray[np.int32] | None = None
        self._parts = [np.zeros((3, 0), np.int64)]
        if sequence.most < _SPARSE * len(sequence) + 1024:
            # The last place is that of all that has no number.
            self._dense = np.full(max(sequence.most, -1) + 2, NONE, np.int32)

    def add(self, sequence: Ints, ranges: Ints) -> None:
        """Take ranges, behind all that were taken, with the numbers of the nodes they made."""
        found = last_of_each(np.array([sequence, self._start_ns[ranges], ranges]))
        if self._dense is None:
            self._parts.append(found)
            return
        sequence, start_ns, ranges = found
        before = self._dense[sequence]
        later = before == NONE
        known = np.flatnonzero(~later)
        later[known] = start_ns[known] >= self._start_ns[before[known]]
        self._dense[sequence[later]] = ranges[later]

    def done(self) -> Makers:
        """Say that there are no more."""
        if self._dense is None:
            self._parts = [last_of_each(np.concatenate(self._parts, axis=1))[[0, 2]]]
        return self

    def of(self, sequence: Ints) -> Ints:
        """Return the range of each number, NONE where it is not known; less than 0 is no number."""
        if self._dense is not None:
            return self._dense.take(np.maximum(sequence, NONE), mode="wrap").astype(np.int64)
        numbers, ranges = self._parts[0]
        return np.where(sequence < 0, NONE, of_those(ranges, find(numbers, sequence)))


def last_of_each(columns: Ints) -> Ints:
    """Return for each distinct number in the first of some columns the highest of its entries."""
    order = np.lexsort(columns[::-1])
    ordered: Ints = columns[:, order]
    last = np.append(ordered[0][1:] != ordered[0][:-1], True)[: ordered.shape[1]]
    return ordered[:, last]


def of_those(values: Distances | Packed | Ints, at: NDArray[np.integer]) -> Ints:
    """Return values at some places, NONE where the place is NONE."""
    if not len(values):
        return np.full(len(at), NONE, np.int64)
    result: Ints = np.where(at == NONE, NONE, values[np.maximum(at, 0)])
    return result
