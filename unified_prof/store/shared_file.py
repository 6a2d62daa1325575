"""A database under way that SQLite and `btree.writing` write in turn.

SQLite has it in transactions; between them pages are written behind SQLite's own. Each time the
other one's turn comes it looks at the file's header, and so sees what has come meanwhile.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from unified_prof.store import sql
from unified_prof.store.btree.writing.page_file import PageFile


class SharedFile:
    """One such file, empty at first."""

    def __init__(self, path: Path, *, page_bytes: int) -> None:
        self._pages = PageFile(path)
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
        if not self._has_pages:
            self.rest()
            self._pages.begin()
            self._has_pages = True
        return self._pages

    def rest(self) -> sqlite3.Connection:
        """Complete the file as far as it is written; return a connection to read it with."""
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        if self._has_pages:
            self._pages.end()
            self._has_pages = False
        return self._db

    def close(self) -> None:
        """Let go of the file; a transaction that is not complete is lost."""
        with suppress(sqlite3.Error):  # all it does is roll back what is thrown away
            self._db.close()
        self._pages.close()
