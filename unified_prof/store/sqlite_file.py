"""Opens other people's SQLite files for reading: nothing is written, complaints are translated."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from unified_prof.errors import StoreError

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_WAL_MODE = 2
_OTHER_FORMATS = {
    b"\x1f\x8b": "a gzip archive",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"{": "text (JSON?)",
    b"[": "text (JSON?)",
}


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection to the database `path`.

    The file's bytes and time stamps stay as they are. A write-ahead log left by a process that
    was killed is read with the file; where SQLite would have to write to do that (a journal to
    roll back, a read-only folder), it is done on a private copy.

    Raises:
        StoreError: there is no such file, it cannot be read, or it is not a sound database; also
            when SQLite complains later, inside the `with` block.
    """
    check_header(path)
    try:
        with _connection(path) as db:
            yield db
    except sqlite3.Error as err:
        raise unreadable(path, err) from err


def unreadable(path: Path, err: Exception) -> StoreError:
    """Return SQLite's complaint about `path` as an error of ours."""
    if "locked" in str(err):
        hint = "another process is writing it; try again when that has finished"
    elif "malformed" in str(err):
        hint = "the file is damaged or was cut off while copying; copy or export it again"
    else:
        hint = None
    return StoreError(f"cannot read {path} as an SQLite database: {err}", hint=hint)


def check_header(path: Path) -> None:
    """Say in plain words what is wrong with a file that SQLite could not even begin to read.

    Raises:
        StoreError: missing, not a file, not readable, empty, of another format, or cut off.
    """
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory; expected an SQLite database file")
        if path.exists() and not path.is_file():
            raise StoreError(f"{path} is not a regular file; expected an SQLite database file")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            size = file.seek(0, 2)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}") from err
    if not size:
        raise StoreError(f"{path} is empty (0 bytes); expected an SQLite database")
    if not header.startswith(_MAGIC[: len(header)]):
        known = (name for magic, name in _OTHER_FORMATS.items() if header.startswith(magic))
        found = next(known, f"it begins with {header[:16]!r}")
        raise StoreError(f"{path} is not an SQLite database: {found}")
    if (whole := _declared_size(header)) > size:
        raise StoreError(
            f"{path} is cut off: found {size:,} bytes, its header promises {whole:,}",
            hint="copy or export it again",
        )


def _declared_size(header: bytes) -> int:
    """Return the bytes that the header speaks of: pages in use times page size."""
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    (page_size,) = struct.unpack_from(">H", header, 16)
    changes, pages = struct.unpack_from(">II", header, 24)
    (valid_for,) = struct.unpack_from(">I", header, 92)
    # Writers older than SQLite 3.7 leave the page count stale; then the two counters differ.
    # Page size 1 means 65536.
    return pages * (65536 if page_size == 1 else page_size) if changes == valid_for else 0


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    side_files = [p for p in map(Path, (f"{path}-wal", f"{path}-journal")) if _has_bytes(p)]
    mode = "ro"
    if not side_files and _in_wal_mode(path) and not Path(f"{path}-shm").exists():
        # Closed cleanly. Without this promise SQLite would leave a log of its own beside it.
        mode = "ro&immutable=1"
    try:
        db = _open(path, mode)
    except sqlite3.OperationalError:
        if not side_files:
            raise
        with _private_copy(path, side_files) as copy, closing(_open(copy, "rw")) as db:
            yield db
        return
    with closing(db):
        yield db


def _open(path: Path, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=1
    )
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db.execute("PRAGMA query_only = 1")
    except sqlite3.Error:
        db.close()
        raise
    return db


@contextmanager
def _private_copy(path: Path, side_files: list[Path]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="uprof-") as folder:
        for source in (path, *side_files):
            shutil.copyfile(source, Path(folder) / source.name)
        yield Path(folder) / path.name


def _has_bytes(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size > 0
    return False


def _in_wal_mode(path: Path) -> bool:
    with path.open("rb") as file:
        return _WAL_MODE in file.read(20)[18:]
