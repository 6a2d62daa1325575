"""What a database declares: its tables and their columns.

Ranks of one run are files of one schema, and asking SQLite for the columns of every table takes
longer than reading a small one of them. So what the same statements declare is kept.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from unified_prof.store.sql import Declared, declared

_KEPT = 16
_LONGEST = 1 << 18
"""Characters of a schema that is kept; those of reports have some tens of thousands."""

_MASTER = (
    "SELECT name, sql, type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%',"
    " type IN ('table', 'view') FROM main.sqlite_master ORDER BY rowid"
)
"""Rows of what is called a table and is none (a view, a virtual table) may be without end."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The schema of a file; whoever asks for one of the same text gets the same object."""

    tables: dict[str, tuple[Declared, ...]]
    """Tables that are made of rows -> their columns, both in the file's order."""

    types: dict[str, dict[str, str]]
    """The same tables -> column -> declared type in upper case."""

    keys: frozenset[str]
    """Those with a declared primary key."""

    statements: dict[str, str]
    """The same tables -> what they were created with."""

    not_tables: tuple[str, ...]
    """Views and virtual tables."""

    contents: dict[tuple[object, ...], object] = field(default_factory=dict)
    """Contents of small tables -> what was derived of them and the schema (`fingerprint`)."""

    views: dict[tuple[str, frozenset[str] | None], list[str]] = field(default_factory=dict)
    """Family and the tables that were asked for -> SQL of what gives them their newest shape."""


_shapes: OrderedDict[tuple[object, ...], Shape] = OrderedDict()
_alone = threading.Lock()


def shape(db: sqlite3.Connection) -> Shape:
    """Return what the main database of a connection declares."""
    rows = tuple(db.execute(_MASTER).fetchall())
    with _alone:
        if (found := _shapes.get(rows)) is not None:
            _shapes.move_to_end(rows)
            return found
    found = _read(db, rows)
    if sum(len(str(sql)) for _, sql, _, _ in rows) <= _LONGEST:
        with _alone:
            _shapes[rows] = found
            while len(_shapes) > _KEPT:
                _shapes.popitem(last=False)
    return found


def _read(db: sqlite3.Connection, rows: tuple[tuple[object, ...], ...]) -> Shape:
    statements = {
        str(name): str(sql)
        for name, sql, is_table, _ in rows
        if is_table and not str(name).startswith("sqlite_")
    }
    others = (str(name) for name, _, _, is_called_one in rows if is_called_one)
    tables = {name: tuple(declared(db, name)) for name in statements}
    return Shape(
        tables=tables,
        types={
            name: {column.name: column.type.upper() for column in columns}
            for name, columns in tables.items()
        },
        keys=frozenset(
            name
            for name, columns in tables.items()
            if any(column.primary_key for column in columns)
        ),
        statements=statements,
        not_tables=tuple(
            name for name in others if name not in statements and name[:7] != "sqlite_"
        ),
    )
