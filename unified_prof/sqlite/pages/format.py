"""What SQLite's file format (sqlite.org/fileformat2.html) lays down, as numbers and a header.

Nothing here reads or writes a file. Numbers of the format are big-endian throughout.

The pages of a database, read from the file itself and not through SQLite.

SQLite's integers of one to nine bytes, many at a time.

A connection that keeps the file under it open, for pages to be read beside SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from io import FileIO


MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
"""At the start of the first page; the page's own header follows."""

TABLE_LEAF = 13
TABLE_INTERIOR = 5
INDEX_LEAF = 10
INDEX_INTERIOR = 2

LEAF_HEADER_BYTES = 8
INTERIOR_HEADER_BYTES = 12
POINTER_BYTES = 2
"""Of an entry in a page's array of places of cells."""
CHILD_BYTES = 4
"""Of a page number, at the start of an interior cell and of an overflow page."""
LEAST_CELL_BYTES = 4
"""Smaller cells take as much, so that they can become free blocks."""

LOCK_BYTE = 0x4000_0000
"""The page that holds this byte of the file is never used: it is where files are locked."""

# Serial types: what the header of a record says of a value.
NULL = 0
FLOAT = 7
ZERO = 8
ONE = 9
FIRST_BLOB = 12
"""A blob of n bytes has this and 2 n."""
FIRST_TEXT = 13
"""A text of n bytes has this and 2 n."""
INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Serial type of an integer -> its bytes, signed; ZERO and ONE have none."""
WIDTHS = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
"""Bytes of a value by its serial type, below FIRST_BLOB; 10 and 11 are SQLite's own."""

UTF8 = 1
_HEADER = struct.Struct(">16sHBBBBBB12I20xII")


@dataclass(frozen=True, slots=True)
class Header:
    """What the first hundred bytes of a database say of its pages."""

    page_bytes: int
    wal: bool
    """Whether newer pages may lie in a write-ahead log."""
    usable: int
    """Bytes of a page that are not reserved for extensions."""
    change_counter: int
    pages: int
    """As the header says it; true where `version_valid_for` equals `change_counter`."""
    first_free: int
    """First trunk page of the list of free pages, 0 where there is none."""
    free_pages: int
    largest_root: int
    """Not 0 in files that vacuum themselves, which have pages of pointers in between."""
    encoding: int
    """UTF8, or one of the two of UTF-16."""
    version_valid_for: int

    @property
    def lock_page(self) -> int:
        """The number of the page that is never used."""
        return LOCK_BYTE // self.page_bytes + 1


def read_header(start: bytes) -> Header | None:
    """Return what the first HEADER_BYTES of a file say; None where it is no such database."""
    if len(start) < HEADER_BYTES:
        return None
    # The size of the largest pages does not fit and stands as 1.
    (magic, size, write, read, reserved, *fractions, counter, pages, free, frees, _, _, _, root,
     encoding, _, _, _, valid_for, _) = _HEADER.unpack_from(start)  # fmt: skip
    page_bytes = 65536 if size == 1 else size
    usable = page_bytes - reserved
    if (
        magic != MAGIC
        or fractions != [64, 32, 32]
        or not 512 <= page_bytes <= 65536
        or page_bytes & (page_bytes - 1)
        or usable < 480
        or write > 2
        or read > 2
    ):
        return None
    return Header(
        page_bytes=page_bytes,
        wal=read == 2,
        usable=usable,
        change_counter=counter,
        pages=pages,
        first_free=free,
        free_pages=frees,
        largest_root=root,
        encoding=encoding,
        version_valid_for=valid_for,
    )


def most_local(usable: int) -> int:
    """Return how long a record may be that stands in a table's leaf as a whole."""
    return usable - 35


def local_payload(usable: int, payload: int) -> int:
    """Return how many bytes of a table leaf's payload stand in its cell.

    The rest is in overflow pages of `usable` - CHILD_BYTES bytes each; the first of them is named
    after the local bytes.
    """
    most = most_local(usable)
    if payload <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    found = least + (payload - least) % (usable - CHILD_BYTES)
    return found if found <= most else least


Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

SLACK = 8
"""Bytes after the last page of what `Pages.read` returns: any place in it starts eight bytes."""


