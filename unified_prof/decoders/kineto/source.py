"""Reads a trace file, compressed or not, as blocks of bytes in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from unified_prof.decoders.compression import (
    CutOffError,
    DamagedError,
    UnreadableError,
    expand,
    format_of,
)
from unified_prof.errors import RawFormatError

# A trace compresses 10 to 60 times, one of a loop that repeats itself some hundred times. Beyond
# these ratios, and once the output is no longer small, a file is taken for a bomb: nothing that
# it holds would take memory, but time and disk without end.
MAX_RATIO = {"gzip": 400}
MAX_OTHER_RATIO = 4000
_RATIO_CHECKED_FROM_BYTES = 64 << 20


class TraceFile:
    """One file; what it holds is read once."""

    def __init__(self, path: Path) -> None:
        self.cut_off = False
        """Whether its compressed data ends before their end mark; complete with the blocks."""
        self._path = path

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of any size.

        Raises:
            RawFormatError: the file cannot be read, its compressed data is damaged, or it expands
                more than any trace does.
        """
        try:
            with self._path.open("rb") as source:
                yield from self._blocks(source)
        except OSError as err:
            why = err.strerror or err
            raise RawFormatError(
                f"{self._path}: cannot be read: {why}", slug="cannot-read"
            ) from err

    def _blocks(self, source: IO[bytes]) -> Iterator[bytes]:
        form = format_of(source.read(8))
        source.seek(0)
        counted = _Counted(source)
        most = MAX_RATIO.get(form.name, MAX_OTHER_RATIO) if form else 1
        expanded = 0
        try:
            for block in expand(counted):  # type: ignore[arg-type]
                expanded += len(block)
                if expanded > max(_RATIO_CHECKED_FROM_BYTES, most * counted.bytes_read) and form:
                    raise RawFormatError(
                        f"{self._path}: expands more than {most} times, which no trace does",
                        hint="if the file can be trusted, decompress it and import the result",
                        slug="compression",
                    )
                yield block
        except CutOffError:
            self.cut_off = True
        except DamagedError as err:
            name = form.name if form else ""
            raise RawFormatError(
                f"{self._path}: the {name} data is damaged: {err}", slug="damaged-recording"
            ) from err
        except UnreadableError as err:
            raise RawFormatError(f"{self._path}: {err}", hint=err.hint, slug="compression") from err


class _Counted:
    """A file of which it is known how much was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.bytes_read = 0
        self._source = source

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
