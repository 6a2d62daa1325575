"""Which process a file under way belongs to, and what dead processes left behind.

A process that is killed cannot remove what it was writing. So the name of such a file says who
writes it, and whoever next writes beside it removes it, if that process is gone for certain: the
same boot of the same kernel, the same numbering of processes, and no process of that number and
start. Of a writer on another machine, in another container or before a reboot nothing is known,
and its file stays.

Lets signals, and a limit, end a statement of SQLite's that runs long.

SQLite runs a whole statement before Python sees a signal, and its driver loses an exception that
is raised while it looks: the statement fails as `interrupted`, as if the file were to blame. So
what came is kept here, and whoever puts SQLite's words into errors raises it instead.

A file that appears under its final name only when it is complete.

It is written beside its final name, under a name of its own, and renamed at the end; whatever
goes wrong before that, nothing is left behind and nothing of the user's has changed. What a
process left that was killed, the next one that writes the same file removes.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from unified_prof.errors import OutputError

TAG = re.compile(r"([0-9a-f]{8})-([0-9a-f]+)-([0-9a-f]+)")
"""A writer's tag: where process numbers count, the process, its start."""

TEMPORARY = "uprof-"
_ENDED = ("Z", "X")  # a zombie writes no more


def tag() -> str:
    """Return what the names of this process's unfinished files hold."""
    process = os.getpid()
    return f"{_domain() or '0' * 8}-{process:x}-{_start(process) or 0:x}"


def is_abandoned(owner: str) -> bool:
    """Say whether the process with this tag is gone for certain."""
    match = TAG.fullmatch(owner)
    if match is None or match[1] != _domain():
        return False
    process, start = int(match[2], 16), int(match[3], 16)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # somebody else's, which /proc may hide
    found = _start(process)
    return found is not None and found != start


def is_of_here(owner: str) -> bool:
    """Say whether the process with this tag can be seen from here: it lives unless abandoned."""
    match = TAG.fullmatch(owner)
    return match is not None and match[1] == _domain()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for temporary copies; first remove those that dead processes left.

    Raises:
        OSError: it cannot be made.
    """
    place = tempfile.gettempdir()
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(TEMPORARY).rpartition("-")[0]
            if entry.name.startswith(TEMPORARY) and is_abandoned(owner):
                shutil.rmtree(entry.path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{tag()}-", dir=place) as folder:
        yield Path(folder)


@cache
def _domain() -> str | None:
    """Return what tells this numbering of processes from all others; None: not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        numbering = Path("/proc/self/ns/pid").readlink()
    except (OSError, ValueError):
        return None
    return blake2b(f"{boot} {numbering}".encode(), digest_size=4).hexdigest()


def _start(process: int) -> int | None:
    """Return when a process started, in the kernel's ticks; -1: it has ended; None: not known."""
    try:
        # The second field, the program's name, may hold anything.
        status = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if status[0].decode("ascii") in _ENDED else int(status[19])
    except (OSError, ValueError, IndexError):
        return None


_STEPS_BETWEEN_LOOKS = 200_000  # of SQLite's machine: a few milliseconds

_kept: list[BaseException] = []


