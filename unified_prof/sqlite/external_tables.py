"""Tables in databases of other tools, read as columns for decoders.

Numbers may be stored as reals or texts, and texts as bytes; values that are not numbers are
counted.

Such a file may be malicious. Only stored tables are read, not views, virtual tables or generated
columns, which can run computations. Texts are truncated to `MAX_TEXT` characters. A table with more
rows than the file has bytes is refused, because its pages form a cycle.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Cells, Query, Tables, text_of
from unified_prof.errors import StoreError
from unified_prof.sqlite.atomic import watch
from unified_prof.sqlite.opening import open_read_only
from unified_prof.sqlite.pages.record_reader import Scan, Slice, Unusual, Values, scan
from unified_prof.sqlite.statements import MAX_TABLES, TABLES, declared, quoted, reading

# Maximum number of characters of a text; names of C++ templates have up to about ten thousand.
MAX_TEXT = 1 << 16
_INT64 = range(-(2**63), 2**63)


class _DatabaseQuery(Query):
    """Query of an SQLite file."""

    __slots__ = ()

    @property
    def has_texts(self) -> bool:
        """True if any of the requested text columns exists."""
        return any(name in self.existing for name in self.texts)

    def statement(self, *, between: str | None = None, skip: int = 0) -> str:
        """Return the SQL that selects the rows, without the first `skip`.

        `between` is an SQL condition on the row ids; None: all rows.
        """
        wanted = []
        for name in self.found:
            expression, default = quoted(name), self.numbers.get(name)
            if name in self.texts:
                expression = f"substr({expression}, 1, {MAX_TEXT})"
            elif default is not None:
                expression = f"coalesce({expression}, {default})"
            wanted.append(expression)
        conditions = [] if between is None else [between]
        if self.only is not None:
            name, values = self.only
            listed = "" if values is None else ", ".join(map(str, sorted(values)))
            condition = "IS NOT NULL" if values is None else f"IN ({listed})"
            conditions.append(f"{quoted(name)} {condition}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        limit = f" LIMIT -1 OFFSET {skip}" if skip else ""
        # An index would change the order of the rows.
        table = f"main.{quoted(self.table)} NOT INDEXED"
        return f"SELECT {', '.join(wanted) or 'NULL'} FROM {table}{where}{limit}"

    def of_rows(self, rows: list[tuple[Any, ...]]) -> Cells:
        """Return rows of `statement` as columns."""
        found = self.found
        cells = self.missing_columns(len(rows))
        if all(name in self.numbers for name in found):
            with suppress(struct.error):  # raised for a value that is not a 64-bit integer
                return cells | dict(zip(found, _packed(rows, len(found)), strict=False))
        columns = list(zip(*rows, strict=True)) or [()] * len(found)
        for name, values in zip(found, columns, strict=False):
            place = f"{self.table}.{name}"
            if name in self.numbers:
                cells[name] = self._integers(place, values, self.numbers[name])
            elif name in self.reals:
                cells[name] = self._real(place, values)
            else:
                cells[name] = [text_of(value) for value in values]
        return cells

    def _integers(self, place: str, values: tuple[Any, ...], default: int) -> NDArray[np.int64]:
        if set(map(type, values)) == {int}:
            return np.fromiter(values, np.int64, len(values))
        known = [value if type(value) is int else _from_other(value) for value in values]
        self._count(place, sum(value is None for value in known))
        return np.array([default if value is None else value for value in known], np.int64)

    def _real(self, place: str, values: tuple[Any, ...]) -> NDArray[np.float64]:
        known = [value if type(value) in (int, float) else None for value in values]
        pairs = zip(known, values, strict=True)
        self._count(place, sum(value is None and given is not None for value, given in pairs))
        return np.array(known, np.float64)

    def _count(self, place: str, unreadable: int) -> None:
        if unreadable:
            self.unreadable[place] += unreadable

    def fits(self, pages: Scan) -> bool:
        """Return True if reading pages gives the same values as SQLite."""
        found = self.found
        if not found or (self.has_texts and not pages.layout.is_utf8):
            return False
        if self.only is not None and pages.affinity(self.only[0]) in ("REAL", "TEXT"):
            return False
        return not any(pages.affinity(name) == "REAL" for name in found if name in self.numbers)

    def of_slice(self, pages: Scan, rows_of_pages: Slice) -> tuple[Cells, int]:
        """Return the rows of a slice as columns, and their number.

        Raises Unusual if only SQLite can read them.
        """
        found = self.found
        names = set(found) if self.only is None else {*found, self.only[0]}
        values = rows_of_pages.columns({name for name in names if not pages.is_row_id(name)})
        chosen = self._chosen(pages, rows_of_pages, values)
        rows = len(rows_of_pages) if chosen is None else int(np.count_nonzero(chosen))
        cells = self.missing_columns(rows)
        if not rows:
            return cells, 0
        ids = rows_of_pages.ids if chosen is None else rows_of_pages.ids[chosen]
        for name in found:
            if pages.is_row_id(name):
                cells[name] = self._of_ids(name, ids)
                continue
            column = values[name] if chosen is None else values[name].where(chosen)
            if name in self.numbers:
                if not column.are_whole:
                    raise Unusual
                cells[name] = column.integers(self.numbers[name])
            elif name in self.reals:
                cells[name] = column.reals()
            else:
                cells[name] = column.texts(MAX_TEXT)
        return cells, rows

    def _of_ids(self, name: str, ids: NDArray[np.int64]) -> Any:
        if name in self.numbers:
            return ids
        return ids.astype(np.float64) if name in self.reals else list(map(str, ids.tolist()))

    def _chosen(
        self, pages: Scan, rows: Slice, values: Mapping[str, Values]
    ) -> NDArray[np.bool_] | None:
        """Return a mask of the requested rows, None for all rows."""
        if self.only is None:
            return None
        name, wanted = self.only
        if pages.is_row_id(name):
            return None if wanted is None else np.isin(rows.ids, list(wanted))
        column = values[name]
        if not column.are_whole and (wanted is not None or not column.are_texts):
            raise Unusual
        if wanted is None:
            return ~column.is_null
        return np.isin(column.integers(0), list(wanted)) & ~column.is_null


def _packed(rows: list[tuple[Any, ...]], columns: int) -> NDArray[np.int64]:
    """Return rows of integers as an array of columns, by the fastest method available."""
    data = b"".join(starmap(struct.Struct(f"={columns}q").pack, rows))
    return np.frombuffer(data, np.int64).reshape(len(rows), columns).T.copy()


def _from_other(value: object) -> int | None:
    """Return an integer that is stored as a real or as text, else None."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        number = int(value)
        return number if number in _INT64 else None
    return None


