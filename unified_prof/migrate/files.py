"""Handles the two files of an upgrade: the original, locked and kept, and its copy."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from unified_prof.errors import StoreError
from unified_prof.store.opening import side_files
from unified_prof.store.sql import writing

_LOCK_TIMEOUT_S = 30.0
_COPY_BYTES = 1 << 26


def locked(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open `path` so that no other process can write it; readers are not disturbed.

    A journal that a crashed writer left is rolled back by this, as by everyone who opens the
    file to write.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    while True:
        before = _identity(path)
        with ExitStack() as own, writing(path):
            db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT_S)
            own.enter_context(closing(db))
            db.execute("BEGIN IMMEDIATE")
            # Someone may have put another file in its place while this one was waited for.
            if _identity(path) == before:
                resources.enter_context(own.pop_all())
                return db


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}", slug="cannot-read") from err
    return found.st_dev, found.st_ino


def copy_database(source: sqlite3.Connection, path: Path, copy: Path, resources: ExitStack) -> None:
    """Copy what `source` sees, which is `path` with any log or journal beside it."""
    if side_files(path):
        with ExitStack() as own:
            if source.in_transaction:
                # A connection that may write cannot be the source of a backup.
                uri = f"{path.absolute().as_uri()}?mode=ro"
                source = own.enter_context(closing(sqlite3.connect(uri, uri=True)))
            source.backup(own.enter_context(closing(sqlite3.connect(copy))))
        return
    if not source.in_transaction:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # Closing any descriptor of a file drops the locks that the process has on it, SQLite's
    # included. So this one stays open as long as the connection.
    file = resources.enter_context(path.open("rb"))
    with copy.open("wb") as destination_file, ThreadPoolExecutor(1) as pool:
        copying = pool.submit(_copy_bytes, file, destination_file)
        import_module("unified_prof.migrate.runner")  # takes as long as copying 1 GB
        copying.result()


def _copy_bytes(source: BinaryIO, destination: BinaryIO) -> None:
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # not every pair of file systems can
            while os.copy_file_range(source.fileno(), destination.fileno(), _COPY_BYTES):
                pass
            return
        source.seek(0)
        destination.seek(0)
        destination.truncate()
    shutil.copyfileobj(source, destination, _COPY_BYTES >> 6)


@contextmanager
def flushing(copy: Path) -> Iterator[None]:
    """Have the copied bytes written to the disk while they are being migrated.

    The wait for the disk at the end, which counts, is then short: a third of the time is saved.
    """
    with copy.open("rb") as file, ThreadPoolExecutor(1) as pool:
        pool.submit(os.fsync, file.fileno())
        yield


def inherit(path: Path, copy: Path) -> None:
    """Give the copy the original's permissions and, where that is allowed, its owner."""
    shutil.copymode(path, copy)
    if hasattr(os, "chown"):
        found = path.stat()
        with suppress(OSError):
            os.chown(copy, found.st_uid, found.st_gid)


def settle(original: sqlite3.Connection, path: Path) -> None:
    """Empty the original's write-ahead log into it: left there, it would be read into the copy.

    The content stays the same, and nobody has written it since it was copied.
    """
    if original.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        return
    version = original.execute("PRAGMA data_version").fetchone()
    original.execute("ROLLBACK")
    busy, *_ = original.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    original.execute("BEGIN IMMEDIATE")
    if busy or original.execute("PRAGMA data_version").fetchone() != version:
        raise StoreError(
            f"{path} is in use by another process",
            hint="try again when that has finished",
            slug="in-use",
        )


def keep(path: Path) -> Path:
    """Give the original a second name, one that nothing has yet."""
    path = Path(os.path.realpath(path))
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        try:
            os.link(path, backup)
        except FileExistsError:
            number += 1
            continue
        except OSError:  # a file system without hard links
            if backup.exists():
                number += 1
                continue
            shutil.copy2(path, backup)
        return backup
