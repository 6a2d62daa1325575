"""Create and fill the UPROF_ tables of a Skyline report, which exist only where they have rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from unified_prof.models.catalogue import extension_tables


def fill(db: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Insert `rows`, in the order of the table's columns, creating the table for the first.

    Nothing is created for no rows.
    """
    batch = list(rows)
    if not batch:
        return
    spec = extension_tables()[table]
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        db.execute(spec.create_sql)
    marks = ", ".join("?" * len(spec.columns))
    db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', batch)


def fill_run(
    db: sqlite3.Connection,
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]],
) -> None:
    """Write provenance and anomalies, each sorted by name so that equal runs give equal files."""
    fill(db, "UPROF_RUN", sorted(facts.items()))
    fill(
        db,
        "UPROF_ANOMALIES",
        ((name, count, detail or None) for name, (count, detail) in sorted(anomalies.items())),
    )
