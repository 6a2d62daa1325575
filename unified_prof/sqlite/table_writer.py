"""Writer that appends batches of columns to a table: few rows by statements, many as pages.

Thousands of rows are written as pages without SQLite, which is several times as fast
(docs/performance.md). This requires a table with only plain columns, and rows in the order of their
row ids. Otherwise SQLite inserts the rows, and the page writer is not imported.

Indexes are written as pages too, as long as the rows are in the order of the index. Otherwise
SQLite creates the index at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import UsageError
from unified_prof.schema.catalogue import ColumnSpec, TableSpec
from unified_prof.sqlite.batches import (
    Constant,
    Source,
    concatenate,
    is_text,
    kept,
    non_null,
    selected,
)
from unified_prof.sqlite.inserts import (
    TEXT_AT_ONCE,
    Index,
    Inserts,
    SharedFile,
    integers,
    text_size,
)
from unified_prof.sqlite.pages.row_encoder import Affinity, affinity_of
from unified_prof.sqlite.pages.tree_writer import IndexTree
from unified_prof.sqlite.views import Layout

if TYPE_CHECKING:
    from unified_prof.sqlite.pages.tree_writer import TableTree


# Minimum number of rows to write as pages.
ROWS_WORTH_PAGES = 4_000
_ROWS_AT_ONCE = 32_768
_NUMERIC = ("INT", "NUMERIC", "REAL", "DOUB", "FLOA")
_NOT_PLAIN = re.compile(
    r"\b(?:UNIQUE|CHECK|GENERATED|AS|WITHOUT|STRICT|AUTOINCREMENT|DESC|REFERENCES|FOREIGN)\b",
    re.IGNORECASE,
)


class TableWriter:
    """One table of a new file, created with its first row."""

    def __init__(self, file: SharedFile, layout: Layout) -> None:
        self.layout = layout
        self.rows = 0
        self.exists = False
        self._file = file
        self._columns = layout.spec.columns
        self._inserts = Inserts(file, layout)
        self._key = _rowid_column(layout.spec)
        self._as_pages = can_be_pages(layout.spec)
        self._affinities = [affinity_of(column.type) for column in self._columns]
        self._pending: list[tuple[list[Source], int]] = []
        self._pending_rows = 0
        self._pending_text = 0
        self._tree: TableTree | None = None
        self._index_pages: IndexPages | None = None

    def create(self) -> None:
        """Create the table if it does not exist yet."""
        if not self.exists:
            self._file.statements().execute(self.layout.spec.create_sql)
            self.exists = True

    def append(self, sources: Mapping[str, Source], rows: int) -> None:
        """Append `rows` rows, at least 1; `sources` are the values by newest name, else NULL.

        Raises:
            UsageError: text or NULL in a column that does not allow it.
        """
        ordered = [sources.get(name, Constant(None)) for name in self.layout.sources]
        self._refuse_impossible(ordered, rows)
        self.create()
        self.rows += rows
        if not self._as_pages or not self._complete(ordered, rows):
            self._insert(ordered, rows)
        elif rows >= ROWS_WORTH_PAGES and not self._pending:
            self._write(ordered, rows)
        else:
            self._put_off(ordered, rows)

    def finish(self) -> None:
        """Write pending rows, and complete the table and its indexes; may be called again."""
        if self.exists:
            if self._tree is not None:
                self._write_pending()
            if self._index_pages is not None:
                self._index_pages.finish()
            self._leave_to_statements()
            self._inserts.finish()

    def _refuse_impossible(self, ordered: list[Source], rows: int) -> None:
        for column, source in zip(self._columns, ordered, strict=True):
            where = f"{self.layout.table}.{column.name}"
            if is_text(source) and _is_numeric(column):
                message = f"{where} is {column.type}, found text (text is interned first)"
                raise UsageError(message, slug="wrong-table")
            # SQLite would choose a number for NULL in an INTEGER PRIMARY KEY.
            if column.primary_key and non_null(source, rows) < rows:
                raise UsageError(f"{where} is the key of its table, found NULL", slug="wrong-table")

    def _complete(self, ordered: list[Source], rows: int) -> bool:
        """Return True if no NOT NULL column has NULL; otherwise SQLite reports the error."""
        return all(
            not column.not_null or non_null(source, rows) == rows
            for column, source in zip(self._columns, ordered, strict=True)
        )

    def _put_off(self, ordered: list[Source], rows: int) -> None:
        """Buffer rows until there are enough for pages."""
        self._pending.append(([kept(source) for source in ordered], rows))
        self._pending_rows += rows
        self._pending_text += text_size(ordered, 0, rows)
        if self._pending_rows >= ROWS_WORTH_PAGES or self._pending_text > TEXT_AT_ONCE:
            self._write_pending()

    def _write_pending(self) -> None:
        pending, rows = self._pending, self._pending_rows
        self._pending, self._pending_rows, self._pending_text = [], 0, 0
        if pending:
            lengths = [length for _, length in pending]
            columns = zip(*(ordered for ordered, _ in pending), strict=True)
            self._write([concatenate(parts, lengths) for parts in columns], rows)

    def _write(self, ordered: list[Source], rows: int) -> None:
        """Append rows as pages in blocks; insert by statements from the first unsuitable block."""
        for start in range(0, rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, rows)
            self._write_some([selected(s, slice(start, stop)) for s in ordered], stop - start)

    def _write_some(self, ordered: list[Source], rows: int) -> None:
        if rows > 1 and text_size(ordered, 0, rows) > TEXT_AT_ONCE:
            middle = rows // 2
            self._write_some([selected(s, slice(0, middle)) for s in ordered], middle)
            self._write_some([selected(s, slice(middle, rows)) for s in ordered], rows - middle)
        elif not self._as_pages or not self._write_block(ordered, rows):
            self._insert(ordered, rows)

    def _write_block(self, ordered: list[Source], rows: int) -> bool:
        """Append rows as pages; if that is not possible, write nothing and return False."""
        if self._tree is None and not self._file.pages().suitable:
            return False
        last = None if self._tree is None else self._tree.last_rowid
        if self._key is None:
            rowids = (last or 0) + 1 + np.arange(rows)
        else:
            keys = integers(ordered[self._key], rows)
            if keys is None:
                return False
            if not _ascends(keys):
                order = np.argsort(keys)
                keys, ordered = keys[order], [selected(source, order) for source in ordered]
            if not _ascends(keys) or (last is not None and keys[0] <= last):
                return False
            rowids = keys
            ordered[self._key] = Constant(None)
        from unified_prof.sqlite.pages.row_encoder import field_of

        if self._tree is None:
            self._tree = self._new_tree()
        fields = [
            field_of(source, affinity)
            for source, affinity in zip(ordered, self._affinities, strict=True)
        ]
        self._tree.append(self._file.pages(), fields, rowids)
        if self._index_pages is not None:
            self._index_pages.append(ordered, rows, rowids)
        return True

    def _new_tree(self) -> TableTree:
        from unified_prof.sqlite.pages.tree_writer import TableTree

        if self._inserts.indexes:
            self._index_pages = IndexPages(self._file, self._columns, self._inserts.indexes)
        root = self._file.statements().execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (self.layout.spec.name,)
        )
        number = int(root.fetchone()[0])
        header = self._file.pages().header
        return TableTree(number, header.page_bytes, header.usable)

    def _insert(self, ordered: list[Source], rows: int) -> None:
        """Insert these and all later rows by statements."""
        self._leave_to_statements()
        self._inserts.append(ordered, rows)

    def _leave_to_statements(self) -> None:
        """Complete the written pages, so that later rows are inserted by statements."""
        self._as_pages = False
        if self._tree is not None:
            if self._index_pages is not None:
                self._index_pages.leave_to_sqlite()
                self._index_pages = None
            self._tree.finish(self._file.pages())
            self._tree = None
            self._inserts.index_later()
        pending, self._pending = self._pending, []
        for ordered, rows in pending:
            self._inserts.append(ordered, rows)


def _rowid_column(spec: TableSpec) -> int | None:
    """Return the position of the column that is the table's row id, or None."""
    keys = [number for number, column in enumerate(spec.columns) if column.primary_key]
    if len(keys) == 1 and spec.columns[keys[0]].type.upper() == "INTEGER":
        return keys[0]
    return None


