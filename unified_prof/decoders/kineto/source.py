"""Reads a trace file, plain or gzip, as blocks of bytes in bounded memory.

What is inside is told by the first bytes, not by the file's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from unified_prof.errors import RawFormatError

_GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20
_PLAIN_READ_BYTES = 2 << 20

# A trace compresses 10 to 60 times; deflate can reach 1032. Beyond this ratio, and once the
# output is no longer small, the file is taken for a decompression bomb.
MAX_GZIP_RATIO = 400
_RATIO_CHECKED_FROM_BYTES = 64 << 20


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the decompressed content of `path` in blocks of any size.

    Raises:
        RawFormatError: the file cannot be read, its gzip stream is damaged or cut off, or it
            expands more than `MAX_GZIP_RATIO` times.
    """
    try:
        with path.open("rb") as source:
            head = source.read(2)
            source.seek(0)
            yield from _gunzip(path, source) if head == _GZIP_MAGIC else _plain(source)
    except OSError as err:
        raise RawFormatError(f"{path}: cannot be read: {err.strerror or err}") from err


def _plain(source: BinaryIO) -> Iterator[bytes]:
    while block := source.read(_PLAIN_READ_BYTES):
        yield block


def _gunzip(path: Path, source: BinaryIO) -> Iterator[bytes]:
    """Inflate a gzip file of one or several members, giving at most a few MiB at a time."""
    member = zlib.decompressobj(wbits=31)
    compressed = expanded = 0
    pending = b""
    try:
        while block := pending or source.read(_READ_BYTES):
            compressed += 0 if pending else len(block)
            out = member.decompress(block, _READ_BYTES)
            pending = member.unconsumed_tail
            expanded += len(out)
            if expanded > max(_RATIO_CHECKED_FROM_BYTES, MAX_GZIP_RATIO * compressed):
                raise RawFormatError(
                    f"{path}: expands more than {MAX_GZIP_RATIO} times, which no trace does",
                    hint="if the file can be trusted, decompress it and import the result",
                )
            if out:
                yield out
            if member.eof:
                # Another member may follow, or the zero bytes some writers pad with.
                pending = (member.unused_data or source.read(_READ_BYTES)).lstrip(b"\0")
                compressed += len(pending) if not member.unused_data else 0
                if not pending:
                    return
                member = zlib.decompressobj(wbits=31)
    except zlib.error as err:
        raise RawFormatError(f"{path}: the gzip data is damaged: {err}") from err
    raise RawFormatError(
        f"{path}: the gzip data ends before its end mark: the file is cut off",
        hint="copy the file again, or record again and wait until the profiler has written it",
    )
