"""Writer of msprof databases of any revision, which appear only when complete.

A table gets few rows by statements, many as pages. Thousands of rows are written as pages without
SQLite, which is several times as fast (docs/performance.md). This requires a table with only plain
columns, and rows in the order of their row ids. Otherwise SQLite inserts the rows.

Indexes are written as pages too, as long as the rows are in the order of the index. Otherwise
SQLite creates the index at the end.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.base.columns import Column, Ledger
from unified_prof.base.text import storable
from unified_prof.errors import StoreError, UsageError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import (
    ALWAYS_PRESENT,
    MSPROF,
    REVISION_ROW,
    ColumnSpec,
    TableSpec,
)
from unified_prof.sqlite import batches, reader, statements
from unified_prof.sqlite.atomic import AtomicFile
from unified_prof.sqlite.batches import (
    Constant,
    Source,
    StringPool,
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
from unified_prof.sqlite.pages.row_encoder import Affinity, affinity_of, field_of
from unified_prof.sqlite.pages.tree_writer import IndexTree, TableTree
from unified_prof.sqlite.reader import Layout
from unified_prof.sqlite.statements import Block

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


class _Growing(Struct, frozen=True):
    """One index being written."""

    index: Index
    columns: tuple[int, ...]  # Positions of the index columns in the table.
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


_STRING_IDS = "STRING_IDS"
_STRINGS_PER_BATCH = 50_000
_ROWS_CHECKED_SINGLY = 500_000


class ReportWriter(Block):
    """A report being written; a context manager and a `columns.Sink`.

    If the block ends normally, the complete report appears under its name; if it raises, no report
    is written. Tables without rows are not created, except those that every file has.

    `revision` is a revision or alias (`documented`, `latest`) of the msprof schema. Tables in
    `empty_tables` are created even without rows, if the revision has them; if `enums` is false,
    the constant rows of the schema (ENUM_ tables and version) are not written.

    Raises:
        UsageError: unknown revision; later: unknown table or column, or an invalid value.
        OutputError: the report exists or cannot be written.
        StoreError: rows violate the schema (duplicate key), or the written file fails its check.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        revision: str = "documented",
        overwrite: bool = False,
        empty_tables: Collection[str] = (),
        enums: bool = True,
    ) -> None:
        self.path = Path(path)
        self.revision = catalogue.resolve(MSPROF, revision)
        self.strings = StringPool()
        self._overwrite, self._empty_tables, self._enums = overwrite, empty_tables, enums
        self._spec = catalogue.load(MSPROF, self.revision)
        self._tables: dict[str, TableWriter] = {}
        self._facts: dict[str, str | None] = {}
        self.anomalies = Ledger()  # Counts of anomalies; complete after the block.
        self._dropped_rows: dict[str, int] = {}
        self._dropped_values: dict[str, int] = {}
        self._file: AtomicFile | None = None
        self._shared: SharedFile | None = None
        self._failure: BaseException | None = None
        self._before_name: list[Callable[[Path], None]] = []

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Append one batch to `table`; see `columns.Sink.write`.

        Columns that the file's revision lacks are left out and counted as an anomaly. The result is
        0 if it lacks the table.

        Raises:
            UsageError: unknown table or column, lengths differ, or SQLite cannot store a value.
            OutputError: the file cannot be written, for example because the disk is full.
            StoreError: duplicate key.
        """
        known = catalogue.newest_tables()
        if table not in known:
            raise UsageError(
                f"no table {table} in an msprof database",
                hint="uprof's additional tables are declared in schemas/extensions",
                slug="wrong-table",
            )
        if table == _STRING_IDS:
            message = "STRING_IDS is written from the string pool when the file is completed"
            raise UsageError(message, slug="wrong-table")
        names = known[table].column_names
        if unknown := [name for name in columns if name not in names]:
            raise UsageError(
                f"table {table} has no column {', '.join(unknown)}",
                hint=f"its columns: {', '.join(names)}",
                slug="wrong-table",
            )
        sources, rows = batches.read(columns, table=table)
        layout = reader.layout(self.revision, table)
        if layout is None:
            self._dropped_rows[table] = self._dropped_rows.get(table, 0) + rows
            return 0
        if rows:
            self._count_dropped(layout, sources, rows)
            stored = {
                name: reader.to_old(self.revision, table, name, source, self.strings)
                for name, source in sources.items()
            }
            with self._writing():
                self._table(table).append(stored, rows)
        return rows

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Count skipped, truncated, unmatched or unknown data under `name`.

        Counts of one name add up; the first `detail` is kept. They are written to UPROF_ANOMALIES.
        """
        self.anomalies.add(name, detail, count)

    def fact(self, name: str, value: object) -> None:
        """Record a provenance fact, a row of UPROF_RUN; the last value of a name is kept.

        Lists and mappings are stored as JSON, None as NULL, everything else as text.
        """
        if isinstance(value, list | tuple | dict):
            text = json.dumps(value, ensure_ascii=False, default=str)
            # Surrogates become JSON escapes.
            value = text.encode("utf-8", "backslashreplace").decode()
        self._facts[name] = None if value is None else storable(str(value))

    def rename(self, name: str) -> None:
        """Change the name of the report, in the same directory.

        Raises OutputError if the name exists or is invalid.
        """
        assert self._file is not None
        self._file.rename(name)
        self.path = self._file.target

    def before_name(self, action: Callable[[Path], None]) -> None:
        """Register a function to call with the path of the complete report before it is renamed.

        Files written by `action` exist as soon as the report does. If it raises, no report is
        written.
        """
        self._before_name.append(action)

    def __enter__(self) -> ReportWriter:
        if self._file is not None:
            message = f"{self.path} has been written; use another writer for another report"
            raise UsageError(message, slug="writer-closed")
        try:
            self._file = AtomicFile(self.path, overwrite=self._overwrite)
            with statements.writing(self.path):
                self._shared = SharedFile(self._file.partial)
                self._create_schema()
        except BaseException:
            self._close()
            raise
        return self

    def _create_schema(self) -> None:
        """Create the tables that every file has, with their constant rows."""
        for name, table in self._spec.tables.items():
            rows = self._spec.rows.get(name, ()) if self._enums else ()
            if name == "META_DATA":
                rows = (*rows, (REVISION_ROW, self.revision))
            if name != _STRING_IDS and (rows or name in ALWAYS_PRESENT):
                self._table(name).create()
            if rows:
                columns = dict(zip(table.column_names, zip(*rows, strict=True), strict=True))
                self._table(name).append(*batches.read(columns, table=name))

    def _table(self, name: str) -> TableWriter:
        """Return the writer of a table that the revision has."""
        writer = self._tables.get(name)
        if writer is None:
            layout = reader.layout(self.revision, name)
            assert layout is not None
            writer = TableWriter(self._open, layout)
            self._tables[name] = writer
        return writer

    @property
    def _open(self) -> SharedFile:
        if self._shared is None:
            message = f"{self.path} is not open: write inside the `with` block"
            raise UsageError(message, slug="writer-closed")
        return self._shared

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate errors; after an SQLite error, the file cannot be completed."""
        try:
            with statements.writing(self.path):
                yield
        except UsageError:
            raise  # nothing was written
        except BaseException as err:
            self._failure = err
            raise

    def _count_dropped(self, layout: Layout, sources: Mapping[str, Source], rows: int) -> None:
        for name in layout.dropped:
            if name in sources and (values := batches.non_null(sources[name], rows)):
                column = f"{layout.table}.{name}"
                self._dropped_values[column] = self._dropped_values.get(column, 0) + values

    def _finish(self) -> None:
        """Complete and check the file, and give it its final name."""
        if self._failure is not None:
            raise self._failure
        shared = self._open
        with self._writing():
            for name in self._spec.tables:
                if name in self._empty_tables and name != _STRING_IDS:
                    self._table(name).create()
            self._finish_tables()
            self._write_own_tables()
            self._finish_tables()
            self._write_strings()
            self._finish_tables()
            self._verify(shared.rest())
            shared.close()
        assert self._file is not None
        for action in self._before_name:
            action(self._file.partial)
        with self._writing():
            self._file.commit()

    def _finish_tables(self) -> None:
        for writer in self._tables.values():
            writer.finish()

    def _write_own_tables(self) -> None:
        """Write anomalies and facts, sorted by name so that equal input gives equal files."""
        for kind, dropped, unit in (
            ("table_not_in_schema", self._dropped_rows, "rows"),
            ("column_not_in_schema", self._dropped_values, "values"),
        ):
            if dropped:
                found = ", ".join(f"{name} ({count} {unit})" for name, count in dropped.items())
                self.anomaly(kind, sum(dropped.values()), f"{self.revision} has no {found}")
        anomalies = sorted(self.anomalies.items())
        self.write(
            "UPROF_ANOMALIES",
            {
                "name": [name for name, _ in anomalies],
                "count": [count for _, (count, _) in anomalies],
                "detail": [detail or None for _, (_, detail) in anomalies],
            },
        )
        facts = sorted(self._facts.items())
        self.write("UPROF_RUN", {"name": [n for n, _ in facts], "value": [v for _, v in facts]})

    def _write_strings(self) -> None:
        """Write STRING_IDS, whose presence tells readers that the file is complete."""
        writer = self._table(_STRING_IDS)
        writer.create()
        for ids, texts in self.strings.batches(_STRINGS_PER_BATCH):
            writer.append(*batches.read({"id": ids, "value": texts}, table=_STRING_IDS))

    def _verify(self, database: sqlite3.Connection) -> None:
        """Check the number of rows of every table, and let SQLite check the file."""
        written = [writer for writer in self._tables.values() if writer.exists]
        for writer in written:
            name = writer.layout.spec.name
            query = f"SELECT count(*) FROM {statements.quoted(name)} NOT INDEXED"
            found = database.execute(query).fetchone()[0]
            if found != writer.rows:
                message = f"{self.path}: {name} has {found} rows, but {writer.rows} were written"
                raise StoreError(message, slug="damaged-after-writing")
        # The check reads every row: an eighth of the time of writing a large file.
        if sum(writer.rows for writer in written) <= _ROWS_CHECKED_SINGLY:
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                message = f"{self.path} is damaged after writing: {verdict}"
                raise StoreError(message, slug="damaged-after-writing")

    def _close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        if self._file is not None:
            self._file.discard()
