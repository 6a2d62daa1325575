"""Tables of a report, all of their rows as columns or a window of rows at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.source import Source
from unified_prof.store import integers as in_store
from unified_prof.store.sql import quoted

MISSING = in_store.MISSING
"""Stands for NULL, and for a column that an older file does not have."""

Window = tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.float64]]]
"""Some rows of a table: columns of integers, and of numbers."""


class Texts:
    """The texts of STRING_IDS by id, read once."""

    def __init__(self, source: Source) -> None:
        self._texts: dict[int, str] = {
            number: str(text)
            for number, text in source.rows("SELECT id, value FROM STRING_IDS")
            if text is not None
        }

    def get(self, number: int) -> str | None:
        """Return the text of an id, None if there is none."""
        return self._texts.get(number)

    def ids(self, wanted: Collection[str]) -> NDArray[np.int64]:
        """Return the ids of texts; several where a file has a text twice."""
        found = [number for number, text in self._texts.items() if text in wanted]
        return np.array(found, np.int64)


def integers(
    source: Source, table: str, columns: Sequence[str], *, narrow: Collection[str] = ()
) -> dict[str, NDArray[np.int64]]:
    """Return whole columns of integers, in the file's order of rows; empty without the table.

    Args:
        source: the open report.
        table: a table of the newest schema.
        columns: their newest names.
        narrow: those that may come as int32, to save memory.
    """
    return source.integers(table, {name: _column(name) for name in columns}, narrow=narrow)


def reals(source: Source, table: str, columns: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return whole columns of numbers as float64, NaN for what is none."""
    if table not in source.tables:
        return {name: np.empty(0) for name in columns}
    select = ", ".join(f"{_real(name)} AS {quoted(name)}" for name in columns)
    found = source.columns(f"SELECT {select} FROM {quoted(table)}")
    return {name: _floats(found[name]) for name in columns}


def names(source: Source, table: str) -> dict[int, str]:
    """Return an ENUM_ table as number -> name."""
    if table not in source.tables:
        return {}
    rows = source.rows(f"SELECT id, name FROM {quoted(table)}")
    return {number: str(name) for number, name in rows if isinstance(number, int)}


def records(source: Source, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a small table, in the file's order."""
    if table not in source.tables:
        return []
    return source.rows(f"SELECT {', '.join(map(_column, columns))} FROM {quoted(table)}")


def first(source: Source, table: str, column: str) -> int | None:
    """Return the first integer in a column, None where there is none."""
    if table not in source.tables:
        return None
    condition = f"typeof({_column(column)}) = 'integer'"
    rows = source.rows(f"SELECT {_column(column)} FROM {quoted(table)} WHERE {condition} LIMIT 1")
    return int(rows[0][0]) if rows else None


def counts(source: Source, table: str, key: str, *, where: Mapping[str, int]) -> dict[str, Any]:
    """Return how many rows each value of `key` has, as arrays `key` and `rows`."""
    condition = " AND ".join(f"{_column(name)} = ?" for name in where)
    query = (
        f"SELECT {_column(key)} AS key, count(*) AS rows FROM {quoted(table)}"
        f" WHERE {condition} AND typeof({_column(key)}) = 'integer' GROUP BY 1"
    )
    return source.columns(query, list(where.values()))


def windows(
    source: Source, table: str, whole: Sequence[str], real: Sequence[str]
) -> Iterator[Window]:
    """Yield some thousand rows at a time: integer columns and number columns."""
    for ints, condition in source.windows(table, {name: _column(name) for name in whole}):
        select = ", ".join(f"{_real(name)} AS {quoted(name)}" for name in real)
        found = source.columns(f"SELECT {select} FROM {condition.sql}", condition.values)
        yield ints, {name: _floats(found[name]) for name in real}


def _column(name: str) -> str:
    # In double quotes, a column that is not there would be a text.
    return f"[{name}]"


def _real(name: str) -> str:
    column = _column(name)
    return f"iif(typeof({column}) IN ('integer', 'real'), CAST({column} AS REAL), NULL)"


def _floats(values: NDArray[Any]) -> NDArray[np.float64]:
    if isinstance(values, np.ma.MaskedArray):
        return np.where(values.mask, np.nan, values.data.astype(np.float64))
    return np.asarray(values, np.float64)
