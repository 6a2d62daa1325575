"""Columns that grow by a row at a time: eight bytes a number, however many there are."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Enums = Callable[[str], Mapping[str, int]]
"""Name to number of an ENUM_* table."""

_LIMIT = 1 << 63

_LARGEST = 2**62
"""Ids are added to one another; none of a real recording is that large."""


class Columns:
    """Columns of whole numbers, all of one length."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        """Append a row, its values in the order of the names.

        Raises:
            ValueError: a value is no number of 64 bits.
        """
        if any(not -_LIMIT <= value < _LIMIT for value in values):
            raise ValueError(f"a number beyond 64 bits: {values}")
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def arrays(self) -> dict[str, Ints]:
        """Return the columns; nothing may be added while they are used."""
        return {
            name: np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
            for name, column in self._columns.items()
        }


class Names:
    """Numbers texts from 0, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def __getitem__(self, text: str) -> int:
        return self._numbers[text]

    @property
    def all(self) -> list[str]:
        """The texts by number."""
        return list(self._numbers)


def number(value: object, otherwise: int) -> int:
    """Return a value of an event or cell as a whole number, which may be written as text."""
    found = _whole(value)
    return otherwise if found is None or abs(found) > _LARGEST else found


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return None
    return None
