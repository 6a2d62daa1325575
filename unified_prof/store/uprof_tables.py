"""Create and fill the UPROF_ tables, which exist in a report only where they have rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from sqlalchemy import Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from unified_prof.models.uprof import Anomaly, Run, UprofBase


def fill(db: sqlite3.Connection, model: type[UprofBase], rows: Iterable[tuple[object, ...]]) -> int:
    """Insert `rows`, in the model's column order, creating the table first; return their number.

    Nothing is created for no rows.
    """
    batch = list(rows)
    if not batch:
        return 0
    table = model.__table__
    assert isinstance(table, Table)
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table.name,)).fetchone():
        db.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())).strip())
    marks = ", ".join("?" * len(table.columns))
    db.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', batch)
    return len(batch)


def fill_run(
    db: sqlite3.Connection,
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]],
) -> None:
    """Write provenance and anomalies, each sorted by name so that equal runs give equal files."""
    fill(db, Run, sorted(facts.items()))
    fill(db, Anomaly, ((name, *anomalies[name]) for name in sorted(anomalies)))
