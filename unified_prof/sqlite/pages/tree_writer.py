"""Cells packed into full pages, in their order.

A page of cells is a header, the places of the cells in the page, a gap, and the cells, which end
where the page does. Nothing in a table's leaf says where in the file it lies.

Pages written behind those that SQLite has written, in a database that it is not using just now.

What SQLite knows of such a file is its header: its number of pages, and a counter of changes by
which it learns that what it remembers of the file is old.

A table's b-tree from its leaves up: rows in ascending order of their rowids, in blocks.

Leaves go into the file as they fill; what is kept of them is their number and last rowid. The
pages above are written at the end. SQLite has made the table and, with it, an empty root, whose
place the tree's own root takes.

An index's b-tree from its leaves up: entries in ascending order, in blocks.

An entry is a record of whole numbers: the indexed columns and the row's id. Unlike a table's tree,
an index has each entry once: of those between two pages of a level one stands in the level above,
behind the page before it. SQLite has made the index, and with it an empty root.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import are_in_order
from unified_prof.sqlite.pages import format as layout
from unified_prof.sqlite.pages import row_encoder
from unified_prof.sqlite.pages.cell_encoder import Cells, encode, place_integers
from unified_prof.sqlite.pages.row_encoder import Field, integer_type

_COUNT_AND_FIRST = struct.Struct(">HH")


def page_of(
    kind: int,
    cells: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    page_bytes: int,
    usable: int,
    right: int = 0,
) -> NDArray[np.uint8]:
    """Return one page.

    Args:
        kind: TABLE_LEAF, TABLE_INTERIOR, or those of an index.
        cells: The cells one after the other.
        sizes: Bytes of each.
        page_bytes: Bytes of a page.
        usable: Those of them that are SQLite's own.
        right: An interior page's last child.
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


def breaks(sizes: NDArray[np.int64], room: int) -> Iterator[tuple[int, int]]:
    """Yield the cells of each page, from and to; the last one may not be full.

    Args:
        sizes: Bytes of each cell.
        room: Bytes of a page for cells and their pointers.
    """
    ends = np.cumsum(sizes + layout.POINTER_BYTES)
    start, before = 0, 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, before + room, side="right"))
        assert stop > start, "a cell is larger than a page"
        yield start, stop
        start, before = stop, int(ends[stop - 1])


