"""Orders of many rows by numbers that repeat, without comparing them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DIGIT_BITS = 16
"""NumPy sorts numbers of so many bits by counting them, in time proportional to the rows."""
_KEY_BITS = 62


def stable_order(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of rows by several columns, the first one first; equal rows stay in order.

    The same as `np.lexsort(columns[::-1])`, a few times as fast for millions of rows whose numbers
    take few bits in all.
    """
    key, bits = _joined(columns)
    if key is None:
        return np.lexsort(columns[::-1])
    order: NDArray[np.int64] | None = None
    for shift in range(0, bits, _DIGIT_BITS):
        digit = (key >> shift).astype(np.uint16)
        if order is None:
            order = np.argsort(digit, kind="stable")
        else:
            order = order[np.argsort(digit[order], kind="stable")]
    return np.arange(len(key)) if order is None else order


def _joined(columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64] | None, int]:
    """Return one number a row that orders as the columns do, and its bits; None: too many."""
    key = np.zeros(len(columns[0]), np.int64)
    bits = 0
    if not len(key):
        return key, bits
    for column in columns:
        low = int(column.min())
        own = (int(column.max()) - low).bit_length()
        bits += own
        if bits > _KEY_BITS:
            return None, bits
        if own:
            key = (key << own) | (column - low)
    return key, bits
