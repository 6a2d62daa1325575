"""Checks of a report file for damage, schema errors and contradictory rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_prof.base.columns import (
    COVERAGE_TABLE,
    NO_TEXT,
    OLD_NO_DOMAIN,
    CoveredPart,
    coverage_text,
)
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import SchemaSpec, TableSpec
from unified_prof.schema.msprof import Reference, references
from unified_prof.sqlite import fingerprint
from unified_prof.sqlite.atomic import raise_kept, watch
from unified_prof.sqlite.fingerprint import Facts
from unified_prof.sqlite.opening import Detection, open_read_only, recognize
from unified_prof.sqlite.statements import READ_ERRORS, reading


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a note about something unusual that is not an error."""

    is_problem: bool
    # damage, schema, incomplete, dangling, enum, interval, duplicate, anomaly or coverage.
    kind: str
    message: str
    count: int  # Number of rows, or 1.

    @property
    def severity(self) -> str:
        """Return problem or note."""
        return "problem" if self.is_problem else "note"


def problem(kind: str, message: str, count: int = 1) -> Finding:
    """Return a problem."""
    return Finding(True, kind, message, count)


def note(kind: str, message: str, count: int = 1) -> Finding:
    """Return a note."""
    return Finding(False, kind, message, count)


_STATUSES = "('read', 'partly', 'failed', 'absent')"
_RANKS = "(SELECT rank FROM RANK)"
# (kind, rows that must not exist, message)
_CLUSTER_PROBLEMS = (
    ("enum", f"RANK WHERE status NOT IN {_STATUSES}", "RANK.status is not one of its four values"),
    ("interval", "STEP_RANK WHERE end_ns < start_ns", "steps end before they start"),
    ("dangling", f"STEP_RANK WHERE rank NOT IN {_RANKS}", "STEP_RANK.rank is not in RANK"),
    ("dangling", f"BLAME WHERE rank NOT IN {_RANKS}", "BLAME.rank is not in RANK"),
    (
        "dangling",
        f"OPERATION_RANK WHERE rank NOT IN {_RANKS}",
        "OPERATION_RANK.rank is not in RANK",
    ),
    (
        "dangling",
        f"LINK WHERE src_rank NOT IN {_RANKS} OR dst_rank NOT IN {_RANKS}",
        "LINK.src_rank or dst_rank is not in RANK",
    ),
    (
        "dangling",
        'COLLECTIVE WHERE group_id NOT IN (SELECT id FROM "GROUP")',
        "COLLECTIVE.group_id is not in GROUP",
    ),
    ("figure", "COLLECTIVE WHERE complete_n > n", "COLLECTIVE.complete_n is greater than n"),
)

_WATCH_PROBLEMS = (
    (
        "interval",
        "STEP WHERE length_ns < 0 OR data_ns < 0 OR wait_ns < 0",
        "STEP has negative times",
    ),
    (
        "interval",
        "STEP WHERE data_ns + wait_ns > length_ns",
        "STEP.data_ns and wait_ns exceed length_ns",
    ),
    (
        "dangling",
        "STEP WHERE event < (SELECT min(id) FROM EVENT) OR event > (SELECT max(id) FROM EVENT)",
        "STEP.event is not in EVENT",
    ),
    ("figure", "EVENT WHERE (capture IS NULL) <> (status IS NULL)", "EVENT.status lacks a capture"),
)
_PROBLEMS = {catalogue.CLUSTER: _CLUSTER_PROBLEMS, catalogue.WATCH: _WATCH_PROBLEMS}


def check_own_contents(db: sqlite3.Connection, family: str, facts: Facts) -> Iterator[Finding]:
    """Yield missing tables and contradictory rows of a cluster summary or a watch file."""
    schema = catalogue.load(family, "latest")
    if missing := [name for name in schema.tables if name not in facts.tables]:
        for name in missing:
            yield problem("schema", f"table {name} is missing")
        return
    for kind, rows, words in _PROBLEMS[family]:
        if count := int(db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]):
            yield problem(kind, words, count)


