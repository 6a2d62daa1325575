"""Looks for what is wrong inside a report file, without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unified_prof.migrate import check_cluster, check_msprof
from unified_prof.migrate.findings import Finding, note, problem
from unified_prof.models import catalogue
from unified_prof.store import fingerprint
from unified_prof.store.detect import Detection, recognise
from unified_prof.store.fingerprint import Facts
from unified_prof.store.opening import open_read_only
from unified_prof.store.sql import READ_ERRORS, reading
from unified_prof.store.watching import raise_kept, watch

_MOST_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class Check:
    """What was found in one file."""

    detection: Detection
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return not any(finding.is_problem for finding in self.findings)


def check(path: Path | str) -> Check:
    """Check SQLite's structures, the schema against its revision, and what the rows refer to.

    Raises:
        StoreError: it cannot be read at all, or is not a report.
    """
    path = Path(path)
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        with reading(path):
            detection = recognise(db, path)
            watch(db)  # from here on, the size of the file says how long it takes
            findings = [*_damage(db)]
            if detection.family is None:
                detection.require()
        try:
            findings += _contents(db, detection)
        except READ_ERRORS as err:
            raise_kept()
            findings.append(problem("damage", f"reading stopped: {err}"))
    return Check(detection, tuple(findings))


def _damage(db: sqlite3.Connection) -> Iterator[Finding]:
    try:
        for (message,) in db.execute(f"PRAGMA integrity_check({_MOST_MESSAGES})"):
            if message != "ok":
                yield problem("damage", str(message).strip())
    except READ_ERRORS as err:
        raise_kept()
        yield problem("damage", str(err))


def _contents(db: sqlite3.Connection, detection: Detection) -> Iterator[Finding]:
    if detection.revision is None:
        yield problem("schema", f"no revision that uprof knows: {detection.description}")
        return
    facts = fingerprint.read_facts(db)
    for name in detection.not_tables:
        yield problem("schema", f"{name} is a view or a virtual table, expected a table")
    if detection.family == catalogue.MSPROF:
        yield from check_msprof.contents(db, detection, facts)
    elif detection.family == catalogue.CLUSTER:
        yield from check_cluster.contents(db, facts)
    else:
        yield from _skyline(db, detection, facts)
    if facts.has("UPROF_ANOMALIES", "name", "count", "detail"):
        for name, count, detail in db.execute("SELECT name, count, detail FROM UPROF_ANOMALIES"):
            yield note("anomaly", f"{name}: {detail}", count)


def _skyline(db: sqlite3.Connection, detection: Detection, facts: Facts) -> Iterator[Finding]:
    assert detection.family is not None
    schema = catalogue.load(detection.family, "latest")
    for name in [name for name in schema.tables if name not in facts.tables]:
        yield problem("schema", f"table {name} is missing")
    if detection.family == catalogue.SKYLINE_RUN_TIME:
        owner = ("entry_id", "run_time_entries", "id")
        backwards = "forward_ms < 0 OR backward_ms < 0"
        if count := _count(db, f"run_time_entries WHERE {backwards}"):
            yield problem("interval", "run_time_entries with a negative time", count)
    else:
        owner = ("correlation_id", "stack_correlation", "correlation_id")
        for kind, entries in ((1, "weight_entries"), (2, "activation_entries")):
            if facts.has("stack_correlation") and facts.has(entries):
                rows = f"stack_correlation WHERE entry_type = {kind}"
                if count := _count(db, f"{rows} AND entry_id NOT IN (SELECT id FROM {entries})"):
                    yield problem("dangling", f"stack_correlation.entry_id not in {entries}", count)
        if facts.has("stack_correlation") and facts.has("entry_types"):
            kinds = "stack_correlation WHERE entry_type NOT IN (SELECT entry_type FROM entry_types)"
            if count := _count(db, kinds):
                yield problem("enum", "stack_correlation.entry_type not in entry_types", count)
    column, target, key = owner
    if facts.has("stack_frames", column) and facts.has(target, key):
        rows = f"stack_frames WHERE {column} NOT IN (SELECT {key} FROM {target})"
        if count := _count(db, rows):
            yield problem("dangling", f"stack_frames.{column} belongs to no entry", count)
    for words in detection.notes:
        yield note("schema", words)


def _count(db: sqlite3.Connection, rows: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])