__all__ = ["MAX_TEXT", "foreign_tables"]
_ROWS = 1 << 14
_ROWS_WITH_TEXTS = 1 << 11


@contextmanager
def foreign_tables(path: Path) -> Iterator[Tables]:
    """Open a database of another tool; the file and its directory are not changed.

    Raises StoreError if it cannot be read, or is being written, and OutputError if its writer left
    a log behind, and the temporary copy cannot be created.
    """
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        with reading(path):
            tables = _DatabaseTables(path, db)
        yield tables


class _DatabaseTables(Tables):
    """`Tables` of an SQLite file."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db
        self._most_rows = path.stat().st_size  # a row takes more than a byte
        rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {MAX_TABLES}").fetchall()
        self._columns = {
            str(name): tuple(column.name for column in declared(db, str(name))) for (name,) in rows
        }
        super().__init__(self._columns)
        watch(db)  # from here on, rows are limited instead of steps

    def columns(self, table: str) -> Collection[str]:
        return self._columns.get(table, ())

    def count(self, table: str) -> int:
        with reading(self._path):
            return int(self._db.execute(f"SELECT count(*) FROM main.{quoted(table)}").fetchone()[0])

    def read(self, query: Query) -> Iterator[Cells]:
        query = _DatabaseQuery(*query)
        count = 0
        for cells, rows in self._from_pages(query):
            if cells is None:
                return
            yield cells
            count += rows
        yield from self._from_sqlite(query, count)

    def _from_pages(self, query: _DatabaseQuery) -> Iterator[tuple[Cells | None, int]]:
        """Yield slices and their numbers of rows; yield None at the end if all rows were read."""
        with reading(self._path):
            pages = scan(self._db, query.table)
        if pages is None or not query.fits(pages):
            return
        with closing(pages.slices()) as slices:
            while (rows_of_pages := self._next(slices)) is not None:
                try:
                    cells, rows = query.of_slice(pages, rows_of_pages)
                except Unusual:
                    first, last = rows_of_pages.bounds
                    between = f"{pages.layout.row_id_name} BETWEEN {first} AND {last}"
                    cells, rows = self._of_rows(query, between, len(rows_of_pages))
                if rows:
                    yield cells, rows
        if pages.is_done:
            yield None, 0

    def _next(self, slices: Iterator[Slice]) -> Slice | None:
        with reading(self._path):
            return next(slices, None)

    def _of_rows(self, query: _DatabaseQuery, between: str, most: int) -> tuple[Cells, int]:
        """Read the rows of a slice, at most `most`, through SQLite."""
        with reading(self._path):
            rows = self._db.execute(query.statement(between=between)).fetchall()
        if len(rows) > most:
            raise self._too_many(query)
        return query.of_rows(rows), len(rows)

    def _from_sqlite(self, query: _DatabaseQuery, count: int) -> Iterator[Cells]:
        """Read all rows but the first `count` through SQLite."""
        rows_at_a_time = _ROWS_WITH_TEXTS if query.has_texts else _ROWS
        with reading(self._path):
            cursor = self._db.execute(query.statement(skip=count))
            while rows := cursor.fetchmany(rows_at_a_time):
                count += len(rows)
                if count > self._most_rows:
                    raise self._too_many(query)
                yield query.of_rows(rows)

    def _too_many(self, query: _DatabaseQuery) -> StoreError:
        return StoreError(
            f"{self._path} is damaged: table {query.table} has more rows than the file has bytes",
            slug="damaged-file",
        )
