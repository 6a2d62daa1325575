"""Operations used by msprof migrations, which tolerate deviations in real files.

msprof creates a table only if it has rows, other programs add tables and columns, and files written
by builds between two revisions have parts of the newer one. Each operation therefore skips changes
that are already present; data that cannot be converted is counted in UPROF_ANOMALIES. Released
migrations depend on these functions, so their behavior must not change.

If a table has columns of other tools between those of the format, such as those that MindStudio
Insight adds, `order_columns` moves them to the end, because programs that insert by position would
fill the wrong columns. SQLite cannot move a column, so such a table is rewritten once per upgrade.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.base.columns import NO_TEXT
from unified_prof.schema.catalogue import SchemaSpec
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.statements import Declared, declared, quoted

_GENERATED = (2, 3)  # `hidden` in SQLite's table_xinfo: virtual and stored generated columns
_NEW = "UPROF_REORDERED"
_LITERAL = re.compile(r"[-+]?[\w.]+|'(?:[^']|'')*'")  # everything else is put in parentheses


def order_columns(db: sqlite3.Connection, schema: SchemaSpec) -> None:
    """Reorder columns where necessary, in one transaction.

    Foreign columns follow those of the format; rows, declarations and indexes do not change.
    """
    db.execute("BEGIN")
    for table in schema.tables.values():
        columns = declared(db, table.name)
        wanted = list(table.column_names)
        names = [column.name for column in columns]
        if set(wanted) <= set(names) and names[: len(wanted)] != wanted:
            by_name = {column.name: column for column in columns}
            foreign = [column for column in columns if column.name not in wanted]
            rewrite(db, table.name, [*(by_name[name] for name in wanted), *foreign])
    db.execute("COMMIT")


def rewrite(db: sqlite3.Connection, table: str, columns: Sequence[Declared]) -> None:
    """Rewrite a table with the given columns, in that order; rows and indexes are kept.

    Generated columns come last, with their current values stored. Raises sqlite3.DatabaseError if a
    row could not be read.
    """
    only_key = sum(1 for column in columns if column.primary_key) == 1
    columns = [*columns, *_computed(db, table)]
    declarations = ", ".join(_declaration(column, only_key=only_key) for column in columns)
    names = ", ".join(quoted(column.name) for column in columns)
    indexes = db.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL",
        (table,),
    ).fetchall()
    db.execute(f"CREATE TABLE {_NEW} ({declarations})")
    db.execute(f"INSERT INTO {_NEW} ({names}) SELECT {names} FROM {quoted(table)} ORDER BY rowid")
    (old,) = db.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()
    (new,) = db.execute(f"SELECT count(*) FROM {_NEW}").fetchone()
    if old != new:
        raise sqlite3.DatabaseError(f"{table}: {new} of {old} rows could be read")
    db.execute(f"DROP TABLE {quoted(table)}")
    db.execute(f"ALTER TABLE {_NEW} RENAME TO {quoted(table)}")
    for (statement,) in indexes:
        db.execute(statement)


def _computed(db: sqlite3.Connection, table: str) -> list[Declared]:
    rows = db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    return [Declared(str(row[1]), "", False, None, 0) for row in rows if row[6] in _GENERATED]


def _declaration(column: Declared, *, only_key: bool) -> str:
    words = f"{quoted(column.name)} {column.type}"
    words += " PRIMARY KEY" if column.primary_key and only_key else ""
    words += " NOT NULL" if column.not_null else ""
    if column.default is None:
        return words
    simple = _LITERAL.fullmatch(column.default)
    return f"{words} DEFAULT {column.default if simple else f'({column.default})'}"


class FileState(Struct, frozen=True):
    """State of a file before its first migration step."""

    # True if the file has every table of its revision; then it gets every table of later revisions.
    holds_all_tables: bool
    # True if the file has recorded data; then its enum rows are part of the recording.
    holds_records: bool
    columns: Mapping[str, frozenset[str]] = field(default_factory=dict)  # Table -> its columns.


def state() -> FileState:
    """Return the state of the file that is being migrated."""
    found = op.get_context().opts["file_state"]
    assert isinstance(found, FileState)
    return found


def key(name: str) -> sa.Column[Any]:
    """Declare an INTEGER PRIMARY KEY column, without the NOT NULL that SQLAlchemy adds."""
    return sa.Column(name, sa.INTEGER(), primary_key=True, nullable=True, autoincrement=False)


def columns_of(table: str) -> dict[str, str]:
    """Return the columns of a table with their declared types; empty if it is missing."""
    return {column.name: column.type for column in declared(_driver(), table)}


def has(table: str, *columns: str) -> bool:
    """Return True if the table exists with these columns."""
    found = columns_of(table)
    return bool(found) and set(columns) <= found.keys()


def create_table(table: str, *columns: sa.Column[Any], always: bool = False) -> None:
    """Create a table of this revision.

    A table for recorded data is created only in files that have every table of their revision,
    because other files do not have empty tables. An existing table with these columns is kept. If
    `always`, msprof writes this table into every file.
    """
    if found := columns_of(table):
        if {str(column.name) for column in columns} <= found.keys():
            return
        op.rename_table(table, f"UPROF_FOUND_{table}")
        anomaly("table_set_aside", 1, f"{table} had other columns; renamed to UPROF_FOUND_{table}")
    if always or state().holds_all_tables:
        op.create_table(table, *columns)


def create_enum(table: str, rows: Mapping[int, str]) -> None:
    """Create an enum table, which every file has."""
    create_table(table, key("id"), sa.Column("name", sa.TEXT()), always=True)
    change_enum(table, add=rows)


def change_enum(table: str, *, add: Mapping[int, str], remove: Iterable[int] = ()) -> None:
    """Change an enum table to this revision.

    In a file with recorded data, existing rows are kept, because the recording uses their ids: only
    new ids are added, and names that differ are counted as anomalies.
    """
    if not has(table, "id", "name"):
        return
    bind = op.get_bind()
    if not state().holds_records:
        for number in (*remove, *add):
            bind.execute(sa.text(f'DELETE FROM "{table}" WHERE id = :id'), {"id": number})
    rows = bind.exec_driver_sql(f'SELECT id, name FROM "{table}"')
    found = {number: name for number, name in rows}  # noqa: C416 (rows are no tuples to mypy)
    for number, name in sorted(add.items()):
        if number not in found:
            insert = sa.text(f'INSERT INTO "{table}" (id, name) VALUES (:id, :name)')
            bind.execute(insert, {"id": number, "name": name})
        elif found[number] != name:
            words = f"{table} {number} keeps its name {found[number]!r}; newer name: {name!r}"
            anomaly("enum_row_kept", 1, words)


def add_column(table: str, column: sa.Column[Any], *, unknown: int | None = None) -> None:
    """Append a column.

    `unknown` is what exporters write for an unknown value; None leaves NULL in old rows.
    """
    if _append(table, column) and unknown is not None:
        op.get_bind().exec_driver_sql(f'UPDATE "{table}" SET "{column.name}" = ?', (unknown,))


def add_texts(table: str, *names: str) -> None:
    """Append columns of string ids; old rows get the id of N/A, as exporters write it.

    Exporters never write NULL in these columns, and readers drop rows with NULL. In a file without
    strings, the value is NULL.
    """
    added = [name for name in names if _append(table, sa.Column(name, sa.INTEGER()))]
    if not has(table) or not has("STRING_IDS", "id", "value") or not _any_row(f'"{table}"'):
        return
    # A column that another tool added may have values in some rows.
    changes = ", ".join(
        f'"{name}" = :id' if name in added else f'"{name}" = coalesce("{name}", :id)'
        for name in names
    )
    op.get_bind().execute(sa.text(f'UPDATE "{table}" SET {changes}'), {"id": _na_id()})


def _na_id() -> int:
    """Return the string id of N/A, adding it if missing."""
    bind = op.get_bind()
    query = "SELECT min(id) FROM STRING_IDS WHERE value = 'N/A' AND typeof(id) = 'integer'"
    if (known := bind.exec_driver_sql(query).scalar()) is not None:
        return int(known)
    query = f"SELECT max(id) FROM STRING_IDS WHERE id < {NO_TEXT} AND typeof(id) = 'integer'"
    last = bind.exec_driver_sql(query).scalar()
    number = 0 if last is None else max(int(last), -1) + 1
    bind.execute(sa.text("INSERT INTO STRING_IDS (id, value) VALUES (:id, 'N/A')"), {"id": number})
    return number


def _append(table: str, column: sa.Column[Any]) -> bool:
    """Append a column to an existing table; return True if it was added."""
    found = columns_of(table)
    if not found:
        return False
    if column.name not in found:
        op.add_column(table, column)
        return True
    if _any_row(f'"{table}" WHERE "{column.name}" IS NOT NULL'):
        words = f"{table}.{column.name} already existed before its revision; its values are kept"
        anomaly("column_found", 1, words)
    return False


def rename_column(table: str, old: str, new: str) -> None:
    """Rename a column; a foreign column of the new name is renamed first."""
    found = columns_of(table)
    if old not in found:
        return
    if new in found:
        aside = f"{new}_found"
        op.alter_column(table, new, new_column_name=aside)
        if _any_row(f'"{table}" WHERE "{aside}" IS NOT NULL'):
            anomaly("column_set_aside", 1, f"{table}.{new} was renamed to {aside}")
    op.alter_column(table, old, new_column_name=new)


def change_type(table: str, column: str, kind: str) -> None:
    """Change the declared type of a column; SQLite converts its values."""
    columns = declared(_driver(), table)
    if any(c.name == column and c.type.upper() != kind for c in columns):
        changed = [replace(c, type=kind) if c.name == column else c for c in columns]
        rewrite(_driver(), table, changed)


def count(rows: str) -> int:
    """Return the number of rows; `rows` is the part of a query after FROM."""
    return int(op.get_bind().exec_driver_sql(f"SELECT count(*) FROM {rows}").scalar_one())


def anomaly(name: str, number: int, detail: str) -> None:
    """Count data that could not be converted; the first detail of a name is kept."""
    skyline_writer.add_anomaly(_driver(), name, number, detail)


def _driver() -> sqlite3.Connection:
    """Return the driver's connection: SQLAlchemy cannot describe columns without a type."""
    db = op.get_bind().connection.driver_connection
    assert isinstance(db, sqlite3.Connection)
    return db


def _any_row(rows: str) -> bool:
    found = op.get_bind().exec_driver_sql(f"SELECT 1 FROM {rows} LIMIT 1").first()
    return found is not None
