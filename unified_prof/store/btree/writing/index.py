"""An index's b-tree from its leaves up: entries in ascending order, in blocks.

An entry is a record of whole numbers: the indexed columns and the row's id. Unlike a table's tree,
an index has each entry once: of those between two pages of a level one stands in the level above,
behind the page before it. SQLite has made the index, and with it an empty root.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.ordering import are_in_order
from unified_prof.store.btree import format as layout
from unified_prof.store.btree.writing.fields import integer_type
from unified_prof.store.btree.writing.leaves import page_of
from unified_prof.store.btree.writing.page_file import PageFile
from unified_prof.store.btree.writing.records import place_integers

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
        cells = _cells(columns)
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


def _cells(columns: Sequence[NDArray[np.int64]]) -> Bytes:
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
