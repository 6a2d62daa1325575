"""Reader of reports of any family and revision, which shows all tables in their newest shape.

Decoders and readers use only the newest names. Between revisions, columns were added (always at the
end), four columns were renamed, and two changed their meaning: until 1.0.0_20240521, the HCCL type
columns had ids of STRING_IDS, since then ids of the ENUM_HCCL_* tables; until 1.0.0_20241008,
HOST_INFO.hostUid was a number, since then a text. `layout` and `to_old` are for writers, `over` is
for readers.

A TEMP view hides the table of the same name, which is still available as `main.<table>`. SQLite
flattens such views, so that the table's indexes are used.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.base.columns import TYPE_INVALID, Strings
from unified_prof.base.display import Displayed
from unified_prof.errors import UsageError, missing_package
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import MSPROF, ColumnSpec, TableSpec
from unified_prof.sqlite import column_reader as in_columns
from unified_prof.sqlite import integer_columns as whole_tables
from unified_prof.sqlite import opening
from unified_prof.sqlite.atomic import raise_kept, watch
from unified_prof.sqlite.batches import Constant, Numbers, Plain, Source, from_sequence, plain
from unified_prof.sqlite.fingerprint import Shape, shape
from unified_prof.sqlite.opening import open_read_only
from unified_prof.sqlite.statements import READ_ERRORS, quoted, read_error, reading

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.orm import Session


class Rename(Struct, frozen=True):
    """A column that was called `old` in every revision before `revision`."""

    table: str
    newest: str
    old: str
    revision: str


# Latest first. COMPUTE_TASK_INFO.blockDim before 1.2.0_20260128 is the current blockNum; the
# current blockDim (SIMT dimensions) is a different column, added in 1.2.0_20260716.
RENAMES = (
    Rename("COMPUTE_TASK_INFO", "blockNum", "blockDim", "1.2.0_20260128"),
    Rename("COMPUTE_TASK_INFO", "mixBlockNum", "mixBlockDim", "1.2.0_20260128"),
    Rename("COMPUTE_TASK_INFO", "blockNum", "block_dim", "1.0.0_20240521"),
    Rename("NPU_MEM", "ddr", "ddrUsage", "1.0.0_20240521"),
    Rename("NPU_MEM", "hbm", "hbmUsage", "1.0.0_20240521"),
)


class Layout(Struct, frozen=True):
    """Layout of one table of the newest schema in a file of an older revision."""

    table: str
    spec: TableSpec
    """The table as declared in the file."""
    sources: tuple[str, ...]
    """Newest name of every column of the file, in the file's order."""
    dropped: tuple[str, ...]
    """Columns of the newest schema that the file lacks."""

    @property
    def index_columns(self) -> dict[str, tuple[str, ...]]:
        """Index name -> its columns in the file."""
        return {name: _columns_of(sql) for name, sql in self.spec.indexes}


@cache
def layout(revision: str, table: str) -> Layout | None:
    """Return the layout of `table` in a file of `revision`, None if the revision lacks it.

    Raises:
        KeyError: `table` does not exist in any revision.
    """
    newest = catalogue.newest_tables()[table]
    if table in catalogue.extension_tables():
        return Layout(table, newest, newest.column_names, ())
    spec = catalogue.load(MSPROF, revision).tables.get(table)
    if spec is None:
        return None
    stored = {column: old_name(revision, table, column) for column in newest.column_names}
    by_file_name: dict[str, str] = {}
    for column, name in stored.items():
        if name in spec.column_names:
            by_file_name.setdefault(name, column)  # a renamed column goes first
    sources = tuple(by_file_name[name] for name in spec.column_names)
    return Layout(table, spec, sources, tuple(c for c in stored if c not in sources))


def old_name(revision: str, table: str, column: str) -> str:
    """Return the name in `revision` of a column of the newest schema, or None."""
    order = catalogue.REVISIONS[MSPROF]
    name = column
    for rename in RENAMES:
        same = (rename.table, rename.newest) == (table, column)
        if same and order.index(revision) < order.index(rename.revision):
            name = rename.old
    return name


def _columns_of(create_index: str) -> tuple[str, ...]:
    match = re.search(r"\(([^()]*)\)\s*$", create_index)
    assert match, create_index
    return tuple(name.strip().strip('"') for name in match[1].split(","))


_ENUM_IDS_SINCE = "1.0.0_20240521"
_TEXT_UID_SINCE = "1.0.0_20241008"

