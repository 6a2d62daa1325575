"""Repeated numbers replaced by small dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Pool:
    """Replaces repeated 64-bit values by small dense indexes, in the order of first use."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.uint64)
        self._index_of_sorted = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def values(self) -> NDArray[np.uint64]:
        """The values by index."""
        result = np.empty(len(self._sorted), np.uint64)
        result[self._index_of_sorted] = self._sorted
        return result

    def index_of(self, values: NDArray[Any]) -> NDArray[np.uint32]:
        """Return the index of every value; unseen ones get the next indexes."""
        distinct, inverse = np.unique(np.asarray(values, np.uint64), return_inverse=True)
        place = np.searchsorted(self._sorted, distinct)
        known = place < len(self._sorted)
        known[known] = self._sorted[place[known]] == distinct[known]
        index = np.empty(len(distinct), np.uint32)
        index[known] = self._index_of_sorted[place[known]]
        new = ~known
        if new.any():
            index[new] = np.arange(len(self), len(self) + int(new.sum()), dtype=np.uint32)
            self._sorted = np.insert(self._sorted, place[new], distinct[new])
            self._index_of_sorted = np.insert(self._index_of_sorted, place[new], index[new])
        return index[inverse]


class Numbering:
    """The same for numbers from 0 below a bound: by a table, where that is no large one."""

    _LARGE = 1 << 23

    def __init__(self, bound: int) -> None:
        self._pool = Pool() if bound > self._LARGE else None
        self._table = np.full(0 if self._pool is not None else bound, -1, np.int32)
        self._values: list[int] = []

    def __len__(self) -> int:
        return len(self._values) if self._pool is None else len(self._pool)

    @property
    def values(self) -> NDArray[np.int64]:
        """The numbers by index."""
        if self._pool is not None:
            return self._pool.values.astype(np.int64)
        return np.array(self._values, np.int64)

    def index_of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of every number; unseen ones get the next indexes."""
        if self._pool is not None:
            return self._pool.index_of(values).astype(np.int64)
        index = self._table[values]
        if (index < 0).any():
            new = np.unique(values[index < 0])
            self._table[new] = np.arange(len(self._values), len(self._values) + len(new))
            self._values += new.tolist()
            index = self._table[values]
        return index.astype(np.int64)