class Irregular(Exception):  # noqa: N818 - a turn of the road, never seen outside the store
    """Pages are not as those of a plain, whole table: what they say, SQLite shall say."""


class Pages:
    """The pages of a file that nobody changes; the caller holds a lock on it.

    Raises:
        Irregular: it has no pages that could be read without SQLite.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        header = None
        try:
            state = os.fstat(file.fileno())
            file.seek(0)
            header = read_header(file.read(HEADER_BYTES) or b"")
        except OSError as err:
            raise Irregular from err
        if header is None:
            raise Irregular
        self.header: Header = header
        self._buffer = np.empty(0, np.uint8)
        self._state = (state.st_size, state.st_mtime_ns)
        self._count = state.st_size // header.page_bytes
        if header.version_valid_for == header.change_counter:
            self._count = min(self._count, header.pages)

    def read(self, numbers: Int64s, *, again: bool = False) -> Bytes:
        """Return pages, one after another, and SLACK zeros.

        Args:
            numbers: Of the pages, from 1.
            again: Whether to put them where the last pages read with this flag were, which are
                gone then; a large array for every call would leave holes in memory.

        Raises:
            Irregular: a number is none of a page of a table, or the file has changed.
        """
        size = self.header.page_bytes
        if not len(numbers) or int(numbers.min()) < 1 or int(numbers.max()) > self._count:
            raise Irregular
        if (numbers == self.header.lock_page).any():
            raise Irregular
        data = np.empty(len(numbers) * size + SLACK, np.uint8) if not again else self._buffer
        if again and len(data) != len(numbers) * size + SLACK:
            data = self._buffer = np.empty(len(numbers) * size + SLACK, np.uint8)
        data[-SLACK:] = 0
        view = data.data
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        firsts = numbers[cuts[:-1]].tolist()
        try:
            for first, begin, end in zip(firsts, cuts, cuts[1:], strict=False):
                self._file.seek((first - 1) * size)
                if self._file.readinto(view[begin * size : end * size]) != (end - begin) * size:
                    raise Irregular
            state = os.fstat(self._file.fileno())
        except OSError as err:
            raise Irregular from err
        if (state.st_size, state.st_mtime_ns) != self._state:
            raise Irregular
        return data


_MORE = 0x80
_BITS = np.uint8(0x7F)
_LONGEST = 9


def read_varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at `places`, and where what follows them begins.

    Nothing is read past the end of `data`: a number that would go there ends with it.
    """
    byte = data[places]
    goes_on = byte >= _MORE
    after = places + 1
    if not goes_on.any():
        return byte.astype(np.int64), after
    values = (byte & _BITS).astype(np.int64)
    going: Int64s | slice = slice(None)  # all of them, as long as they are equally long
    for position in range(1, _LONGEST):
        if not goes_on.all():
            going = np.flatnonzero(goes_on) if isinstance(going, slice) else going[goes_on]
        at = after[going]
        byte = data[np.minimum(at, len(data) - 1)]
        after[going] = at + 1
        if position == _LONGEST - 1:  # the last has all its eight bits
            values[going] = values[going] << 8 | byte
            break
        values[going] = values[going] << 7 | byte & _BITS
        goes_on = byte >= _MORE
        if not goes_on.any():
            break
    return values, after


class FileConnection(sqlite3.Connection):
    """A connection with the file under it, open for as long as the connection is.

    Not shorter: where a process closes a file, POSIX takes all locks on it from the process, those
    of SQLite too.
    """

    file: FileIO | None = None
    """None where SQLite knows more than the file says, such as a log beside it."""

    def hold(self, path: Path, before: os.stat_result) -> None:
        """Open the file of a connection that has just been made.

        Args:
            path: Its name.
            before: What the name stood for before the connection was made. Where it stands for
                another file by now, or none, nothing is held.
        """
        with suppress(OSError):
            file = path.open("rb", buffering=0)
            if os.path.samestat(before, os.fstat(file.fileno())):
                self.file = file
            else:
                file.close()

    def close(self) -> None:
        """Close the connection, then the file."""
        super().close()
        if self.file is not None:
            self.file.close()
