"""Query results as NumPy columns, and integer columns of tables read with SQL.

`integer_columns` reads whole tables from pages, several times as fast; this module is for
expressions and rows that only SQLite can read. A cursor creates a tuple per row and an object per
value. To avoid this, SQLite concatenates a column of 16,384 rows to one text, which NumPy parses in
half the time of `np.fromiter` over a cursor.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Floats, Ints
from unified_prof.errors import StoreError, UsageError
from unified_prof.sqlite.statements import quoted, reading, recovery_command

_ROWS_AT_A_TIME = 10_000
_EXACT_IN_FLOAT = 2**53


class _Part(Struct, frozen=True):
    """Values of one column in a block of rows."""

    data: NDArray[Any] | None  # int64, float64 or objects; None: all are NULL.
    is_null: Bools


def of_query(cursor: sqlite3.Cursor) -> dict[str, NDArray[Any]]:
    """Fetch all remaining rows of `cursor` as columns; see `Report.columns`.

    Raises UsageError if two columns have the same name.
    """
    return _up_to(cursor, _names(cursor), None)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    names = [str(description[0]) for description in cursor.description or ()]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        message = f"the query names more than one column {', '.join(doubled)}"
        raise UsageError(message, slug="wrong-table")
    return names


def in_parts(cursor: sqlite3.Cursor, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of `of_query`, `rows` rows at a time.

    Raises UsageError if two columns have the same name.
    """
    names = _names(cursor)
    while True:
        part = _up_to(cursor, names, rows)
        if not part or not len(next(iter(part.values()))):
            return
        yield part


def _up_to(cursor: sqlite3.Cursor, names: list[str], count: int | None) -> dict[str, NDArray[Any]]:
    """Fetch `count` rows; None: all remaining rows."""
    parts: list[list[_Part]] = [[] for _ in names]
    while count is None or count > 0:
        rows = cursor.fetchmany(_ROWS_AT_A_TIME if count is None else min(count, _ROWS_AT_A_TIME))
        if not rows:
            break
        for column, values in zip(parts, zip(*rows, strict=True), strict=True):
            column.append(_part(values))
        count = None if count is None else count - len(rows)
    return {name: _concatenated(column) for name, column in zip(names, parts, strict=True)}


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


def _concatenated(parts: list[_Part]) -> NDArray[Any]:
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
        data = np.concatenate(
            [np.zeros(len(p.is_null), np.int64) if p.data is None else p.data for p in parts]
        )
        return np.ma.MaskedArray(data, is_null) if is_null.any() else data
    return np.concatenate([_floats(part) for part in parts])


def _fits_float(data: NDArray[Any]) -> bool:
    """Return True if every integer in the data is exact as a float64."""
    if data.dtype.kind == "i":
        return bool(((data <= _EXACT_IN_FLOAT) & (data >= -_EXACT_IN_FLOAT)).all())
    if data.dtype.kind == "f":
        return True
    return all(abs(value) <= _EXACT_IN_FLOAT for value in data if type(value) is int)


def _floats(part: _Part) -> Floats:
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


_CHUNK_ROWS = 16_384
_INT32 = 1 << 31
# A character that occurs in no value: otherwise, the text `1,2` and a NULL would look like two
# numbers. Counting the values would cost three times as much.
_SEPARATOR = "\x1f"
_DIGITS = b"0123456789-" + _SEPARATOR.encode()


class Wanted(Struct, frozen=True):
    """A table of a file, and the expressions to read."""

    path: Path
    name: str
    expressions: tuple[str, ...]
    narrow: tuple[bool, ...]  # For each expression: True if its values may be returned as int32.
    # A name of the row ids of the table in the file; None: it has no accessible row ids.
    row_id: str | None

    @property
    def in_file(self) -> str:
        """SQL name of the table in the file, not of a view."""
        return f"main.{quoted(self.name)}"

    def damaged(self, what: str) -> StoreError:
        """Return the error for a damaged table."""
        return StoreError(
            f"{self.path} is damaged: table {self.name} {what}",
            hint=recovery_command(self.path),
            slug="damaged-file",
        )

    def narrowed(self, values: list[Ints]) -> list[NDArray[Any]]:
        """Return the values of the expressions, as int32 where this is allowed and sufficient."""
        return [
            column.astype(np.int32)
            if small and column.min(initial=0) >= -_INT32 and column.max(initial=0) < _INT32
            else column
            for column, small in zip(values, self.narrow, strict=True)
        ]


def is_plain(db: sqlite3.Connection, what: Wanted) -> bool:
    """Return True if the table in the file has row ids and all columns of the expressions.

    In this case, the view that gives an older table the newest shape is not needed.
    """
    if what.row_id is None:
        return False
    query = f"SELECT {what.row_id}, {', '.join(what.expressions)} FROM {what.in_file} LIMIT 0"
    try:
        _rows(db, what, query)
    except StoreError:
        return False
    return True


