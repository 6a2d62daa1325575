"""Writer of msprof databases of any revision, which appear only when complete."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unified_prof.base.columns import Column, Ledger
from unified_prof.base.text import storable
from unified_prof.errors import StoreError, UsageError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import ALWAYS_PRESENT, MSPROF, REVISION_ROW
from unified_prof.sqlite import batches, statements, views
from unified_prof.sqlite.atomic import AtomicFile
from unified_prof.sqlite.batches import Source, StringPool
from unified_prof.sqlite.inserts import SharedFile
from unified_prof.sqlite.statements import Block
from unified_prof.sqlite.table_writer import TableWriter
from unified_prof.sqlite.views import Layout

_STRING_IDS = "STRING_IDS"
_STRINGS_PER_BATCH = 50_000
_ROWS_CHECKED_SINGLY = 500_000
# SQLite's default; larger pages are a tenth faster, but a small report takes half a megabyte more.
_PAGE_BYTES = 4096


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
        self._strings = StringPool()
        self._overwrite = overwrite
        self._empty_tables = empty_tables
        self._enums = enums
        self._spec = catalogue.load(MSPROF, self.revision)
        self._tables: dict[str, TableWriter] = {}
        self._facts: dict[str, str | None] = {}
        self.anomalies = Ledger()
        """Counts of anomalies; complete after the block."""
        self._dropped_rows: dict[str, int] = {}
        self._dropped_values: dict[str, int] = {}
        self._file: AtomicFile | None = None
        self._shared: SharedFile | None = None
        self._failure: BaseException | None = None
        self._before_name: list[Callable[[Path], None]] = []

    @property
    def strings(self) -> StringPool:
        """The string pool of the file: ids 0, 1, 2, ... in order of first use."""
        return self._strings

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Append one batch to `table`; see `columns.Sink.write`.

        Columns that the file's revision lacks are left out and counted as an anomaly. The result is
        0 if it lacks the table.

        Raises:
            UsageError: unknown table or column, lengths differ, or SQLite cannot store a value.
            OutputError: the file cannot be written, for example because the disk is full.
            StoreError: duplicate key.
        """
        known = views.known_tables()
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
        layout = views.layout(self.revision, table)
        if layout is None:
            self._dropped_rows[table] = self._dropped_rows.get(table, 0) + rows
            return 0
        if rows:
            self._count_dropped(layout, sources, rows)
            stored = {
                name: views.to_old(self.revision, table, name, source, self._strings)
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

        Raises:
            OutputError: the name exists or is invalid.
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
                self._shared = SharedFile(self._file.partial, page_bytes=_PAGE_BYTES)
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
            layout = views.layout(self.revision, name)
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
        for ids, texts in self._strings.batches(_STRINGS_PER_BATCH):
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
