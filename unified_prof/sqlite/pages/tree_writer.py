"""Writers of table and index b-trees as pages, appended to a file created by SQLite.

A page consists of a header, the positions of its cells, a gap, and the cells up to the end of the
page. Table leaves do not contain page numbers.

Rows are added in blocks, in ascending order of row ids. Full leaves are written to the file; only
their page numbers and last row ids are kept, for the interior pages, which are written at the end.
SQLite has created the table or index with an empty root page, which the root of the tree replaces.

An index entry is a record of integers: the indexed columns and the row id. Unlike in a table
b-tree, each entry occurs only once: the entry between two neighboring pages of a level is in the
level above.

SQLite must not use the file while pages are written. The file header has the number of pages, and a
change counter that invalidates SQLite's cache.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, are_in_order
from unified_prof.sqlite.pages import format as layout
from unified_prof.sqlite.pages import row_encoder
from unified_prof.sqlite.pages.cell_encoder import Cells, encode, place_integers
from unified_prof.sqlite.pages.row_encoder import Field, integer_type

_COUNT_AND_FIRST = struct.Struct(">HH")


def page_of(
    kind: int, cells: NDArray[np.uint8], sizes: Ints, page_bytes: int, usable: int, right: int = 0
) -> NDArray[np.uint8]:
    """Return one page.

    `kind` is TABLE_LEAF, TABLE_INTERIOR, or one of an index; `cells` are concatenated, with `sizes`
    bytes each. `usable` bytes of a page are not reserved for extensions; `right` is the last child
    of an interior page.
    """
    page = np.zeros(page_bytes, np.uint8)
    header = layout.LEAF_HEADER_BYTES
    if kind in (layout.TABLE_INTERIOR, layout.INDEX_INTERIOR):
        header = layout.INTERIOR_HEADER_BYTES
        page[8:header] = np.frombuffer(right.to_bytes(layout.CHILD_BYTES, "big"), np.uint8)
    first = usable - len(cells)
    page[0] = kind
    page[3:7] = np.frombuffer(_COUNT_AND_FIRST.pack(len(sizes), first), np.uint8)
    page[first:usable] = cells
    pointers = page[header : header + layout.POINTER_BYTES * len(sizes)].view(">u2")
    pointers[:] = np.cumsum(sizes) - sizes + first
    return page


def breaks(sizes: Ints, capacity: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last cell (exclusive) of each page; the last page may not be full.

    `sizes` are bytes of cells, `capacity` those of a page for cells and their pointers.
    """
    ends = np.cumsum(sizes + layout.POINTER_BYTES)
    start, before = 0, 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, before + capacity, side="right"))
        assert stop > start, "a cell is larger than a page"
        yield start, stop
        start, before = stop, int(ends[stop - 1])


