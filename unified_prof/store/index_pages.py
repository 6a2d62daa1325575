"""The indexes of a table that grows by pages: pages as well, while rows come in their order.

SQLite makes an index empty as the table's first pages come; what it would have to sort at the end
stands in order already. An index whose order rows do not keep to is SQLite's to make at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.models.catalogue import ColumnSpec
from unified_prof.store.batches import Source
from unified_prof.store.btree.writing.affinity import Affinity, affinity_of
from unified_prof.store.btree.writing.index import IndexTree
from unified_prof.store.inserts import Index, integers
from unified_prof.store.shared_file import SharedFile


@dataclass(frozen=True, slots=True)
class _Growing:
    """One of the indexes."""

    index: Index
    columns: tuple[int, ...]
    """Places of its columns in the table."""
    tree: IndexTree


class IndexPages:
    """The indexes of one table, which has no rows yet."""

    def __init__(
        self, file: SharedFile, columns: Sequence[ColumnSpec], indexes: Sequence[Index]
    ) -> None:
        self._file = file
        places = {column.name: place for place, column in enumerate(columns)}
        whole = {
            column.name
            for column in columns
            if affinity_of(column.type) is Affinity.NUMERIC and not column.primary_key
        }
        suited = [index for index in indexes if index.is_plain and whole.issuperset(index.columns)]
        roots = [self._root(index) for index in suited]
        header = file.pages().header
        self._growing = [
            _Growing(
                index,
                tuple(places[name] for name in index.columns),
                IndexTree(root, header.page_bytes, header.usable),
            )
            for index, root in zip(suited, roots, strict=True)
        ]

    def _root(self, index: Index) -> int:
        """Create an index; return its root page."""
        db = self._file.statements()
        index.create(db)
        found = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index.name,))
        return int(found.fetchone()[0])

    def append(self, ordered: Sequence[Source], rows: int, rowids: NDArray[np.int64]) -> None:
        """Take note of rows that were appended to the table.

        Args:
            ordered: The table's columns.
            rows: How many values each of them has.
            rowids: Of the rows, ascending.
        """
        for growing in list(self._growing):
            keys = [integers(ordered[place], rows) for place in growing.columns]
            known = [key for key in keys if key is not None]
            if len(known) < len(keys) or not growing.tree.append(self._file.pages(), known, rowids):
                self._give_up(growing)

    def finish(self) -> None:
        """Complete the indexes."""
        for growing in self._growing:
            growing.tree.finish(self._file.pages())
        self._growing = []

    def leave_to_sqlite(self) -> None:
        """Remove the indexes, to be made when all rows are there."""
        for growing in list(self._growing):
            self._give_up(growing)

    def _give_up(self, growing: _Growing) -> None:
        # Its pages are free ones then, of which SQLite makes the index in the end.
        growing.tree.finish(self._file.pages())
        growing.index.drop(self._file.statements())
        self._growing.remove(growing)
