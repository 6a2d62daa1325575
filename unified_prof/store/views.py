"""Gives the tables of any report the newest shape, by TEMP views that leave the file alone.

A TEMP view hides the table of the same name, so one set of models and queries serves every
revision; the table itself stays reachable as `main.<table>`. SQLite flattens such views: the
table's indexes are used as without them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from unified_prof.models.catalogue import ColumnSpec, TableSpec
from unified_prof.store.layouts import RENAMES
from unified_prof.store.meanings import HCCL_TYPES, enum_names
from unified_prof.store.shape import Shape
from unified_prof.store.sql import quoted
from unified_prof.vocabulary import TYPE_INVALID


def lay(db: sqlite3.Connection, statements: Iterable[str]) -> None:
    """Create the views that `over` returns for the file of a connection."""
    for statement in statements:
        db.execute(statement)


def over(file: Shape, newest: dict[str, TableSpec]) -> list[str]:
    """Return the SQL of a view for every table of `newest` that is missing or has another shape.

    What has such a name and is no table, such as a view of the file's own, is hidden. Missing
    tables read as empty and missing columns as NULL; columns that the newest schema does not know
    come after those it knows. Views of tables without a key end with a column `rowid`, by which
    models tell their rows apart.
    """
    result: list[str] = []
    present = {name.lower(): (name, sql) for name, sql in file.statements.items()}
    # Before the enum tables existed, the columns that refer to them held ids of texts.
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
                has_rowid = "WITHOUT ROWID" not in sql.upper()
                selection.append("rowid" if has_rowid else "row_number() OVER () AS rowid")
            body = f"SELECT {', '.join(selection)} FROM main.{quoted(name)}"
        result.append(f"CREATE TEMP VIEW {quoted(spec.name)} AS {body}")
    return result


def _empty(spec: TableSpec) -> list[str]:
    columns = [f"{_null(column)} AS {quoted(column.name)}" for column in spec.columns]
    return columns if _has_key(spec) else [*columns, "CAST(NULL AS INTEGER) AS rowid"]


def _has_key(spec: TableSpec) -> bool:
    return any(column.primary_key for column in spec.columns)


def _selection(
    spec: TableSpec, found: dict[str, tuple[str, str]], *, by_text: bool
) -> list[str] | None:
    """Return what to select from a table, or None when it has the newest shape already.

    Args:
        spec: The table at its newest.
        found: Name in lower case -> (name, declared type) of the columns in the file.
        by_text: Whether the file is older than the HCCL enums.
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
    """Return SQL for the enum id of the text that `string_id` stands for.

    What msprof had no name for it wrote as its number; any other text is invalid, as migrating
    has it, and an id without a text NULL.
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
