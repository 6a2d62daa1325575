"""Opening of databases for reading, without changing the file or its directory.

SQLite may change a file even when it only reads: it rolls back the journal of a crashed writer,
merges a write-ahead log, and creates `-wal` and `-shm` files. Files with a journal or log are
therefore read through a temporary copy, and files in WAL mode without a log are opened as
immutable.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from unified_prof.errors import OutputError, StoreError
from unified_prof.sqlite.atomic import SQLITE_SIDE_FILES, raise_kept, temporary_folder, watch
from unified_prof.sqlite.fingerprint import MAGIC
from unified_prof.sqlite.pages.format import FileConnection
from unified_prof.sqlite.statements import READ_ERRORS, is_locked, read_error, reading

_OTHER_FORMATS = (
    (b"\x1f\x8b", "a gzip-compressed file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard-compressed file"),
    (b"\xfd7zXZ", "an xz-compressed file"),
    (b"PK\x03\x04", "a zip archive"),
)
_HEADER_BYTES = 100
_WAL_MODE = 2  # header byte 19: file format version needed for reading
_BUSY_TIMEOUT_S = 5.0
_COPY_ATTEMPTS = 3
_COPY_BYTES = 1 << 20
_BLOCK_BYTES = 512  # the unit of `st_blocks` on all file systems
# A generated column may create values up to SQLite's limit of a gigabyte in every row.
_MAX_VALUE_BYTES = 1 << 27
_DETECTION_STEPS = 50_000_000  # one second; a report needs some thousand


def open_read_only(path: Path, resources: ExitStack) -> sqlite3.Connection:
    r"""Return a connection to `path` that changes neither the file nor its directory.

    In text that is not UTF-8, invalid bytes are read as `\xNN`. `path` may be any file, also not a
    database. `resources` closes the connection and removes a temporary copy, if one was needed.

    Raises:
        StoreError: the file cannot be read, or is not a complete SQLite database.
        OutputError: a temporary copy was needed and could not be made.
    """
    header = _header(path)
    sides = side_files(path)
    in_wal_mode = header[19] == _WAL_MODE
    if in_wal_mode and "-wal" in sides:
        return _open_copy(path, sides["-wal"], resources)
    if "-journal" not in sides:
        _refuse_truncated(path, header)
    try:
        # A file in WAL mode without a log is not being changed; opening it as mutable would create
        # a log.
        return _connect(path, "immutable=1" if in_wal_mode else "mode=ro", resources)
    except READ_ERRORS as err:
        raise_kept()
        if "-journal" in sides and not is_locked(err):
            return _open_copy(path, sides["-journal"], resources)
        raise read_error(path, err) from err


def side_files(path: Path) -> dict[str, Path]:
    """Return the log and journal of a database that are not empty, by suffix.

    Raises:
        StoreError: one of them is not a regular file, so that SQLite might wait forever.
    """
    found = {}
    real = Path(os.path.realpath(path))  # as SQLite does
    for ending in SQLITE_SIDE_FILES:
        side = real.with_name(real.name + ending)
        try:
            state = side.stat()
        except OSError:
            continue
        if not stat.S_ISREG(state.st_mode):
            raise StoreError(
                f"{path} cannot be read: {side.name} in its directory is not a regular file",
                hint="move it away",
                slug="not-a-regular-file",
            )
        if state.st_size:
            found[ending] = side
    return found


def _header(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise StoreError(f"{path} is a directory, expected a report file", slug="not-a-report")
        if not stat.S_ISREG(mode):
            message = f"{path} is not a regular file, expected a report file"
            raise StoreError(message, slug="not-a-regular-file")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist", slug="no-such-file") from None
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}", slug="cannot-read") from err
    except ValueError as err:  # no file can have such a name
        raise StoreError(f"cannot read {str(path)!r}: {err}", slug="cannot-read") from err
    if not header:
        raise StoreError(f"{path} is empty, expected a SQLite database", slug="empty-file")
    if not header.startswith(MAGIC):
        message = f"{path} is not a report (a SQLite database) but {_content_kind(header)}"
        raise StoreError(message, slug="not-a-report")
    if len(header) < _HEADER_BYTES:
        raise _truncated(path, len(header), _HEADER_BYTES)
    return header


def _content_kind(header: bytes) -> str:
    """Return a description of a file that starts with these bytes."""
    for magic, words in _OTHER_FORMATS:
        if header.startswith(magic):
            return words
    if not header.strip(b"\0"):
        return "a file of zeros"
    text = header.decode("utf-8", "ignore")
    if header.lstrip()[:1] in (b"{", b"["):
        return "JSON"
    return "text" if text.isprintable() or text.replace("\n", "").isprintable() else "binary data"


def _refuse_truncated(path: Path, header: bytes) -> None:
    """Raise StoreError if the file is smaller than its header states."""
    size_is_valid = header[24:28] == header[92:96]
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    expected = int.from_bytes(header[28:32], "big") * page_bytes
    found = path.stat().st_size
    if size_is_valid and found < expected:
        raise _truncated(path, found, expected)


def _truncated(path: Path, found: int, expected: int) -> StoreError:
    message = f"{path} is cut off: {found:,} bytes, expected {expected:,}"
    return StoreError(message, slug="damaged-file")


def _connect(
    path: Path, options: str, resources: ExitStack, *, is_complete: bool = True
) -> sqlite3.Connection:
    """Return a connection to a file, with options of SQLite's URI.

    `is_complete` is True if the file contains all data, that is, has no log.
    """
    uri = f"{path.absolute().as_uri()}?{options}"  # a URI can have any file name
    before = None
    with suppress(OSError):
        before = path.stat() if is_complete else None
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S, factory=FileConnection
    )
    try:
        db.execute("PRAGMA trusted_schema = OFF")  # the file is not trusted
        # Otherwise SQLite reads memory outside a page if the pointer to a row is damaged.
        db.execute("PRAGMA cell_size_check = ON")
        if hasattr(db, "setlimit"):  # since Python 3.11
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        watch(db, steps=_DETECTION_STEPS)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if before is not None:
            db.hold(path, before)
    except BaseException:
        db.close()
        raise
    db.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    resources.enter_context(closing(db))
    return db


def _open_copy(path: Path, side_file: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a copy of a database with the log or journal that its writer left behind."""
    try:
        folder = resources.enter_context(temporary_folder())
        _refuse_too_much(folder, path, side_file)
        for _ in range(_COPY_ATTEMPTS):
            before = _states(path, side_file)
            _copy_sparse(path, folder / "copy")
            suffix = next(end for end in SQLITE_SIDE_FILES if side_file.name.endswith(end))
            _copy_sparse(side_file, folder / f"copy{suffix}")
            if _states(path, side_file) == before:
                break
        else:
            raise StoreError(
                f"{path} is being written by another process",
                hint="try again when that process has finished",
                slug="in-use",
            )
    except OSError as err:
        raise OutputError(
            f"cannot copy {path}, whose writer left {side_file.name} behind, "
            f"to {tempfile.gettempdir()}: {err.strerror}",
            hint="set TMPDIR to a directory with enough space",
            slug="no-temporary-space",
        ) from err
    with reading(path):
        return _connect(folder / "copy", "mode=rw", resources, is_complete=False)


