"""Fast INSERT statements, and files that SQLite and `pages.tree_writer` write alternately.

SQLite writes in transactions; between transactions, pages are appended directly. Each writer reads
the file header at the start of its turn to find the pages that the other has written.

Each INSERT statement has many rows: by binding all values in one call, Python is as fast as a C
program that binds row by row (docs/performance.md).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.sqlite import statements as sql
from unified_prof.sqlite.batches import Constant, Numbers, Source, is_text

if TYPE_CHECKING:
    from unified_prof.sqlite.pages.tree_writer import PageFile
    from unified_prof.sqlite.reader import Layout


class SharedFile:
    """A new file to which SQL statements and pages are written alternately."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: PageFile | None = None
        self._has_pages = False
        self._db = sql.open_unfinished(path, alone=False)
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


_ROWS_PER_STATEMENT = 100  # the remaining rows are inserted one by one
_PLAIN_INDEX = re.compile(r'CREATE INDEX "?\w+"? ON "?\w+"? ?\("?\w+"?(?:, ?"?\w+"?)*\)')
# Maximum number of characters per statement; longer rows are inserted one by one, to save memory.
TEXT_AT_ONCE = 1_000_000


class Inserts:
    """Inserts rows into one table by statements, and creates its indexes at the end."""

    def __init__(self, file: SharedFile, layout: Layout) -> None:
        self._file, self.table = file, layout.spec.name
        width = len(layout.spec.columns)
        self._rows = max(1, min(_ROWS_PER_STATEMENT, file.parameter_limit // width))
        marks = f"({', '.join('?' * width)})"
        self._one_row = f'INSERT INTO "{self.table}" VALUES {marks}'
        self._many_rows = ", ".join([self._one_row, *[marks] * (self._rows - 1)])
        self.indexes = [
            Index(name, sql, layout.index_columns[name]) for name, sql in layout.spec.indexes
        ]

    def append(self, ordered: Sequence[Source], rows: int) -> None:
        """Insert `rows` rows, at least 1; the columns are in the file's order."""
        db = self._file.statements()
        for start in range(0, rows, self._rows):
            stop = min(start + self._rows, rows)
            columns = [source.part(start, stop) for source in ordered]
            if stop - start < self._rows or text_size(ordered, start, stop) > TEXT_AT_ONCE:
                db.executemany(self._one_row, zip(*columns, strict=True))
                continue
            values: list[Any] = [None] * (len(columns) * self._rows)
            for place, column in enumerate(columns):
                values[place :: len(columns)] = column
            db.execute(self._many_rows, values)

    def finish(self) -> None:
        """Create the indexes that do not exist yet."""
        for index in self.indexes:
            if not index.exists:
                index.create(self._file.statements())


class Index:
    """One index of a new table."""

    def __init__(self, name: str, create_sql: str, columns: tuple[str, ...]) -> None:
        self.name, self.columns, self._create_sql = name, columns, create_sql
        self.exists = False

    @property
    def is_plain(self) -> bool:
        """True if the index has only columns, no expressions or conditions."""
        return _PLAIN_INDEX.fullmatch(self._create_sql) is not None

    def create(self, db: sqlite3.Connection) -> None:
        """Create the index."""
        db.execute(self._create_sql)
        self.exists = True

    def drop(self, db: sqlite3.Connection) -> None:
        """Drop the index; it is created again at the end."""
        db.execute(f'DROP INDEX "{self.name}"')
        self.exists = False


def integers(source: Source, rows: int) -> Ints | None:
    """Return a column of integers; None if it has any other value."""
    if isinstance(source, Constant) and isinstance(source.value, int):
        return np.broadcast_to(np.int64(source.value), rows)
    if isinstance(source, Numbers) and source.array.dtype == np.int64:
        return source.array
    return None


def text_size(sources: Sequence[Source], start: int, stop: int) -> int:
    """Return the number of characters of text from row `start` to `stop`."""
    return sum(
        len(value)
        for source in sources
        if is_text(source)
        for value in source.part(start, stop)
        if isinstance(value, str)
    )
