"""Writers of small reports: Skyline run time and memory reports, and cluster summaries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from unified_prof.base.columns import Entry
from unified_prof.base.run_spec import ActivationRecord, OperationRecord, TrackedRun, WeightRecord
from unified_prof.base.text import storable
from unified_prof.errors import StoreError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import (
    SKYLINE_MEMORY,
    SKYLINE_RUN_TIME,
    extension_tables,
    frozen_text,
)
from unified_prof.sqlite.atomic import replacing
from unified_prof.sqlite.statements import declared, open_unfinished, quoted, transaction, writing

ANOMALIES = "UPROF_ANOMALIES"  # Table of the counts of a `ledger.Ledger`.
WEIGHT, ACTIVATION = 1, 2  # Kinds of entries in the correlation table of a memory report.


def fill(db: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Insert `rows`, with values in the order of the columns; create the table if needed.

    If there are no rows, the table is not created.
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
    """Return `row` with texts that SQLite can store, as file names may contain any bytes."""
    return tuple(storable(value) if isinstance(value, str) else value for value in row)


def fill_run(
    db: sqlite3.Connection,
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]],
) -> None:
    """Write provenance and anomalies, sorted by name so that equal runs give equal files."""
    fill(db, "UPROF_RUN", sorted(facts.items()))
    fill(
        db,
        ANOMALIES,
        ((name, count, detail or None) for name, (count, detail) in sorted(anomalies.items())),
    )


def recorded_anomalies(db: sqlite3.Connection) -> dict[str, Entry]:
    """Return the anomalies in a report, in the order of the file."""
    if not declared(db, ANOMALIES):
        return {}
    rows = db.execute(f"SELECT name, count, detail FROM {ANOMALIES} ORDER BY rowid")
    return {name: Entry(count, detail or "") for name, count, detail in rows}


def add_anomaly(db: sqlite3.Connection, name: str, count: int, detail: str) -> None:
    """Add `count` occurrences of `name` to the anomalies of a report."""
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
    """Write facts of a report that are still NULL because they were unknown before.

    Raises OutputError if the file cannot be changed or no longer exists, and StoreError if it is
    damaged, or being written by another process.
    """
    with writing(path):
        # A URI with mode=rw cannot be used: URIs are UTF-8, but a path may contain any bytes.
        path.stat()
        with closing(sqlite3.connect(path)) as db, db:
            db.executemany(
                "UPDATE UPROF_RUN SET value = ? WHERE name = ? AND value IS NULL",
                [(storable(value), name) for name, value in facts.items()],
            )


def write_run_time(
    path: Path, run: TrackedRun, facts: Mapping[str, str | None], *, overwrite: bool = False
) -> None:
    """Write the run time report of `run` to `path`.

    `run_time_entries` has the median of each operation's samples, `UPROF_RUN_TIME_SAMPLES` the
    individual samples. Entries are numbered from 1 in forward order. `facts` are rows of UPROF_RUN.
    Raises OutputError if `path` exists or cannot be written, and StoreError if the written file
    does not pass SQLite's integrity check.
    """
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(frozen_text(SKYLINE_RUN_TIME, "1"))
        matched = [i for i, iteration in enumerate(run.iterations) if iteration.matched]
        with transaction(db):
            for entry_id, operation in enumerate(run.operations, start=1):
                _insert_operation(db, entry_id, operation)
            fill(
                db,
                "UPROF_RUN_TIME_SAMPLES",
                (
                    (entry_id, *sample)
                    for entry_id, operation in enumerate(run.operations, start=1)
                    for sample in _samples(operation, matched)
                ),
            )
            fill(
                db,
                "UPROF_RECOMPUTATION",
                (
                    (entry_id, *sample)
                    for entry_id, operation in enumerate(run.operations, start=1)
                    if operation.recomputed_ms is not None
                    for sample in zip(
                        _iterations(operation, matched), operation.recomputed_ms, strict=True
                    )
                ),
            )
            _fill_gaps(db, run.operations, matched)
            _fill_modules(db, "operation", run.operations)
            _fill_regions(db, run, "operation", run.operations)
            _fill_common(db, run, facts)
        _verify(db, path)


def write_memory(
    path: Path, run: TrackedRun, facts: Mapping[str, str | None], *, overwrite: bool = False
) -> None:
    """Write the memory report of `run` to `path`.

    Entries are numbered from 1: weights in the order of the model, activations in forward order.
    `misc_sizes` has a row only if the peak was measured. `facts` are rows of UPROF_RUN. Raises
    OutputError if `path` exists or cannot be written, and StoreError if the written file does not
    pass SQLite's integrity check.
    """
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(frozen_text(SKYLINE_MEMORY, "1"))
        with transaction(db):
            db.executemany(
                "INSERT INTO weight_entries VALUES (?, ?, ?, ?)",
                (
                    (entry_id, storable(weight.name), weight.size_bytes, weight.grad_size_bytes)
                    for entry_id, weight in enumerate(run.weights, start=1)
                ),
            )
            db.executemany(
                "INSERT INTO activation_entries VALUES (?, ?, ?)",
                (
                    (entry_id, storable(activation.operation_name), activation.size_bytes)
                    for entry_id, activation in enumerate(run.activations, start=1)
                ),
            )
            _correlate(db, WEIGHT, 1, run.weights)
            _correlate(db, ACTIVATION, 1 + len(run.weights), run.activations)
            if run.peak_usage_bytes is not None:
                db.execute(
                    "INSERT INTO misc_sizes VALUES ('peak_usage_bytes', ?)", (run.peak_usage_bytes,)
                )
            _fill_modules(db, "weight", run.weights)
            _fill_modules(db, "activation", run.activations)
            _fill_regions(db, run, "activation", run.activations)
            _fill_common(db, run, facts)
        _verify(db, path)


def _insert_operation(db: sqlite3.Connection, entry_id: int, operation: OperationRecord) -> None:
    db.execute(
        "INSERT INTO run_time_entries VALUES (?, ?, ?, ?)",
        (
            entry_id,
            storable(operation.name),
            median(operation.forward_ms),
            None if operation.backward_ms is None else median(operation.backward_ms),
        ),
    )
    db.executemany(
        "INSERT INTO stack_frames VALUES (?, ?, ?, ?)",
        (
            (ordering, storable(frame.file_path), frame.line_number, entry_id)
            for ordering, frame in enumerate(operation.frames)
        ),
    )


def _iterations(operation: OperationRecord, matched: list[int]) -> Sequence[int]:
    """Return the iteration of each sample of an operation."""
    return matched if operation.iterations is None else operation.iterations


def _samples(
    operation: OperationRecord, matched: list[int]
) -> Iterable[tuple[int, float, float | None]]:
    iterations = _iterations(operation, matched)
    backward = operation.backward_ms or [None] * len(iterations)
    return zip(iterations, operation.forward_ms, backward, strict=True)


def _fill_gaps(
    db: sqlite3.Connection, operations: Iterable[OperationRecord], matched: list[int]
) -> None:
    gaps = [
        (entry_id, operation.gap, _iterations(operation, matched))
        for entry_id, operation in enumerate(operations, start=1)
        if operation.gap is not None
    ]
    fill(
        db,
        "UPROF_GAPS",
        ((entry_id, gap.file_path, gap.first_line, gap.last_line) for entry_id, gap, _ in gaps),
    )
    fill(
        db,
        "UPROF_GAP_SAMPLES",
        (
            (entry_id, iteration, gap_ms)
            for entry_id, gap, iterations in gaps
            for iteration, gap_ms in zip(iterations, gap.ms, strict=True)
        ),
    )


def _correlate(
    db: sqlite3.Connection,
    entry_type: int,
    first_id: int,
    entries: Iterable[WeightRecord | ActivationRecord],
) -> None:
    for entry_id, entry in enumerate(entries, start=1):
        correlation_id = first_id + entry_id - 1
        db.execute(
            "INSERT INTO stack_correlation VALUES (?, ?, ?)", (correlation_id, entry_id, entry_type)
        )
        db.executemany(
            "INSERT INTO stack_frames VALUES (?, ?, ?, ?)",
            (
                (correlation_id, ordering, storable(frame.file_path), frame.line_number)
                for ordering, frame in enumerate(entry.frames)
            ),
        )


def _fill_modules(
    db: sqlite3.Connection,
    kind: str,
    entries: Iterable[OperationRecord | WeightRecord | ActivationRecord],
) -> None:
    fill(
        db,
        "UPROF_MODULES",
        (
            (kind, entry_id, entry.module_path, entry.module_class)
            for entry_id, entry in enumerate(entries, start=1)
            if entry.module_path is not None
        ),
    )


def _fill_regions(
    db: sqlite3.Connection,
    run: TrackedRun,
    kind: str,
    entries: Iterable[OperationRecord | ActivationRecord],
) -> None:
    from unified_prof.base.redaction import redact_name  # only writers need its patterns

    fill(
        db,
        "UPROF_REGIONS",
        (
            (
                number,
                redact_name(one.name),
                None if one.around is None else one.around + 1,
                one.peak_usage_bytes,
            )
            for number, one in enumerate(run.regions, start=1)
        ),
    )
    fill(
        db,
        "UPROF_REGION_COUNTS",
        (
            (number, iteration, count)
            for number, one in enumerate(run.regions, start=1)
            for iteration, count in enumerate(one.counts)
            if count
        ),
    )
    fill(
        db,
        "UPROF_REGION_ENTRIES",
        (
            (kind, entry_id, entry.region + 1)
            for entry_id, entry in enumerate(entries, start=1)
            if entry.region is not None
        ),
    )


def _fill_common(db: sqlite3.Connection, run: TrackedRun, facts: Mapping[str, str | None]) -> None:
    _, *names = extension_tables()["UPROF_ITERATIONS"].column_names
    fill(
        db,
        "UPROF_ITERATIONS",
        (
            (number, *(getattr(iteration, name) for name in names))
            for number, iteration in enumerate(run.iterations)
        ),
    )
    fill(
        db,
        "UPROF_ITERATION_PARTS",
        (
            (number, part, ms)
            for number, iteration in enumerate(run.iterations)
            for part, ms in sorted(iteration.parts_ms.items())
        ),
    )
    fill_run(db, facts, run.anomalies)


def _verify(db: sqlite3.Connection, path: Path) -> None:
    found = db.execute("PRAGMA quick_check").fetchone()[0]
    if found != "ok":
        raise StoreError(f"{path} is damaged after writing: {found}", slug="damaged-after-writing")


def write_cluster_summary(
    path: Path,
    tables: Mapping[str, Iterable[tuple[Any, ...]]],
    facts: Mapping[str, str | None],
    anomalies: Mapping[str, tuple[int, str]] = MappingProxyType({}),
    *,
    overwrite: bool = False,
) -> None:
    """Write all tables of a cluster summary; rows have the columns of the schema in order.

    `facts` are rows of UPROF_RUN, `anomalies` those of UPROF_ANOMALIES. Raises OutputError if
    `path` exists or cannot be written, and StoreError if the written file does not pass SQLite's
    integrity check.
    """
    schema = catalogue.load(catalogue.CLUSTER, "latest")
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(catalogue.frozen_text(catalogue.CLUSTER, "latest"))
        with transaction(db):
            for name, rows in tables.items():
                marks = ", ".join("?" * len(schema.tables[name].columns))
                db.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", rows)
            fill_run(db, facts, anomalies)
        _verify(db, path)