class LeafPacker:
    """Turns cells as they come into full pages of a table's leaves."""

    def __init__(self, page_bytes: int, usable: int) -> None:
        self._page_bytes = page_bytes
        self._usable = usable
        self._room = usable - layout.LEAF_HEADER_BYTES
        self._cells = np.empty(0, np.uint8)
        self._sizes = np.empty(0, np.int64)
        """Of the cells that are to begin the next page."""

    def add(self, cells: Cells, rows: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Take cells that fit into pages; yield pages, and which row of these is the last in each.

        -1: the row before these. At least one row is kept for `rest`.
        """
        flat, sizes = cells.flat, cells.sizes
        if len(self._sizes):
            # The page that has begun is filled first.
            each = np.broadcast_to(np.asarray(sizes, np.int64), rows)
            used = len(self._cells) + layout.POINTER_BYTES * len(self._sizes)
            few = each[: self._room // (layout.LEAST_CELL_BYTES + layout.POINTER_BYTES)]
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
        """Return the last page, None if there were no rows."""
        return self._flushed() if len(self._sizes) else None

    def _flushed(self) -> NDArray[np.uint8]:
        page = page_of(layout.TABLE_LEAF, self._cells, self._sizes, self._page_bytes, self._usable)
        self._cells, self._sizes = self._cells[:0], self._sizes[:0]
        return page[np.newaxis]

    def _pages_of_equal(
        self, flat: NDArray[np.uint8], size: int, rows: int, base: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Make pages of cells of one size all at once; the last one is kept, even if full."""
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
        self, flat: NDArray[np.uint8], sizes: NDArray[np.int64], base: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        pages = []
        lasts = []
        at = 0
        for start, stop in breaks(sizes, self._room):
            of_page = sizes[start:stop]
            cells = flat[at : (at := at + int(of_page.sum()))]
            if stop == len(sizes):
                self._hold(cells, of_page)
            else:
                pages.append(
                    page_of(layout.TABLE_LEAF, cells, of_page, self._page_bytes, self._usable)
                )
                lasts.append(base + stop - 1)
        if pages:
            yield np.stack(pages), np.array(lasts)

    def _hold(self, cells: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        """Keep the cells of a page that others may follow into; a copy, as they are few."""
        self._cells, self._sizes = cells.copy(), sizes.copy()


_COUNTER_AND_PAGES = struct.Struct(">II")
_COUNTER_AND_PAGES_AT = 24
_VALID_FOR = struct.Struct(">I")
_VALID_FOR_AT = 92
_MOST_PAGES = 0xFFFF_FFFE


class PageFile:
    """A database whose pages are written here between `begin` and `end`, by SQLite otherwise."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self._header: layout.Header | None = None
        self._pages = 0
        self._changed = False

    @property
    def header(self) -> layout.Header:
        """The file's header, as of `begin`."""
        assert self._header is not None, "SQLite has the file"
        return self._header

    @property
    def suitable(self) -> bool:
        """Whether the file is one that pages can be added to: plain, and in UTF-8."""
        header = self.header
        return (
            header.encoding == layout.UTF8
            and header.largest_root == 0
            and header.change_counter == header.version_valid_for
            and not header.wal
        )

    def begin(self) -> None:
        """Learn what SQLite has made of the file, which it lets go of until `end`."""
        self._file.seek(0)
        start = self._file.read(layout.HEADER_BYTES)
        header = layout.read_header(start)
        assert header is not None, "SQLite has written no header"
        self._header = header
        self._pages = header.pages
        self._changed = False

    def next_numbers(self, count: int) -> NDArray[np.int64]:
        """Return the numbers that the next pages get."""
        numbers = self._pages + 1 + np.arange(count)
        return numbers + (numbers >= self.header.lock_page) * (self._pages < self.header.lock_page)

    def append(self, pages: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Write new pages; return their numbers.

        Args:
            pages: Page by byte, contiguous.
        """
        numbers = self.next_numbers(len(pages))
        last = int(numbers[-1])
        if last > _MOST_PAGES:
            raise OSError("a database cannot have that many pages")
        before = int(np.searchsorted(numbers, self.header.lock_page))
        for part in (slice(0, before), slice(before, None)):
            if len(numbers[part]):
                self._write(int(numbers[part][0]), pages[part])
        self._pages = last
        return numbers

    def rewrite(self, number: int, page: NDArray[np.uint8]) -> None:
        """Write a page in the place of one that the file has."""
        self._write(number, page)

    def end(self) -> None:
        """Say in the header what has come, and leave the file to SQLite."""
        header = self.header
        if self._changed:
            counter = (header.change_counter + 1) & 0xFFFF_FFFF
            self._put(_COUNTER_AND_PAGES_AT, _COUNTER_AND_PAGES.pack(counter, self._pages))
            self._put(_VALID_FOR_AT, _VALID_FOR.pack(counter))
        self._header = None

    def close(self) -> None:
        """Let go of the file; SQLite may not be reading or writing it at that moment."""
        self._file.close()

    def _write(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Write pages that follow each other, the first of them as the one of that number."""
        self._changed = True
        self._put((number - 1) * self.header.page_bytes, pages.reshape(-1).data)

    def _put(self, at: int, data: bytes | memoryview) -> None:
        self._file.seek(at)
        while len(data):
            # Less than asked for where a limit or a full disk is near: the next attempt says which.
            written = self._file.write(data)
            data = data[written:]


class TableTree:
    """One table that is being written."""

    def __init__(self, root: int, page_bytes: int, usable: int) -> None:
        self._root = root
        self._page_bytes = page_bytes
        self._usable = usable
        self._packer = LeafPacker(page_bytes, usable)
        self._leaves = array("q")
        self._last_rowids = array("q")
        self.last_rowid: int | None = None
        """Of the rows so far; new ones have greater ones."""

    def append(self, file: PageFile, fields: Sequence[Field], rowids: NDArray[np.int64]) -> None:
        """Append a block of rows, whose rowids ascend and are greater than those before.

        Args:
            file: The file, between `begin` and `end`.
            fields: The columns; a column that is the table's rowid is NULL in every row.
            rowids: One for every row.
        """
        cells = encode(fields, rowids)
        if int(np.max(cells.payloads)) > layout.most_local(self._usable):
            cells = self._with_overflow(file, cells, len(rowids))
        for pages, lasts in self._packer.add(cells, len(rowids)):
            numbers = file.append(pages)
            self._leaves.frombytes(numbers.tobytes())
            # The page that had begun may end with a row of the last block.
            ends = np.where(lasts < 0, self.last_rowid or 0, rowids[lasts])
            self._last_rowids.frombytes(ends.tobytes())
        self.last_rowid = int(rowids[-1])

    def finish(self, file: PageFile) -> None:
        """Write the last leaf and what is above; SQLite may go on with the table from there."""
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

    def _interior(
        self, children: NDArray[np.int64], keys: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return pages that lead to `children`, and which of these is the last of each page."""
        widths = row_encoder.widths_of(keys)
        sizes = layout.CHILD_BYTES + widths
        places = np.concatenate(([0], np.cumsum(sizes)))
        flat = _cells(children, keys, widths)
        room = self._usable - layout.INTERIOR_HEADER_BYTES
        pages = []
        lasts = []
        start = 0
        while start < len(children):
            # A page has one child more than cells; the last page has two children at least.
            stop = start + next(breaks(sizes[start : start + room], room))[1] + 1
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
        """Write what is too long of records into pages of its own; return cells without it."""
        sizes = np.array(np.broadcast_to(np.asarray(cells.sizes, np.int64), rows))
        payloads = np.broadcast_to(np.asarray(cells.payloads, np.int64), rows)
        ends = np.cumsum(sizes)
        pieces = []
        done = 0
        for row in np.flatnonzero(payloads > self._usable - 35).tolist():
            payload, end = int(payloads[row]), int(ends[row])
            kept = layout.local_payload(self._usable, payload)
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
        """Write the end of a record as a chain of pages; return the first one's number."""
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


def _cells(
    children: NDArray[np.int64], keys: NDArray[np.int64], widths: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return interior cells one after the other: of each a page and its last rowid, a varint."""
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
Sizes = NDArray[np.int64]


class IndexTree:
    """One index that is being written."""

    def __init__(self, root: int, page_bytes: int, usable: int) -> None:
        self._root = root
        self._page_bytes = page_bytes
        self._usable = usable
        self._room = usable - layout.LEAF_HEADER_BYTES
        self._cells, self._sizes = np.empty(0, np.uint8), np.empty(0, np.int64)
        """Of the entries that are in no page yet."""
        self._leaves = array("q")
        self._between: list[Bytes] = []
        """The entry behind each leaf."""
        self._last: tuple[int, ...] | None = None

    def append(
        self, file: PageFile, keys: Sequence[NDArray[np.int64]], rowids: NDArray[np.int64]
    ) -> bool:
        """Append the entries of a block of rows; return False, and do nothing, if that cannot be.

        Args:
            file: The file, between `begin` and `end`.
            keys: The columns of the index. Rows may be in another order than the index within a
                block; no entry of a block is below one of the block before.
            rowids: One for every row, ascending.
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
        """Write the last leaves and what is above; SQLite may go on with the index from there."""
        places, last = _places(self._sizes), len(self._sizes)
        if int(places[-1]) + layout.POINTER_BYTES * last > self._room:
            # One more than fits: it has a page of its own, behind the entry between.
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
        """Write the leaves that are full, and behind which two entries are known."""
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

    def _interior(
        self, children: NDArray[np.int64], between: list[Bytes]
    ) -> tuple[Bytes, list[Bytes]]:
        """Return the pages above `children`, and the entries that go between these pages."""
        room = self._usable - layout.INTERIOR_HEADER_BYTES
        sizes = np.array([len(entry) for entry in between], np.int64) + layout.CHILD_BYTES
        ends = np.cumsum(sizes + layout.POINTER_BYTES)
        pages = []
        above: list[Bytes] = []
        start, before = 0, 0
        while True:
            stop = int(np.searchsorted(ends, before + room, side="right"))
            if stop == len(between) - 1:
                stop -= 1  # the last page has two children at least
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
    """Return where each of some entries begins, and where the last one ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _cells_index(columns: Sequence[NDArray[np.int64]]) -> Bytes:
    """Return the entries of a block, row by byte, all of one size."""
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
