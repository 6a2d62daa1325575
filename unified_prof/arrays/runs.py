"""Runs of equal rows in sorted columns: the building block of grouping without loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Runs:
    """The runs of rows that are equal in all of some columns of one length.

    Attributes:
        starts: First row of each run.
        sizes: Number of rows of each run.
    """

    def __init__(self, *columns: NDArray[Any]) -> None:
        self.rows = len(columns[0])
        changes = np.zeros(self.rows, bool)
        changes[:1] = True
        for column in columns:
            changes[1:] |= column[1:] != column[:-1]
        self.starts: NDArray[np.int64] = np.flatnonzero(changes)
        self.sizes: NDArray[np.int64] = np.diff(self.starts, append=self.rows)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last(self) -> NDArray[np.int64]:
        """Last row of each run."""
        return self.starts + self.sizes - 1

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Give every row the value of its run."""
        return np.repeat(values, self.sizes)

    def number(self) -> NDArray[np.int64]:
        """Return the number of every row's run, from 0."""
        return self.spread(np.arange(len(self)))

    def rank(self) -> NDArray[np.int64]:
        """Return the place of every row in its run, from 0."""
        return np.asarray(np.arange(self.rows) - self.spread(self.starts))


def positions(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, ... size - 1 for every size, one after another."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
