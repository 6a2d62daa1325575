"""The formats that traces are compressed with, read piece by piece in bounded memory.

What a file is compressed with is told by its first bytes, not by its name.

Recordings that are one JSON document, read as a whole.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import msgspec

from unified_prof.errors import RawFormatError

SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".zip")
"""Of files in these formats."""

PIECE_BYTES = 1 << 20
_PLAIN_PIECE_BYTES = 2 << 20
_MAGIC_BYTES = 8
_MOST_ZEROS_OF_MEMBER = 64
_Failures = tuple[type[Exception], ...]
_FAILURES: _Failures = (zlib.error, OSError, EOFError, lzma.LZMAError)
_HEAD_BYTES = 32 << 10
_OTHER_HEAD_BYTES = 1 << 20  # bzip2 gives nothing before it has seen a whole block
_MEMORY_LIMIT = 192 << 20  # of the dictionaries that a file may ask for; xz -9 takes 65 MiB
_ZSTD_WINDOW = 1 << 27  # the largest that zstd itself reads unasked
_ZSTD_TAKEN_BYTES = 512  # of which at most 16 MiB come
_NESTED = 2
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What archivers add to what they were given.
_BESIDES = ("__MACOSX/", ".DS_Store")
_JSON = ".json"


class CutOffError(Exception):
    """The compressed data ends before its end mark; all before that was given."""


class DamagedError(Exception):
    """The compressed data cannot be read on, for the reason that is its text."""


class UnreadableError(Exception):
    """The file is whole but not for us; the reason is its text, what to do is `hint`."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Decompressor(Protocol):
    """What `bz2`, `lzma` and the zstd of Python 3.14 have in common."""

    @property
    def eof(self) -> bool:
        """Whether the end mark was read."""

    @property
    def unused_data(self) -> bytes:
        """What follows the end mark."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more can be given without more input."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Take `data`, give at most `max_length` bytes."""


class _Gzip:
    """`zlib`'s, in the words of the others."""

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
        """Give what is left where the data ends without an end mark."""
        return self._inflating.flush()


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    magics: tuple[bytes, ...]
    expand: Callable[[IO[bytes]], Iterator[bytes]] | None = None
    """Yields what is inside; raises the errors of this module. None: an archive."""


def format_of(head: bytes) -> Format | None:
    """Return the format of a file by its first bytes, None if it is none of these."""
    return next((one for one in _FORMATS if head.startswith(one.magics)), None)


def expand(source: IO[bytes], nested: int = _NESTED) -> Iterator[bytes]:
    """Yield what is in a file, compressed or not, in pieces of bounded size.

    Args:
        source: The file, at its start; it can be sought in.
        nested: How many formats may lie inside one another: an archive holds compressed files.
    """
    head = source.read(_MAGIC_BYTES)
    source.seek(0)
    found = format_of(head) if nested else None
    if found is None:
        while piece := source.read(_PLAIN_PIECE_BYTES):
            yield piece
    elif found.expand is None:
        with _only_member(source) as member:
            yield from expand(member, nested - 1)
    else:
        yield from found.expand(source)


