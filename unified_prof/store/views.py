"""Gives the tables of any report the newest shape, by TEMP views that leave the file alone.

A TEMP view hides the table of the same name, so one set of models and queries serves every
revision; the table itself stays reachable as `main.<table>`. SQLite flattens such views: the
table's indexes are used as without them.
"""

from __future__ import annotations

import sqlite3

from unified_prof.models.catalogue import ColumnSpec, TableSpec
from unified_prof.store.layouts import RENAMES


def lay(db: sqlite3.Connection, newest: dict[str, TableSpec]) -> None:
    """Create a view for every table of `newest` that is missing or has another shape.

    Missing tables read as empty and missing columns as NULL; columns that the newest schema does
    not know come after those it knows.
    """
    query = "SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')"
    present = {str(name).lower(): str(name) for (name,) in db.execute(query)}
    for spec in newest.values():
        name = present.get(spec.name.lower())
        if name is None:
            columns = [f"{_null(column)} AS {_quoted(column.name)}" for column in spec.columns]
            body = f"SELECT {', '.join(columns)} WHERE 0"
        else:
            found = {
                str(column).lower(): (str(column), str(declared))
                for _, column, declared, *_ in db.execute(
                    f"PRAGMA main.table_info({_quoted(name)})"
                )
            }
            selection = _selection(spec, found)
            if selection is None:
                continue
            body = f"SELECT {', '.join(selection)} FROM main.{_quoted(name)}"
        db.execute(f"CREATE TEMP VIEW {_quoted(spec.name)} AS {body}")


def _selection(spec: TableSpec, found: dict[str, tuple[str, str]]) -> list[str] | None:
    """Return what to select from a table, or None when it has the newest shape already."""
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
            actual, declared = found[name]
            expression = _quoted(actual)
            if column.type == "TEXT" and "INT" in declared.upper():
                expression = (
                    f"CAST({expression} AS TEXT)"  # HOST_INFO.hostUid before 1.0.0_20241008
                )
        differs |= expression.lower() != _quoted(column.name).lower()
        selection.append(f"{expression} AS {_quoted(column.name)}")
    if not differs:
        return None
    taken = {column.name.lower() for column in spec.columns}
    extra = [name for key, (name, _) in found.items() if key not in used and key not in taken]
    return selection + [_quoted(name) for name in extra]


def _null(column: ColumnSpec) -> str:
    return f"CAST(NULL AS {column.type})"


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
