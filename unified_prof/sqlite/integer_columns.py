"""Integer columns of whole tables as NumPy arrays, for tables of millions of rows.

They are read from the pages of the file (`sqlite.pages`), in a fifth of the time of reading them
through SQLite (`column_reader`). SQLite reads other expressions, files with a write-ahead log and
values in overflow pages, either for all rows or only for the rows that need it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.errors import StoreError
from unified_prof.sqlite import column_reader
from unified_prof.sqlite.column_reader import Wanted
from unified_prof.sqlite.pages.record_reader import Scan, Slice, Unusual, Values, scan
from unified_prof.sqlite.statements import declared, reading, row_id_name

__all__ = ["Window", "batches", "of_table", "windows"]
_NAME = r'(?:\[([^\]]+)\]|"([^"]+)"|([A-Za-z_]\w*))'
_PLAIN = re.compile(rf"{_NAME}(?: - {_NAME})?", re.ASCII)
_WITH_DEFAULT = re.compile(rf"coalesce\(({_NAME}), (-?[0-9]{{1,18}})\)", re.ASCII)
_WITH_MISSING = re.compile(rf"coalesce\(({_NAME}), {MISSING + 1} - 1\)", re.ASCII)
_CAST = re.compile(rf"CAST\(({_NAME}) AS INTEGER\)", re.ASCII)
_IN_DIGITS = re.compile(
    rf"iif\((?P<name>{_NAME}) GLOB '\[0-9\]\*', CAST\((?P=name) AS INTEGER\), NULL\)", re.ASCII
)
_NO_COLUMNS = frozenset({"null", "current_date", "current_time", "current_timestamp"})
_BLOCK_ROWS = 1 << 20
_SMALL_BYTES = 2 << 20
_NOTHING = np.empty(0, np.int64)

# Values of the expressions, and the first and last row id.
_Part = tuple[list[NDArray[Any]], tuple[int, int]]


def of_table(
    db: sqlite3.Connection,
    path: Path,
    table: str,
    columns: Mapping[str, str],
    *,
    narrow: Collection[str] = (),
) -> dict[str, Ints]:
    """Return integer expressions over all rows of a table, in the file's order of rows.

    `db` has the views that give the file's tables the newest shape. `columns` maps names in the
    result to SQL expressions; those in `narrow` may be returned as int32 if their values fit.
    Raises StoreError if the file is damaged, or an expression is wrong.
    """
    what = _wanted_columns(db, path, table, columns, narrow)
    if (few := _few(db, what)) is not None:
        parts = [few]
    elif not column_reader.is_plain(db, what):
        parts = list(column_reader.through_view(db, what))
    else:
        pages = _paged(db, what)
        parts = [] if pages is None else _blocks(part for part, _ in pages.parts())
        if pages is None or not pages.is_done:
            # Read everything again, because the two methods may find different rows in damaged
            # pages.
            parts = _blocks(part for part, _ in _from_sqlite(db, what, pages))
    return dict(zip(columns, _concatenated(parts, len(columns)), strict=True))


def _wanted_columns(
    db: sqlite3.Connection,
    path: Path,
    table: str,
    columns: Mapping[str, str],
    narrow: Collection[str] = (),
) -> Wanted:
    with reading(path):
        names = [column.name for column in declared(db, table)]
    small = tuple(name in narrow for name in columns)
    return Wanted(path, table, tuple(columns.values()), small, row_id_name(names))


def _few(db: sqlite3.Connection, what: Wanted) -> list[NDArray[Any]] | None:
    """Return a table of a small file by a plain query, which is faster for small files.

    Return None if the file is not small, a value is damaged or not an integer, or the table in the
    file lacks a column.
    """
    if what.path.stat().st_size > _SMALL_BYTES or what.row_id is None:
        return None
    selected = ", ".join((what.row_id, *what.expressions))
    query = f"SELECT {selected} FROM {what.in_file} NOT INDEXED ORDER BY {what.row_id}"
    try:
        with reading(what.path):
            rows = db.execute(query).fetchall()
    except StoreError as err:
        if err.slug == "damaged-file":
            raise what.damaged("is malformed") from err
        return None  # the other methods find out how much can be read
    if not rows:
        return what.narrowed([_NOTHING] * len(what.expressions))
    try:
        values = np.array(rows).T
    except ValueError:  # texts of which NumPy makes no array
        return None
    if values.dtype != np.int64:
        return None
    ids, *found = np.ascontiguousarray(values)
    if not (ids[1:] > ids[:-1]).all():
        raise what.damaged("has row ids that do not ascend")
    return what.narrowed(found)


class Window(Struct, frozen=True):
    """SQL that selects the rows of one window, for further queries."""

    sql: str  # SQL text that follows FROM.
    values: tuple[int, ...]


def windows(
    db: sqlite3.Connection, path: Path, table: str, columns: Mapping[str, str]
) -> Iterator[tuple[dict[str, Ints], Window]]:
    """Yield the columns of `of_table` in windows of rows, with SQL to select the rows.

    A table that is read through a view is one window.
    """
    what = _wanted_columns(db, path, table, columns)
    if not column_reader.is_plain(db, what):
        values = _concatenated(list(column_reader.through_view(db, what)), len(columns))
        window = Window(column_reader.all_rows(db, what), ())
        yield dict(zip(columns, values, strict=True)), window
        return
    for part, chunk in _parts(db, what):
        window = Window(f"{what.in_file} WHERE {what.row_id} BETWEEN ? AND ?", chunk)
        yield dict(zip(columns, part, strict=True)), window


def batches(
    db: sqlite3.Connection, path: Path, table: str, columns: Mapping[str, str]
) -> Iterator[dict[str, Ints]]:
    """Yield the columns of `of_table` in windows of rows, as new arrays."""
    what = _wanted_columns(db, path, table, columns)
    parts: Iterable[list[NDArray[Any]]]
    if (few := _few(db, what)) is not None:
        parts = [few]
    elif not column_reader.is_plain(db, what):
        parts = column_reader.through_view(db, what)
    else:
        parts = (part for part, _ in _parts(db, what))
    for part in parts:
        yield dict(zip(columns, part, strict=True))


def _parts(db: sqlite3.Connection, what: Wanted) -> Iterator[_Part]:
    after, count = None, 0
    pages = _paged(db, what)
    if pages is not None:
        for part, chunk in pages.parts():
            yield part, chunk
            after = chunk[1]
            count += len(part[0])
        if pages.is_done:
            return
    yield from _from_sqlite(db, what, pages, after=after, count=count)


def _from_sqlite(
    db: sqlite3.Connection,
    what: Wanted,
    pages: _Paged | None,
    *,
    after: int | None = None,
    count: int = 0,
) -> Iterator[_Part]:
    """Yield all rows, or those after `after`, through SQLite.

    If pages could not be read to the end, they may be damaged, so that a row id occurs twice.
    """
    if pages is not None:
        column_reader.check_order(db, what)
    yield from column_reader.parts(db, what, after=after, count=count)


def _blocks(parts: Iterable[list[NDArray[Any]]]) -> list[list[NDArray[Any]]]:
    """Concatenate parts to blocks of a million rows.

    Many small arrays would fragment the memory.
    """
    blocks: list[list[NDArray[Any]]] = []
    waiting: list[list[NDArray[Any]]] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += len(part[0])
        if rows >= _BLOCK_ROWS:
            blocks.append(_concatenated(waiting, len(part)))
            waiting, rows = [], 0
    return [*blocks, *waiting]


def _concatenated(parts: list[list[NDArray[Any]]], count: int) -> list[NDArray[Any]]:
    """Concatenate the parts of `count` columns, removing the columns from the parts."""
    result = []
    for index in range(count):
        pieces = [part[index] for part in parts]
        for part in parts:
            part[index] = _NOTHING  # so that only one column exists twice at a time
        result.append(np.concatenate(pieces) if pieces else _NOTHING)
    return result


class _Term(Struct, frozen=True):
    """A column, or the difference of two columns; None is the row id."""

    first: str | None
    less: str | None
    is_difference: bool
    default: int = MISSING  # Value for NULL.
    is_cast: bool = False  # True if texts of digits are numbers.
    from_0: bool = False  # True if only values that begin with a digit are numbers.

    @property
    def names(self) -> list[str]:
        """The columns of the term."""
        return [name for name in (self.first, self.less) if name is not None]

    def values(self, rows: Slice, values: Mapping[str, Values]) -> Ints:
        """Return the values, MISSING for those that are not integers.

        Raises Unusual if SQLite would convert other values to numbers first.
        """
        if not self.is_difference:
            if self.first is None:
                return np.where(rows.ids < 0, MISSING, rows.ids) if self.from_0 else rows.ids
            column = values[self.first]
            if self.is_cast:
                numbers = column.in_digits(MISSING)
                if self.from_0:
                    numbers[numbers < 0] = MISSING
                return numbers
            found = column.integers(MISSING)
            if self.default != MISSING:
                found[column.is_null] = self.default
            return found
        known = np.ones(len(rows), np.bool_)
        sides = []
        for name in (self.first, self.less):
            if name is None:
                sides.append(rows.ids)
                continue
            if not values[name].are_whole:
                raise Unusual
            known &= ~values[name].is_null
            sides.append(values[name].integers(0))
        first, less = sides
        difference = first - less
        fits = ((first ^ less) & (first ^ difference)) >= 0  # else SQLite returns a real
        return np.where(known & fits, difference, MISSING)


def _terms(pages: Scan, what: Wanted) -> list[_Term] | None:
    """Return the expressions as terms, None if only SQLite can compute one."""
    found = []
    for expression in what.expressions:
        default = MISSING
        if match := _WITH_DEFAULT.fullmatch(expression):
            default = int(match[5])
        in_digits = _IN_DIGITS.fullmatch(expression)
        cast = in_digits or _CAST.fullmatch(expression)
        match = match or _WITH_MISSING.fullmatch(expression) or cast
        match = _PLAIN.fullmatch(expression if match is None else match[1])
        if match is None:
            return None
        groups = match.groups()
        sides: list[str | None] = []
        for side in (groups[:3], groups[3:]):
            name = next((name for name in side if name is not None), None)
            if name is None:
                continue
            is_word = side[2] is not None and name.lower() in _NO_COLUMNS
            is_row_id = pages.is_row_id(name)
            # SQLite returns an integer in a column of reals as a real.
            if not is_row_id and (is_word or pages.affinity(name) in (None, "REAL")):
                return None
            sides.append(None if is_row_id else name)
        is_difference = len(sides) == 2
        less = sides[1] if is_difference else None
        term = _Term(sides[0], less, is_difference, default)
        found.append(replace(term, is_cast=cast is not None, from_0=in_digits is not None))
    return found


def _paged(db: sqlite3.Connection, what: Wanted) -> _Paged | None:
    """Return a reader of the table's pages, None if only SQLite can read it."""
    with reading(what.path):
        pages = scan(db, what.name)
    terms = None if pages is None else _terms(pages, what)
    return None if pages is None or terms is None else _Paged(db, what, pages, terms)


class _Paged(Struct, frozen=True):
    """A table that is read from its pages, up to the first irregular one."""

    db: sqlite3.Connection
    what: Wanted
    pages: Scan
    terms: list[_Term]

    @property
    def is_done(self) -> bool:
        """True if `parts` reached the end of the table."""
        return self.pages.is_done

    def parts(self) -> Iterator[_Part]:
        """Yield all rows in windows of a few thousand."""
        with closing(self.pages.slices()) as slices:
            while (rows := self._next(slices)) is not None:
                yield self._values(rows), rows.bounds

    def _next(self, slices: Iterator[Slice]) -> Slice | None:
        with reading(self.what.path):
            return next(slices, None)

    def _values(self, rows: Slice) -> list[NDArray[Any]]:
        try:
            values = rows.columns({name for term in self.terms for name in term.names})
            return self.what.narrowed([term.values(rows, values) for term in self.terms])
        except Unusual:
            found = column_reader.read(self.db, self.what, rows.bounds)
        if len(found[0]) != len(rows):
            raise self.what.damaged("has rows that cannot be found by their row ids")
        return found
