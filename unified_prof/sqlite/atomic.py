"""Atomic writing of files, and interruptible SQLite statements.

An output is written under a temporary name in the target directory and renamed at the end. If
anything fails before that, the temporary file is removed and no existing file has changed.

A killed process cannot remove its temporary file. The name of the file contains a tag of its
writer: the next process that writes the same file removes it if that writer has certainly ended,
that is, if boot and process namespace are the same and no process has its id and start time. Files
of writers on other machines, in other containers or from before a reboot are kept.

SQLite runs a whole statement before Python handles a signal, and its driver loses an exception
raised in the progress handler: the statement fails as `interrupted`. `watch` stores such an
exception, and `raise_kept` raises it where SQLite's errors are translated.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from unified_prof.base.signals import held_back
from unified_prof.errors import OutputError

# A writer's tag: process namespace, process id, start time.
TAG = re.compile(r"([0-9a-f]{8})-([0-9a-f]+)-([0-9a-f]+)")
TEMPORARY = "uprof-"
_ENDED = ("Z", "X")  # a zombie does not write


def tag() -> str:
    """Return the tag in the names of this process's temporary files."""
    process = os.getpid()
    return f"{_domain() or '0' * 8}-{process:x}-{_start(process) or 0:x}"


def is_abandoned(owner: str) -> bool:
    """Return True if the process with this tag has certainly ended."""
    match = TAG.fullmatch(owner)
    if match is None or match[1] != _domain():
        return False
    process, start = int(match[2], 16), int(match[3], 16)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # of another user, which /proc may hide
    found = _start(process)
    return found is not None and found != start


def is_of_here(owner: str) -> bool:
    """Return True if the process with this tag is in this boot and process namespace."""
    match = TAG.fullmatch(owner)
    return match is not None and match[1] == _domain()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a directory for temporary copies; first remove those of ended processes.

    Raises OutputError if it cannot be made.
    """
    spare = ExitStack()
    try:
        # Two descriptors that the removal of the directory can use if the others run out.
        for descriptor in os.pipe():
            spare.callback(os.close, descriptor)
        place = tempfile.gettempdir()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                owner = entry.name.removeprefix(TEMPORARY).rpartition("-")[0]
                if entry.name.startswith(TEMPORARY) and is_abandoned(owner):
                    shutil.rmtree(entry.path, ignore_errors=True)
        made = tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{tag()}-", dir=place)
    except OSError as err:
        spare.close()
        raise OutputError(
            f"cannot create a temporary directory: {err.strerror or err}",
            hint="set TMPDIR to a writable directory",
            slug="no-temporary-space",
        ) from err
    try:
        yield Path(made.name)
    finally:
        with held_back():
            spare.close()
            made.cleanup()


@cache
def _domain() -> str | None:
    """Return an id of this process namespace and boot, None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        numbering = Path("/proc/self/ns/pid").readlink()
    except (OSError, ValueError):
        return None
    return blake2b(f"{boot} {numbering}".encode(), digest_size=4).hexdigest()


def _start(process: int) -> int | None:
    """Return the start of a process in kernel ticks, -1 if it has ended, None if unknown."""
    try:
        # The second field, the program's name, may contain anything.
        status = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if status[0].decode("ascii") in _ENDED else int(status[19])
    except (OSError, ValueError, IndexError):
        return None


_STEPS_PER_CHECK = 200_000  # virtual machine steps: a few milliseconds
_interrupts: list[BaseException] = []


