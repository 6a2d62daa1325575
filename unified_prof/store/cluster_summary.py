"""Write the summary of a cluster's run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unified_prof.errors import StoreError
from unified_prof.models import catalogue
from unified_prof.store import uprof_tables
from unified_prof.store.atomic import replacing
from unified_prof.store.sql import open_unfinished, quoted, transaction


def write(
    path: Path,
    tables: Mapping[str, Iterable[tuple[Any, ...]]],
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]] = MappingProxyType({}),
    *,
    overwrite: bool = False,
) -> None:
    """Write all tables of a summary; rows have the columns of the schema in its order.

    Args:
        path: Where it will lie; appears only when complete.
        tables: Table -> rows.
        facts: Rows of UPROF_RUN.
        anomalies: Rows of UPROF_ANOMALIES.
        overwrite: Whether an existing file may be replaced.

    Raises:
        OutputError: `path` exists or cannot be written.
        StoreError: the file written does not pass SQLite's own check.
    """
    schema = catalogue.load(catalogue.CLUSTER, "latest")
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(catalogue.frozen_text(catalogue.CLUSTER, "latest"))
        with transaction(db):
            for name, rows in tables.items():
                marks = ", ".join("?" * len(schema.tables[name].columns))
                db.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", rows)
            uprof_tables.fill_run(db, facts, anomalies)
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StoreError(
                f"{path} is damaged after writing: {verdict}", slug="damaged-after-writing"
            )
