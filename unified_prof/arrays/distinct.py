"""Distinct rows of several columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


_DENSE = 4
"""A table of all numbers from the least to the greatest is worth it up to so many a value."""


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values, rising, and which of them every value is.

    As `np.unique` does, but without sorting where values are close to one another, as ids are.
    """
    if not len(values):
        return values, np.empty(0, np.int64)
    least, greatest = int(values.min()), int(values.max())
    if least == greatest:
        return values[:1], np.zeros(len(values), np.int64)
    if greatest - least >= _DENSE * len(values):
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse
    places = values - least
    there = np.zeros(greatest - least + 1, np.bool_)
    there[places] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[places]


def rising(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct values, rising: by sorting, where most of them differ.

    `np.unique` hashes them first, which takes several times as long then.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one row of each distinct combination of int64 values, and the one of every row.

    Rows are found by a hash and compared with what they were taken for, which is several times
    quicker than sorting them; should two combinations have one hash, they are sorted after all.
    """
    keys = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        keys = (keys ^ (keys >> np.uint64(29)) ^ column.astype(np.uint64)) * _FACTOR
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    representative = first[inverse]
    if all((column == column[representative]).all() for column in columns):
        return first, inverse
    table = np.stack(columns, axis=1)
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