_NO_DOMAIN = ("MSTX_EVENTS", "domainId", OLD_NO_DOMAIN)
_INTERVALS = ("TASK", "COMMUNICATION_OP", "CANN_API")
_TASK_IDENTITY = ("deviceId", "streamId", "taskId", "contextId")


def check_msprof_contents(
    db: sqlite3.Connection, detection: Detection, facts: Facts
) -> Iterator[Finding]:
    """Yield problems and notes of an msprof database of a known revision."""
    assert detection.revision is not None
    schema = catalogue.load(catalogue.MSPROF, detection.revision)
    if not detection.complete:
        yield problem("incomplete", "STRING_IDS is missing: the export did not finish")
    yield from _version(detection, schema)
    for table in schema.tables.values():
        if table.name in facts.tables:
            yield from _shape(table, facts, detection)
    yield from _indexes(db, schema, facts)
    yield from _constants(schema, facts, detection)
    for reference in references(detection.revision):
        if facts.has(reference.table, reference.column):
            yield from _reference(db, reference, facts, schema)
    yield from _rows(db, facts)
    yield from _keys(db, schema, facts)


def _version(detection: Detection, schema: SchemaSpec) -> Iterator[Finding]:
    stated = detection.schema_version
    if stated is not None and stated != schema.schema_version:
        words = f"META_DATA has version {stated}, but the tables have {schema.schema_version}"
        yield problem("schema", words)
    for words in detection.notes:
        yield note("schema", words)


def _shape(table: TableSpec, facts: Facts, detection: Detection) -> Iterator[Finding]:
    found = facts.tables[table.name]
    names = list(found)
    own = [name for name in names if name in table.column_names]
    extra = [name for name in names if name not in table.column_names]
    if own != list(table.column_names):
        yield problem("schema", f"{table.name}: columns are in a different order: {', '.join(own)}")
    elif names[: len(own)] != own:
        yield note(
            "schema", f"{table.name} has columns of other tools between its own: {', '.join(extra)}"
        )
    elif extra:
        yield note("schema", f"{table.name} has columns of other tools: {', '.join(extra)}")
    # MindStudio Insight creates a table of this name with other types.
    foreign = table.name == "OVERLAP_ANALYSIS" and detection.viewer is not None
    for column in table.columns:
        if found[column.name] != column.type.upper() and not foreign:
            words = f"{table.name}.{column.name} is {found[column.name]}, expected {column.type}"
            yield problem("schema", words)
    keyed = any(column.primary_key for column in table.columns)
    if table.name in facts.keys and not keyed:
        yield problem("schema", f"{table.name} has a primary key, expected none")
    if keyed and table.name not in facts.keys:
        yield note("schema", f"{table.name} has no primary key, expected one")


def _indexes(db: sqlite3.Connection, schema: SchemaSpec, facts: Facts) -> Iterator[Finding]:
    present = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for table in schema.tables.values():
        for name, _ in table.indexes:
            if table.name in facts.tables and name not in present:
                yield note("schema", f"index {name} is missing: queries of {table.name} are slow")


def _constants(schema: SchemaSpec, facts: Facts, detection: Detection) -> Iterator[Finding]:
    """Compare the enum tables; a migrated file keeps the rows of its original revision."""
    for table in schema.enum_tables:
        wanted = {int(str(number)): str(name) for number, name in schema.rows[table]}
        found = facts.enums.get(table)
        if found is None:
            yield note("schema", f"{table} is missing")
            continue
        different = {n: name for n, name in found.items() if wanted.get(n, name) != name}
        missing = sorted(wanted.keys() - found.keys())
        if not different and not missing:
            continue
        words = f"{table} differs from {schema.revision}:"
        words += "".join(f" {n} is {name!r}, not {wanted[n]!r};" for n, name in different.items())
        words += f" lacks {missing}" if missing else ""
        # Without PROF_*, torch_npu writes PyTorch's rows of ENUM_API_TYPE and no other enum.
        pytorch_only = not different and "ENUM_MODULE" not in facts.enums
        migrated = detection.migrated_from is not None
        kept = migrated or detection.producer == "msMonitor" or pytorch_only
        yield (note if kept else problem)("schema", words.rstrip(";"))


