"""Brings rows of a database into NumPy columns, without ever holding them as Python objects.

`of_query` takes what any query gives, whatever the types. `of_table` takes integers of a whole
table and is made for big ones: a row of a Python cursor costs a tuple and an object a value. There
SQLite itself prints a column of 16,384 rows as one text, and NumPy parses that: half the time of
`np.fromiter` over a cursor. All but the parsing happens outside Python's global lock, so a big
table is read by two threads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import StoreError, UsageError
from unified_prof.store.opening import open_read_only
from unified_prof.store.sql import quoted, reading
from unified_prof.store.watching import watch

MISSING = np.iinfo(np.int64).min
"""Stands for NULL and for a value that is no integer. No column of a report means this number."""

_ROWS_AT_A_TIME = 10_000
_EXACT_IN_FLOAT = 2**53

_CHUNK_ROWS = 16_384
_TWO_READERS_FROM_ROWS = 1_000_000
_INT32 = 1 << 31
# A character that no text among the values has: `1,2` beside a NULL would pass for two numbers.
# Counting the values instead costs three times as much.
_SEPARATOR = "\x1f"
_DIGITS = b"0123456789-" + _SEPARATOR.encode()
_NOTHING = np.empty(0, np.int64)


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
    names = [str(description[0]) for description in cursor.description or ()]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"the query names more than one column {', '.join(doubled)}")
    parts: list[list[_Part]] = [[] for _ in names]
    while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
        for column, values in zip(parts, zip(*rows, strict=True), strict=True):
            column.append(_part(values))
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


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a file, and what to read of each of its rows."""

    path: Path
    name: str
    expressions: tuple[str, ...]
    narrow: tuple[bool, ...]
    """For each expression: whether it may come as int32."""

    @property
    def in_file(self) -> str:
        """What to select from for the table as it lies in the file."""
        return f"main.{quoted(self.name)}"


def of_table(
    db: sqlite3.Connection,
    path: Path,
    table: str,
    columns: Mapping[str, str],
    *,
    narrow: Collection[str] = (),
) -> dict[str, NDArray[np.int64]]:
    """Return integer expressions over all rows of a table, in the file's order of rows.

    Args:
        db: the open file, with the views that give its tables their newest shape.
        path: the file, which a second thread opens for itself.
        table: one that the file has.
        columns: name in the result -> SQL expression over the table's columns.
        narrow: columns that may come as int32 where their values allow it, to save memory.

    Raises:
        StoreError: the file is damaged, or an expression is wrong.
    """
    small = tuple(name in narrow for name in columns)
    what = _Table(path, table, tuple(columns.values()), small)
    if not _is_plain(db, what):
        return dict(zip(columns, _through_view(db, what), strict=True))
    chunks = _chunks(db, what)
    half = len(chunks) // 2
    if len(chunks) * _CHUNK_ROWS < _TWO_READERS_FROM_ROWS or (os.cpu_count() or 1) < 2:
        half = 0
    with ThreadPoolExecutor(max_workers=1) as pool:
        other = pool.submit(_read_apart, what, chunks[:half])
        mine = [_read(db, what, chunk) for chunk in chunks[half:]]
        parts = other.result() + mine
    return dict(zip(columns, _whole_columns(parts, len(columns)), strict=True))


@dataclass(frozen=True, slots=True)
class Window:
    """Where the rows of one step of `windows` stand, for a query of one's own."""

    sql: str
    """What follows FROM."""
    values: tuple[int, ...]


def windows(
    db: sqlite3.Connection, path: Path, table: str, columns: Mapping[str, str]
) -> Iterator[tuple[dict[str, NDArray[np.int64]], Window]]:
    """Yield what `of_table` returns some thousand rows at a time, for tables too big to hold.

    A table that needs a view comes in one piece.
    """
    what = _Table(path, table, tuple(columns.values()), (False,) * len(columns))
    if not _is_plain(db, what):
        whole = _through_view(db, what)
        yield dict(zip(columns, whole, strict=True)), Window(quoted(table), ())
        return
    for chunk in _chunks(db, what):
        found = _read(db, what, chunk)
        window = Window(f"{what.in_file} WHERE rowid BETWEEN ? AND ?", chunk)
        yield dict(zip(columns, found, strict=True)), window


