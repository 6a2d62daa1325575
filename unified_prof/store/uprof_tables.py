"""Create and fill the UPROF_ tables of a Skyline report, which exist only where they have rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from unified_prof.ledger import Entry
from unified_prof.models.catalogue import extension_tables
from unified_prof.plain import storable
from unified_prof.store.sql import declared, writing

ANOMALIES = "UPROF_ANOMALIES"
"""The table that a `ledger.Ledger` becomes."""


def fill(db: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Insert `rows`, in the order of the table's columns, creating the table for the first.

    Nothing is created for no rows.
    """
    batch = [storable_row(row) for row in rows]
    if not batch:
        return
    spec = extension_tables()[table]
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        db.execute(spec.create_sql)
    marks = ", ".join("?" * len(spec.columns))
    db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', batch)


def storable_row(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return `row` with texts that SQLite can store: names of files can be any bytes."""
    return tuple(storable(value) if isinstance(value, str) else value for value in row)


def fill_run(
    db: sqlite3.Connection,
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]],
) -> None:
    """Write provenance and anomalies, each sorted by name so that equal runs give equal files."""
    fill(db, "UPROF_RUN", sorted(facts.items()))
    fill(
        db,
        ANOMALIES,
        ((name, count, detail or None) for name, (count, detail) in sorted(anomalies.items())),
    )


def recorded_anomalies(db: sqlite3.Connection) -> dict[str, Entry]:
    """Return what a report counts already, in the order in which it was written."""
    if not declared(db, ANOMALIES):
        return {}
    rows = db.execute(f"SELECT name, count, detail FROM {ANOMALIES} ORDER BY rowid")
    return {name: Entry(count, detail or "") for name, count, detail in rows}


def add_anomaly(db: sqlite3.Connection, name: str, count: int, detail: str) -> None:
    """Count `count` more cases of `name` in a report, as `ledger.Ledger.add` does in memory."""
    if not count:
        return
    if not declared(db, ANOMALIES):
        db.execute(extension_tables()[ANOMALIES].create_sql)
    db.execute(
        f"INSERT INTO {ANOMALIES} (name, count, detail) VALUES (?, ?, ?) ON CONFLICT (name) DO"
        " UPDATE SET count = count + excluded.count, detail = coalesce(detail, excluded.detail)",
        (name, count, storable(detail) or None),
    )


def complete_run(path: Path, facts: Mapping[str, str]) -> None:
    """Fill in facts of a report that were not known when it was written, and are NULL there.

    Raises:
        OutputError: the file cannot be changed, or is gone.
        StoreError: it is damaged, or being written by another process.
    """
    with writing(path):
        # No URI with mode=rw: SQLite wants those in UTF-8, and a path may be anything.
        path.stat()
        with closing(sqlite3.connect(path)) as db, db:
            db.executemany(
                "UPDATE UPROF_RUN SET value = ? WHERE name = ? AND value IS NULL",
                [(storable(value), name) for name, value in facts.items()],
            )
