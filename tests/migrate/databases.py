"""Small databases of any revision, and their content in comparable form."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from unified_prof.models import catalogue

REVISIONS = catalogue.REVISIONS["msprof"]
Rows = Mapping[str, Iterable[tuple[Any, ...]]]


def make(path: Path, revision: str, rows: Rows | None = None, *statements: str) -> Path:
    """Create a file as an exporter leaves it: only tables that have rows, or always are there."""
    rows = rows or {}
    schema = catalogue.load("msprof", revision)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN;\n{catalogue.frozen_text('msprof', revision)}COMMIT;")
        for table in schema.tables:
            always = table in catalogue.ALWAYS_PRESENT or table in schema.rows
            if not always and table not in rows:
                db.execute(f"DROP TABLE {table}")
        for table, values in rows.items():
            for row in values:
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.execute("VACUUM")
    return path


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        yield db


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    with opened(path) as db:
        return db.execute(query).fetchall()


def tables_of(path: Path) -> dict[str, list[str]]:
    """Return every table and its columns."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite^_%'"
    with opened(path) as db:
        names = [name for (name,) in db.execute(f"{query} ESCAPE '^'").fetchall()]
        return {n: [c[1] for c in db.execute(f'PRAGMA table_info("{n}")')] for n in names}