def _is_plain(db: sqlite3.Connection, what: _Table) -> bool:
    """Whether the table as it lies in the file has row ids and all that the expressions name.

    Where it has, the view that gives an older table the newest shape need not be asked.
    """
    query = f"SELECT rowid, {', '.join(what.expressions)} FROM {what.in_file} LIMIT 0"
    try:
        _rows(db, what, query)
    except StoreError:
        return False
    return True


def _chunks(db: sqlite3.Connection, what: _Table) -> list[tuple[int, int]]:
    """Return ranges of row ids that together hold every row; ids may be sparse."""
    ((last,),) = _rows(db, what, f"SELECT max(rowid) FROM {what.in_file}")
    result: list[tuple[int, int]] = []
    after = int(np.iinfo(np.int64).min)
    while last is not None and after < last:
        query = f"SELECT min(rowid) FROM {what.in_file} WHERE rowid > ?"
        first = int(_rows(db, what, query, (after,))[0][0])
        after = min(first + _CHUNK_ROWS - 1, last)
        result.append((first, after))
    return result


def _read_apart(what: _Table, chunks: Sequence[tuple[int, int]]) -> list[list[NDArray[Any]]]:
    """Read chunks over a connection of this thread's own."""
    if not chunks:
        return []
    with ExitStack() as resources:
        own = open_read_only(what.path, resources)
        watch(own)
        return [_read(own, what, chunk) for chunk in chunks]


def _read(db: sqlite3.Connection, what: _Table, chunk: tuple[int, int]) -> list[NDArray[Any]]:
    where = f"FROM {what.in_file} WHERE rowid BETWEEN ? AND ?"
    printed = ", ".join(
        f"CAST(group_concat({one}, '{_SEPARATOR}') AS BLOB)" for one in what.expressions
    )
    ((count, *texts),) = _rows(db, what, f"SELECT count(*), {printed} {where}", chunk)
    result = []
    for text, expression, may_be_small in zip(texts, what.expressions, what.narrow, strict=True):
        values = _parse(text, count)
        if values is None:
            # Something else than integers is among them.
            rows = _rows(db, what, f"SELECT {_integer_or_missing(expression)} {where}", chunk)
            values = np.array(rows, np.int64).reshape(-1)
        result.append(_narrowed(values, may_be_small=may_be_small))
    return result


def _parse(text: bytes | None, count: int) -> NDArray[np.int64] | None:
    """Return the numbers in `text`, or None if it is not `count` integers."""
    if text is None or text.translate(None, _DIGITS):
        return None
    if b"-" in text and (b"-\x1f" in text or text.endswith(b"-")):
        return None  # NumPy would take a lone sign for 0
    try:
        values = np.fromstring(text, np.int64, sep=_SEPARATOR)
    except ValueError:  # an empty text between two others
        return None
    return values if len(values) == count else None


def _through_view(db: sqlite3.Connection, what: _Table) -> list[NDArray[Any]]:
    """Fetch from a view, which lays the newest shape over an older table."""
    select = ", ".join(map(_integer_or_missing, what.expressions))
    parts = []
    with reading(what.path):
        cursor = db.execute(f"SELECT {select} FROM {quoted(what.name)}")
        while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
            values = np.array(rows, np.int64)
            parts.append(
                [
                    _narrowed(values[:, index].copy(), may_be_small=may_be_small)
                    for index, may_be_small in enumerate(what.narrow)
                ]
            )
    return _whole_columns(parts, len(what.expressions))


def _whole_columns(parts: list[list[NDArray[Any]]], count: int) -> list[NDArray[Any]]:
    """Join `count` columns that came in parts, and take them out of these."""
    result = []
    for index in range(count):
        pieces = [part[index] for part in parts]
        for part in parts:
            part[index] = _NOTHING  # so that pieces and whole of only one column exist at a time
        result.append(np.concatenate(pieces) if pieces else _NOTHING)
    return result


def _narrowed(values: NDArray[np.int64], *, may_be_small: bool) -> NDArray[Any]:
    if may_be_small and values.min(initial=0) >= -_INT32 and values.max(initial=0) < _INT32:
        return values.astype(np.int32)
    return values


def _integer_or_missing(expression: str) -> str:
    # The smallest integer has no literal of its own in SQL.
    return f"iif(typeof({expression}) = 'integer', {expression}, {MISSING + 1} - 1)"


def _rows(
    db: sqlite3.Connection, what: _Table, query: str, values: Sequence[int] = ()
) -> list[tuple[Any, ...]]:
    with reading(what.path):
        return db.execute(query, values).fetchall()
