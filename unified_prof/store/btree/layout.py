"""What SQLite's schema says of a table's records: which column stands where."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from unified_prof.store.sql import quoted

_OUTSIDE_RECORDS = (2, 3)  # `hidden` of generated columns, as PRAGMA table_xinfo has it


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of the file that has row ids, under the name `rowid`, and no computed column."""

    root: int
    places: dict[str, int]
    """Column, in lower case -> its place in records, from 0."""
    row_id: str | None
    """The column, in lower case, that is the row id under another name."""
    nullable: frozenset[int]
    """Places of columns that are NULL where a record ends before them."""
    affinities: tuple[str, ...]
    """Of the columns: what SQLite makes of their values where it compares or returns them."""
    is_utf8: bool
    has_index: bool


def layout_of(db: sqlite3.Connection, table: str) -> Layout | None:
    """Return how the records of a table are laid out, None where only SQLite can tell.

    Raises:
        sqlite3.Error: as SQLite does.
    """
    found = db.execute(
        "SELECT rootpage, type, sql FROM main.sqlite_master WHERE lower(name) = lower(?)", (table,)
    ).fetchall()
    if len(found) != 1 or found[0][1] != "table" or not isinstance(found[0][0], int):
        return None
    root, _, sql = found[0]
    if root < 2 or not str(sql).upper().startswith("CREATE TABLE"):
        return None
    places: dict[str, int] = {}
    nullable = set()
    affinities = []
    keys = []
    columns = db.execute(f"PRAGMA main.table_xinfo({quoted(table)})").fetchall()
    for place, (_, name, kind, _, default, key, hidden) in enumerate(columns):
        if hidden in _OUTSIDE_RECORDS:
            return None
        places[str(name).lower()] = place
        if default is None or str(default).upper() == "NULL":
            nullable.add(place)
        affinities.append(_affinity(str(kind).upper()))
        if key:
            keys.append((str(name).lower(), str(kind).upper()))
    indexes = db.execute(f"PRAGMA main.index_list({quoted(table)})").fetchall()
    has_key_index = any(index[3] == "pk" for index in indexes)
    is_row_id = len(keys) == 1 and keys[0][1] == "INTEGER" and not has_key_index
    row_id = keys[0][0] if is_row_id else None
    if "rowid" in places and row_id != "rowid":
        return None
    ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
    return Layout(
        root=root,
        places=places,
        row_id=row_id,
        nullable=frozenset(nullable),
        affinities=tuple(affinities),
        is_utf8=encoding == "UTF-8",
        has_index=bool(indexes),
    )


def _affinity(kind: str) -> str:
    """Return the affinity of a declared type, by SQLite's rules in their order."""
    if "INT" in kind:
        return "INTEGER"
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not kind or "BLOB" in kind:
        return "BLOB"
    return "REAL" if any(part in kind for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"
