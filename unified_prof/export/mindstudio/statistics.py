"""Groups of durations: how many, how long in all, at least, on average, at most, which share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.export.mindstudio.recording import Ints

PERCENT = 100


@dataclass(frozen=True, slots=True)
class Group:
    """The durations of rows that have a key in common, in ns."""

    key: tuple[int, ...]
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


def groups(keys: Sequence[NDArray[np.integer]], duration_ns: Ints) -> list[Group]:
    """Return the groups of rows by their keys, in ascending order of these."""
    if not len(duration_ns):
        return []
    distinct, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
    number = number.reshape(-1)
    count = distinct.shape[1]
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, number, duration_ns)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, number, duration_ns)
    total = np.zeros(count, np.int64)
    np.add.at(total, number, duration_ns)
    return [
        Group(tuple(key), *values)
        for key, *values in zip(
            distinct.T.tolist(),
            np.bincount(number, minlength=count).tolist(),
            total.tolist(),
            smallest.tolist(),
            largest.tolist(),
            strict=True,
        )
    ]


def totals(of: Sequence[Group]) -> dict[int, int]:
    """Return the total of each value of the keys' first part."""
    result: dict[int, int] = {}
    for group in of:
        result[group.key[0]] = result.get(group.key[0], 0) + group.total_ns
    return result