def _reference(
    db: sqlite3.Connection, reference: Reference, facts: Facts, schema: SchemaSpec
) -> Iterator[Finding]:
    if reference.target_table == "STRING_IDS":
        yield from _dangling(db, reference, facts)
    elif reference.target_table.startswith("ENUM_"):
        yield from _out_of_range(db, reference, facts, schema)


def _dangling(db: sqlite3.Connection, reference: Reference, facts: Facts) -> Iterator[Finding]:
    if not facts.has("STRING_IDS", "id"):
        return
    table, column = reference.table, reference.column
    unknown = f'"{column}" >= 0 AND "{column}" <> {NO_TEXT}'
    if (table, column) == _NO_DOMAIN[:2]:
        unknown += f" AND {column} <> {_NO_DOMAIN[2]}"
    rows = f'"{table}" WHERE {unknown} AND "{column}" NOT IN (SELECT id FROM STRING_IDS)'
    count, example = db.execute(f'SELECT count(*), min("{column}") FROM {rows}').fetchone()
    if count:
        words = f"{table}.{column} has ids that are not in STRING_IDS, such as {example}"
        yield problem("dangling", words, count)


def _out_of_range(
    db: sqlite3.Connection, reference: Reference, facts: Facts, schema: SchemaSpec
) -> Iterator[Finding]:
    table, column, enum = reference.table, reference.column, reference.target_table
    constants = {int(str(row[0])) for row in schema.rows.get(enum, ())}
    known = facts.enums[enum].keys() if enum in facts.enums else constants
    query = f'SELECT "{column}", count(*) FROM "{table}" WHERE "{column}" IS NOT NULL GROUP BY 1'
    values = {value: count for value, count in db.execute(query) if value not in known}
    newer = [value for value in values if value in _named_by_drivers(enum)]
    if strange := [value for value in values if value not in newer]:
        words = f"{table}.{column} has numbers that are not in {enum}: {_some(strange)}"
        yield problem("enum", words, sum(values[value] for value in strange))
    if newer:
        words = (
            f"{table}.{column} has values that {enum} has in other revisions only: {_some(newer)}"
        )
        yield note("enum", words, sum(values[value] for value in newer))


def _named_by_drivers(enum: str) -> set[int]:
    """Return the numbers named in any revision, for enums whose numbers are chosen by drivers.

    A driver may be newer than the exporter, which then does not know the names of its components.
    """
    if enum != "ENUM_MODULE":
        return set()
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    rows = (row for r in revisions for row in catalogue.load(catalogue.MSPROF, r).rows[enum])
    return {int(str(row[0])) for row in rows}


def _rows(db: sqlite3.Connection, facts: Facts) -> Iterator[Finding]:
    for table in _INTERVALS:
        if facts.has(table, "startNs", "endNs"):
            rows = f'"{table}" WHERE endNs < startNs'
            if count := _count(db, rows):
                yield problem("interval", f"{table}: rows that end before they start", count)
    timed = facts.has("SESSION_TIME_INFO", "startTimeNs", "endTimeNs")
    if timed and _count(db, "SESSION_TIME_INFO WHERE endTimeNs < startTimeNs"):
        yield note("interval", "the recording has no end: it was not stopped properly")
    if facts.has("TASK", "globalTaskId", *_TASK_IDENTITY):
        # The threads of an FFTS+ context are one task with one row each.
        tasks = (
            f"SELECT DISTINCT globalTaskId, {', '.join(_TASK_IDENTITY)}"
            " FROM TASK WHERE globalTaskId >= 0"
        )
        twice = f"SELECT 1 FROM ({tasks}) GROUP BY globalTaskId HAVING count(*) > 1"
        if count := _count(db, f"({twice})"):
            yield problem("duplicate", "TASK: globalTaskId used by more than one task", count)


