"""Reads a report of any family and revision through its newest shape, and changes nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.display import Displayed
from unified_prof.errors import UsageError
from unified_prof.schema import catalogue
from unified_prof.sqlite import column_reader as in_columns
from unified_prof.sqlite import detect, views
from unified_prof.sqlite import integer_columns as whole_tables
from unified_prof.sqlite.atomic import raise_kept, watch
from unified_prof.sqlite.batches import plain
from unified_prof.sqlite.fingerprint import Shape, shape
from unified_prof.sqlite.opening import open_read_only
from unified_prof.sqlite.statements import READ_ERRORS, quoted, read_error, reading

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.orm import Session

Parameters = Sequence[Any] | Mapping[str, Any]


class Report(Displayed):
    """A report that lies open for reading; use it in a `with` block or `close` it.

    Queries see every table in its newest shape: missing tables are empty, columns that the file
    does not have are NULL, renamed ones have their newest name. What a file has beyond that is
    there too, and `main.<table>` is the table as it lies in the file. Tables that had to be given
    their shape, and have no key, end with a column `rowid`.

    Attributes:
        path: The file.
        family: `msprof`, `skyline-run-time`, `skyline-memory` or `cluster`.
        revision: The schema's revision; None only where any revision was asked for.
        detection: How it was recognised, who made it, whether it is complete.
        tables: Names of the tables that are in the file, in the order they were created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        any_revision: bool = False,
        tables: Collection[str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.family: str
        self.revision: str | None
        with ExitStack() as resources:
            self._db = open_read_only(self.path, resources)
            with reading(self.path):
                file = shape(self._db)
                self.tables = tuple(
                    name for name in file.statements if not name.lower().startswith("sqlite_")
                )
                self.detection = detect.recognise(self._db, self.path)
                if any_revision and self.detection.family:
                    self.family, self.revision = self.detection.family, self.detection.revision
                else:
                    self.family, self.revision = self.detection.require()
                views.lay(self._db, _views(file, self.family, tables))
                self._db.execute("PRAGMA query_only = ON")
            watch(self._db)  # from here on, the size of the file says how long it takes
            self._resources = resources.pop_all()

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless the second time."""
        self._resources.close()

    def rows(self, sql: str, params: Parameters = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query; for results of moderate size.

        Raises:
            StoreError: the query is wrong, or the file is damaged.
        """
        with reading(self.path):
            return self._execute(sql, params).fetchall()

    def columns(self, sql: str, params: Parameters = ()) -> dict[str, NDArray[Any]]:
        """Return the result of a query as one NumPy array a column.

        Memory is that of the arrays: rows are fetched some thousands at a time. Integers come as
        int64 (as a masked array where some are NULL), floats as float64 with NaN for NULL,
        integers and floats mixed as float64 if that is exact, everything else as objects. An
        empty result is int64, a column of nothing but NULL float64.

        Raises:
            StoreError: the query is wrong, or the file is damaged.
            UsageError: two columns of the result have the same name.
        """
        with reading(self.path):
            return in_columns.of_query(self._execute(sql, params))

    def parts(
        self, sql: str, params: Parameters = (), *, rows: int
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield what `columns` returns so many rows at a time; none of no rows.

        What a column is may differ from part to part: an array of integers here, of floats there.

        Raises:
            StoreError: the query is wrong, or the file is damaged.
            UsageError: two columns of the result have the same name.
        """
        with reading(self.path):
            yield from in_columns.in_parts(self._execute(sql, params), rows)

    def integers(
        self, table: str, columns: Mapping[str, str], *, narrow: Collection[str] = ()
    ) -> dict[str, NDArray[np.int64]]:
        """Return integer expressions over all rows of a table, in the file's order of rows.

        Several times as fast as `columns` for millions of rows. What is no integer is
        `store.integers.MISSING`.

        Args:
            table: One of the newest schema; one that the file lacks has no rows.
            columns: Name in the result -> SQL expression over the table's columns.
            narrow: Columns that may come as int32 where their values allow it, to save memory.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return {name: np.empty(0, np.int64) for name in columns}
        return whole_tables.of_table(self._db, self.path, table, columns, narrow=narrow)

    def windows(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[tuple[dict[str, NDArray[np.int64]], whole_tables.Window]]:
        """Yield what `integers` returns some thousand rows at a time, and where those rows stand.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return iter(())
        return whole_tables.windows(self._db, self.path, table, columns)

    def pieces(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yield what `integers` returns some thousand rows at a time.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return iter(())
        return whole_tables.pieces(self._db, self.path, table, columns)

    def _execute(self, sql: str, params: Parameters) -> sqlite3.Cursor:
        # A NumPy number would be bound as a BLOB, which equals nothing.
        if isinstance(params, Mapping):
            return self._db.execute(sql, {name: plain(value) for name, value in params.items()})
        return self._db.execute(sql, [plain(value) for value in params])

    def session(self) -> Session:
        """Return a SQLAlchemy session for the models; close it, or use it in a `with` block."""
        from sqlalchemy import create_engine, event
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import StaticPool

        # One connection, this one: the views exist in no other.
        engine = create_engine("sqlite://", creator=lambda: self._db, poolclass=StaticPool)
        event.listen(engine, "handle_error", self._raise_ours)
        return Session(engine, autoflush=False)

    def to_pandas(self, table: str) -> Any:
        """Return a table, in its newest shape, as a pandas DataFrame (NULL is <NA> or NaN).

        Raises:
            UsageError: no such table, or pandas is not installed.
        """
        pandas = _library("pandas")
        return pandas.DataFrame(
            {
                name: pandas.arrays.IntegerArray(values.data, values.mask)
                if isinstance(values, np.ma.MaskedArray)
                else values
                for name, values in self._whole(table).items()
            }
        )

    def to_arrow(self, table: str) -> Any:
        """Return a table, in its newest shape, as a pyarrow Table.

        Raises:
            UsageError: no such table, or pyarrow is not installed.
        """
        pyarrow = _library("pyarrow")
        return pyarrow.table(
            {
                name: pyarrow.array(values.data, mask=values.mask)
                if isinstance(values, np.ma.MaskedArray)
                else pyarrow.array(values, from_pandas=True)
                for name, values in self._whole(table).items()
            }
        )

    def _raise_ours(self, context: ExceptionContext) -> None:
        if isinstance(context.original_exception, READ_ERRORS):
            raise_kept()
            raise read_error(self.path, context.original_exception)

    def _whole(self, table: str) -> dict[str, NDArray[Any]]:
        known = {*self.tables, *catalogue.load(self.family, "latest").tables}
        if table not in known | catalogue.extension_tables().keys():
            raise UsageError(
                f"{self.path} has no table {table}",
                hint=f"it has: {', '.join(self.tables)}",
                slug="wrong-table",
            )
        columns = self.columns(f"SELECT * FROM {quoted(table)}")
        columns.pop("rowid", None)  # of a view (store/views.py)
        return columns


def open_report(
    path: str | os.PathLike[str],
    *,
    any_revision: bool = False,
    tables: Collection[str] | None = None,
) -> Report:
    """Open a report of any family and revision for reading; see `Report`.

    The file, its folder and their times stay as they are, whatever state they are in.

    Args:
        path: The report.
        any_revision: Whether to read also what fits no revision that uprof knows, such as a file
            from before the first: whatever tables and columns it has under today's names.
        tables: The only tables that will be asked for, where opening quickly matters: others are
            as they lie in the file.

    Raises:
        StoreError: `path` cannot be read, is damaged, or is not a report.
        SchemaVersionError: it is one, at no revision that uprof knows.
        OutputError: the file needs a temporary copy (a crashed writer left a log) and that
            cannot be made.
    """
    return Report(path, any_revision=any_revision, tables=tables)


def _views(file: Shape, family: str, tables: Collection[str] | None) -> list[str]:
    """Return what gives a file's tables their newest shape, once for all files of a schema."""
    key = (family, None if tables is None else frozenset(tables))
    found = file.views.get(key)
    if found is None:
        shapes = catalogue.load(family, "latest").tables | catalogue.extension_tables()
        if tables is not None:
            shapes = {name: shapes[name] for name in tables if name in shapes}
        found = file.views[key] = views.over(file, shapes)
    return found


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as err:
        raise UsageError(
            f"this needs {name}", hint=f"run: pip install {name}", slug="missing-package"
        ) from err