# (table, column) -> the enum to which the ids in the column refer.
HCCL_TYPES = {
    ("COMMUNICATION_TASK_INFO", "rdmaType"): "ENUM_HCCL_RDMA_TYPE",
    ("COMMUNICATION_TASK_INFO", "transportType"): "ENUM_HCCL_TRANSPORT_TYPE",
    ("COMMUNICATION_TASK_INFO", "dataType"): "ENUM_HCCL_DATA_TYPE",
    ("COMMUNICATION_TASK_INFO", "linkType"): "ENUM_HCCL_LINK_TYPE",
    ("COMMUNICATION_OP", "dataType"): "ENUM_HCCL_DATA_TYPE",
}


@cache
def enum_names(enum: str) -> dict[int, str]:
    """Return the newest contents of an enum table."""
    rows: Any = catalogue.load(MSPROF, "latest").rows[enum]
    return dict(rows)


def to_old(revision: str, table: str, column: str, source: Source, strings: Strings) -> Source:
    """Convert a column of the newest schema to the values of `revision`."""
    if (enum := HCCL_TYPES.get((table, column))) and _is_before(revision, _ENUM_IDS_SINCE):
        names = enum_names(enum)
        return _mapped(source, lambda value: strings.intern(names.get(value, str(value))))
    if (table, column) == ("HOST_INFO", "hostUid") and _is_before(revision, _TEXT_UID_SINCE):
        return _mapped(source, _number)
    return source


def _is_before(revision: str, other: str) -> bool:
    order = catalogue.REVISIONS[MSPROF]
    return order.index(revision) < order.index(other)


def _number(value: Any) -> Plain:
    """Return a host id as a number, None if it is not a number."""
    try:
        number = int(value)
    except ValueError:
        return None
    return int(np.uint64(number % 2**64).astype(np.int64))


def _mapped(source: Source, convert: Callable[[Any], Plain]) -> Source:
    """Apply `convert` to every distinct value except NULL."""
    if isinstance(source, Constant):
        return Constant(None if source.value is None else convert(source.value))
    values = source.array.tolist() if isinstance(source, Numbers) else source.part(0, len(source))
    known: dict[Any, Plain] = {
        value: convert(value) for value in dict.fromkeys(values) if value is not None
    }
    return from_sequence([known.get(value) for value in values])


def over(file: Shape, newest: dict[str, TableSpec]) -> dict[str, str]:
    """Return the SQL of a view for every table of `newest` that is missing or has another shape.

    Keys are the names in lower case. Views in the file that have the name of such a table are
    hidden. Missing tables are empty and missing columns NULL; columns that the newest schema does
    not have come last. Views of tables without a key have an additional column `rowid`, which
    identifies rows for the models.
    """
    result: dict[str, str] = {}
    present = {name.lower(): (name, sql) for name, sql in file.statements.items()}
    # Before the enum tables existed, the columns that refer to them had string ids.
    enums = set(HCCL_TYPES.values())
    by_text = "string_ids" in present and not any(enum.lower() in present for enum in enums)
    for spec in newest.values():
        if spec.name.lower() not in present:
            if by_text and spec.name in enums and "communication_task_info" in present:
                body = f"SELECT column1 AS id, column2 AS name FROM ({_enum_values(spec.name)})"
            else:
                body = f"SELECT {', '.join(_empty(spec))} WHERE 0"
        else:
            name, sql = present[spec.name.lower()]
            found = {c.name.lower(): (c.name, c.type) for c in file.tables[name]}
            selection = _selection(spec, found, by_text=by_text)
            if selection is None:
                continue
            if not _has_key(spec) and "rowid" not in found:
                has_row_id = "WITHOUT ROWID" not in sql.upper()
                selection.append("rowid" if has_row_id else "row_number() OVER () AS rowid")
            body = f"SELECT {', '.join(selection)} FROM main.{quoted(name)}"
        result[spec.name.lower()] = f"CREATE TEMP VIEW {quoted(spec.name)} AS {body}"
    return result


def _empty(spec: TableSpec) -> list[str]:
    columns = [f"{_null(column)} AS {quoted(column.name)}" for column in spec.columns]
    return columns if _has_key(spec) else [*columns, "CAST(NULL AS INTEGER) AS rowid"]


def _has_key(spec: TableSpec) -> bool:
    return any(column.primary_key for column in spec.columns)


