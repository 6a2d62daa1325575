"""Standard input as a recording: a file of this process's own, for as long as it is needed.

Recordings are read more than once, and some from their ends. So what comes through a pipe is kept
in a private folder, unpacked where it is packed, and taken away again.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from unified_prof.errors import OutputError, RawFormatError, UsageError
from unified_prof.store.ownership import temporary_folder

NAME = "stdin"
"""What the file is called, and what its report is named after."""
MOST_BYTES = 16 << 30
"""What is taken, unpacked: more is a mistake, or a recording to be had as a file."""
_CHUNK = 1 << 20
_LONGEST_MAGIC = 6
_PACKED: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
)
_DAMAGED = (zlib.error, lzma.LZMAError, OSError)


@contextmanager
def as_file(progress: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """Yield a file with what stdin holds.

    Raises:
        UsageError: it is closed, or a terminal.
        RawFormatError: it is empty, or too long.
        OutputError: it cannot be kept in the folder for temporary files.
    """
    stream = _stream()
    with ExitStack() as resources:
        try:
            path = resources.enter_context(temporary_folder()) / NAME
            progress("reading standard input")
            _keep(stream, path)
        except OSError as err:
            raise OutputError(
                f"cannot keep standard input in a temporary file: {err.strerror or err}",
                hint="TMPDIR names another folder",
                slug="no-temporary-space",
            ) from err
        yield path


def _stream() -> IO[bytes]:
    stream: IO[bytes] | None = getattr(sys.stdin, "buffer", None)
    try:
        if stream is None or stream.closed:
            raise UsageError(
                "standard input is closed, there is nothing to convert", slug="no-standard-input"
            )
        if stream.isatty():
            raise UsageError(
                "standard input is a terminal",
                hint="pipe a recording in: `... | uprof import -`",
                slug="no-standard-input",
            )
    except ValueError:  # raised by isatty() of a stream that was closed underneath
        raise UsageError(
            "standard input is closed, there is nothing to convert", slug="no-standard-input"
        ) from None
    return stream


def _keep(stream: IO[bytes], path: Path) -> None:
    kept = 0
    with path.open("xb") as file:
        for chunk in _chunks(stream):
            kept += len(chunk)
            if kept > MOST_BYTES:
                raise RawFormatError(
                    f"standard input is longer than {MOST_BYTES:,} bytes",
                    hint="write it to a file and name that",
                    slug="input-too-long",
                )
            file.write(chunk)
    if not kept:
        raise RawFormatError("standard input is empty", slug="empty-file")


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what the stream holds, unpacked; of what is cut off, all that is there.

    Raises:
        RawFormatError: it is packed and damaged.
    """
    joined = _Joined(stream.read(_LONGEST_MAGIC), stream)
    unpack = next((unpack for magic, unpack in _PACKED if joined.head.startswith(magic)), None)
    if unpack is None:
        while chunk := joined.read(_CHUNK):
            yield chunk
        return
    unpacked = unpack(joined)
    try:
        while chunk := unpacked.read1(_CHUNK):
            yield chunk
    except EOFError:
        return  # whoever reads it finds it cut off
    except _DAMAGED as err:
        raise RawFormatError(
            f"standard input is packed, and damaged: {err}", slug="damaged-recording"
        ) from err


class _Joined:
    """A stream whose first bytes were read to see what it is."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self.head = head
        self._left = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes; a few of the head come alone."""
        if self._left:
            found = self._left if size < 0 else self._left[:size]
            self._left = self._left[len(found) :]
            return found if size >= 0 else found + self._stream.read()
        return self._stream.read(size)