class LeafPacker:
    """Packs cells into leaf pages of a table."""

    def __init__(self, page_bytes: int, usable: int) -> None:
        self._page_bytes, self._usable = page_bytes, usable
        self._room = usable - layout.LEAF_HEADER_BYTES
        self._cells = np.empty(0, np.uint8)
        self._sizes = np.empty(0, np.int64)  # Sizes of the first cells of the next page.

    def add(self, cells: Cells, rows: int) -> Iterator[tuple[NDArray[np.uint8], Ints]]:
        """Add cells; yield full pages, each with the index of its last cell among the added ones.

        Index -1 is the last cell added before. At least one cell is kept for `rest`.
        """
        flat, sizes = cells.flat, cells.sizes
        if len(self._sizes):
            # Fill the pending page first.
            each = np.broadcast_to(np.asarray(sizes, np.int64), rows)
            used = len(self._cells) + layout.POINTER_BYTES * len(self._sizes)
            few = each[: self._room // (layout.MIN_CELL_BYTES + layout.POINTER_BYTES)]
            ends = np.cumsum(few + layout.POINTER_BYTES)
            fitting = int(np.searchsorted(ends, self._room - used, side="right"))
            bytes_fitting = int(few[:fitting].sum())
            self._cells = np.concatenate([self._cells, flat[:bytes_fitting]])
            self._sizes = np.concatenate([self._sizes, few[:fitting]])
            if fitting == rows:
                return
            yield self._flushed(), np.array([fitting - 1])
            flat, rows_left = flat[bytes_fitting:], rows - fitting
            sizes = sizes if isinstance(sizes, int) else sizes[fitting:]
        else:
            fitting, rows_left = 0, rows
        if isinstance(sizes, int):
            yield from self._pages_of_equal(flat, sizes, rows_left, fitting)
        else:
            yield from self._pages_of_any(flat, sizes, fitting)

    def rest(self) -> NDArray[np.uint8] | None:
        """Return the last page, None if there are no rows."""
        return self._flushed() if len(self._sizes) else None

    def _flushed(self) -> NDArray[np.uint8]:
        page = page_of(layout.TABLE_LEAF, self._cells, self._sizes, self._page_bytes, self._usable)
        self._cells, self._sizes = self._cells[:0], self._sizes[:0]
        return page[np.newaxis]

    def _pages_of_equal(
        self, flat: NDArray[np.uint8], size: int, rows: int, base: int
    ) -> Iterator[tuple[NDArray[np.uint8], Ints]]:
        """Pack cells of one size at once; the last page is kept, even if full."""
        each = self._room // (size + layout.POINTER_BYTES)
        count = (rows - 1) // each
        if count:
            first = self._usable - each * size
            sizes = np.full(each, size)
            pages = np.empty((count, self._page_bytes), np.uint8)
            blank = page_of(
                layout.TABLE_LEAF, flat[: each * size], sizes, self._page_bytes, self._usable
            )
            pages[:, :first] = blank[:first]
            pages[:, first : self._usable] = flat[: count * each * size].reshape(count, -1)
            pages[:, self._usable :] = 0
            yield pages, base - 1 + each * np.arange(1, count + 1)
        self._hold(flat[count * each * size :], np.full(rows - count * each, size))

    def _pages_of_any(
        self, flat: NDArray[np.uint8], sizes: Ints, base: int
    ) -> Iterator[tuple[NDArray[np.uint8], Ints]]:
        """Pack cells of different sizes; the last page is kept, even if full."""
        *full, (start, stop) = breaks(sizes, self._room)
        ends = np.concatenate(([0], np.cumsum(sizes)))
        if full:
            pages = np.zeros((len(full), self._page_bytes), np.uint8)
            counts = np.array([end - begin for begin, end in full])
            shift = self._usable - ends[[end for _, end in full]]
            pointers = (ends[:start] + np.repeat(shift, counts)).astype(">u2").view(np.uint8)
            for page, (begin, end), moved in zip(pages, full, shift.tolist(), strict=True):
                first, last = int(ends[begin]), int(ends[end])
                page[first + moved : self._usable] = flat[first:last]
                page[layout.LEAF_HEADER_BYTES : layout.LEAF_HEADER_BYTES + 2 * (end - begin)] = (
                    pointers[2 * begin : 2 * end]
                )
            firsts = np.stack([counts, ends[[begin for begin, _ in full]] + shift], axis=1)
            pages[:, 0] = layout.TABLE_LEAF
            pages[:, 3:7] = firsts.astype(">u2").view(np.uint8)
            yield pages, base - 1 + np.cumsum(counts)
        self._hold(flat[ends[start] :], sizes[start:stop])

    def _hold(self, cells: NDArray[np.uint8], sizes: Ints) -> None:
        """Copy the cells of the pending page."""
        self._cells, self._sizes = cells.copy(), sizes.copy()


_COUNTER_AND_PAGES = struct.Struct(">II")
_COUNTER_AND_PAGES_AT = 24
_VALID_FOR = struct.Struct(">I")
_VALID_FOR_AT = 92
_MAX_PAGES = 0xFFFF_FFFE


class PageFile:
    """A database file to which pages are written between `begin` and `end`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self._header: layout.Header | None = None
        self._pages = 0
        self._changed = False

    @property
    def header(self) -> layout.Header:
        """The header of the file at `begin`."""
        assert self._header is not None, "`begin` was not called"
        return self._header

    @property
    def suitable(self) -> bool:
        """True if pages can be added to the file, which must be UTF-8 and without auto-vacuum."""
        header = self.header
        return (
            header.encoding == layout.UTF8
            and header.largest_root == 0
            and header.change_counter == header.version_valid_for
            and not header.wal
        )

    def begin(self) -> None:
        """Read the header; SQLite must not use the file until `end`."""
        self._file.seek(0)
        start = self._file.read(layout.HEADER_BYTES)
        header = layout.read_header(start)
        assert header is not None, "SQLite has not written a header"
        self._header = header
        self._pages = header.pages
        self._changed = False

    def next_numbers(self, count: int) -> Ints:
        """Return the numbers of the next pages."""
        numbers = self._pages + 1 + np.arange(count)
        return numbers + (numbers >= self.header.lock_page) * (self._pages < self.header.lock_page)

    def append(self, pages: NDArray[np.uint8]) -> Ints:
        """Write new pages; return their numbers.

        `pages` has one row of bytes per page, contiguous.
        """
        numbers = self.next_numbers(len(pages))
        last = int(numbers[-1])
        if last > _MAX_PAGES:
            raise OSError("too many pages for a database")
        before = int(np.searchsorted(numbers, self.header.lock_page))
        for part in (slice(0, before), slice(before, None)):
            if len(numbers[part]):
                self._write(int(numbers[part][0]), pages[part])
        self._pages = last
        return numbers

    def rewrite(self, number: int, page: NDArray[np.uint8]) -> None:
        """Replace a page of the file."""
        self._write(number, page)

    def end(self) -> None:
        """Update the header; SQLite may use the file again."""
        header = self.header
        if self._changed:
            counter = (header.change_counter + 1) & 0xFFFF_FFFF
            self._put(_COUNTER_AND_PAGES_AT, _COUNTER_AND_PAGES.pack(counter, self._pages))
            self._put(_VALID_FOR_AT, _VALID_FOR.pack(counter))
        self._header = None

    def close(self) -> None:
        """Close the file; SQLite must not be reading or writing it."""
        self._file.close()

    def _write(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Write consecutive pages from a page number on."""
        self._changed = True
        self._put((number - 1) * self.header.page_bytes, pages.reshape(-1).data)

    def _put(self, at: int, data: bytes | memoryview) -> None:
        self._file.seek(at)
        while len(data):
            # Near a limit or on a full disk, fewer bytes are written; the next call raises the
            # error.
            written = self._file.write(data)
            data = data[written:]


class TableTree:
    """B-tree of one table."""

    def __init__(self, root: int, page_bytes: int, usable: int) -> None:
        self._root, self._page_bytes, self._usable = root, page_bytes, usable
        self._packer = LeafPacker(page_bytes, usable)
        self._leaves = array("q")
        self._last_rowids = array("q")
        self.last_rowid: int | None = None  # Row id of the last row; later rows have greater ones.

    def append(self, file: PageFile, fields: Sequence[Field], rowids: Ints) -> None:
        """Append a block of rows with ascending row ids, greater than those before.

        The file is between `begin` and `end`; a column that is the table's row id is NULL in every
        row.
        """
        cells = encode(fields, rowids)
        if int(np.max(cells.payloads)) > layout.most_local(self._usable):
            cells = self._with_overflow(file, cells, len(rowids))
        for pages, lasts in self._packer.add(cells, len(rowids)):
            numbers = file.append(pages)
            self._leaves.frombytes(numbers.tobytes())
            # The pending page may end with a row of the last block.
            ends = np.where(lasts < 0, self.last_rowid or 0, rowids[lasts])
            self._last_rowids.frombytes(ends.tobytes())
        self.last_rowid = int(rowids[-1])

    def finish(self, file: PageFile) -> None:
        """Write the last leaf and the interior pages; SQLite may then insert further rows."""
        rest = self._packer.rest()
        if rest is not None:
            if not self._leaves:
                file.rewrite(self._root, rest)
                return
            assert self.last_rowid is not None
            self._leaves.extend(file.append(rest).tolist())
            self._last_rowids.append(self.last_rowid)
        children = np.frombuffer(self._leaves, np.int64)
        keys = np.frombuffer(self._last_rowids, np.int64)
        while len(children):
            pages, last = self._interior(children, keys)
            if len(pages) == 1:
                file.rewrite(self._root, pages)
                return
            children, keys = file.append(pages), keys[last]

    def _interior(self, children: Ints, keys: Ints) -> tuple[NDArray[np.uint8], Ints]:
        """Return the interior pages above `children`, and the index of each page's last child."""
        widths = row_encoder.widths_of(keys)
        sizes = layout.CHILD_BYTES + widths
        places = np.concatenate(([0], np.cumsum(sizes)))
        flat = _cells(children, keys, widths)
        capacity = self._usable - layout.INTERIOR_HEADER_BYTES
        pages = []
        lasts = []
        start = 0
        while start < len(children):
            # A page has one child more than cells; the last page has at least two children.
            stop = start + next(breaks(sizes[start : start + capacity], capacity))[1] + 1
            if stop >= len(children):
                stop = len(children)
            elif stop == len(children) - 1:
                stop -= 1
            pages.append(
                page_of(
                    layout.TABLE_INTERIOR,
                    flat[places[start] : places[stop - 1]],
                    sizes[start : stop - 1],
                    self._page_bytes,
                    self._usable,
                    int(children[stop - 1]),
                )
            )
            lasts.append(stop - 1)
            start = stop
        return np.stack(pages), np.array(lasts)

    def _with_overflow(self, file: PageFile, cells: Cells, rows: int) -> Cells:
        """Write the overflow of long records to pages; return the cells without the overflow."""
        sizes = np.array(np.broadcast_to(np.asarray(cells.sizes, np.int64), rows))
        payloads = np.broadcast_to(np.asarray(cells.payloads, np.int64), rows)
        ends = np.cumsum(sizes)
        pieces = []
        done = 0
        local = layout.local_payload(self._usable, payloads)
        for row in np.flatnonzero(local < payloads).tolist():
            payload, end, kept = int(payloads[row]), int(ends[row]), int(local[row])
            cut = end - payload + kept
            first = self._overflow(file, cells.flat[cut:end])
            pieces += [
                cells.flat[done:cut],
                np.frombuffer(first.to_bytes(layout.CHILD_BYTES, "big"), np.uint8),
            ]
            sizes[row] += kept - payload + layout.CHILD_BYTES
            done = end
        return Cells(np.concatenate([*pieces, cells.flat[done:]]), sizes, payloads)

    def _overflow(self, file: PageFile, data: NDArray[np.uint8]) -> int:
        """Write the end of a record as a chain of pages; return the number of the first page."""
        each = self._usable - layout.CHILD_BYTES
        count = -(-len(data) // each)
        pages = np.zeros((count, self._page_bytes), np.uint8)
        padded = np.zeros(count * each, np.uint8)
        padded[: len(data)] = data
        pages[:, layout.CHILD_BYTES : self._usable] = padded.reshape(count, each)
        numbers = file.next_numbers(count)
        following = np.append(numbers[1:], 0)
        pages[:, : layout.CHILD_BYTES] = following.astype(">u4").view(np.uint8).reshape(count, -1)
        file.append(pages)
        return int(numbers[0])


def _cells(children: Ints, keys: Ints, widths: Ints) -> NDArray[np.uint8]:
    """Return the concatenated interior cells, each with a page number and last row id (varint)."""
    parts = []
    changes = np.flatnonzero(np.diff(widths)) + 1
    for start, stop in pairwise([0, *changes.tolist(), len(keys)]):
        width = int(widths[start])
        cells = np.empty((stop - start, layout.CHILD_BYTES + width), np.uint8)
        pages = children[start:stop].astype(">u4").view(np.uint8)
        cells[:, : layout.CHILD_BYTES] = pages.reshape(-1, layout.CHILD_BYTES)
        row_encoder.place(cells, layout.CHILD_BYTES, keys[start:stop], width)
        parts.append(cells.reshape(-1))
    return np.concatenate(parts)


Bytes = NDArray[np.uint8]
Sizes = Ints


class IndexTree:
    """B-tree of one index."""

    def __init__(self, root: int, page_bytes: int, usable: int) -> None:
        self._root, self._page_bytes, self._usable = root, page_bytes, usable
        self._room = usable - layout.LEAF_HEADER_BYTES
        # Entries that have not been written to a page yet, and their sizes.
        self._cells, self._sizes = np.empty(0, np.uint8), np.empty(0, np.int64)
        self._leaves = array("q")
        self._between: list[Bytes] = []  # The entry after each leaf.
        self._last: tuple[int, ...] | None = None

    def append(self, file: PageFile, keys: Sequence[Ints], rowids: Ints) -> bool:
        """Append the entries of a block of rows; if not possible, change nothing and return False.

        The file is between `begin` and `end`. Rows in a block need not be in the order of the
        index, but no entry may be less than one of an earlier block.
        """
        columns = [*keys, rowids]
        if not are_in_order(keys):
            order = np.lexsort(columns[::-1])
            columns = [column[order] for column in columns]
        if self._last is not None and tuple(int(column[0]) for column in columns) < self._last:
            return False
        self._last = tuple(int(column[-1]) for column in columns)
        cells = _cells_index(columns)
        rows, size = cells.shape
        self._fill(
            file,
            np.concatenate([self._cells, cells.reshape(-1)]),
            np.concatenate([self._sizes, np.full(rows, size)]),
        )
        return True

    def finish(self, file: PageFile) -> None:
        """Write the last leaves and the interior pages; SQLite may then insert further entries."""
        places, last = _places(self._sizes), len(self._sizes)
        if int(places[-1]) + layout.POINTER_BYTES * last > self._room:
            # One entry does not fit: it gets a separate page, after the entry in between.
            self._write_leaves(file, [self._leaf(places, 0, last - 2)])
            self._between.append(self._cells[places[last - 2] : places[last - 1]])
            rest = self._leaf(places, last - 1, last)
        else:
            rest = self._leaf(places, 0, last)
        if not self._leaves:
            file.rewrite(self._root, rest[np.newaxis])
            return
        self._write_leaves(file, [rest])
        children, between = np.frombuffer(self._leaves, np.int64), self._between
        while True:
            pages, between = self._interior(children, between)
            if len(pages) == 1:
                file.rewrite(self._root, pages)
                return
            children = file.append(pages)

    def _fill(self, file: PageFile, cells: Bytes, sizes: Sizes) -> None:
        """Write the full leaves that are followed by at least two entries."""
        self._cells, self._sizes = cells, sizes
        ends = np.cumsum(sizes + layout.POINTER_BYTES)
        places = _places(sizes)
        pages = []
        start, before = 0, 0
        while True:
            stop = int(np.searchsorted(ends, before + self._room, side="right"))
            if stop + 1 >= len(sizes):
                break
            pages.append(self._leaf(places, start, stop))
            self._between.append(cells[places[stop] : places[stop + 1]].copy())
            start, before = stop + 1, int(ends[stop])
        self._write_leaves(file, pages)
        self._cells, self._sizes = cells[places[start] :].copy(), sizes[start:].copy()

    def _leaf(self, places: Sizes, start: int, stop: int) -> Bytes:
        return page_of(
            layout.INDEX_LEAF,
            self._cells[places[start] : places[stop]],
            self._sizes[start:stop],
            self._page_bytes,
            self._usable,
        )

    def _write_leaves(self, file: PageFile, pages: list[Bytes]) -> None:
        if pages:
            self._leaves.extend(file.append(np.stack(pages)).tolist())

    def _interior(self, children: Ints, between: list[Bytes]) -> tuple[Bytes, list[Bytes]]:
        """Return the pages above `children`, and the entries between these pages."""
        capacity = self._usable - layout.INTERIOR_HEADER_BYTES
        sizes = np.array([len(entry) for entry in between], np.int64) + layout.CHILD_BYTES
        ends = np.cumsum(sizes + layout.POINTER_BYTES)
        pages = []
        above: list[Bytes] = []
        start, before = 0, 0
        while True:
            stop = int(np.searchsorted(ends, before + capacity, side="right"))
            if stop == len(between) - 1:
                stop -= 1  # the last page has at least two children
            cells = b"".join(
                int(child).to_bytes(layout.CHILD_BYTES, "big") + entry.tobytes()
                for child, entry in zip(
                    children[start:stop].tolist(), between[start:stop], strict=True
                )
            )
            pages.append(
                page_of(
                    layout.INDEX_INTERIOR,
                    np.frombuffer(cells, np.uint8),
                    sizes[start:stop],
                    self._page_bytes,
                    self._usable,
                    int(children[stop]),
                )
            )
            if stop == len(between):
                return np.stack(pages), above
            above.append(between[stop])
            start, before = stop + 1, int(ends[stop])


def _places(sizes: Sizes) -> Sizes:
    """Return the start of each entry, and the end of the last."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _cells_index(columns: Sequence[Ints]) -> Bytes:
    """Return the entries of a block as bytes, one row per entry, all of the same size."""
    types = [integer_type(int(column.min()), int(column.max())) for column in columns]
    header = bytes([1 + len(types), *(kind for kind, _ in types)])
    payload = len(header) + sum(width for _, width in types)
    cells = np.empty((len(columns[0]), 1 + payload), np.uint8)
    cells[:, 0] = payload
    cells[:, 1 : 1 + len(header)] = np.frombuffer(header, np.uint8)
    at = 1 + len(header)
    for column, (_, width) in zip(columns, types, strict=True):
        place_integers(cells, at, column, width)
        at += width
    return cells