def _refuse_too_much(folder: Path, *files: Path) -> None:
    """Raise OSError if copies of the files would fill the disk."""
    states = [file.stat() for file in files]
    # Size of a sparse file on disk; not available on Windows.
    needed = sum(
        min(state.st_size, getattr(state, "st_blocks", state.st_size) * _BLOCK_BYTES)
        for state in states
    )
    if needed > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy_sparse(source: Path, copy: Path) -> None:
    """Copy a file; the copy is as sparse as the file."""
    with source.open("rb") as read, copy.open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        position = 0
        while position < size and (part := _next_data(read, position, size)) is not None:
            position, end = part
            read.seek(position)
            write.seek(position)
            while position < end and (data := read.read(min(_COPY_BYTES, end - position))):
                write.write(data)
                position += len(data)
            if position < end:
                return  # truncated while it was read
        write.truncate(size)


def _next_data(file: BinaryIO, position: int, size: int) -> tuple[int, int] | None:
    """Return start and end of the next data in a sparse file, None if there is no more."""
    if sys.platform == "win32" or not hasattr(os, "SEEK_DATA"):
        return position, size
    try:
        begin = os.lseek(file.fileno(), position, os.SEEK_DATA)
        return begin, os.lseek(file.fileno(), begin, os.SEEK_HOLE)
    except OSError as err:
        if err.errno == errno.ENXIO:
            return None
        return position, size  # a file system without sparse files


def _states(*files: Path) -> list[tuple[int, int]]:
    return [(state.st_size, state.st_mtime_ns) for state in map(os.stat, files)]
