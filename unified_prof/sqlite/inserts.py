"""Fast INSERT statements, and files that SQLite and `pages.tree_writer` write alternately.

SQLite writes in transactions; between transactions, pages are appended directly. Each writer reads
the file header at the start of its turn to find the pages that the other has written.

Each INSERT statement has many rows: by binding all values in one call, Python is as fast as a C
program that binds row by row (docs/performance.md). Columns with one value for all rows of a batch
are bound once per statement.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_prof.arrays.grouping import Ints, are_in_order
from unified_prof.sqlite import statements as sql
from unified_prof.sqlite.batches import Constant, Numbers, Source, is_text
from unified_prof.sqlite.reader import Layout

if TYPE_CHECKING:
    from unified_prof.sqlite.pages.tree_writer import PageFile


class SharedFile:
    """A new file to which SQL statements and pages are written alternately."""

    def __init__(self, path: Path, *, page_bytes: int) -> None:
        self._path = path
        self._file: PageFile | None = None
        self._has_pages = False
        self._db = sql.open_unfinished(path, page_bytes=page_bytes, alone=False)
        # Maximum number of values per statement.
        self.parameter_limit = sql.parameter_limit(self._db)

    def statements(self) -> sqlite3.Connection:
        """Return a connection in a transaction, valid until `pages` or `rest` is called."""
        if not self._db.in_transaction:
            self.rest()
            self._db.execute("BEGIN")
        return self._db

    def pages(self) -> PageFile:
        """Return the writer of pages; valid until `statements` or `rest` is called."""
        if self._file is None:  # small reports do not need it
            from unified_prof.sqlite.pages.tree_writer import PageFile

            self._file = PageFile(self._path)
        if not self._has_pages:
            self.rest()
            self._file.begin()
            self._has_pages = True
        return self._file

    def rest(self) -> sqlite3.Connection:
        """Complete the written part of the file, and return a connection to read it."""
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        if self._has_pages and self._file is not None:
            self._file.end()
            self._has_pages = False
        return self._db

    def close(self) -> None:
        """Close the file; an open transaction is rolled back."""
        with suppress(sqlite3.Error):  # rolls back a transaction of a file that is discarded
            self._db.close()
        if self._file is not None:  # after SQLite: closing the file ends all its locks
            self._file.close()


_ROWS_PER_STATEMENT = (400, 20)  # other rows are inserted one by one
_PLAIN_INDEX = re.compile(r'CREATE INDEX "?\w+"? ON "?\w+"? ?\("?\w+"?(?:, ?"?\w+"?)*\)')
_ROWS_WORTH_COMPARING = 4_000  # minimum rows for another statement
# Maximum number of characters per statement; longer rows are inserted one by one, to save memory.
TEXT_AT_ONCE = 1_000_000
# Python 3.12.0 to 3.12.3 warn of every numbered parameter (python/cpython issue 117995).
_NUMBERED_PARAMETERS = not (3, 12) <= sys.version_info[:3] < (3, 12, 4)


class Inserts:
    """Inserts rows into one table by statements, and creates its indexes."""

    def __init__(self, file: SharedFile, layout: Layout) -> None:
        self._file = file
        self._columns = layout.spec.columns
        self._names = layout.spec.column_names
        self._table = layout.spec.name
        most = file.parameter_limit // len(self._columns)
        self._statement_sizes = [size for size in _ROWS_PER_STATEMENT if size <= most]
        marks = ", ".join("?" * len(self._columns))
        self._one_row = f'INSERT INTO "{self._table}" VALUES ({marks})'
        self._many_rows: dict[tuple[tuple[int, ...], int], str] = {}
        self.indexes = [
            Index(name, sql, layout.index_columns[name]) for name, sql in layout.spec.indexes
        ]

    def append(self, ordered: Sequence[Source], rows: int) -> None:
        """Insert `rows` rows, at least 1; the columns are in the file's order."""
        db = self._file.statements()
        by_file_name = dict(zip(self._names, ordered, strict=True))
        for index in self.indexes:
            index.before(db, by_file_name, rows)
        self._insert(db, [_reduced(source, rows) for source in ordered], rows)

    def index_later(self) -> None:
        """Postpone creating missing indexes, because they would lack the rows so far."""
        for index in self.indexes:
            index.postpone()

    def finish(self) -> None:
        """Create the postponed indexes."""
        for index in self.indexes:
            index.finish(self._file.statements())

    def _insert(self, db: sqlite3.Connection, ordered: list[Source], rows: int) -> None:
        start = 0
        for size in self._statement_sizes:
            stop = rows - (rows - start) % size
            if start < stop:
                self._insert_by_many(db, ordered, start, stop, size)
            start = stop
        if start < rows:
            self._insert_one_by_one(db, ordered, start, rows)

    def _insert_by_many(
        self, db: sqlite3.Connection, ordered: list[Source], start: int, stop: int, size: int
    ) -> None:
        """Insert the rows from `start` to `stop`, `size` rows per statement."""
        constant: tuple[int, ...] = ()
        if _NUMBERED_PARAMETERS:
            constant = tuple(j for j, s in enumerate(ordered) if isinstance(s, Constant))
        head = [ordered[j].part(0, 1)[0] for j in constant]
        varying = [source for j, source in enumerate(ordered) if j not in constant]
        statement = self._statement(constant, size)
        row_by_row = _row_by_row(varying, size)
        texts = [source for source in varying if is_text(source)]
        for first in range(start, stop, size):
            if texts and text_size(texts, first, first + size) > TEXT_AT_ONCE:
                self._insert_one_by_one(db, ordered, first, first + size)
            else:
                db.execute(statement, head + row_by_row(first))

    def _insert_one_by_one(
        self, db: sqlite3.Connection, ordered: list[Source], start: int, stop: int
    ) -> None:
        columns = [source.part(start, stop) for source in ordered]
        db.executemany(self._one_row, zip(*columns, strict=True))

    def _statement(self, constant: tuple[int, ...], size: int) -> str:
        """Return the statement for `size` rows, constant columns first.

        The first row has constant columns as parameters, to which the other rows refer by number.
        Only these parameters are numbered, because SQLite searches numbered parameters linearly.
        """
        text = self._many_rows.get((constant, size))
        if text is None:
            names = [column.name for column in self._columns]
            varying = [name for j, name in enumerate(names) if j not in constant]
            listed = ", ".join(f'"{name}"' for name in [names[j] for j in constant] + varying)
            same = [f"?{number}" for number in range(1, len(constant) + 1)]
            first, other = (
                f"({','.join(marks + ['?'] * len(varying))})" for marks in (["?"] * len(same), same)
            )
            rows = ",".join([first] + [other] * (size - 1))
            text = f'INSERT INTO "{self._table}" ({listed}) VALUES {rows}'
            self._many_rows[constant, size] = text
        return text


