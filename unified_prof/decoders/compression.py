"""Reads compressed files, block by block in bounded memory or completely.

The format is detected by the first bytes of a file, not by its name. Supported are gzip, xz, bzip2
and zstd streams, which may be nested, and zip archives with one recording.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import msgspec
from msgspec import Struct

from unified_prof.base.text import some_of
from unified_prof.errors import RawFormatError, system_errors

PIECE_BYTES = 1 << 20
_PLAIN_PIECE_BYTES = 2 << 20
_MAGIC_BYTES = 8
# Maximum zero bytes at the end of a file that may belong to its last compressed member.
_MAX_MEMBER_ZEROS = 64
# Maximum zero bytes at the end of a file that are searched for the end of its data.
_MAX_TRAILING_ZEROS = 1 << 30
_Failures = tuple[type[Exception], ...]
_FAILURES: _Failures = (zlib.error, OSError, EOFError, lzma.LZMAError)
_HEAD_BYTES = 32 << 10
# Input that is read for a head: bzip2 yields nothing before a whole block has been read.
_OTHER_HEAD_BYTES = 1 << 20
# Maximum memory of the dictionary that a file may require; xz -9 takes 65 MiB.
_MEMORY_LIMIT = 192 << 20
_ZSTD_WINDOW = 1 << 27  # Largest window that zstd itself accepts by default.
_ZSTD_INPUT_BYTES = 512  # Input that is decompressed at a time, from which at most 16 MiB come.
# Maximum number of formats inside one another.
_MAX_NESTED = 2
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Files that archivers add to an archive.
_ARCHIVER_FILES = ("__MACOSX/", ".DS_Store")
_JSON = ".json"
# Maximum ratio of output to input. Traces compress 10 to 60 times, repetitive ones some hundred
# times; beyond these ratios a file would take time and disk space without limit.
MAX_RATIO = {"gzip": 400, "zip": 400}
MAX_OTHER_RATIO = 4000
# Maximum size of a zip archive in another compressed file, of which a temporary copy is made.
_MAX_INNER_ARCHIVE_BYTES = 1 << 30
RATIO_CHECKED_FROM_BYTES = 64 << 20  # Output from which on the ratio is checked.
MAX_CONTENT_BYTES = 8 << 30  # Maximum size of compressed content that is held in memory.


class CutOffError(Exception):
    """The compressed data is truncated; all data before the end was yielded."""


class DamagedError(Exception):
    """The compressed data is damaged; the message contains the reason."""


class UnreadableError(Exception):
    """The file is intact but not supported; the message contains the reason, `hint` the remedy."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Decompressor(Protocol):
    """The common interface of `bz2`, `lzma` and the zstd module of Python 3.14."""

    @property
    def eof(self) -> bool:
        """True if the end mark was read."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end mark."""

    @property
    def needs_input(self) -> bool:
        """True if no more output is available without more input."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Add `data` to the input and return at most `max_length` bytes of output."""


class _Gzip:
    """Adapts `zlib` to the interface of `Decompressor`."""

    def __init__(self) -> None:
        self._inflating = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inflating.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflating.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inflating.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflating.decompress(self._inflating.unconsumed_tail + data, max_length)

    def rest(self) -> bytes:
        """Return the remaining output of truncated data."""
        return self._inflating.flush()


class Format(Struct, frozen=True):
    """One compressed format."""

    name: str
    magics: tuple[bytes, ...]
    # Function that yields the content or raises the errors of this module; None for an archive.
    expand: Callable[[IO[bytes]], Iterator[bytes]] | None = None


_GZIP_SIZE_BYTES = 4  # A gzip file ends with the size of its content.


def format_of(head: bytes) -> Format | None:
    """Return the format of a file with these first bytes, None if it is not compressed."""
    return next((form for form in _FORMATS if head.startswith(form.magics)), None)


def file_format(path: Path) -> Format | None:
    """Return the format of a compressed file, None if it is not compressed."""
    with path.open("rb") as file:
        return format_of(file.read(_MAGIC_BYTES))