def _selection(
    spec: TableSpec, found: dict[str, tuple[str, str]], *, by_text: bool
) -> list[str] | None:
    """Return the columns to select from a table, None if it has the newest shape.

    `found` maps names in lower case to (name, declared type) of the columns in the file; `by_text`
    is True if the file is older than the HCCL enums.
    """
    used: set[str] = set()
    selection = []
    differs = False
    for column in spec.columns:
        old = [r.old for r in RENAMES if (r.table, r.newest) == (spec.name, column.name)]
        name = next(
            (n for n in map(str.lower, (column.name, *old)) if n in found and n not in used), None
        )
        if name is None:
            expression = _null(column)
        else:
            used.add(name)
            actual, kind = found[name]
            expression = quoted(actual)
            enum = HCCL_TYPES.get((spec.name, column.name))
            if enum and by_text:
                expression = _enum_id(enum, expression)
            elif column.type == "TEXT" and "INT" in kind.upper():
                expression = f"CAST({expression} AS TEXT)"  # HOST_INFO.hostUid was a number
        differs |= expression.lower() != quoted(column.name).lower()
        selection.append(f"{expression} AS {quoted(column.name)}")
    if not differs:
        return None
    taken = {column.name.lower() for column in spec.columns}
    extra = [name for key, (name, _) in found.items() if key not in used and key not in taken]
    return selection + [quoted(name) for name in extra]


def _enum_id(enum: str, string_id: str) -> str:
    """Return SQL for the enum id of the text with the id `string_id`.

    For types without a name, msprof wrote the number as text. Other unknown texts become the
    invalid type, as in migrations, and an id without a text becomes NULL.
    """
    is_number = "value GLOB '[0-9]*' AND value NOT GLOB '*[^0-9]*'"
    number = f"CASE WHEN {is_number} THEN CAST(value AS INTEGER) END"
    named = f"(SELECT column1 FROM ({_enum_values(enum)}) WHERE column2 = value)"
    known = f"coalesce({named}, {number}, {TYPE_INVALID})"
    return f"(SELECT {known} FROM main.STRING_IDS WHERE id = {string_id} LIMIT 1)"


def _enum_values(enum: str) -> str:
    rows = ", ".join(f"({number}, '{name}')" for number, name in enum_names(enum).items())
    return f"VALUES {rows}"


def _null(column: ColumnSpec) -> str:
    return f"CAST(NULL AS {column.type})"


_WORDS = re.compile(r"\w+")
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

    def __init__(self, path: str | os.PathLike[str], *, any_revision: bool = False) -> None:
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
                self.detection = opening.recognize(self._db, self.path)
                if any_revision and self.detection.family:
                    self.family, self.revision = self.detection.family, self.detection.revision
                else:
                    self.family, self.revision = self.detection.require()
                # Created when a query names their table: opening a report creates none of seventy.
                self._views = dict(_views(file, self.family))
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
        self._create_views(table, *columns.values())
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
        self._create_views(table, *columns.values())
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
        self._create_views(table, *columns.values())
        return whole_tables.batches(self._db, self.path, table, columns)

    def _create_views(self, *texts: str) -> None:
        """Create the views of tables that parts of SQL name."""
        words = {word for text in texts for word in _WORDS.findall(text.lower())}
        if needed := self._views.keys() & words:
            with reading(self.path):
                self._db.execute("PRAGMA query_only = OFF")
                try:
                    for name in needed:
                        self._db.execute(self._views[name])
                        del self._views[name]
                finally:
                    self._db.execute("PRAGMA query_only = ON")

    def _execute(self, sql: str, params: Parameters) -> sqlite3.Cursor:
        self._create_views(sql)
        # The driver would bind a NumPy number as a BLOB, which is not equal to any number.
        if isinstance(params, Mapping):
            return self._db.execute(sql, {name: plain(value) for name, value in params.items()})
        return self._db.execute(sql, [plain(value) for value in params])

    def session(self) -> Session:
        """Return a SQLAlchemy session for the models; use it in a `with` block or close it."""
        from sqlalchemy import create_engine, event
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import StaticPool

        self._create_views(*self._views)
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


def open_report(path: str | os.PathLike[str], *, any_revision: bool = False) -> Report:
    """Open a report of any family and revision for reading; see `Report`.

    The file, its directory and their times are not changed. If `any_revision` is true, files of
    unknown revisions are read too, for example from before the first one: tables and columns with
    current names are readable.

    Raises:
        StoreError: `path` cannot be read, is damaged, or is not a report.
        SchemaVersionError: it is a report of an unknown revision.
        OutputError: a temporary copy is needed (a crashed writer left a log) and cannot be created.
    """
    return Report(path, any_revision=any_revision)


def _views(file: Shape, family: str) -> dict[str, str]:
    """Return the SQL of the views for a file, computed once per schema."""
    if (found := file.views.get(family)) is None:
        shapes = catalogue.load(family, "latest").tables | catalogue.extension_tables()
        found = file.views[family] = over(file, shapes)
    return found


def _library(name: str) -> Any:
    with missing_package(f"this requires {name}", hint=f"run: pip install {name}"):
        return import_module(name)
