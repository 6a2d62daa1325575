"""Which tables a file has that may be a database: a look, for those who ask of every file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from unified_prof.store.sql import MOST_TABLES, READ_ERRORS, TABLES
from unified_prof.store.watching import watch

MAGIC = b"SQLite format 3\0"
"""How every database begins."""


def is_database(path: Path) -> bool:
    """Whether a file begins as SQLite databases do; no other file can be one."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


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
            rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {MOST_TABLES}").fetchall()
        finally:
            db.close()
    except (*READ_ERRORS, OSError):
        return frozenset()
    return frozenset(str(name) for (name,) in rows)