def watch(db: sqlite3.Connection, *, steps: int | None = None) -> None:
    """Let signals interrupt the statements of a connection, which otherwise run to completion.

    `steps` is the maximum number of virtual machine steps, some 50 million per second, of all
    statements until the next call of `watch`.
    """
    checks = _interrupt_checks(None if steps is None else steps // _STEPS_PER_CHECK)
    next(checks)
    db.set_progress_handler(checks.__next__, _STEPS_PER_CHECK)


def raise_kept() -> None:
    """Raise the exception of the signal that interrupted a statement, if any; only once."""
    if _interrupts:
        raise _interrupts.pop()


def _interrupt_checks(most: int | None) -> Generator[int, None, None]:
    """Yield 0 while SQLite may continue, 1 to stop it.

    In a generator, the exception of a signal is raised inside `try`, when it is resumed.
    """
    for count in itertools.count():
        try:
            yield 1 if _interrupts or (most is not None and count > most) else 0
        except GeneratorExit:
            return
        except BaseException as err:
            _interrupts.append(err)


_NAME_BYTES = 180  # of the final name in the temporary one: file systems allow 255 bytes
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
    """An output being written to `partial`; `commit` gives it its final name.

    Raises (also from `commit`):
        OutputError: the target exists and `overwrite` is false, or cannot be written.
    """

    def __init__(
        self, target: str | os.PathLike[str], *, overwrite: bool = False, durable: bool = True
    ) -> None:
        self.target = Path(target)
        self._durable, self._overwrite = durable, overwrite
        # The target of a symbolic link is replaced, and the link is kept.
        refuse_existing(self.target, overwrite=self._overwrite)
        self._final = Path(os.path.realpath(self.target))
        head = os.fsencode(self._final.name)[:_NAME_BYTES].decode("utf-8", "ignore")
        remove_abandoned(self._final.parent, head)
        self.partial = self._final.with_name(_partial_name(head))
        with output_errors(self.target):
            # Exclusive, with the permissions of the user's umask.
            os.close(os.open(self.partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))

    def rename(self, name: str) -> None:
        """Change the final name, in the same directory.

        Raises:
            OutputError: as when it was opened.
        """
        target = self.target.with_name(name)
        refuse_existing(target, overwrite=self._overwrite)
        self.target, self._final = target, Path(os.path.realpath(target))

    def commit(self) -> None:
        """Flush the file to disk if `durable` is true, and give it its final name."""
        with output_errors(self.target):
            if self._durable:
                _fsync(self.partial)
            refuse_existing(self.target, overwrite=self._overwrite)
            if self._overwrite:
                # SQLite would apply the journal or log of an old database to the new one.
                for suffix in SQLITE_SIDE_FILES:
                    _with_suffix(self._final, suffix).unlink(missing_ok=True)
                self.partial.replace(self._final)
            else:
                self._rename_without_overwriting()
            if self._durable:
                _fsync(self._final.parent)

    def discard(self) -> None:
        """Remove the temporary file; no effect after `commit`."""
        for suffix in ("", *SQLITE_SIDE_FILES):
            with suppress(OSError):
                _with_suffix(self.partial, suffix).unlink(missing_ok=True)

    def _rename_without_overwriting(self) -> None:
        """Rename the file; fail if the final name exists."""
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
    """Write one of thousands of small files atomically; an existing file is replaced.

    Ten times as fast as `AtomicFile`, for files that can be recreated: the file is not flushed to
    disk, files of ended processes are not removed (`remove_abandoned`), and a database's side files
    are not checked. Raises OutputError if it cannot be written.
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
    """Yield a temporary path to write; rename it to `target` if the block does not raise.

    If `durable` is false, the file may be incomplete after a power failure.

    Raises:
        OutputError: the target exists and `overwrite` is false, or it cannot be written; also
            in place of an OSError or an error of SQLite in the block.
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


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; rename it to `target` if the block does not raise.

    Raises:
        OutputError: the directory cannot be written; also in place of an OSError in the block.
    """
    head = os.fsencode(target.name)[:_NAME_BYTES].decode("utf-8", "ignore")
    partial = target.with_name(_partial_name(head))
    remove_abandoned(target.parent, head)
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(target)
    except OSError as err:
        raise output_error(target, err) from err
    finally:
        with held_back():
            shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise OutputError if `target` exists and may not or cannot be replaced."""
    target = Path(target)
    if "\0" in str(target):
        raise OutputError(f"cannot write {str(target)!r}: invalid file name", slug="cannot-write")
    final = Path(os.path.realpath(target))
    try:
        mode = final.stat().st_mode
    except FileNotFoundError:
        if not overwrite and target.is_symlink():  # else whoever made it chooses what is created
            raise OutputError(
                f"{target} is a symbolic link to {final}, which does not exist",
                hint="remove the link, or create its target with --force",
                slug="already-exists",
            ) from None
        for suffix in () if overwrite else SQLITE_SIDE_FILES:
            if os.path.lexists(side := _with_suffix(final, suffix)):
                raise OutputError(
                    f"{side} is left over from another database, and SQLite would apply it to"
                    f" {target}",
                    hint="move it away, or overwrite it with --force",
                    slug="leftover-file",
                ) from None
        return
    except OSError as err:
        raise output_error(target, err) from err
    if stat.S_ISDIR(mode):
        message = f"{target} is a directory, expected the name of a file"
        raise OutputError(message, slug="wrong-output-place")
    if not stat.S_ISREG(mode):
        message = f"{target} is not a regular file and is not replaced"
        raise OutputError(message, slug="not-a-regular-file")
    if not overwrite:
        raise _exists(target)


def output_error(target: str | os.PathLike[str], err: OSError | sqlite3.Error) -> OutputError:
    """Return the error for a `target` that cannot be written."""
    place = Path(target).parent
    code = err.errno if isinstance(err, OSError) else None
    text = (err.strerror if isinstance(err, OSError) else None) or str(err)
    hint = "choose another path"
    if code in _FULL or "is full" in text:
        text, hint = f"no space left in {place}", "free some space or choose another path"
    elif code == errno.EFBIG:
        text, hint = "the file size limit is exceeded", "raise the limit (`ulimit -f`)"
    elif code in _READ_ONLY or "readonly" in text:
        text = f"{place} is read-only, or this user may not write there"
    elif code in {errno.ENOENT, errno.ENOTDIR}:
        text, hint = f"{place} is not an existing directory", "create it first"
        if place.is_dir():  # /proc and similar file systems
            text, hint = f"{place} is not writable", "choose another directory"
    return OutputError(f"cannot write {os.fspath(target)}: {text}", hint=hint, slug="cannot-write")


@contextmanager
def output_errors(target: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager that raises an OSError of its block as `output_error`."""
    try:
        yield
    except OSError as err:
        raise output_error(target, err) from err


def remove_abandoned(folder: Path, head: str | None = None) -> None:
    """Remove the temporary files of ended processes; `head` begins their names (None: any)."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _PARTIAL.search(entry.name)
            if found is None or head not in (None, entry.name[: found.start()]):
                continue
            if is_abandoned(found["owner"]):
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        Path(entry.path).unlink()


def _partial_name(head: str) -> str:
    return f"{head}.{tag()}.{secrets.token_hex(4)}.partial"


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _exists(target: Path) -> OutputError:
    return OutputError(
        f"{target} already exists", hint="overwrite it with --force", slug="already-exists"
    )


def _fsync(path: Path) -> None:
    if path.is_dir():
        if not hasattr(os, "O_DIRECTORY"):  # Windows does not open directories
            return
        flags = os.O_RDONLY | os.O_DIRECTORY
    else:
        flags = os.O_RDWR if _WINDOWS else os.O_RDONLY  # Windows flushes only writable files
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as err:
        if err.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some file systems: not for directories
            raise
    finally:
        os.close(descriptor)
