"""Values as small numbers: their places among the distinct ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import Packed, Packing

Ints = NDArray[np.int64]
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)


def recoded(column: Packed, values: Sequence[int] | Ints) -> Packed:
    """Return a column with the place among `values` (in rising order) of each of its values."""
    ordered = np.array(values, np.int64)
    packing = Packing(_INT16, _INT32)
    for block in column.blocks():
        packing.add(np.searchsorted(ordered, block))
    return packing.done()


def codes(values: Ints) -> tuple[list[int], NDArray[np.int32]]:
    """Number the distinct values; few and small ones (string ids) without sorting them all."""
    if not len(values):
        return [], np.empty(0, np.int32)
    if values.min() >= 0 and values.max() < 1 << 20:
        used = np.flatnonzero(np.bincount(values))
        table = np.empty(int(used[-1]) + 1, np.int32)
        table[used] = np.arange(len(used), dtype=np.int32)
        return used.tolist(), table[values]
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct.tolist(), codes.astype(np.int32)
