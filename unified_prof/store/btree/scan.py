"""All rows of a table, some thousands at a time, from the pages of its file.

SQLite's own connection holds the file's lock meanwhile, so that no writer changes it. Where it
would see more than the file's pages say (a log beside the file, WITHOUT ROWID, generated columns),
nothing is read here; where pages or records are odd, SQLite is to read what is left, or those rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator
from contextlib import closing, suppress

from unified_prof.store.btree.cells import Rows, rows_of
from unified_prof.store.btree.connection import FileConnection
from unified_prof.store.btree.layout import Layout, layout_of
from unified_prof.store.btree.pages import Int64s, Irregular, Pages
from unified_prof.store.btree.records import Unusual, Values, values_of
from unified_prof.store.btree.tree import leaves
from unified_prof.store.sql import quoted

__all__ = ["Scan", "Slice", "Unusual", "scan"]

_BYTES_AT_A_TIME = 1 << 19
"""Of pages that are read at once: more would not stay in the processor's cache."""
_ROW_ID_NAMES = frozenset({"rowid", "oid", "_rowid_"})


class Slice:
    """Some rows that follow one another; gone when the next ones are asked for."""

    def __init__(self, layout: Layout, rows: Rows, before: int) -> None:
        self._layout = layout
        self._rows = rows
        self.before = before
        """How many rows the table has before these."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ids(self) -> Int64s:
        """The row ids."""
        return self._rows.ids

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last row id: there are no other rows between them."""
        return int(self._rows.ids[0]), int(self._rows.ids[-1])

    def columns(self, names: Collection[str]) -> dict[str, Values]:
        """Return columns of the records, in any case of letters.

        Raises:
            Unusual: only SQLite knows how to read these rows.
        """
        layout = self._layout
        places = {name: layout.places[name.lower()] for name in names}
        found = values_of(self._rows, frozenset(places.values()), layout.nullable)
        return {name: found[place] for name, place in places.items()}


class Scan:
    """A table that can be read from its pages."""

    def __init__(self, db: FileConnection, table: str, layout: Layout) -> None:
        self._db = db
        self._table = table
        self.layout = layout
        self.is_done = False
        """Whether `slices` came to the end of the table; else SQLite has to read what is left."""

    def affinity(self, name: str) -> str | None:
        """Return the affinity of a column, None where the table has none of the name."""
        place = self.layout.places.get(name.lower())
        return None if place is None else self.layout.affinities[place]

    def is_row_id(self, name: str) -> bool:
        """Whether a column stands for the row id."""
        name = name.lower()
        if name in self.layout.places:
            return name == self.layout.row_id
        return name in _ROW_ID_NAMES

    def slices(self) -> Generator[Slice, None, None]:
        """Yield all rows in the order of their ids, as far as pages are as they should be.

        Raises:
            sqlite3.Error: the lock cannot be had.
        """
        assert self._db.file is not None
        count = 0
        last: int | None = None
        query = f"SELECT 1 FROM main.{quoted(self._table)} NOT INDEXED"
        # A statement that is under way holds the lock; SQLite has read one row of it.
        with closing(self._db.execute(query)), suppress(Irregular):
            layout = layout_of(self._db, self._table)
            if layout != self.layout:
                raise Irregular
            pages = Pages(self._db.file)
            at_a_time = max(1, _BYTES_AT_A_TIME // pages.header.page_bytes)
            for some in leaves(pages, layout.root, at_a_time=at_a_time):
                rows = rows_of(pages, some, last)
                yield Slice(layout, rows, count)
                count += len(rows)
                last = int(rows.ids[-1])
            self.is_done = True


def scan(db: sqlite3.Connection, table: str) -> Scan | None:
    """Return how to read a table from its pages, None where only SQLite can.

    Raises:
        sqlite3.Error: as SQLite does.
    """
    if not isinstance(db, FileConnection) or db.file is None:
        return None
    layout = layout_of(db, table)
    return None if layout is None else Scan(db, table, layout)