def expand(source: IO[bytes], nested: int = _MAX_NESTED) -> Iterator[bytes]:
    """Yield the content of a file, compressed or not, in chunks of bounded size.

    `source` is the file, at its start, `nested` the maximum number of nested formats.
    """
    head = source.read(_MAGIC_BYTES)
    found = format_of(head) if nested else None
    if source.seekable():
        source.seek(0)
    else:
        source = PieceReader(head, iter(partial(source.read, _PLAIN_PIECE_BYTES), b""))
    if found is None:
        while piece := source.read(_PLAIN_PIECE_BYTES):
            yield piece
    elif found.expand is None:
        with _seekable(source) as archive, _only_member(archive) as member:
            yield from expand(member, nested - 1)
    else:
        pieces = found.expand(source)
        first = next(pieces, b"")
        if nested > 1 and format_of(first):
            yield from expand(PieceReader(first, pieces), nested - 1)
        else:
            if first:
                yield first
            yield from pieces


class PieceReader(io.RawIOBase, IO[bytes]):
    """File object over `head` and the following chunks; not seekable."""

    def __init__(self, head: bytes, pieces: Iterator[bytes]) -> None:
        self._left = head
        self._pieces = pieces

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of `buffer` and return its length, 0 at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


@contextmanager
def _seekable(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the file, or a temporary copy if it is not seekable, or only slowly."""
    if source.seekable() and not isinstance(source, zipfile.ZipExtFile):
        yield source
        return
    with tempfile.TemporaryFile() as copy:
        size = 0
        while piece := source.read(PIECE_BYTES):
            size += len(piece)
            if size > _MAX_INNER_ARCHIVE_BYTES:
                raise UnreadableError(
                    f"contains a zip archive of more than {_MAX_INNER_ARCHIVE_BYTES:,} bytes",
                    hint="unpack it first",
                )
            copy.write(piece)
        copy.seek(0)
        yield copy


def head_of(path: Path) -> bytes | None:
    """Return the first bytes of a file's content, decompressed; None if they cannot be read."""
    return _head(path)[1]


def format_of_head(path: Path) -> Format | None:
    """Return the format of a compressed file; None if it is not compressed, or cannot be read."""
    return _head(path)[0]


def _head(path: Path) -> tuple[Format | None, bytes | None]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            return None, None
        if not status.st_size:
            return None, b""  # also files of /proc, some of which block
        return _read_head(path, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError):  # no file can have such a name
        return None, None


@lru_cache(maxsize=16)  # each kind of recording looks at the head of a file
def _read_head(path: Path, size: int, changed_ns: int) -> tuple[Format | None, bytes | None]:
    with path.open("rb") as source:
        head = source.read(_HEAD_BYTES)
        form = format_of(head)
        if form is None:
            return None, head
        if form.name != "gzip":
            head += source.read(_OTHER_HEAD_BYTES)
        try:
            # The directory of an archive is at its end; for a stream the beginning is enough.
            start = source if form.expand is None else io.BytesIO(head)
            start.seek(0)
            return form, next(expand(start), b"")[:_HEAD_BYTES]
        except (CutOffError, DamagedError, UnreadableError):
            return form, None


def expected_bytes(path: Path) -> int:
    """Return the size of a file, decompressed; 0 if that is not known without reading it."""
    with path.open("rb") as source:
        form = format_of(source.read(_MAGIC_BYTES))
        size = source.seek(0, os.SEEK_END)
        if form is None:
            return size
        if form.name != "gzip" or size < _GZIP_SIZE_BYTES:
            return 0
        source.seek(-_GZIP_SIZE_BYTES, os.SEEK_END)
        # Modulo 2**32, and of the last of several members.
        stored = int.from_bytes(source.read(_GZIP_SIZE_BYTES), "little")
    return stored if stored >= size else 0


class Content:
    """Decompressed content of one file, which can be read once."""

    def __init__(self, path: Path) -> None:
        self.cut_off = False  # True if the compressed data is truncated; set after the last block.
        self._path = path

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of any size.

        Raises RawFormatError if the file cannot be read, its compressed data is damaged, or its
        compression ratio is higher than that of any recording.
        """
        with (
            system_errors(RawFormatError, f"{self._path}: cannot be read", slug="cannot-read"),
            self._path.open("rb") as source,
        ):
            yield from self._blocks(source)

    def _blocks(self, source: IO[bytes]) -> Iterator[bytes]:
        form = format_of(source.read(_MAGIC_BYTES))
        source.seek(0)
        counted = _CountingFile(source)
        max_ratio = MAX_RATIO.get(form.name, MAX_OTHER_RATIO) if form else 1
        expanded = 0
        try:
            for block in expand(counted):  # type: ignore[arg-type]
                expanded += len(block)
                limit = max(RATIO_CHECKED_FROM_BYTES, max_ratio * counted.bytes_read)
                if expanded > limit and form:
                    raise RawFormatError(
                        f"{self._path}: expands to more than {max_ratio} times its size",
                        hint="if you trust the file, decompress it and import the result",
                        slug="compression",
                    )
                yield block
        except CutOffError:
            self.cut_off = True
        except DamagedError as err:
            message = f"{self._path}: the {form.name if form else ''} data is damaged: {err}"
            raise RawFormatError(message, slug="damaged-recording") from err
        except UnreadableError as err:
            raise RawFormatError(f"{self._path}: {err}", hint=err.hint, slug="compression") from err


class _CountingFile:
    """A file that counts the bytes read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self.bytes_read = 0
        self._source = source

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def read_content(path: Path) -> bytes:
    """Return the complete content of a file, decompressed.

    Raises RawFormatError if the file cannot be read, is damaged or truncated, or does not fit in
    memory.
    """
    content, blocks = Content(path), []
    size = expanded = 0
    with suppress(OSError):  # reading reports it
        size = path.stat().st_size
    try:
        for block in content.blocks():
            expanded += len(block)
            if max(size, expanded) > MAX_CONTENT_BYTES:  # a larger file is not read further
                message = f"{path} expands to more than {MAX_CONTENT_BYTES:,} bytes"
                raise RawFormatError(message, slug="input-too-long")
            blocks.append(block)
        data = b"".join(blocks)
    except MemoryError as err:
        raise RawFormatError(f"{path}: not enough memory to read it", slug="out-of-memory") from err
    if content.cut_off:
        raise RawFormatError(f"{path} is damaged or cut off", slug="damaged-recording")
    return data


def read_json(path: Path) -> Any:
    """Return the JSON document in a file, compressed or not."""
    data = read_content(path)
    try:
        return msgspec.json.decode(data)
    except MemoryError as err:
        raise RawFormatError(f"{path}: not enough memory to read it", slug="out-of-memory") from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        message = f"{path} is damaged or truncated as JSON: {err}"
        raise RawFormatError(message, slug="damaged-recording") from err


def _expand_members(
    source: IO[bytes], new: Callable[[], Any], failures: _Failures = _FAILURES
) -> Iterator[bytes]:
    """Decompress all members in order; zero bytes between and after them are padding."""
    content = _without_trailing_zeros(source)
    member: Decompressor = new()
    while True:
        if member.eof:
            data = member.unused_data.lstrip(b"\0")
            while not data:
                block = content.read(PIECE_BYTES)
                if not block:
                    return
                data = block.lstrip(b"\0")
            member = new()
        elif member.needs_input:
            data = content.read(PIECE_BYTES)
            if not data:
                rest, ended = _rest(member, content.zeros, failures)
                if rest:
                    yield rest
                if not ended:
                    raise CutOffError
                continue
        else:
            data = b""
        try:
            out = member.decompress(data, PIECE_BYTES)
        except failures as err:
            raise DamagedError(err) from err
        if out:
            yield out


def _rest(member: Decompressor, zeros: int, failures: _Failures) -> tuple[bytes, bool]:
    """Return the remaining output of the last member, and True if the member is complete.

    A complete member may end in zero bytes that were removed as padding. In a truncated member,
    zero bytes would decode to copies of earlier output, so their output is used only if they
    complete the member.
    """
    rest = member.rest() if isinstance(member, _Gzip) else b""
    if zeros:
        with suppress(*failures):
            more = member.decompress(bytes(min(zeros, _MAX_MEMBER_ZEROS)), PIECE_BYTES)
            if member.eof:
                return rest + more, True
    return rest, False


class _PaddedFile:
    """A file without the zero bytes at its end, if there are many."""

    def __init__(self, source: IO[bytes], size: int | None, zeros: int) -> None:
        self.zeros, self._source = zeros, source
        self._left = size

    def read(self, size: int) -> bytes:
        if self._left is None:
            return self._source.read(size)
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data


def _without_trailing_zeros(source: IO[bytes]) -> _PaddedFile:
    """Remove the zero bytes that a file system leaves for data it lost in a crash."""
    if isinstance(source, zipfile.ZipExtFile) or not source.seekable():
        return _PaddedFile(source, None, 0)
    size = end = source.seek(0, io.SEEK_END)
    zeros = bytes(PIECE_BYTES)  # A comparison is much faster than `rstrip`.
    while end:
        begin = max(0, end - PIECE_BYTES)
        source.seek(begin)
        piece = source.read(end - begin)
        end = begin + (0 if piece == zeros else len(piece.rstrip(b"\0")))
        if end > begin:
            break
        if size - end > _MAX_TRAILING_ZEROS:
            raise DamagedError(f"it ends with more than {_MAX_TRAILING_ZEROS:,} zero bytes")
    source.seek(0)
    many = size - end >= _MAX_MEMBER_ZEROS
    return _PaddedFile(source, end if many else size, size - end if many else 0)


def _unzstd(source: IO[bytes]) -> Iterator[bytes]:
    module = zstd_module()
    if module is None:
        raise UnreadableError(
            "is compressed with zstd, which needs the package zstandard",
            hint="pip install 'unified-prof[zstd]', or decompress it first: zstd -d",
        )
    failures = (*_FAILURES, module.ZstdError)
    if module.__name__ == "zstandard":
        return _expand_members(source, lambda: _Zstandard(module), failures)
    return _expand_members(source, module.ZstdDecompressor, failures)


def zstd_module() -> Any:
    """Return a module that reads zstd: that of Python or of two packages; None if missing."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


class _Zstandard:
    """Adapts the package `zstandard` to the interface of `Decompressor`."""

    def __init__(self, module: Any) -> None:
        made = module.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._expanding = made.decompressobj()
        self._pending = b""

    @property
    def eof(self) -> bool:
        return bool(self._expanding.eof)

    @property
    def unused_data(self) -> bytes:
        unused: bytes = self._expanding.unused_data
        return unused + self._pending

    @property
    def needs_input(self) -> bool:
        return not self._pending

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decompress the input in small parts, because the package does not limit the output."""
        data = self._pending + data
        parts: list[bytes] = []
        at = size = 0
        while at < len(data) and size < max_length and not self.eof:
            parts.append(self._expanding.decompress(data[at : at + _ZSTD_INPUT_BYTES]))
            at += _ZSTD_INPUT_BYTES
            size += len(parts[-1])
        self._pending = data[at:]
        return b"".join(parts)


def _files(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [
        info
        for info in archive.infolist()
        if is_zip_file(info) and not any(name in info.filename for name in _ARCHIVER_FILES)
    ]


def is_zip_file(info: zipfile.ZipInfo) -> bool:
    """Return True for a file of an archive; False for a directory or an entry without a name."""
    return bool(info.filename) and not info.is_dir()


def count_zip_files(source: IO[bytes]) -> int:
    """Return the number of files in a zip archive, without metadata files; 0 if it is damaged."""
    try:
        with zipfile.ZipFile(source) as archive:
            return len(_files(archive))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return 0


@contextmanager
def _only_member(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the only recording in a zip archive."""
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as err:
        raise DamagedError("it has no central directory and is probably cut off") from err
    with archive:
        files = _files(archive)
        named = [info for info in files if _JSON in PurePosixPath(info.filename).name.lower()]
        inside = named or files
        if len(inside) != 1:
            names = some_of((info.filename for info in inside), 5)
            raise UnreadableError(
                f"is a zip archive of {len(inside)} files, expected one recording: {names}"
                if inside
                else "is an empty zip archive",
                hint="unpack it and import the directory",
            )
        (info,) = inside
        if info.flag_bits & 1:
            raise UnreadableError(
                f"is a zip archive with the encrypted file {info.filename}", hint="unpack it first"
            )
        if info.compress_type not in ZIP_METHODS:
            raise UnreadableError(
                f"is a zip archive whose {info.filename} is compressed with method"
                f" {info.compress_type}; only 0 (stored) and 8 (deflated) are read",
                hint="unpack it first",
            )
        try:
            with archive.open(info) as member:
                yield member
        except EOFError as err:
            raise CutOffError from err
        except (zipfile.BadZipFile, zlib.error, NotImplementedError) as err:
            raise DamagedError(err) from err


_FORMATS = (
    Format("gzip", (b"\x1f\x8b",), lambda source: _expand_members(source, _Gzip)),
    Format(
        "xz",
        (b"\xfd7zXZ\0",),
        lambda source: _expand_members(
            source, lambda: lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT)
        ),
    ),
    Format("bzip2", (b"BZh",), lambda source: _expand_members(source, bz2.BZ2Decompressor)),
    Format("zstd", (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), _unzstd),
    Format("zip", (b"PK\x03\x04", b"PK\x05\x06")),
)
