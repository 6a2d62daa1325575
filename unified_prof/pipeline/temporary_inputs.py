"""Makes temporary copies of standard input and archives, and removes them after the conversion.

Recordings are read more than once and partly from the end, so a pipe or an archive cannot be
decoded directly.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, NoReturn, TypeVar

from unified_prof.decoders.compression import (
    MAX_RATIO,
    RATIO_CHECKED_FROM_BYTES,
    ZIP_METHODS,
    Content,
    PieceReader,
    count_zip_files,
    file_format,
    format_of_head,
    head_of,
    is_zip_file,
)
from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.sqlite.atomic import temporary_folder

_Entry = TypeVar("_Entry")
STANDARD_INPUT = Path("-")  # Path that stands for standard input.
NAME = "stdin"  # Name of its temporary file, from which the name of the report is derived.
MAX_BYTES = 64 << 30  # Maximum bytes that are stored of standard input, and of an archive.
_MAX_MEMBERS = 250_000  # Maximum entries of an archive.
# Maximum size of the headers of one entry of a tar archive; long names and attributes have some.
_MAX_HEADER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
# Errors of names that no file of the temporary directory can have.
_UNSUITABLE_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ)
_TAR_MAGIC = slice(257, 262), b"ustar"  # Position and text of the magic number of a tar archive.


def is_archive(path: Path) -> bool:
    """Return True for a tar archive, compressed or not, and for a zip archive of several files."""
    where, magic = _TAR_MAGIC
    head = head_of(path)
    if head is not None and head[where] == magic:
        return True
    form = format_of_head(path)
    if form is None or form.expand is not None:
        return False
    try:
        with path.open("rb") as file:
            return count_zip_files(file) > 1
    except OSError:
        return False


class TemporaryInputs:
    """Context manager that makes temporary copies and removes them on exit."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._names: dict[str, str] = {}  # Temporary path -> name to show in messages.
        self._unpacked: list[Path] = []

    def __enter__(self) -> TemporaryInputs:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def contains(self, path: Path) -> bool:
        """Return True if `path` is a temporary file or directory, or is inside one."""
        return any(path.is_relative_to(place) for place in self._names)

    def is_unpacked(self, path: Path) -> bool:
        """Return True if `path` is inside an unpacked archive."""
        return any(path.is_relative_to(directory) for directory in self._unpacked)

    def display_name(self, text: str) -> str:
        """Return `text` with temporary paths replaced by the names that the user passed."""
        for place, name in self._names.items():
            text = text.replace(place, name)
        return text

    def read_standard_input(self, progress: Callable[[str], None] = lambda _: None) -> Path:
        """Copy standard input to a temporary file, and return its path.

        Raises UsageError if standard input is closed, or is a terminal, RawFormatError if standard
        input is empty or too long, and OutputError if there is no space for the file.
        """
        stream = _standard_input()
        progress("reading standard input")
        path = self._resources.enter_context(temporary_folder()) / NAME
        self._names[str(path)] = "standard input"
        size = 0
        try:
            with path.open("xb") as file:
                while piece := stream.read(_PIECE_BYTES):
                    size += len(piece)
                    if size > MAX_BYTES:
                        _raise_too_long("standard input")
                    file.write(piece)
        except OSError as err:
            raise _no_space("standard input", err) from err
        if not size:
            raise RawFormatError("standard input is empty", slug="empty-file")
        return path

    def unpack(self, archive: Path, progress: Callable[[str], None] = lambda _: None) -> Path:
        """Unpack an archive without links and devices, and return the temporary directory.

        Raises RawFormatError if the archive is damaged or too long, or contains unsafe file names,
        and OutputError if there is no space for the files.
        """
        progress(f"unpacking {archive}")
        folder = self._resources.enter_context(temporary_folder())
        target = folder / (archive.name.partition(".")[0] or "archive")
        self._names = {str(target): self.display_name(str(archive)), **self._names}
        self._unpacked.append(target)
        try:
            target.mkdir()
            ratio_limit = MAX_RATIO["gzip"] * archive.stat().st_size
            bytes_left = min(MAX_BYTES, max(RATIO_CHECKED_FROM_BYTES, ratio_limit))
            for member in _members(archive):
                bytes_left -= _write(member, target, archive, bytes_left)
        except (
            *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError),
            *(OverflowError, NotImplementedError, RuntimeError),  # unknown method, encrypted file
        ) as err:
            raise RawFormatError(f"{archive} is damaged: {err}", slug="damaged-recording") from err
        except OSError as err:
            if err.errno in _UNSUITABLE_NAME:
                raise RawFormatError(
                    f"{archive} has an unsuitable file name: {err.strerror}", slug="unsafe-name"
                ) from err
            raise _no_space(str(archive), err) from err
        return target