def parts(
    db: sqlite3.Connection, what: Wanted, *, after: int | None = None, count: int = 0
) -> Iterator[tuple[list[NDArray[Any]], tuple[int, int]]]:
    """Yield the values of the expressions and the range of row ids, in windows of rows.

    `after` is the last row id that was already read, `count` the number of rows read so far. Raises
    StoreError if the file is damaged, so that reading by row ids does not find all rows.
    """
    for chunk in _chunks(db, what, after):
        values = read(db, what, chunk)
        count += len(values[0])
        yield values, chunk
    ((total,),) = _rows(db, what, f"SELECT count(*) FROM {what.in_file} NOT INDEXED")
    if count != total:
        raise what.damaged(f"has {total:,} rows, but {count:,} are found by their row ids")


def check_order(db: sqlite3.Connection, what: Wanted) -> None:
    """Raise StoreError if the row ids of a table are not in ascending order."""
    last: int | None = None
    with reading(what.path):
        cursor = db.execute(f"SELECT {what.row_id} FROM {what.in_file} NOT INDEXED")
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            ids = np.array(rows, np.int64).reshape(-1)
            if not (ids[1:] > ids[:-1]).all() or (last is not None and ids[0] <= last):
                raise what.damaged("has row ids that are not in ascending order")
            last = int(ids[-1])


def _chunks(db: sqlite3.Connection, what: Wanted, after: int | None) -> Iterator[tuple[int, int]]:
    """Yield ranges of row ids that together contain every row after `after`; ids may be sparse."""
    ((last,),) = _rows(db, what, f"SELECT max({what.row_id}) FROM {what.in_file}")
    lowest = f"SELECT min({what.row_id}) FROM {what.in_file}"
    while last is not None and (after is None or after < last):
        if after is None:
            found = _rows(db, what, lowest)
        else:
            found = _rows(db, what, f"{lowest} WHERE {what.row_id} > ?", (after,))
        first = int(found[0][0])
        after = min(first + _CHUNK_ROWS - 1, last)
        yield first, after


def read(db: sqlite3.Connection, what: Wanted, chunk: tuple[int, int]) -> list[NDArray[Any]]:
    """Return the values of the expressions in a range of row ids."""
    where = f"FROM {what.in_file} WHERE {what.row_id} BETWEEN ? AND ?"
    printed = ", ".join(
        f"sum(typeof({expression}) = 'integer'),"
        f" CAST(group_concat({expression}, '{_SEPARATOR}') AS BLOB)"
        for expression in what.expressions
    )
    ((count, *found),) = _rows(db, what, f"SELECT count(*), {printed} {where}", chunk)
    result = []
    for integers, text, expression in zip(found[::2], found[1::2], what.expressions, strict=True):
        values = _parse(text, count) if integers == count else None
        if values is None:
            # Not all values are integers.
            rows = _rows(db, what, f"SELECT {_integer_or_missing(expression)} {where}", chunk)
            values = np.array(rows, np.int64).reshape(-1)
        result.append(values)
    return what.narrowed(result)


def all_rows(db: sqlite3.Connection, what: Wanted) -> str:
    """Return SQL for all rows, of the view if there is one, in the order of the table.

    An index that contains the selected columns would change the order.
    """
    with reading(what.path):
        shown = db.execute(f"PRAGMA temp.table_info({quoted(what.name)})").fetchall()
    if not shown:
        return f"{what.in_file} NOT INDEXED"
    by_row_id = any(name == "rowid" for _, name, *_ in shown)
    return f"{quoted(what.name)}{' ORDER BY rowid' if by_row_id else ''}"


def through_view(db: sqlite3.Connection, what: Wanted) -> Iterator[list[NDArray[Any]]]:
    """Yield values from the view that gives an older table the newest shape."""
    select = ", ".join(map(_integer_or_missing, what.expressions))
    with reading(what.path):
        cursor = db.execute(f"SELECT {select} FROM {all_rows(db, what)}")
        while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
            values = np.array(rows, np.int64)
            yield what.narrowed([column.copy() for column in values.T])


def _parse(text: bytes | None, count: int) -> Ints | None:
    """Return the numbers in `text`, or None if it is not `count` integers."""
    if text is None or text.translate(None, _DIGITS):
        return None
    if b"-" in text and (b"-\x1f" in text or text.endswith(b"-")):
        return None  # NumPy parses a single sign as 0
    try:
        values = np.fromstring(text, np.int64, sep=_SEPARATOR)
    except ValueError:  # an empty text between two others
        return None
    return values if len(values) == count else None


def _integer_or_missing(expression: str) -> str:
    # SQL has no literal for the smallest integer.
    return f"iif(typeof({expression}) = 'integer', {expression}, {MISSING + 1} - 1)"


def _rows(
    db: sqlite3.Connection, what: Wanted, query: str, params: tuple[int, ...] = ()
) -> list[Any]:
    with reading(what.path):
        return db.execute(query, params).fetchall()
