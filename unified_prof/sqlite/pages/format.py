"""SQLite's file format (sqlite.org/fileformat2.html): constants, header, pages, varints.

The module also has a connection that keeps its file open, so that pages can be read while SQLite
uses the file. All numbers of the format are big-endian.

Pages of a table are read in the order of row ids. They are checked slightly more strictly than by
SQLite; nothing outside a page is read. Pages of a damaged file may form cycles. The keys of a
b-tree must ascend and be between the keys of the page above, which is checked for every page, so no
page is read twice.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Frame
from unified_prof.sqlite.statements import quoted, row_id_name

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


class Header(Struct, frozen=True):
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


_OUTSIDE_RECORDS = (2, 3)  # `hidden` of generated columns in PRAGMA table_xinfo


class Layout(Struct, frozen=True):
    """Layout of the records of a table with row ids and without generated columns."""

    root: int
    places: dict[str, int]  # Column name in lower case -> its position in records, from 0.
    row_id: str | None  # The column (name in lower case) that is an alias of the row id.
    row_id_name: str  # A name of the row id that is not also a column: `rowid`, `oid` or `_rowid_`.
    nullable: frozenset[int]  # Positions of columns that are NULL if a record ends before them.
    affinities: tuple[str, ...]  # Affinity of each column, to which SQLite converts values.
    is_utf8: bool


def layout_of(db: sqlite3.Connection, table: str) -> Layout | None:
    """Return the layout of the records of a table, None if only SQLite can read them.

    Raises sqlite3.Error if SQLite cannot read the schema.
    """
    found = db.execute(
        "SELECT rootpage, type, sql FROM main.sqlite_master WHERE lower(name) = lower(?)", (table,)
    ).fetchall()
    if len(found) != 1 or found[0][1] != "table" or not isinstance(found[0][0], int):
        return None
    root, _, sql = found[0]
    if root < 2 or not str(sql).upper().startswith("CREATE TABLE"):
        return None
    places: dict[str, int] = {}
    nullable = set()
    affinities = []
    keys = []
    columns = db.execute(f"PRAGMA main.table_xinfo({quoted(table)})").fetchall()
    for place, (_, name, kind, _, default, key, hidden) in enumerate(columns):
        if hidden in _OUTSIDE_RECORDS:
            return None
        places[str(name).lower()] = place
        if default is None or str(default).upper() == "NULL":
            nullable.add(place)
        affinities.append(_affinity(str(kind).upper()))
        if key:
            keys.append((str(name).lower(), str(kind).upper()))
    indexes = db.execute(f"PRAGMA main.index_list({quoted(table)})").fetchall()
    has_key_index = any(index[3] == "pk" for index in indexes)
    is_row_id = len(keys) == 1 and keys[0][1] == "INTEGER" and not has_key_index
    row_id = keys[0][0] if is_row_id else None
    name = row_id_name(places)
    if name is None:
        return None
    ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
    return Layout(
        root=root,
        places=places,
        row_id=row_id,
        row_id_name=name,
        nullable=frozenset(nullable),
        affinities=tuple(affinities),
        is_utf8=encoding == "UTF-8",
    )


def _affinity(kind: str) -> str:
    """Return the affinity of a declared type, by applying SQLite's rules in order."""
    if "INT" in kind:
        return "INTEGER"
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not kind or "BLOB" in kind:
        return "BLOB"
    return "REAL" if any(part in kind for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


_MAX_LEVELS = 20  # SQLite's limit
_MIN_ID, _MAX_ID = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Leaves(Frame):
    """Leaf pages, with the bounds of their row ids from the interior pages."""

    numbers: Int64s
    upper: Int64s  # Maximum row id of each leaf.


def leaves(pages: Pages, root: int, *, at_a_time: int) -> Iterator[Leaves]:
    """Yield all leaves of a table, about `at_a_time` at a time.

    Raises Irregular if the pages are not an intact b-tree of a table with rows.
    """
    depth = _depth(pages, root)
    waiting: list[Leaves] = []
    count = 0
    for some in _below(pages, root, _MIN_ID, _MAX_ID, depth):
        waiting.append(some)
        count += len(some)
        if count < at_a_time:
            continue
        found = Leaves.concatenate(waiting)
        whole = count - count % at_a_time
        for begin in range(0, whole, at_a_time):
            part = slice(begin, begin + at_a_time)
            yield found.take(part)
        waiting = [found.take(slice(whole, None))]
        count -= whole
    if count:
        yield Leaves.concatenate(waiting)


def _depth(pages: Pages, number: int) -> int:
    """Return the number of levels above the leaves."""
    for depth in range(_MAX_LEVELS):
        page = pages.read(np.array([number]))
        if page[0] == TABLE_LEAF:
            return depth
        number = int(_children(page, pages)[0][0])
    raise Irregular


def _below(pages: Pages, number: int, lower: int, upper: int, depth: int) -> Iterator[Leaves]:
    """Yield the leaves under a page whose row ids are greater than `lower` and at most `upper`."""
    if depth == 0:
        yield Leaves(np.array([number]), np.array([upper]))
        return
    children, keys = _children(pages.read(np.array([number])), pages)
    bounds = np.append(keys, upper)
    if lower != _MIN_ID:
        bounds = np.insert(bounds, 0, lower)
    if not (bounds[1:] > bounds[:-1]).all():
        raise Irregular
    bounds = np.append(keys, upper)
    if depth == 1:
        yield Leaves(children, bounds)
        return
    for child, bound in zip(children.tolist(), bounds.tolist(), strict=True):
        yield from _below(pages, child, lower, bound, depth - 1)
        lower = bound


def _children(page: Bytes, pages: Pages) -> tuple[Int64s, Int64s]:
    """Return the child pages of an interior page, and the keys between them."""
    usable = pages.header.usable
    if page[0] != TABLE_INTERIOR:
        raise Irregular
    count = int(page[3:5].view(">u2")[0])
    end = INTERIOR_HEADER_BYTES + count * POINTER_BYTES
    if count == 0 or end > usable:
        raise Irregular
    cells = page[INTERIOR_HEADER_BYTES:end].view(">u2").astype(np.int64)
    if int(cells.min()) < end or int(cells.max()) > usable - CHILD_BYTES - 1:
        raise Irregular
    keys, after = read_varints(page, cells + CHILD_BYTES)
    if int(after.max()) > usable:
        raise Irregular
    numbers = np.ndarray((len(page) - 3,), ">u4", page.data, 0, (1,))
    children = numbers[np.append(cells, 8)].astype(np.int64)
    return children, keys


_MAX_PAYLOAD = 2**31 - 1


class Rows(Struct, frozen=True):
    """Records of rows in the order of their ids."""

    data: Bytes  # The pages of the records, and format.SLACK zeros.
    ids: Int64s
    begin: Int64s  # Start of each record in `data`, where the size of its header is.
    end: Int64s  # End that each record would have without overflow pages.
    end_here: Int64s  # End of each record in its page.

    def __len__(self) -> int:
        return len(self.ids)


def rows_of(pages: Pages, leaves: Leaves, after: int | None) -> Rows:
    """Find the rows of the given leaves.

    `after` is the last row id before these leaves, None if there is none. Raises Irregular if a
    page is not a leaf, is damaged, or its rows are not in order, and OutsidePage if a row extends
    beyond its page.
    """
    page_bytes, usable = pages.header.page_bytes, pages.header.usable
    data = pages.read(leaves.numbers, again=True)
    starts = np.arange(len(leaves.numbers)) * page_bytes
    halves = np.ndarray((len(data) - 1,), ">u2", data.data, 0, (1,))
    counts = halves[starts + 3].astype(np.int64)
    if not (data[starts] == TABLE_LEAF).all() or int(counts.min()) == 0:
        raise Irregular
    heads = LEAF_HEADER_BYTES + counts * POINTER_BYTES
    if int(heads.max()) > usable:
        raise Irregular
    ends = np.cumsum(counts)
    firsts = ends - counts
    total = int(ends[-1])
    pointers = np.arange(total) * POINTER_BYTES
    pointers += np.repeat(starts + LEAF_HEADER_BYTES - firsts * POINTER_BYTES, counts)
    places = halves[pointers].astype(np.int64)
    if (np.minimum.reduceat(places, firsts) < heads).any() or int(places.max()) >= usable:
        raise OutsidePage
    page = np.repeat(starts, counts)
    places += page
    sizes, ids_at = read_varints(data, places)
    ids, begin = read_varints(data, ids_at)
    if int(sizes.min()) < 0 or int(sizes.max()) > _MAX_PAYLOAD:
        raise Irregular
    end = begin + sizes
    end_here = end
    if int(sizes.max()) > most_local(usable):
        end_here = begin + local_payload(usable, sizes)
    page += usable
    if (end_here > page).any():
        raise OutsidePage
    if not (ids[1:] > ids[:-1]).all() or (ids[ends - 1] > leaves.upper).any():
        raise Irregular
    if after is not None and int(ids[0]) <= after:
        raise Irregular
    return Rows(data, ids, begin, end, end_here)
