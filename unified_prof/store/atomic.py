"""A file appears under its final name only when it is complete: written beside, synced, renamed."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unified_prof.errors import OutputError

# SQLite leaves these beside a database whose writer died.
_SIDE_FILES = ("", "-journal", "-wal", "-shm")


@contextmanager
def replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of a new, empty file beside `path` that becomes `path` at the end.

    When the body raises, `path` stays as it was and nothing is left beside it. The body must have
    closed the file when it ends.

    Raises:
        OutputError: `path` exists and may not be overwritten, or it cannot be written; also in
            place of an OSError or SQLite's complaint raised by the body.
    """
    refuse_existing(path, overwrite=overwrite)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _translated(path):
            partial.touch(exist_ok=False)
            yield partial
            _sync(partial)
            refuse_existing(path, overwrite=overwrite)
            partial.replace(path)
            _sync(path.parent)
    finally:
        for suffix in _SIDE_FILES:
            partial.with_name(partial.name + suffix).unlink(missing_ok=True)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise OutputError when `path` exists and may not, or cannot, be replaced."""
    if path.is_dir() and not path.is_symlink():
        raise OutputError(f"{path} is a directory, a file is to be written there")
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{path} exists already", hint="give --force to overwrite it")


def output_error(path: Path, err: OSError | sqlite3.Error) -> OutputError:
    """Say in words why `path` cannot be written."""
    text = str(err)
    code = err.errno if isinstance(err, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "is full" in text:
        return OutputError(
            f"cannot write {path}: no space left in {path.parent}",
            hint="free some space or choose another folder",
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS) or "readonly" in text:
        return OutputError(
            f"cannot write {path}: {path.parent} is read-only for this user",
            hint="choose another folder",
        )
    reason = err.strerror if isinstance(err, OSError) and err.strerror else text
    return OutputError(f"cannot write {path}: {reason}")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as err:
        raise output_error(path, err) from err


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as err:
        # Some network file systems cannot sync a directory; the file itself was synced.
        if not (path.is_dir() and err.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(handle)
