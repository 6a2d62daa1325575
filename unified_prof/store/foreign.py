"""Reads the tables of databases that other tools made, for decoders that know no database.

Such a file may say anything. Only tables that are made of rows are read, never views, virtual
tables or generated columns, which compute; a value is as long as `LONGEST_TEXT` at most; and a
table whose pages lead in circles is given up when it has more rows than the file has room for.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Cells, Tables
from unified_prof.errors import StoreError
from unified_prof.store.opening import is_database, open_read_only
from unified_prof.store.sql import READ_ERRORS, TABLES, declared, quoted, reading
from unified_prof.store.watching import watch

LONGEST_TEXT = 1 << 16
"""Characters of a text that are read: names of C++ templates have some ten thousand."""

_ROWS = 1 << 14
_ROWS_WITH_TEXTS = 1 << 11
_MOST_NAMES = 100_000
_INT64 = range(-(2**63), 2**63)


@contextmanager
def foreign_tables(path: Path) -> Iterator[Tables]:
    """Open a database that another tool made; it and its folder stay as they are.

    Raises:
        StoreError: it cannot be read, or is being written.
        OutputError: its writer left a log behind, and the temporary copy cannot be made.
    """
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        with reading(path):
            tables = _DatabaseTables(path, db)
        yield tables


def table_names(path: Path) -> frozenset[str]:
    """Return the tables of a database; none where it has none or cannot be read.

    A look that leaves no trace and waits for nobody: a log beside the file is not looked into.
    """
    if not is_database(path):
        return frozenset()
    try:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            watch(db, steps=10_000_000)
            rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {_MOST_NAMES}").fetchall()
        finally:
            db.close()
    except (*READ_ERRORS, OSError):
        return frozenset()
    return frozenset(str(name) for (name,) in rows)


class _DatabaseTables:
    """`Tables` of a SQLite file."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self._most_rows = path.stat().st_size  # a row takes more than a byte
        self._unreadable: Counter[str] = Counter()
        rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {_MOST_NAMES}").fetchall()
        self._columns = {
            str(name): tuple(column.name for column in declared(db, str(name))) for (name,) in rows
        }
        watch(db)  # rows are counted from here on, not steps

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._columns)

    @property
    def unreadable(self) -> Mapping[str, int]:
        return self._unreadable

    def columns(self, table: str) -> Collection[str]:
        return self._columns.get(table, ())

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        there = self._columns.get(table, ())
        if not there or (only is not None and only[0] not in there):
            return
        found = [name for name in (*numbers, *reals, *texts) if name in there]
        wanted = [_expression(name, numbers.get(name), text=name in texts) for name in found]
        statement = f"SELECT {', '.join(wanted) or 'NULL'} FROM main.{quoted(table)}{_where(only)}"
        rows_at_a_time = _ROWS_WITH_TEXTS if any(name in there for name in texts) else _ROWS
        count = 0
        with reading(self._path):
            cursor = self._db.execute(statement)
            while rows := cursor.fetchmany(rows_at_a_time):
                count += len(rows)
                if count > self._most_rows:
                    raise StoreError(
                        f"{self._path} is damaged: table {table} has more rows than the file "
                        "has bytes"
                    )
                yield self._cells(table, found, rows, numbers, reals, texts)

    def _cells(
        self,
        table: str,
        found: Sequence[str],
        rows: list[tuple[Any, ...]],
        numbers: Mapping[str, int],
        reals: Sequence[str],
        texts: Sequence[str],
    ) -> Cells:
        cells: dict[str, Any] = {
            name: np.full(len(rows), default, np.int64) for name, default in numbers.items()
        }
        cells |= {name: np.full(len(rows), np.nan) for name in reals}
        cells |= {name: [None] * len(rows) for name in texts}
        if all(name in numbers for name in found):
            with suppress(struct.error):  # raised where a value is no whole number of 64 bits
                return cells | dict(zip(found, _packed(rows, len(found)), strict=False))
        for name, values in zip(found, zip(*rows, strict=True), strict=False):
            place = f"{table}.{name}"
            if name in numbers:
                cells[name] = self._whole(place, values, numbers[name])
            elif name in reals:
                cells[name] = self._real(place, values)
            else:
                cells[name] = [_text(value) for value in values]
        return cells

    def _whole(self, place: str, values: tuple[Any, ...], default: int) -> NDArray[np.int64]:
        if set(map(type, values)) == {int}:
            return np.fromiter(values, np.int64, len(values))
        whole = [value if type(value) is int else _from_other(value) for value in values]
        self._count(place, sum(value is None for value in whole))
        return np.array([default if value is None else value for value in whole], np.int64)

    def _real(self, place: str, values: tuple[Any, ...]) -> NDArray[np.float64]:
        known = [value if type(value) in (int, float) else None for value in values]
        odd = sum(
            value is None and given is not None for value, given in zip(known, values, strict=True)
        )
        self._count(place, odd)
        return np.array(known, np.float64)

    def _count(self, place: str, odd: int) -> None:
        if odd:
            self._unreadable[place] += odd


def _packed(rows: list[tuple[Any, ...]], columns: int) -> NDArray[np.int64]:
    """Return rows of whole numbers as an array of columns, the quickest way out of Python."""
    data = b"".join(starmap(struct.Struct(f"={columns}q").pack, rows))
    return np.frombuffer(data, np.int64).reshape(len(rows), columns).T.copy()


def _where(only: tuple[str, Collection[int] | None] | None) -> str:
    if only is None:
        return ""
    name, values = only
    if values is None:
        return f" WHERE {quoted(name)} IS NOT NULL"
    return f" WHERE {quoted(name)} IN ({', '.join(map(str, sorted(values)))})"


def _expression(name: str, default: int | None, *, text: bool) -> str:
    if text:
        return f"substr({quoted(name)}, 1, {LONGEST_TEXT})"
    return quoted(name) if default is None else f"coalesce({quoted(name)}, {default})"


def _from_other(value: object) -> int | None:
    """Understand a whole number that is stored as a real or as text."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        number = int(value)
        return number if number in _INT64 else None
    return None


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
