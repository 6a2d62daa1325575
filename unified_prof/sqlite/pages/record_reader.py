"""Reader of a table's rows from the pages of its file, and decoding of column values.

A record is a header of types followed by the values, so the values of a column are found by
stepping over the columns before it, in all rows at once.

During reading, SQLite's connection holds the lock of the file. If the pages alone are not
sufficient (a write-ahead log, WITHOUT ROWID, generated columns), nothing is read here. If a page is
irregular, SQLite must read the remaining rows; if records are irregular, it must read these rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator
from contextlib import closing, suppress

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.sqlite.pages.format import (
    FIRST_BLOB,
    FIRST_TEXT,
    FLOAT,
    NULL,
    ONE,
    WIDTHS,
    ZERO,
    Bytes,
    FileConnection,
    Int64s,
    Irregular,
    Layout,
    OutsidePage,
    Pages,
    Rows,
    layout_of,
    leaves,
    read_varints,
    rows_of,
)
from unified_prof.sqlite.statements import quoted

_ONE_BYTE_TYPES = 0x80
# Size of a value by its type, for types of one byte in the header.
_OF_ONE_BYTE = np.concatenate(
    [WIDTHS, (np.arange(FIRST_BLOB, _ONE_BYTE_TYPES) - FIRST_BLOB) // 2]
).astype(np.int64)

# Right shift of eight bytes that begin with an integer, by its type.
_SHIFTS = np.array([63, 56, 48, 40, 32, 16, 0, 0, 63, 63, 63, 63], np.int64)
# Types that NumPy has.
_NUMPY_TYPES = {1: ">i1", 2: ">i2", 4: ">i4", 6: ">i8"}
_MAX_TYPE = 2**31
_EIGHT = 8
_MAX_DIGITS = 19
_MAX_INT64 = np.uint64(2**63 - 1)
# Convert eight digits, the first in the lowest byte, by combining neighbors: bytes to pairs, pairs
# to fours, fours to eight.
_ZEROS = 0x3030_3030_3030_3030
_HIGH = np.uint64(0xF0F0_F0F0_F0F0_F0F0)
_SIX = np.uint64(0x0606_0606_0606_0606)
_LOW = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
_PAIRS = tuple(
    (np.uint64(factor), np.uint64(shift), np.uint64(mask))
    for factor, shift, mask in (
        (10 << 8 | 1, 8, 0x00FF_00FF_00FF_00FF),
        (100 << 16 | 1, 16, 0x0000_FFFF_0000_FFFF),
        (10_000 << 32 | 1, 32, 0xFFFF_FFFF),
    )
)


class Unusual(Exception):  # noqa: N818 - internal control flow
    """Raised if only SQLite can convert some of the values as requested."""


class Values(Struct, frozen=True):
    """Values of a column in a block of rows, given by type and position."""

    data: Bytes
    types: NDArray[np.integer]  # Serial types; the type of NULL if a record ends before the column.
    only: int | None  # The common type, if all values have the same type.
    places: Int64s

    def __len__(self) -> int:
        return len(self.places)

    @property
    def is_null(self) -> NDArray[np.bool_]:
        """Mask of the values that are NULL."""
        return np.asarray(self.types == NULL)

    @property
    def are_whole(self) -> bool:
        """True if all values are integers or NULL."""
        types = self.types
        if self.only is not None:
            return self.only in (ZERO, ONE) or self.only < FLOAT
        return bool(((types < FLOAT) | (types == ZERO) | (types == ONE)).all())

    @property
    def are_texts(self) -> bool:
        """True if all values are texts or NULL."""
        types = self.types
        return bool(((types == NULL) | ((types >= FIRST_TEXT) & (types & 1 == 1))).all())

    def where(self, chosen: NDArray[np.bool_]) -> Values:
        """Return the values of the rows selected by a mask."""
        return Values(self.data, self.types[chosen], self.only, self.places[chosen])

    def integers(self, missing: int) -> Int64s:
        """Return the integers, `missing` for other values."""
        if self.only is not None:
            return self._equal_types(self.only, missing)
        types = self.types
        highest = int(types.max())
        if highest > ONE:
            types = np.where(types > ONE, NULL, types)
        found = self._eight_bytes()
        found >>= _SHIFTS.take(types)
        if highest >= FLOAT:
            found[types == ZERO] = 0
            found[types == ONE] = 1
            found[types == FLOAT] = missing
        found[types == NULL] = missing
        return found

    def in_digits(self, missing: int) -> Int64s:
        """Return integers and texts of digits as integers, `missing` for NULL.

        Raises Unusual if there are other values, or numbers of more than 18 digits, which may not
        fit.
        """
        if self.are_whole:
            return self.integers(missing)
        found = np.full(len(self), missing, np.int64)
        kinds = [self.only] if self.only is not None else np.flatnonzero(_counted(self.types))
        for kind in map(int, kinds):
            if kind == NULL:
                continue
            some = self if self.only is not None else self.where(self.types == kind)
            if kind < FIRST_BLOB:
                if kind == FLOAT:
                    raise Unusual
                values = Values(some.data, some.types, kind, some.places).integers(missing)
            else:
                values = some._digits(kind)
            if self.only is not None:
                return values
            found[self.types == kind] = values
        return found

    def _digits(self, kind: int) -> Int64s:
        """Convert texts of digits of equal length."""
        length = (kind - FIRST_TEXT) >> 1
        if not kind & 1 or not 1 <= length <= _MAX_DIGITS:
            raise Unusual
        there = np.ndarray((len(self.data) - 7,), "<u8", self.data.data, 0, (1,))
        found = np.zeros(len(self), np.uint64)
        for at in range(0, length, _EIGHT):
            size = min(_EIGHT, length - at)
            # Read the eight bytes up to the end of the text, which are inside the page; bytes
            # before the digits are shifted out and replaced by zeros.
            begin = at if size == _EIGHT else max(length - _EIGHT, 0)
            digits = there[self.places + begin].astype(np.uint64)
            if size < _EIGHT:
                digits >>= np.uint64(8 * (at - begin))
                digits <<= np.uint64(8 * (_EIGHT - size))
                digits |= np.uint64(_ZEROS >> 8 * size)
            if ((digits & _HIGH) != _ZEROS).any() or (((digits + _SIX) & _HIGH) != _ZEROS).any():
                raise Unusual
            digits &= _LOW
            for factor, shift, mask in _PAIRS:
                digits *= factor
                digits >>= shift
                digits &= mask
            found *= np.uint64(10**size)
            found += digits
        if length == _MAX_DIGITS and (found > _MAX_INT64).any():
            raise Unusual
        return found.view(np.int64)

    def _equal_types(self, kind: int, missing: int) -> Int64s:
        if kind in _NUMPY_TYPES:
            dtype = np.dtype(_NUMPY_TYPES[kind])
            size = len(self.data) - dtype.itemsize + 1
            there = np.ndarray((size,), dtype, self.data.data, 0, (1,))
            return there[self.places].astype(np.int64)
        if kind in (3, 5):
            found = self._eight_bytes()
            found >>= _SHIFTS[kind]
            return found
        value = {ZERO: 0, ONE: 1}.get(kind, missing)
        return np.full(len(self), value, np.int64)

    def _eight_bytes(self) -> Int64s:
        there = np.ndarray((len(self.data) - 7,), ">i8", self.data.data, 0, (1,))
        return there[self.places].astype(np.int64)

    def reals(self) -> NDArray[np.float64]:
        """Return the numbers, NaN for NULL. Raises Unusual if some values are not numbers."""
        if self.only == FLOAT:
            return self._eight_bytes().view(np.float64)
        types = self.types
        if (types > ONE).any():
            raise Unusual
        found = self.integers(0).astype(np.float64)
        found[types == NULL] = np.nan
        are_float = types == FLOAT
        if are_float.any():
            found[are_float] = self._eight_bytes().view(np.float64)[are_float]
        return found

    def texts(self, longest: int) -> list[str | None]:
        r"""Return the texts, None for NULL; bytes that are not UTF-8 become \xNN.

        Raises:
            Unusual: some values are not texts, contain NUL, or are longer than `longest` bytes.
        """
        if not self.are_texts:
            raise Unusual
        types = self.types.astype(np.int64)
        is_null = types == NULL
        sizes = np.where(is_null, 0, (types - FIRST_TEXT) >> 1)
        if int(sizes.max(initial=0)) > longest:
            raise Unusual
        ends = self.places + sizes
        data = self.data.tobytes()
        found: list[str | None] = [
            data[begin:end].decode("utf-8", "backslashreplace")
            for begin, end in zip(self.places.tolist(), ends.tolist(), strict=True)
        ]
        if any("\0" in text for text in found if text):
            raise Unusual
        for row in np.flatnonzero(is_null).tolist():
            found[row] = None
        return found


def _counted(types: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the number of values of each type. Raises Unusual if a value is a long text."""
    if int(types.max()) > FIRST_TEXT + 2 * _MAX_DIGITS:
        raise Unusual
    return np.bincount(types)