class _Member(NamedTuple):
    """One regular file of an archive."""

    name: str
    modified_s: float
    content: IO[bytes]


def _members(archive: Path) -> Iterator[_Member]:
    """Yield the regular files of an archive; read each file before the next one is requested."""
    form = file_format(archive)
    if form is not None and form.expand is None:
        with zipfile.ZipFile(archive) as unzipped:
            for info in _limited(unzipped.infolist(), archive):
                if info.compress_type not in ZIP_METHODS:
                    raise NotImplementedError(f"compression method {info.compress_type}")
                if is_zip_file(info) and not stat.S_ISLNK(info.external_attr >> 16):
                    modified_s = time.mktime((*info.date_time, 0, 0, -1))
                    with unzipped.open(info) as content:
                        yield _Member(info.filename, modified_s, content)
        return
    pieces = _TarContent(b"", Content(archive).blocks())
    with tarfile.open(fileobj=pieces, mode="r|") as tar:
        for entry in _limited(tar, archive):
            content_or_none = tar.extractfile(entry) if entry.isreg() else None
            if content_or_none is not None:
                pieces.header_bytes = -sys.maxsize
                yield _Member(entry.name, entry.mtime, content_or_none)
            pieces.header_bytes = 0


def _limited(entries: Iterable[_Entry], archive: Path) -> Iterator[_Entry]:
    for number, entry in enumerate(entries):
        if number >= _MAX_MEMBERS:
            _raise_too_long(str(archive))
        yield entry


class _TarContent(PieceReader):
    """Content of a tar archive, in which the headers of an entry have a limited size."""

    header_bytes = 0  # Number of bytes read since the last entry.

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of `buffer` and return its length, 0 at the end."""
        count = super().readinto(buffer)
        self.header_bytes += count
        if self.header_bytes > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"an entry has a header of {_MAX_HEADER_BYTES:,} bytes")
        return count


def _write(member: _Member, target: Path, archive: Path, max_bytes: int) -> int:
    """Unpack one file of an archive below `target`, and return its size."""
    name = PurePosixPath(member.name.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts:
        raise RawFormatError(f"{archive} has an unsafe file name: {name}", slug="unsafe-name")
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with path.open("wb") as file:
        while piece := member.content.read(_PIECE_BYTES):
            size += len(piece)
            if size > max_bytes:
                _raise_too_long(str(archive))
            file.write(piece)
    with suppress(OSError, OverflowError):  # a time that the file system cannot store
        os.utime(path, (member.modified_s, member.modified_s))
    return size


def _standard_input() -> IO[bytes]:
    stream: IO[bytes] | None = getattr(sys.stdin, "buffer", None)
    try:
        if stream is not None and not stream.closed:
            if stream.isatty():
                raise UsageError(
                    "standard input is a terminal",
                    hint="pipe a recording: `... | uprof convert -`",
                    slug="no-standard-input",
                )
            return stream
    except ValueError:  # raised by isatty() of a stream whose descriptor was closed
        pass
    raise UsageError("standard input is closed, nothing to convert", slug="no-standard-input")


def _raise_too_long(name: str) -> NoReturn:
    raise RawFormatError(
        f"{name} is too long, contains too many files, or expands too much",
        hint="unpack or save it to files first",
        slug="input-too-long",
    )


def _no_space(name: str, err: OSError) -> UprofError:
    return OutputError(
        f"cannot store {name} in a temporary file: {err.strerror or err}",
        hint="set TMPDIR to another directory",
        slug="no-temporary-space",
    )
