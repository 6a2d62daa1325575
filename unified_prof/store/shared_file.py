"""A database under way that SQLite and `btree.writing` write in turn.

SQLite has it in transactions; between them pages are written behind SQLite's own. Each time the
other one's turn comes it looks at the file's header, and so sees what has come meanwhile.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.store import sql

if TYPE_CHECKING:
    from unified_prof.store.btree.writing.page_file import PageFile


class SharedFile:
    """One such file, empty at first."""

    def __init__(self, path: Path, *, page_bytes: int) -> None:
        self._path = path
        self._file: PageFile | None = None
        self._has_pages = False
        self._db = sql.open_unfinished(path, page_bytes=page_bytes, alone=False)
        self.parameter_limit = sql.parameter_limit(self._db)
        """How many values one statement may bind."""

    def statements(self) -> sqlite3.Connection:
        """Return a connection in a transaction, until `pages` or `rest` is called."""
        if not self._db.in_transaction:
            self.rest()
            self._db.execute("BEGIN")
        return self._db

    def pages(self) -> PageFile:
        """Return what writes pages, until `statements` or `rest` is called."""
        if self._file is None:
            self._file = self._opened()
        if not self._has_pages:
            self.rest()
            self._file.begin()
            self._has_pages = True
        return self._file

    def _opened(self) -> PageFile:
        """Open the file once more; small reports are done without."""
        from unified_prof.store.btree.writing.page_file import PageFile

        return PageFile(self._path)

    def rest(self) -> sqlite3.Connection:
        """Complete the file as far as it is written; return a connection to read it with."""
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        if self._has_pages and self._file is not None:
            self._file.end()
            self._has_pages = False
        return self._db

    def close(self) -> None:
        """Let go of the file; a transaction that is not complete is lost."""
        with suppress(sqlite3.Error):  # all it does is roll back what is thrown away
            self._db.close()
        if self._file is not None:  # after SQLite: to close any file of it ends all its locks
            self._file.close()