def can_be_pages(spec: TableSpec) -> bool:
    """Return True if a table has only plain columns and row ids."""
    has_key = any(column.primary_key for column in spec.columns)
    return (
        has_key == (_rowid_column(spec) is not None)
        and not _NOT_PLAIN.search(spec.create_sql)
        and all(
            _is_numeric(column) or affinity_of(column.type) in (Affinity.TEXT, Affinity.NONE)
            for column in spec.columns
        )
    )


def _is_numeric(column: ColumnSpec) -> bool:
    return any(word in column.type.upper() for word in _NUMERIC)


def _ascends(keys: NDArray[np.int64]) -> bool:
    return bool((keys[1:] > keys[:-1]).all())


@dataclass(frozen=True, slots=True)
class _Growing:
    """One index being written."""

    index: Index
    columns: tuple[int, ...]
    """Positions of the index columns in the table."""
    tree: IndexTree


class IndexPages:
    """The indexes of a new table, written as pages."""

    def __init__(
        self, file: SharedFile, columns: Sequence[ColumnSpec], indexes: Sequence[Index]
    ) -> None:
        self._file = file
        places = {column.name: place for place, column in enumerate(columns)}
        integral = {
            column.name
            for column in columns
            if affinity_of(column.type) is Affinity.NUMERIC and not column.primary_key
        }
        suited = [
            index for index in indexes if index.is_plain and integral.issuperset(index.columns)
        ]
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
        """Create an empty index, and return its root page."""
        db = self._file.statements()
        index.create(db)
        found = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index.name,))
        return int(found.fetchone()[0])

    def append(self, ordered: Sequence[Source], rows: int, rowids: NDArray[np.int64]) -> None:
        """Add the entries of `rows` rows with ascending row ids that were appended to the table."""
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
        """Drop the indexes, which SQLite then creates at the end."""
        for growing in list(self._growing):
            self._give_up(growing)

    def _give_up(self, growing: _Growing) -> None:
        # Its pages become free, and SQLite uses them for the index at the end.
        growing.tree.finish(self._file.pages())
        growing.index.drop(self._file.statements())
        self._growing.remove(growing)
