"""Brings rows of a query into NumPy columns, some thousands at a time, whatever their types.

Integers of whole tables come several times as fast: `store.integers`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import UsageError

_ROWS_AT_A_TIME = 10_000
_EXACT_IN_FLOAT = 2**53


@dataclass(frozen=True, slots=True)
class _Part:
    """The values of some rows of one column."""

    data: NDArray[Any] | None
    """int64, float64 or objects; None: all are NULL."""
    is_null: NDArray[np.bool_]


def of_query(cursor: sqlite3.Cursor) -> dict[str, NDArray[Any]]:
    """Fetch everything that `cursor` has left, as `Report.columns` describes it.

    Raises:
        UsageError: two columns have the same name.
    """
    return _up_to(cursor, _names(cursor), None)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    names = [str(description[0]) for description in cursor.description or ()]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"the query names more than one column {', '.join(doubled)}", slug="wrong-table"
        )
    return names


def in_parts(cursor: sqlite3.Cursor, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield what `of_query` returns, so many rows at a time.

    Raises:
        UsageError: two columns have the same name.
    """
    names = _names(cursor)
    while True:
        part = _up_to(cursor, names, rows)
        if not part or not len(next(iter(part.values()))):
            return
        yield part


def _up_to(cursor: sqlite3.Cursor, names: list[str], count: int | None) -> dict[str, NDArray[Any]]:
    """Fetch so many rows, None: all that are left."""
    parts: list[list[_Part]] = [[] for _ in names]
    while count is None or count > 0:
        rows = cursor.fetchmany(_ROWS_AT_A_TIME if count is None else min(count, _ROWS_AT_A_TIME))
        if not rows:
            break
        for column, values in zip(parts, zip(*rows, strict=True), strict=True):
            column.append(_part(values))
        count = None if count is None else count - len(rows)
    return {name: _joined(column) for name, column in zip(names, parts, strict=True)}


def _part(values: tuple[Any, ...]) -> _Part:
    types = set(map(type, values))
    is_null = np.zeros(len(values), np.bool_)
    if type(None) in types:
        is_null = np.fromiter((value is None for value in values), np.bool_, len(values))
        types.remove(type(None))
        if not types:
            return _Part(None, is_null)
        if types == {int}:
            values = tuple(0 if value is None else value for value in values)
        elif types == {float}:
            values = tuple(np.nan if value is None else value for value in values)
    if types == {int}:
        return _Part(np.fromiter(values, np.int64, len(values)), is_null)
    if types == {float}:
        return _Part(np.fromiter(values, np.float64, len(values)), is_null)
    data = np.empty(len(values), object)
    data[:] = values
    if types == {int, float} and _fits_float(data):
        return _Part(data.astype(np.float64), is_null)  # None becomes NaN
    return _Part(data, is_null)


def _joined(parts: list[_Part]) -> NDArray[Any]:
    if not parts:
        return np.empty(0, np.int64)
    is_null = np.concatenate([part.is_null for part in parts])
    known = [part.data for part in parts if part.data is not None]
    dtypes = {data.dtype.kind for data in known}
    if dtypes == {"i", "f"} and not all(_fits_float(data) for data in known):
        dtypes = {"O"}
    if "O" in dtypes:
        return np.concatenate([_objects(part) for part in parts])
    if dtypes == {"i"}:
        whole = np.concatenate(
            [np.zeros(len(p.is_null), np.int64) if p.data is None else p.data for p in parts]
        )
        return np.ma.MaskedArray(whole, is_null) if is_null.any() else whole
    return np.concatenate([_floats(part) for part in parts])


def _fits_float(data: NDArray[Any]) -> bool:
    """Tell whether every integer among numbers and None is exact as a float64."""
    if data.dtype.kind == "i":
        return bool(((data <= _EXACT_IN_FLOAT) & (data >= -_EXACT_IN_FLOAT)).all())
    if data.dtype.kind == "f":
        return True
    return all(abs(value) <= _EXACT_IN_FLOAT for value in data if type(value) is int)


def _floats(part: _Part) -> NDArray[np.float64]:
    if part.data is None:
        return np.full(len(part.is_null), np.nan)
    values = part.data.astype(np.float64)
    values[part.is_null] = np.nan
    return values


def _objects(part: _Part) -> NDArray[Any]:
    values = np.empty(len(part.is_null), object)
    if part.data is not None:
        values[:] = part.data.tolist()
        values[part.is_null] = None
    return values
