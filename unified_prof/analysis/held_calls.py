"""The calls of a long recording, held packed: millions of them take a third of what columns do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import SUMMED, UNKNOWN, Calls, Labels
from unified_prof.arrays.packed import BLOCK, Packed, Packing

Columns = dict[str, Packed]

WINDOW = 2 * BLOCK
"""Calls that are looked at together."""

_DTYPES = {"kind": np.int8, "name": np.int32, "module": np.int32, "line": np.int32}
_DTYPES["stack"] = np.int32


class HeldCalls:
    """Calls whose columns are packed; `windows` gives some at a time.

    Attributes:
        labels: the texts of their names, modules, lines and stacks.
        module_class: module path -> class name.
    """

    def __init__(self, labels: Labels, columns: Columns, module_class: Mapping[str, str]) -> None:
        self.labels, self.module_class = labels, module_class
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["name"])

    def has(self, column: str) -> bool:
        """Tell whether a column was measured at all."""
        return column in self._columns

    def windows(self, least: int = 0) -> Iterator[Calls]:
        """Yield all calls, some at a time; see `SomeCalls`."""
        size = max(WINDOW, least)
        for low in range(0, len(self), size):
            yield self._between(low, low + size)

    def whole(self) -> Calls:
        """Return all calls at once."""
        return self._between(0, len(self))

    def known(self, column: str) -> int:
        """Return of how many calls a column was measured."""
        if column not in self._columns:
            return 0
        return sum(int((values != UNKNOWN).sum()) for values in self._columns[column].blocks())

    def sums(self) -> dict[str, int | None]:
        """Return the sum of each column that adds up; None: nothing of it was measured."""
        return {name: self._sum(name) for name in SUMMED}

    def _sum(self, column: str) -> int | None:
        if not self.known(column):
            return None
        blocks = self._columns[column].blocks()
        return sum(int(values[values != UNKNOWN].sum(dtype=np.int64)) for values in blocks)

    def _between(self, low: int, high: int) -> Calls:
        columns: dict[str, Any] = {
            name: column[low:high].astype(_DTYPES.get(name, np.int64), copy=False)
            for name, column in self._columns.items()
        }
        return Calls(labels=self.labels, module_class=dict(self.module_class), **columns)


def making(column: str) -> Packing:
    """Return a column of calls in the making."""
    dtype = _DTYPES.get(column)
    return Packing(hole=UNKNOWN) if dtype is None else Packing(dtype, hole=UNKNOWN)


def packed(columns: Mapping[str, Any]) -> Columns:
    """Return columns that are there already as those of held calls."""
    found = {}
    for name, values in columns.items():
        packing = making(name)
        packing.add(values)
        found[name] = packing.done()
    return found


def joined(parts: Sequence[Columns], by: str) -> Columns:
    """Return the rows of several parts in rising order of a column, each part's own order kept.

    What a part has no column of is UNKNOWN there. The parts are gone afterwards: a column in the
    old order exists beside the new one only while it is put there.
    """
    filled = [part for part in parts if len(part[by])] or [*parts[:1]]
    sizes = [len(part[by]) for part in filled]
    key = np.concatenate([part[by].whole() for part in filled])
    order = None
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable").astype(np.int32)
    del key
    found: Columns = {}
    for name in dict.fromkeys(name for part in filled for name in part):
        column = _in_a_row(name, [part.pop(name, None) for part in filled], sizes)
        found[name] = column if order is None else _in_order(column, order)
    return found


def _in_a_row(name: str, columns: Sequence[Packed | None], sizes: Sequence[int]) -> Packed:
    """Return a column of several parts as one."""
    if len(columns) == 1 and columns[0] is not None:
        return columns[0]
    packing = making(name)
    for column, size in zip(columns, sizes, strict=True):
        if column is None:
            for low in range(0, size, WINDOW):
                packing.add(np.full(min(WINDOW, size - low), UNKNOWN))
        else:
            for values in column.blocks():
                packing.add(values)
    return packing.done()


def _in_order(column: Packed, order: NDArray[np.int32]) -> Packed:
    packing = column.anew()
    for low in range(0, len(order), WINDOW):
        packing.add(column.at(order[low : low + WINDOW]))
    return packing.done()