def values_of(rows: Rows, wanted: Collection[int], absent: Collection[int]) -> dict[int, Values]:
    """Return columns by their positions in the records.

    There is at least one row. Columns in `absent` are NULL if a record ends before them, because it
    was written before the column was added. Raises Unusual if records are damaged, or values are in
    overflow pages.
    """
    found = {}
    walk = _Walk(rows)
    for column in range(max(wanted, default=-1) + 1):
        values = walk.step()
        if column in wanted:
            if walk.is_short and column not in absent:
                raise Unusual
            found[column] = values
    walk.finish()
    return found


class _Walk:
    """Steps through the columns of records, one column for all records at a time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        sizes, self._types_at = read_varints(rows.data, rows.begin)
        self._places = rows.begin + sizes
        self._header_end = self._places
        if (sizes < 1).any() or (self._header_end > rows.end_here).any():
            raise Unusual
        # Minimum number of remaining type bytes over all records.
        self._surely = int((self._header_end - self._types_at).min())
        self.is_short = False  # True if the last step went beyond the end of some records.

    def step(self) -> Values:
        """Return the next column."""
        data, places = self._rows.data, self._places
        ended = None
        if self._surely <= 0:
            ended = self._types_at >= self._header_end
            self.is_short = bool(ended.any())
        at = np.minimum(self._types_at, len(data) - 1) if self.is_short else self._types_at
        types: NDArray[np.integer] = data[at]
        lowest, highest = int(types.min()), int(types.max())
        if highest >= _ONE_BYTE_TYPES:
            types, self._types_at = read_varints(data, at)
            self._surely = 0  # check every record from now on
            crossed = self._types_at > self._header_end
            if ended is not None:
                types[ended] = NULL
                crossed &= ~ended
            if crossed.any() or int(types.min()) < 0 or int(types.max()) > _MAX_TYPE:
                raise Unusual
            low = np.minimum(types, FIRST_BLOB - 1)
            sizes = np.where(types < FIRST_BLOB, WIDTHS.take(low), (types - FIRST_BLOB) >> 1)
            self._places = places + sizes
            return Values(data, types, None, places)
        self._types_at = self._types_at + 1
        self._surely -= 1
        if self.is_short and ended is not None:
            types[ended] = NULL
            lowest, highest = int(types.min()), int(types.max())
        if lowest == highest:
            width = int(_OF_ONE_BYTE[lowest])
            if width:
                self._places = places + width
            return Values(data, types, lowest, places)
        self._places = places + _OF_ONE_BYTE.take(types)
        return Values(data, types, None, places)

    def finish(self) -> None:
        """Check that the records end where they should, as SQLite does.

        Raises Unusual if values end after their record or in another page, or the sizes of the
        types do not add up to the size of a record.
        """
        rows = self._rows
        if (self._places > rows.end_here).any():
            raise Unusual
        if self._surely <= 0:
            ended = self._types_at >= self._header_end
            if (self._places != rows.end)[ended].any():
                raise Unusual


__all__ = ["Scan", "Slice", "Unusual", "scan"]

# Size of the pages read at once, so that they fit into the processor's cache.
_BYTES_AT_A_TIME = 1 << 19
_ROW_ID_NAMES = frozenset({"rowid", "oid", "_rowid_"})


class Slice:
    """Consecutive rows; invalid after the next slice is read."""

    def __init__(self, layout: Layout, rows: Rows, before: int) -> None:
        self._layout, self._rows = layout, rows
        self.before = before  # Number of rows before this slice.

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ids(self) -> Int64s:
        """The row ids."""
        return self._rows.ids

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last row id; no other rows are between them."""
        return int(self._rows.ids[0]), int(self._rows.ids[-1])

    def columns(self, names: Collection[str]) -> dict[str, Values]:
        """Return columns by case-insensitive name.

        Raises Unusual if only SQLite can read these rows.
        """
        layout = self._layout
        places = {name: layout.places[name.lower()] for name in names}
        found = values_of(self._rows, frozenset(places.values()), layout.nullable)
        return {name: found[place] for name, place in places.items()}


