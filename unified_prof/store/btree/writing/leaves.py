"""Cells packed into full pages, in their order.

A page of cells is a header, the places of the cells in the page, a gap, and the cells, which end
where the page does. Nothing in a table's leaf says where in the file it lies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.store.btree import format as layout
from unified_prof.store.btree.writing.records import Cells

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
