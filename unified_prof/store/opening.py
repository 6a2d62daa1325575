"""Opens a database somebody else made, to read it and to leave no trace.

SQLite itself may change a file it only reads: it rolls a crashed writer's journal back, merges a
write-ahead log, and makes `-wal` and `-shm` files beside it. So such files are read through a
temporary copy, and a file in WAL mode without a log as an immutable one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from unified_prof.errors import OutputError, StoreError

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_WAL_MODE = 2  # header byte 19: the version of the file format that reading needs
_BUSY_TIMEOUT_S = 5.0
_COPY_ATTEMPTS = 3


def open_read_only(path: Path, resources: ExitStack) -> sqlite3.Connection:
    r"""Return a connection to `path` that changes neither the file nor its folder.

    Text that is not UTF-8 is read with its odd bytes as `\xNN`.

    Args:
        path: Any file, good or bad.
        resources: Closes the connection and removes a temporary copy, if one was needed.

    Raises:
        StoreError: the file cannot be read, or is not a whole SQLite database.
        OutputError: a temporary copy was needed and could not be made.
    """
    header = _header(path)
    log, journal = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    in_wal_mode = header[19] == _WAL_MODE
    if in_wal_mode and _size(log):
        return _open_copy(path, log, resources)
    if not _size(journal):
        _refuse_truncated(path, header)
    try:
        # Nobody can change a file in WAL mode without a log beside it; reading it otherwise
        # would make one.
        return _connect(path, "immutable=1" if in_wal_mode else "mode=ro", resources)
    except READ_ERRORS as err:
        if _size(journal) and not _is_locked(err):
            return _open_copy(path, journal, resources)
        raise read_error(path, err) from err


# The driver raises UnicodeDecodeError where SQLite quotes bytes of a damaged file that are no text,
# and until Python 3.12 a Warning for two statements in one.
READ_ERRORS = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what SQLite says while reading into a StoreError that names `path`."""
    try:
        yield
    except READ_ERRORS as err:
        raise read_error(path, err) from err


def read_error(path: Path, err: Exception) -> StoreError:
    """Say in words why `path` cannot be read."""
    if _is_locked(err):
        return StoreError(
            f"{path} is being written by another process", hint="try again when that has finished"
        )
    text = str(err)
    if isinstance(err, UnicodeDecodeError):
        text = err.object.decode("utf-8", "backslashreplace")
    text = text or "malformed, SQLite's words for it are no text"  # Python 3.10
    if "not a database" in text or "malformed" in text or "disk I/O" in text:
        return StoreError(f"{path} is damaged: {text}", hint="recover it with the sqlite3 shell")
    return StoreError(f"cannot read {path}: {text}")


def _header(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise StoreError(f"{path} is a directory, expected a report file")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path} is not a regular file, expected a report file")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist") from None
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}") from err
    except ValueError as err:  # no file can have such a name
        raise StoreError(f"cannot read {str(path)!r}: {err}") from err
    if not header:
        raise StoreError(f"{path} is empty, expected a SQLite database")
    if not header.startswith(_MAGIC):
        raise StoreError(
            f"{path} is not a SQLite database: it starts with {header[:16]!r}, expected {_MAGIC!r}"
        )
    if len(header) < _HEADER_BYTES:
        raise _truncated(path, len(header), _HEADER_BYTES)
    return header


def _refuse_truncated(path: Path, header: bytes) -> None:
    """Compare the file's size with what its header says, where the header says it."""
    size_is_valid = header[24:28] == header[92:96]
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    expected = int.from_bytes(header[28:32], "big") * page_bytes
    found = path.stat().st_size
    if size_is_valid and found < expected:
        raise _truncated(path, found, expected)


def _truncated(path: Path, found: int, expected: int) -> StoreError:
    return StoreError(f"{path} is cut off: {found:,} bytes, expected {expected:,}")


def _connect(path: Path, options: str, resources: ExitStack) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"  # as a URI, any file name is safe
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
    try:
        db.execute("PRAGMA trusted_schema = OFF")  # the file is somebody else's
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        db.close()
        raise
    db.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    resources.enter_context(closing(db))
    return db


def _open_copy(path: Path, side_file: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a copy of a database together with the log or journal its writer left behind."""
    try:
        folder = resources.enter_context(temporary_folder())
        for _ in range(_COPY_ATTEMPTS):
            before = _states(path, side_file)
            for file in (path, side_file):
                shutil.copyfile(file, folder / file.name)
            if _states(path, side_file) == before:
                break
        else:
            raise StoreError(
                f"{path} is being written by another process",
                hint="try again when that has finished",
            )
    except OSError as err:
        raise OutputError(
            f"cannot copy {path}, whose writer left {side_file.name} behind, "
            f"to {tempfile.gettempdir()}: {err.strerror}",
            hint="set TMPDIR to a folder with enough space",
        ) from err
    with reading(path):
        return _connect(folder / path.name, "mode=rw", resources)


def _states(*files: Path) -> list[tuple[int, int]]:
    return [(state.st_size, state.st_mtime_ns) for state in map(os.stat, files)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_locked(err: Exception) -> bool:
    return "locked" in str(err)