def watch(db: sqlite3.Connection, *, steps: int | None = None) -> None:
    """Let signals stop the statements of a connection, which run to their end otherwise.

    Args:
        db: The connection.
        steps: After how many steps of SQLite's machine, some 50 million a second, statements are
            stopped in any case; counted over all of them until `watch` is called again.
    """
    looks = _looks(None if steps is None else steps // _STEPS_BETWEEN_LOOKS)
    next(looks)
    db.set_progress_handler(looks.__next__, _STEPS_BETWEEN_LOOKS)


def raise_kept() -> None:
    """Raise, once, what a signal raised while SQLite was at work; else do nothing."""
    if _kept:
        raise _kept.pop()


def _looks(most: int | None) -> Generator[int, None, None]:
    """Yield 0 as long as SQLite may go on, 1 when it shall stop.

    A generator, so that a signal's exception, which comes as it is resumed, comes inside `try`.
    """
    count = 0
    while True:
        try:
            yield 1 if _kept or (most is not None and count > most) else 0
            count += 1
        except GeneratorExit:
            return
        except BaseException as err:
            _kept.append(err)


_NAME_BYTES = 180  # of the final name, kept in the partial one: 255 is what file systems allow
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_WINDOWS = os.name == "nt"
SQLITE_SIDE_FILES = ("-journal", "-wal", "-shm")
_PARTIAL = re.compile(
    rf"\.(?P<owner>{TAG.pattern})\.[0-9a-f]{{8}}\.partial"
    rf"(?:{'|'.join(SQLITE_SIDE_FILES)})?\Z"
)


class AtomicFile:
    """One output on its way: `partial` is what to write, `commit` gives it its final name.

    Raises (also from `commit`):
        OutputError: the target exists and `overwrite` is false, or cannot be written.
    """

    def __init__(
        self, target: str | os.PathLike[str], *, overwrite: bool = False, durable: bool = True
    ) -> None:
        self.target = Path(target)
        self._durable = durable
        self._overwrite = overwrite
        # Through a symbolic link, the file it points to is written, as `open` would.
        refuse_existing(self.target, overwrite=self._overwrite)
        self._final = Path(os.path.realpath(self.target))
        head = os.fsencode(self._final.name)[:_NAME_BYTES].decode("utf-8", "ignore")
        remove_abandoned(self._final.parent, head)
        self.partial = self._final.with_name(_partial_name(head))
        try:
            # Exclusive, and with the permissions the user's umask asks for.
            os.close(os.open(self.partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        except OSError as err:
            raise output_error(self.target, err) from err

    def rename(self, name: str) -> None:
        """Take another final name, in the same folder.

        Raises:
            OutputError: as when it was opened.
        """
        target = self.target.with_name(name)
        refuse_existing(target, overwrite=self._overwrite)
        self.target, self._final = target, Path(os.path.realpath(target))

    def commit(self) -> None:
        """Make the bytes durable, unless that is not wanted, and give them their final name."""
        try:
            if self._durable:
                _fsync(self.partial)
            refuse_existing(self.target, overwrite=self._overwrite)
            if self._overwrite:
                # What is left of an old database would be replayed into the new one.
                for suffix in SQLITE_SIDE_FILES:
                    _with_suffix(self._final, suffix).unlink(missing_ok=True)
                self.partial.replace(self._final)
            else:
                self._rename_without_overwriting()
            if self._durable:
                _fsync(self._final.parent)
        except OSError as err:
            raise output_error(self.target, err) from err

    def discard(self) -> None:
        """Remove what was written; harmless after `commit`."""
        for suffix in ("", *SQLITE_SIDE_FILES):
            with suppress(OSError):
                _with_suffix(self.partial, suffix).unlink(missing_ok=True)

    def _rename_without_overwriting(self) -> None:
        """Rename, but fail if the final name was taken meanwhile."""
        try:
            os.link(self.partial, self._final)
        except FileExistsError:
            raise _exists(self.target) from None
        except OSError as err:
            if err.errno not in _NO_LINKS:
                raise
            self.partial.rename(self._final)  # a file system without hard links
        else:
            self.partial.unlink()


def write_small(target: str | os.PathLike[str], data: bytes) -> None:
    """Write one of thousands of small files, in place of one that is there, whole or not at all.

    What makes `AtomicFile` ten times as slow is left to whoever can make the file again and looks
    after the folder: a machine that goes down soon may leave less than all of it, what dead
    processes left stays (`remove_abandoned`), and no database is looked for beside it.

    Raises:
        OutputError: it cannot be written.
    """
    final = os.path.realpath(target)
    folder, name = os.path.split(final)
    head = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    partial = os.path.join(folder, _partial_name(head))  # noqa: PTH118 (faster than a Path)
    try:
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
                file.write(data)
            os.replace(partial, final)  # noqa: PTH105 (faster than a Path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)  # noqa: PTH108 (faster than a Path)
            raise
    except OSError as err:
        raise output_error(target, err) from err


@contextmanager
def replacing(
    target: str | os.PathLike[str], *, overwrite: bool = False, durable: bool = True
) -> Iterator[Path]:
    """Yield the path to write instead of `target`; rename it when the block ends well.

    Unless it is to be `durable`, a machine that goes down soon may leave less than all of it.

    Raises:
        OutputError: the target exists and `overwrite` is false, or it cannot be written; also
            in place of an OSError or SQLite's complaint raised in the block.
    """
    output = AtomicFile(target, overwrite=overwrite, durable=durable)
    try:
        yield output.partial
        output.commit()
    except (OSError, sqlite3.Error) as err:
        raise_kept()
        raise output_error(output.target, err) from err
    finally:
        output.discard()


def refuse_existing(target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise OutputError when `target` exists and may not, or cannot, be replaced."""
    target = Path(target)
    if "\0" in str(target):
        raise OutputError(
            f"cannot write {str(target)!r}: no file can have such a name", slug="cannot-write"
        )
    final = Path(os.path.realpath(target))
    try:
        mode = final.stat().st_mode
    except FileNotFoundError:
        if not overwrite:
            _refuse_left_overs(target, final)
        return
    except OSError as err:
        raise output_error(target, err) from err
    if stat.S_ISDIR(mode):
        raise OutputError(
            f"{target} is a directory, expected the name of a file", slug="wrong-output-place"
        )
    if not stat.S_ISREG(mode):
        raise OutputError(
            f"{target} is not a regular file, it is not replaced", slug="not-a-regular-file"
        )
    if not overwrite:
        raise _exists(target)


def output_error(target: str | os.PathLike[str], err: OSError | sqlite3.Error) -> OutputError:
    """Say in words why `target` cannot be written."""
    place = Path(target).parent
    code = err.errno if isinstance(err, OSError) else None
    text = (err.strerror if isinstance(err, OSError) else None) or str(err)
    hint = "choose another place"
    if code in _FULL or "is full" in text:
        text, hint = f"no space left in {place}", "free some space or choose another place"
    elif code == errno.EFBIG:
        text, hint = "files may not grow that large here", "raise the limit (`ulimit -f`)"
    elif code in _READ_ONLY or "readonly" in text:
        text = f"{place} is read-only for this user"
    elif code in {errno.ENOENT, errno.ENOTDIR}:
        text, hint = f"{place} is not an existing folder", "create it first"
    return OutputError(f"cannot write {os.fspath(target)}: {text}", hint=hint, slug="cannot-write")


def remove_abandoned(folder: Path, head: str | None = None) -> None:
    """Remove what processes that no longer live left of their attempts to write a file.

    Args:
        folder: Where the file was to be.
        head: Its name, as far as partial names have it; None: whatever it was.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _PARTIAL.search(entry.name)
            if found is None or head not in (None, entry.name[: found.start()]):
                continue
            if is_abandoned(found["owner"]):
                with suppress(OSError):
                    Path(entry.path).unlink()


def _partial_name(head: str) -> str:
    return f"{head}.{tag()}.{secrets.token_hex(4)}.partial"


def _refuse_left_overs(target: Path, final: Path) -> None:
    for suffix in SQLITE_SIDE_FILES:
        if os.path.lexists(side := _with_suffix(final, suffix)):
            raise OutputError(
                f"{side} is left over from another database and would be read into {target}",
                hint="move it away, or overwrite it with --force",
                slug="leftover-file",
            )


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _exists(target: Path) -> OutputError:
    return OutputError(
        f"{target} already exists", hint="overwrite it with --force", slug="already-exists"
    )


def _fsync(path: Path) -> None:
    if path.is_dir():
        if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders: it orders names by itself
            return
        flags = os.O_RDONLY | os.O_DIRECTORY
    else:
        flags = os.O_RDWR if _WINDOWS else os.O_RDONLY  # Windows flushes what it may write
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as err:
        if err.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some file systems: not on folders
            raise
    finally:
        os.close(descriptor)