def _row_by_row(sources: list[Source], rows: int) -> Callable[[int], list[Any]]:
    """Return a function that lists the values of `rows` rows, row by row."""
    width = len(sources)
    arrays = [source.array for source in sources if isinstance(source, Numbers)]
    if len(arrays) == width and len({array.dtype for array in arrays}) == 1:
        buffer = np.empty((rows, width), arrays[0].dtype)

        def rows_of_one_type(start: int) -> list[Any]:
            for j, array in enumerate(arrays):
                buffer[:, j] = array[start : start + rows]
            return buffer.ravel().tolist()

        return rows_of_one_type

    def rows_of_any_type(start: int) -> list[Any]:
        values: list[Any] = [None] * (width * rows)
        for j, source in enumerate(sources):
            values[j::width] = source.part(start, start + rows)
        return values

    return rows_of_any_type


class Index:
    """One index, created at the start or at the end, whichever is cheaper.

    Inserting rows in the order of an existing index takes half the time of creating the index
    afterwards; rows out of order take several times longer. The index is therefore created with the
    first batch and kept as long as every batch continues the order of the previous one.
    """

    def __init__(self, name: str, create_sql: str, columns: tuple[str, ...]) -> None:
        self.name, self.columns, self._create_sql = name, columns, create_sql
        self._last: tuple[int, ...] | None = None
        self._exists = False
        self._waits = False

    @property
    def is_plain(self) -> bool:
        """True if the index has only columns, no expressions or conditions."""
        return _PLAIN_INDEX.fullmatch(self._create_sql) is not None

    def create(self, db: sqlite3.Connection) -> None:
        """Create the index."""
        db.execute(self._create_sql)
        self._exists = True

    def drop(self, db: sqlite3.Connection) -> None:
        """Drop the index; it is created again at the end."""
        db.execute(f'DROP INDEX "{self.name}"')
        self._exists, self._waits = False, True

    def postpone(self) -> None:
        """Postpone the creation of the index to the end."""
        self._waits = True

    def before(self, db: sqlite3.Connection, sources: Mapping[str, Source], rows: int) -> None:
        """Create or drop the index, depending on the order of the next batch."""
        if self._waits:
            return
        keys = [integers(sources[name], rows) for name in self.columns]
        self._waits = not self._follows(keys)
        if self._waits and self._exists:
            self.drop(db)
        elif not self._waits and not self._exists:
            self.create(db)

    def finish(self, db: sqlite3.Connection) -> None:
        """Create the index if it does not exist yet."""
        if not self._exists:
            self.create(db)

    def _follows(self, keys: list[Ints | None]) -> bool:
        """Return True if the batch is sorted and continues the order of the previous one."""
        known = [key for key in keys if key is not None]
        if len(known) < len(keys):
            return False
        first = tuple(int(key[0]) for key in known)
        if self._last is not None and first < self._last:
            return False
        self._last = tuple(int(key[-1]) for key in known)
        return are_in_order(known)


def integers(source: Source, rows: int) -> Ints | None:
    """Return a column of integers; None if it has any other value."""
    if isinstance(source, Constant) and isinstance(source.value, int):
        return np.broadcast_to(np.int64(source.value), rows)
    if isinstance(source, Numbers) and source.array.dtype == np.int64:
        return source.array
    return None


def _reduced(source: Source, rows: int) -> Source:
    """Return a column with a single integer value as a constant."""
    if rows >= _ROWS_WORTH_COMPARING and isinstance(source, Numbers):
        array = source.array
        first = array[0]
        if array.dtype == np.int64 and array[-1] == first and bool((array == first).all()):
            return Constant(int(first))
    return source


def text_size(sources: Sequence[Source], start: int, stop: int) -> int:
    """Return the number of characters of text from row `start` to `stop`."""
    return sum(
        len(value)
        for source in sources
        if is_text(source)
        for value in source.part(start, stop)
        if isinstance(value, str)
    )
