"""Repeated numbers replaced by small dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import NOWHERE, find


class Pool:
    """Replaces repeated 64-bit values by small dense indexes, in the order of first use."""

    _FEWEST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 18
    _SLOTS_EACH = 16
    _FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)

    def __init__(self) -> None:
        self._values = np.zeros(0, np.uint64)
        self._sorted = np.zeros(0, np.uint64)
        self._index_of_sorted = np.zeros(0, np.uint32)
        # The index of a value that belongs to each slot: most values are found by looking there
        # and comparing, several times as fast as by bisection, which is left the rest.
        self._slots = np.zeros(self._FEWEST_SLOTS, np.uint32)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> NDArray[np.uint64]:
        """The values by index."""
        return self._values

    def index_of(self, values: NDArray[Any]) -> NDArray[np.uint32]:
        """Return the index of every value; unseen ones get the next indexes."""
        asked = np.asarray(values, np.uint64)
        if not len(self):
            if not len(asked):
                return np.zeros(0, np.uint32)
            self._add(np.unique(asked))
        index = self._slots[self._slots_of(asked)]
        elsewhere = np.flatnonzero(self._values[index] != asked)
        if len(elsewhere):
            index[elsewhere] = self._sought(asked[elsewhere])
        return index

    def _slots_of(self, values: NDArray[np.uint64]) -> NDArray[np.int64]:
        shift = np.uint64(65 - len(self._slots).bit_length())
        found = values * self._FACTOR
        found >>= shift
        return found.view(np.int64)

    def _sought(self, values: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the indexes of values that are not where their slots point to."""
        place, known = self._places(values)
        if not known.all():
            self._add(np.unique(values[~known]))
            place, _ = self._places(values)
        return self._index_of_sorted[place]

    def _places(self, values: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where values stand among the sorted ones, and which of them do."""
        place = np.searchsorted(self._sorted, values)
        place[place == len(self._sorted)] = 0
        return place, self._sorted[place] == values

    def _add(self, new: NDArray[np.uint64]) -> None:
        """Give values that are not known yet the next indexes."""
        place = np.searchsorted(self._sorted, new)
        index = np.arange(len(self), len(self) + len(new), dtype=np.uint32)
        self._sorted = np.insert(self._sorted, place, new)
        self._index_of_sorted = np.insert(self._index_of_sorted, place, index)
        self._values = np.concatenate([self._values, new])
        wanted = min(self._SLOTS_EACH * len(self), self._MOST_SLOTS)
        if wanted > len(self._slots):
            self._slots = np.zeros(1 << (wanted - 1).bit_length(), np.uint32)
            new, index = self._values, np.arange(len(self), dtype=np.uint32)
        self._slots[self._slots_of(new)] = index


class FirstSeen:
    """Numbers values in the order in which they come, some of them after others."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.int64)
        self._number = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def values(self) -> NDArray[np.int64]:
        """The values by number."""
        result = np.empty(len(self._sorted), np.int64)
        result[self._number] = self._sorted
        return result

    def numbers(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of every value; unseen ones get the next numbers, one by one."""
        own, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        place = find(self._sorted, own)
        new = np.flatnonzero(place == NOWHERE)
        number = np.append(self._number, 0)[place]
        if len(new):
            number[new[np.argsort(first[new])]] = np.arange(len(self), len(self) + len(new))
            at = np.searchsorted(self._sorted, own[new])
            self._sorted = np.insert(self._sorted, at, own[new])
            self._number = np.insert(self._number, at, number[new])
        return number[inverse]


class Numbering:
    """As `Pool`, for numbers from 0: by a table of those that are not too large for one."""

    _LARGE = 1 << 23

    def __init__(self) -> None:
        self._table = np.full(1024, -1, np.int32)
        self._pool = Pool()
        self._of_pool = np.zeros(0, np.int64)
        self._values: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> NDArray[np.int64]:
        """The numbers by index."""
        return np.array(self._values, np.int64)

    def index_of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of every number; unseen ones get the next indexes."""
        highest = int(values.max(initial=0))
        if highest < self._LARGE:
            return self._by_table(values, highest)
        result = np.empty(len(values), np.int64)
        small = values < self._LARGE
        result[small] = self._by_table(values[small], self._LARGE - 1)
        known = len(self._pool)
        index = self._pool.index_of(values[~small])
        new = self._pool.values[known:].astype(np.int64).tolist()
        places = np.arange(len(self._values), len(self._values) + len(new))
        self._of_pool = np.concatenate((self._of_pool, places))
        self._values += new
        result[~small] = self._of_pool[index]
        return result

    def _by_table(self, values: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        if highest >= len(self._table):
            more = max(highest + 1, 2 * len(self._table)) - len(self._table)
            self._table = np.concatenate((self._table, np.full(more, -1, np.int32)))
        index = self._table[values]
        if index.min(initial=0) < 0:
            new = np.unique(values[index < 0])
            self._table[new] = np.arange(len(self._values), len(self._values) + len(new))
            self._values += new.tolist()
            index = self._table[values]
        return index.astype(np.int64)