def _keys(db: sqlite3.Connection, schema: SchemaSpec, facts: Facts) -> Iterator[Finding]:
    """Yield duplicate keys of tables that do not declare them."""
    for table in schema.tables.values():
        for column in table.columns:
            if column.primary_key and facts.has(table.name) and table.name not in facts.keys:
                twice = f"SELECT 1 FROM {table.name} GROUP BY {column.name} HAVING count(*) > 1"
                if count := _count(db, f"({twice})"):
                    words = f"{table.name}.{column.name} used by more than one row"
                    yield problem("duplicate", words, count)


def _count(db: sqlite3.Connection, rows: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])


def _some(values: list[object]) -> str:
    shown = ", ".join(str(value) for value in sorted(values, key=str)[:5])
    return shown + (", ..." if len(values) > 5 else "")


_MAX_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check."""

    detection: Detection
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """True if there are no problems; notes do not count."""
        return not any(finding.is_problem for finding in self.findings)

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "family": self.detection.family,
            "revision": self.detection.revision,
            "sound": self.sound,
            "findings": [
                {"severity": one.severity, "kind": one.kind, "count": one.count}
                | {"message": one.message}
                for one in self.findings
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        where = self.detection
        verdict = "no problems found" if self.sound else "problems found"
        yield f"{where.path}: {where.family} {where.revision or 'unknown revision'}: {verdict}"
        for finding in self.findings:
            many = f" ({finding.count} rows)" if finding.count > 1 else ""
            yield f"  {finding.severity}: {finding.kind}: {finding.message}{many}"


def check(path: Path | str) -> Check:
    """Check the file structure, the schema of its revision, and the references of its rows.

    Raises StoreError if the file is unreadable, or not a report.
    """
    path = Path(path)
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        with reading(path):
            detection = recognize(db, path)
            watch(db)  # from here on, the time depends on the size of the file
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
        for (message,) in db.execute(f"PRAGMA integrity_check({_MAX_MESSAGES})"):
            if message != "ok":
                yield problem("damage", str(message).strip())
    except READ_ERRORS as err:
        raise_kept()
        yield problem("damage", str(err))


def _contents(db: sqlite3.Connection, detection: Detection) -> Iterator[Finding]:
    if detection.revision is None:
        yield problem("schema", f"unknown revision: {detection.description}")
        return
    facts = fingerprint.read_facts(db)
    for name in detection.not_tables:
        yield problem("schema", f"{name} is a view or a virtual table, expected a table")
    if detection.family == catalogue.MSPROF:
        yield from check_msprof_contents(db, detection, facts)
    elif detection.family in _PROBLEMS:
        yield from check_own_contents(db, detection.family, facts)
    else:
        yield from _skyline(db, detection, facts)
    if facts.has("UPROF_ANOMALIES", "name", "count", "detail"):
        for name, count, detail in db.execute("SELECT name, count, detail FROM UPROF_ANOMALIES"):
            yield note("anomaly", f"{name}: {detail}", count)
    if facts.has(COVERAGE_TABLE, *CoveredPart._fields):
        columns = ", ".join(CoveredPart._fields)
        parts = map(CoveredPart._make, db.execute(f"SELECT {columns} FROM {COVERAGE_TABLE}"))
        for part in parts:
            if part.total != sum(part[-3:]):
                yield problem("coverage", f"parts of {part.kind} do not add up to {part.total}")
            elif part.decoded < part.total:
                yield note("coverage", coverage_text([part]))


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
                    yield problem(
                        "dangling", f"stack_correlation.entry_id is not in {entries}", count
                    )
        if facts.has("stack_correlation") and facts.has("entry_types"):
            kinds = "stack_correlation WHERE entry_type NOT IN (SELECT entry_type FROM entry_types)"
            if count := _count(db, kinds):
                yield problem("enum", "stack_correlation.entry_type is not in entry_types", count)
    column, target, key = owner
    if facts.has("stack_frames", column) and facts.has(target, key):
        rows = f"stack_frames WHERE {column} NOT IN (SELECT {key} FROM {target})"
        if count := _count(db, rows):
            yield problem("dangling", f"stack_frames.{column} does not refer to an entry", count)
    for words in detection.notes:
        yield note("schema", words)
