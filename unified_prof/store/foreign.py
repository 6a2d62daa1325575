"""Reads the tables of databases that other tools made, for decoders that know no database.

Such a file may say anything. Only tables that are made of rows are read, never views, virtual
tables or generated columns, which compute; a value is as long as `LONGEST_TEXT` at most; and a
table whose pages lead in circles is given up when it has more rows than the file has room for.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from unified_prof.columns import Cells, Tables
from unified_prof.errors import StoreError
from unified_prof.store.btree.scan import Slice, Unusual, scan
from unified_prof.store.foreign_cells import LONGEST_TEXT, Query
from unified_prof.store.opening import open_read_only
from unified_prof.store.sql import MOST_TABLES, TABLES, declared, reading
from unified_prof.store.watching import watch

__all__ = ["LONGEST_TEXT", "foreign_tables"]

_ROWS = 1 << 14
_ROWS_WITH_TEXTS = 1 << 11


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


class _DatabaseTables:
    """`Tables` of a SQLite file."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self._most_rows = path.stat().st_size  # a row takes more than a byte
        self._unreadable: Counter[str] = Counter()
        rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {MOST_TABLES}").fetchall()
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
        query = Query(table, there, numbers, reals, texts, only, self._unreadable)
        count = 0
        is_done = False
        for cells, rows in self._from_pages(query):
            if cells is None:
                is_done = True
            else:
                yield cells
                count += rows
        if not is_done:
            yield from self._from_sqlite(query, count)

    def _from_pages(self, query: Query) -> Iterator[tuple[Cells | None, int]]:
        """Yield slices and how many rows they have; None at the end if nothing is left."""
        with reading(self._path):
            pages = scan(self._db, query.table)
        if pages is None or not query.fits(pages):
            return
        with closing(pages.slices()) as slices:
            while (one := self._next(slices)) is not None:
                try:
                    cells, rows = query.of_slice(pages, one)
                except Unusual:
                    cells, rows = self._of_rows(query, one)
                if rows:
                    yield cells, rows
        if pages.is_done:
            yield None, 0

    def _next(self, slices: Iterator[Slice]) -> Slice | None:
        with reading(self._path):
            return next(slices, None)

    def _of_rows(self, query: Query, one: Slice) -> tuple[Cells, int]:
        """Read the rows of a slice through SQLite."""
        with reading(self._path):
            rows = self._db.execute(query.statement(between=one.bounds)).fetchall()
        if len(rows) > len(one):
            raise self._too_many(query)
        return query.of_rows(rows), len(rows)

    def _from_sqlite(self, query: Query, count: int) -> Iterator[Cells]:
        """Read all rows but the first `count` through SQLite."""
        rows_at_a_time = _ROWS_WITH_TEXTS if query.has_texts else _ROWS
        with reading(self._path):
            cursor = self._db.execute(query.statement(skip=count))
            while rows := cursor.fetchmany(rows_at_a_time):
                count += len(rows)
                if count > self._most_rows:
                    raise self._too_many(query)
                yield query.of_rows(rows)

    def _too_many(self, query: Query) -> StoreError:
        return StoreError(
            f"{self._path} is damaged: table {query.table} has more rows than the file has bytes",
            slug="damaged-file",
        )
