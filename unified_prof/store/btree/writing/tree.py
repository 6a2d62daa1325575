"""A table's b-tree from its leaves up: rows in ascending order of their rowids, in blocks.

Leaves go into the file as they fill; what is kept of them is their number and last rowid. The
pages above are written at the end. SQLite has made the table and, with it, an empty root, whose
place the tree's own root takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unified_prof.store.btree import format as layout
from unified_prof.store.btree.writing import varints
from unified_prof.store.btree.writing.fields import Field
from unified_prof.store.btree.writing.leaves import LeafPacker, breaks, page_of
from unified_prof.store.btree.writing.page_file import PageFile
from unified_prof.store.btree.writing.records import Cells, encode


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
        widths = varints.widths_of(keys)
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
        varints.place(cells, layout.CHILD_BYTES, keys[start:stop], width)
        parts.append(cells.reshape(-1))
    return np.concatenate(parts)
