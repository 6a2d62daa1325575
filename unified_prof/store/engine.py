"""The one place where a database that is being written is opened; SQLite's errors in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unified_prof.errors import StoreError
from unified_prof.store.atomic import output_error

_SETTINGS = (
    # The file is new, nobody else can see it, and it is thrown away when anything fails: no
    # journal, and no waiting for the disk, which the writer does once, at the end.
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA secure_delete = OFF",
    # A tenth faster than SQLite's 4096 bytes; a small report takes some 300 KB more.
    "PRAGMA page_size = 16384",
)
_CACHED_STATEMENTS = 100  # one of many rows takes some 200 kB


def create(path: Path) -> sqlite3.Connection:
    """Return a connection to the empty file `path`, fast and without any safety net.

    Transactions are begun and ended by hand, so that DDL is part of them.
    """
    db = sqlite3.connect(path, isolation_level=None, cached_statements=_CACHED_STATEMENTS)
    for setting in _SETTINGS:
        db.execute(setting)
    return db


def parameter_limit(db: sqlite3.Connection) -> int:
    """Return how many values one statement may bind."""
    if not hasattr(db, "getlimit"):  # Python 3.10: SQLite's defaults
        return 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
    return db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the operating system say while writing into errors that name `path`.

    Raises:
        OutputError: the disk is full, the place read-only, or the like.
        StoreError: SQLite refuses what is written, such as a key that is there twice.
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError) as err:
        raise output_error(path, err) from err
    except sqlite3.Error as err:
        raise StoreError(f"{path} cannot be written as asked: {err}") from err
