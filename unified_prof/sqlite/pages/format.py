"""SQLite's file format (sqlite.org/fileformat2.html): constants, header, pages, varints.

The module also has a connection that keeps its file open, so that pages can be read while SQLite
uses the file. All numbers of the format are big-endian.
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


Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

MAGIC = b"SQLite format 3\0"
# Size of the file header at the start of the first page; the page header follows.
HEADER_BYTES = 100
TABLE_LEAF = 13
TABLE_INTERIOR = 5
INDEX_LEAF = 10
INDEX_INTERIOR = 2
LEAF_HEADER_BYTES = 8
INTERIOR_HEADER_BYTES = 12
POINTER_BYTES = 2  # Size of an entry in a page's array of cell pointers.
CHILD_BYTES = 4  # Size of a page number, at the start of interior cells and overflow pages.
MIN_CELL_BYTES = 4  # Minimum size of a cell, so that it can become a free block.

# The page that contains this byte is never used, because SQLite locks these bytes.
LOCK_BYTE = 0x4000_0000

# Serial types: types of values in the header of a record.
NULL = 0
FLOAT = 7
ZERO = 8
ONE = 9
FIRST_BLOB = 12  # A blob of n bytes has this type plus 2 n.
FIRST_TEXT = 13  # A text of n bytes has this type plus 2 n.
# Serial type of an integer -> size in bytes; 0 for ZERO and ONE.
INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
# Size of a value by its serial type, below FIRST_BLOB; 10 and 11 are reserved.
WIDTHS = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
UTF8 = 1
_HEADER = struct.Struct(">16sHBBBBBB12I20xII")


@dataclass(frozen=True, slots=True)
class Header:
    """The file header: the first hundred bytes of a database."""

    page_bytes: int
    wal: bool  # True if newer pages may be in a write-ahead log.
    usable: int  # Bytes per page that are not reserved for extensions.
    change_counter: int
    pages: int  # Number of pages; valid if `version_valid_for` equals `change_counter`.
    first_free: int  # First trunk page of the list of free pages; 0: none.
    free_pages: int
    largest_root: int  # Not 0 in files with auto-vacuum, which have pointer map pages.
    encoding: int  # UTF8, UTF16LE or UTF16BE.
    version_valid_for: int

    @property
    def lock_page(self) -> int:
        """The number of the page that is never used."""
        return LOCK_BYTE // self.page_bytes + 1


def read_header(start: bytes) -> Header | None:
    """Return the header in the first HEADER_BYTES of a file; None if it is not a database."""
    if len(start) < HEADER_BYTES:
        return None
    # The largest page size does not fit and is stored as 1.
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
    """Return the maximum size of a record without overflow pages."""
    return usable - 35


def local_payload(usable: int, payload: Int64s) -> Int64s:
    """Return the number of bytes of each record in its cell in a table leaf.

    The rest is in overflow pages of `usable` - CHILD_BYTES bytes each; the number of the first one
    follows the local bytes.
    """
    most = most_local(usable)
    least = (usable - 12) * 32 // 255 - 23
    found = least + (payload - least) % (usable - CHILD_BYTES)
    return np.where(payload <= most, payload, np.where(found <= most, found, least))


SLACK = 8  # Zeros after the pages of `Pages.read`, so that eight bytes can be read at any position.


class Irregular(Exception):  # noqa: N818 - internal control flow
    """Raised if pages are not those of a plain, intact table, so that SQLite must read them."""


class OutsidePage(Exception):  # noqa: N818 - internal control flow
    """Raised for a row that SQLite may read from memory after its page, with varying results."""


class Pages:
    """The pages of a file; the caller must hold a lock on it, so that it does not change.

    Raises Irregular if the pages cannot be read without SQLite.
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
        """Return the concatenated pages, followed by SLACK zeros.

        If `again`, the array of the last call with this flag is reused; a new large array for every
        call would fragment the memory. Numbers begin at 1. Raises Irregular if a page cannot belong
        to a table, or the file has changed.
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
_MAX_VARINT_BYTES = 9


def read_varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at `places`, and the positions after them.

    A number that extends beyond the end of `data` is truncated.
    """
    byte = data[places]
    goes_on = byte >= _MORE
    after = places + 1
    if not goes_on.any():
        return byte.astype(np.int64), after
    values = (byte & _BITS).astype(np.int64)
    going: Int64s | slice = slice(None)  # all of them, while they have equal lengths
    for position in range(1, _MAX_VARINT_BYTES):
        if not goes_on.all():
            going = np.flatnonzero(goes_on) if isinstance(going, slice) else going[goes_on]
        at = after[going]
        byte = data[np.minimum(at, len(data) - 1)]
        after[going] = at + 1
        if position == _MAX_VARINT_BYTES - 1:  # the last byte has eight bits
            values[going] = values[going] << 8 | byte
            break
        values[going] = values[going] << 7 | byte & _BITS
        goes_on = byte >= _MORE
        if not goes_on.any():
            break
    return values, after


class FileConnection(sqlite3.Connection):
    """A connection that keeps its file open until it is closed.

    Closing the file earlier would release all POSIX locks of the process on it, including SQLite's.
    """

    # None if the file alone is not sufficient, for example if it has a write-ahead log.
    file: FileIO | None = None

    def hold(self, path: Path, before: os.stat_result) -> None:
        """Open the file of a new connection.

        `before` is the file's status before the connection was opened. If `path` is now another
        file or missing, the file is not opened.
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