def head_of(path: Path) -> bytes | None:
    """Return the first bytes of what a file holds, decompressed; None: they cannot be had.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as source:
        head = source.read(_HEAD_BYTES)
        form = format_of(head)
        if form is None:
            return head
        if form.name != "gzip":
            head += source.read(_OTHER_HEAD_BYTES)
        try:
            # An archive is told by its end; of a stream its beginning is enough.
            start = source if form.expand is None else io.BytesIO(head)
            start.seek(0)
            return next(expand(start), b"")[:_HEAD_BYTES]
        except (CutOffError, DamagedError, UnreadableError):
            return None


# ---- streams of one or several members


def _expand_members(
    source: IO[bytes], new: Callable[[], Any], failures: _Failures = _FAILURES
) -> Iterator[bytes]:
    """Decompress members one after the other; zero bytes between and behind them are padding."""
    content = _without_zeros_behind(source)
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
    """Return what a member holds back where its data ends, and whether that was all.

    A whole member may end in some zero bytes. To one that was cut off they would mean copies of
    what came before, so what they give counts only if the member ends with them.
    """
    rest = member.rest() if isinstance(member, _Gzip) else b""
    if zeros:
        with suppress(*failures):
            more = member.decompress(bytes(min(zeros, _MOST_ZEROS_OF_MEMBER)), PIECE_BYTES)
            if member.eof:
                return rest + more, True
    return rest, False


class _Content:
    """A file up to the zero bytes that it ends with, if these are many."""

    def __init__(self, source: IO[bytes], size: int | None, zeros: int) -> None:
        self.zeros = zeros
        self._source = source
        self._left = size

    def read(self, size: int) -> bytes:
        if self._left is None:
            return self._source.read(size)
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data


def _without_zeros_behind(source: IO[bytes]) -> _Content:
    """Leave off what a file system that went down had no bytes for, only their number."""
    if isinstance(source, zipfile.ZipExtFile):
        return _Content(source, None, 0)
    size = end = source.seek(0, io.SEEK_END)
    while end:
        begin = max(0, end - PIECE_BYTES)
        source.seek(begin)
        end = begin + len(source.read(end - begin).rstrip(b"\0"))
        if end > begin:
            break
    source.seek(0)
    many = size - end >= _MOST_ZEROS_OF_MEMBER
    return _Content(source, end if many else size, size - end if many else 0)


def _gunzip(source: IO[bytes]) -> Iterator[bytes]:
    return _expand_members(source, _Gzip)


def _unbzip2(source: IO[bytes]) -> Iterator[bytes]:
    return _expand_members(source, bz2.BZ2Decompressor)


def _unxz(source: IO[bytes]) -> Iterator[bytes]:
    return _expand_members(source, lambda: lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT))


# ---- zstd, for which Python has a module since 3.14


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
    """Return the first module here that reads zstd: Python's own or one of two packages."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


class _Zstandard:
    """The package `zstandard`, in the words of the others."""

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
        """Take a little at a time, as it gives all that comes of what it takes."""
        data = self._pending + data
        parts: list[bytes] = []
        at = size = 0
        while at < len(data) and size < max_length and not self.eof:
            parts.append(self._expanding.decompress(data[at : at + _ZSTD_TAKEN_BYTES]))
            at += _ZSTD_TAKEN_BYTES
            size += len(parts[-1])
        self._pending = data[at:]
        return b"".join(parts)


# ---- archives


def _candidates(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the members with JSON by their names, or all where none has such a name."""
    files = [
        info
        for info in archive.infolist()
        if not info.is_dir() and not any(word in info.filename for word in _BESIDES)
    ]
    named = [info for info in files if _JSON in PurePosixPath(info.filename).name.lower()]
    return named or files


@contextmanager
def _only_member(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the one trace of a zip archive."""
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as err:
        raise DamagedError("it has no list of its contents, as when it is cut off") from err
    with archive:
        inside = _candidates(archive)
        if len(inside) != 1:
            names = ", ".join(info.filename for info in inside[:5])
            more = f" and {len(inside) - 5} more" if len(inside) > 5 else ""
            raise UnreadableError(
                f"is a zip archive of {len(inside)} files, not of one trace: {names}{more}"
                if inside
                else "is a zip archive without a file in it",
                hint="unpack it and import the folder: each trace becomes a report of its own",
            )
        (info,) = inside
        if info.flag_bits & 1:
            raise UnreadableError(
                f"is a zip archive whose {info.filename} is encrypted", hint="unpack it first"
            )
        if info.compress_type not in _ZIP_METHODS:
            raise UnreadableError(
                f"is a zip archive whose {info.filename} is packed by method"
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
    Format("gzip", (b"\x1f\x8b",), _gunzip),
    Format("xz", (b"\xfd7zXZ\0",), _unxz),
    Format("bzip2", (b"BZh",), _unbzip2),
    Format("zstd", (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), _unzstd),
    Format("zip", (b"PK\x03\x04", b"PK\x05\x06")),
)


def read(path: Path) -> Any:
    """Return the document in a file.

    Raises:
        RawFormatError: the file cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise RawFormatError(
            f"{path} is damaged or cut off as JSON: {err}", slug="damaged-recording"
        ) from err
