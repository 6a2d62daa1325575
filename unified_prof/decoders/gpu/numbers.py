"""Columns of ids and counts in which -1 means that there is none."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Column

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]

MISSING = -1
"""Stands for an id that an event does not have."""


def ints(values: Iterable[int]) -> Int64s:
    """Return Python integers as a column, faster than NumPy finds out that they are some.

    Raises:
        TypeError: not all are integers.
        OverflowError: not all fit into int64.
    """
    return np.frombuffer(array("q", values), dtype=np.int64)


def null_where(missing: NDArray[np.bool_], values: NDArray[Any]) -> Column:
    """Return a column that is stored as NULL where `missing`."""
    if not missing.any():
        return values
    return None if missing.all() else np.ma.masked_array(values, missing)


def known(values: Int64s) -> Column:
    """Return a column in which `MISSING` is stored as NULL."""
    return null_where(values == MISSING, values)
