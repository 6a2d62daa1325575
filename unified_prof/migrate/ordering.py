"""Puts the format's columns first, in its order, where others have added some in between.

MindStudio Insight appends columns of its own; a later revision's columns then stand behind them,
and whoever inserts by position would fill the wrong ones. SQLite cannot move a column, so such a
table is written anew, once, whatever number of revisions was crossed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from unified_prof.models.catalogue import SchemaSpec
from unified_prof.store.sql import Declared, declared, quoted

_GENERATED = (2, 3)  # what SQLite calls `hidden`: computed when read, computed when written
_NEW = "UPROF_REORDERED"
_LITERAL = re.compile(r"[-+]?[\w.]+|'(?:[^']|'')*'")  # anything else stands in brackets


def order_columns(db: sqlite3.Connection, schema: SchemaSpec) -> list[str]:
    """Reorder what needs it, in one transaction, and return the tables written anew.

    Foreign columns follow the format's own; rows, declarations and indexes stay as they are.
    """
    changed = []
    db.execute("BEGIN")
    for table in schema.tables.values():
        columns = declared(db, table.name)
        wanted = list(table.column_names)
        names = [column.name for column in columns]
        if set(wanted) <= set(names) and names[: len(wanted)] != wanted:
            by_name = {column.name: column for column in columns}
            foreign = [column for column in columns if column.name not in wanted]
            rewrite(db, table.name, [*(by_name[name] for name in wanted), *foreign])
            changed.append(table.name)
    db.execute("COMMIT")
    return changed


def rewrite(db: sqlite3.Connection, table: str, columns: Sequence[Declared]) -> None:
    """Write a table anew with these columns, in their order; its rows and indexes stay.

    Columns that the file computes come last, with the values that they had.

    Raises:
        sqlite3.DatabaseError: a row could not be read.
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