class Scan:
    """A table that can be read from its pages."""

    def __init__(self, db: FileConnection, table: str, layout: Layout) -> None:
        self._db, self._table, self.layout = db, table, layout
        # True if `slices` reached the end of the table; otherwise SQLite must read the rest.
        self.is_done = False

    def affinity(self, name: str) -> str | None:
        """Return the affinity of a column, None for an unknown column."""
        place = self.layout.places.get(name.lower())
        return None if place is None else self.layout.affinities[place]

    def is_row_id(self, name: str) -> bool:
        """Return True if a name refers to the row id."""
        name = name.lower()
        if name in self.layout.places:
            return name == self.layout.row_id
        return name in _ROW_ID_NAMES

    def slices(self) -> Generator[Slice, None, None]:
        """Yield all rows in the order of their ids, up to the first irregular page.

        Raises sqlite3.Error if the file is locked, or a row extends beyond its page.
        """
        assert self._db.file is not None
        count = 0
        last: int | None = None
        query = f"SELECT 1 FROM main.{quoted(self._table)} NOT INDEXED"
        # The open statement, which has returned one row, holds the lock.
        with closing(self._db.execute(query)), suppress(Irregular):
            layout = layout_of(self._db, self._table)
            if layout != self.layout:
                raise Irregular
            pages = Pages(self._db.file)
            at_a_time = max(1, _BYTES_AT_A_TIME // pages.header.page_bytes)
            for some in leaves(pages, layout.root, at_a_time=at_a_time):
                try:
                    rows = rows_of(pages, some, last)
                except OutsidePage:
                    what = f"table {self._table} is malformed: a row extends beyond its page"
                    raise sqlite3.DatabaseError(what) from None
                yield Slice(layout, rows, count)
                count += len(rows)
                last = int(rows.ids[-1])
            self.is_done = True


def scan(db: sqlite3.Connection, table: str) -> Scan | None:
    """Return a reader of a table's pages, None if only SQLite can read it.

    Raises sqlite3.Error if SQLite cannot read the schema.
    """
    if not isinstance(db, FileConnection) or db.file is None:
        return None
    layout = layout_of(db, table)
    return None if layout is None else Scan(db, table, layout)
