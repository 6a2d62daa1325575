"""What SQLite's file format (sqlite.org/fileformat2.html) lays down, as numbers and a header.

Nothing here reads or writes a file. Numbers of the format are big-endian throughout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

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
