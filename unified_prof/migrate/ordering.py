"""Puts the format's columns first, in its order, where others have added some in between.

MindStudio Insight appends columns of its own; a later revision's columns then stand behind them,
and whoever inserts by position would fill the wrong ones. SQLite cannot move a column, so such a
table is written anew, once, whatever number of revisions was crossed.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from unified_prof.models.catalogue import SchemaSpec, TableSpec

_NEW = "UPROF_REORDERED"


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    declaration: str


def order_columns(db: sqlite3.Connection, schema: SchemaSpec) -> list[str]:
    """Reorder what needs it, in one transaction, and return the tables written anew.

    Foreign columns follow the format's own; rows, declarations and indexes stay as they are.
    """
    changed = []
    db.execute("BEGIN")
    for table in schema.tables.values():
        columns = _columns(db, table.name)
        wanted = list(table.column_names)
        names = [column.name for column in columns]
        if set(wanted) <= set(names) and names[: len(wanted)] != wanted:
            _rewrite(db, table, columns)
            changed.append(table.name)
    db.execute("COMMIT")
    return changed


def _columns(db: sqlite3.Connection, table: str) -> list[_Column]:
    rows = db.execute(f'PRAGMA table_info("{table}")').fetchall()
    keys = sum(1 for row in rows if row[5])
    columns = []
    for _, name, kind, not_null, default, key in rows:
        declaration = f"{_quoted(name)} {kind}"
        declaration += " PRIMARY KEY" if key and keys == 1 else ""
        declaration += " NOT NULL" if not_null else ""
        declaration += f" DEFAULT {default}" if default is not None else ""
        columns.append(_Column(name, declaration))
    return columns


def _rewrite(db: sqlite3.Connection, table: TableSpec, columns: list[_Column]) -> None:
    by_name = {column.name: column for column in columns}
    foreign = [column for column in columns if column.name not in table.column_names]
    ordered = [*(by_name[name] for name in table.column_names), *foreign]
    declarations = ", ".join(column.declaration for column in ordered)
    names = ", ".join(_quoted(column.name) for column in ordered)
    indexes = db.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL",
        (table.name,),
    ).fetchall()
    db.execute(f"CREATE TABLE {_NEW} ({declarations})")
    db.execute(f'INSERT INTO {_NEW} ({names}) SELECT {names} FROM "{table.name}" ORDER BY rowid')
    (old,) = db.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()
    (new,) = db.execute(f"SELECT count(*) FROM {_NEW}").fetchone()
    if old != new:
        raise sqlite3.DatabaseError(f"{table.name}: {new} of {old} rows could be read")
    db.execute(f'DROP TABLE "{table.name}"')
    db.execute(f'ALTER TABLE {_NEW} RENAME TO "{table.name}"')
    for (statement,) in indexes:
        db.execute(statement)


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
