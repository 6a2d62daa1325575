"""Reader of reports of any family and revision, which shows all tables in their newest shape."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
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
    """An open report; use it in a `with` block or `close` it.

    Queries see every table in its newest shape: missing tables are empty, missing columns are NULL,
    and renamed columns have their newest names. Additional tables and columns of the file are
    visible too; `main.<table>` is the original table. Tables without a key that have a different
    shape in the file have an additional last column `rowid`.

    Attributes:
        path: The file.
        family: `msprof`, `skyline-run-time`, `skyline-memory` or `cluster`.
        revision: The schema's revision; None only with `any_revision`.
        detection: Result of `detect`: evidence for the revision, producer, completeness.
        tables: Names of the tables in the file, in the order of their creation.
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
            watch(self._db)  # from here on, the time depends on the size of the file
            self._resources = resources.pop_all()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no effect if closed."""
        self._resources.close()

    def rows(self, sql: str, params: Parameters = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query; for results of moderate size.

        Raises:
            StoreError: the query is wrong, or the file is damaged.
        """
        with reading(self.path):
            return self._execute(sql, params).fetchall()

    def columns(self, sql: str, params: Parameters = ()) -> dict[str, NDArray[Any]]:
        """Return the result of a query as one NumPy array per column.

        Rows are fetched a few thousand at a time, so no memory is needed beyond the arrays.
        Integers are returned as int64 (a masked array if some are NULL), floats as float64 with NaN
        for NULL, a mixture of both as float64 if that is exact, everything else as objects. Empty
        columns are int64; columns with only NULL are float64.

        Raises:
            StoreError: the query is wrong, or the file is damaged.
            UsageError: two columns of the result have the same name.
        """
        with reading(self.path):
            return in_columns.of_query(self._execute(sql, params))

    def parts(
        self, sql: str, params: Parameters = (), *, rows: int
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the result of `columns`, `rows` rows at a time; yield nothing if there are no rows.

        The type of a column may differ between parts: integers in one part, floats in another.

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

        Several times as fast as `columns` for millions of rows. `columns` maps names in the result
        to SQL expressions; those in `narrow` may be returned as int32 if their values fit. Values
        that are not integers are `integer_columns.MISSING`. A table of the newest schema that the
        file lacks has no rows.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return {name: np.empty(0, np.int64) for name in columns}
        return whole_tables.of_table(self._db, self.path, table, columns, narrow=narrow)

    def windows(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[tuple[dict[str, NDArray[np.int64]], whole_tables.Window]]:
        """Yield the result of `integers` in windows of rows, with SQL that selects each window.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return iter(())
        return whole_tables.windows(self._db, self.path, table, columns)

    def batches(
        self, table: str, columns: Mapping[str, str]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yield the result of `integers` in windows of a few thousand rows.

        Raises:
            StoreError: an expression is wrong, or the file is damaged.
        """
        if table not in self.tables:
            return iter(())
        return whole_tables.batches(self._db, self.path, table, columns)

    def _execute(self, sql: str, params: Parameters) -> sqlite3.Cursor:
        # The driver would bind a NumPy number as a BLOB, which is not equal to any number.
        if isinstance(params, Mapping):
            return self._db.execute(sql, {name: plain(value) for name, value in params.items()})
        return self._db.execute(sql, [plain(value) for value in params])

    def session(self) -> Session:
        """Return a SQLAlchemy session for the models; use it in a `with` block or close it."""
        from sqlalchemy import create_engine, event
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import StaticPool

        # Use only this connection, because the views do not exist in others.
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
                for name, values in self._read_table(table).items()
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
                for name, values in self._read_table(table).items()
            }
        )

    def _raise_ours(self, context: ExceptionContext) -> None:
        if isinstance(context.original_exception, READ_ERRORS):
            raise_kept()
            raise read_error(self.path, context.original_exception)

    def _read_table(self, table: str) -> dict[str, NDArray[Any]]:
        known = {*self.tables, *catalogue.load(self.family, "latest").tables}
        if table not in known | catalogue.extension_tables().keys():
            raise UsageError(
                f"{self.path} has no table {table}",
                hint=f"tables: {', '.join(self.tables)}",
                slug="wrong-table",
            )
        columns = self.columns(f"SELECT * FROM {quoted(table)}")
        columns.pop("rowid", None)  # of a view (see views.py)
        return columns


def open_report(
    path: str | os.PathLike[str],
    *,
    any_revision: bool = False,
    tables: Collection[str] | None = None,
) -> Report:
    """Open a report of any family and revision for reading; see `Report`.

    The file, its directory and their times are not changed. If `any_revision` is true, files of
    unknown revisions are read too, for example from before the first one: tables and columns with
    current names are readable. If `tables` is given, only these get their newest shape, which
    opens the report faster.

    Raises:
        StoreError: `path` cannot be read, is damaged, or is not a report.
        SchemaVersionError: it is a report of an unknown revision.
        OutputError: a temporary copy is needed (a crashed writer left a log) and cannot be created.
    """
    return Report(path, any_revision=any_revision, tables=tables)


def _views(file: Shape, family: str, tables: Collection[str] | None) -> list[str]:
    """Return the SQL of the views for a file, computed once per schema."""
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
            f"this requires {name}", hint=f"run: pip install {name}", slug="missing-package"
        ) from err
