"""What can be wrong inside an msprof database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from unified_prof.migrate.findings import Finding, note, problem
from unified_prof.models import catalogue
from unified_prof.models.catalogue import SchemaSpec, TableSpec
from unified_prof.models.msprof.references import Reference, references
from unified_prof.store.detect import Detection
from unified_prof.store.fingerprint import Facts
from unified_prof.vocabulary import NO_TEXT, OLD_NO_DOMAIN

_NO_DOMAIN = ("MSTX_EVENTS", "domainId", OLD_NO_DOMAIN)
_INTERVALS = ("TASK", "COMMUNICATION_OP", "CANN_API")
_TASK_IDENTITY = ("deviceId", "streamId", "taskId", "contextId")


def contents(db: sqlite3.Connection, detection: Detection, facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong or unusual in a file whose revision is known."""
    assert detection.revision is not None
    schema = catalogue.load(catalogue.MSPROF, detection.revision)
    if not detection.complete:
        yield problem("incomplete", "STRING_IDS is missing: the export was stopped before its end")
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
        words = f"META_DATA says {stated}, the tables are of {schema.schema_version}"
        yield problem("schema", words)
    for words in detection.notes:
        yield note("schema", words)


def _shape(table: TableSpec, facts: Facts, detection: Detection) -> Iterator[Finding]:
    found = facts.tables[table.name]
    names = list(found)
    own = [name for name in names if name in table.column_names]
    extra = [name for name in names if name not in table.column_names]
    if own != list(table.column_names):
        yield problem("schema", f"{table.name}: columns stand in another order: {', '.join(own)}")
    elif names[: len(own)] != own:
        yield note("schema", f"{table.name}: foreign columns stand between: {', '.join(extra)}")
    elif extra:
        yield note("schema", f"{table.name}: has foreign columns: {', '.join(extra)}")
    # MindStudio Insight's own table of this name declares other types.
    foreign = table.name == "OVERLAP_ANALYSIS" and detection.viewer is not None
    for column in table.columns:
        if found[column.name] != column.type.upper() and not foreign:
            words = f"{table.name}.{column.name} is {found[column.name]}, expected {column.type}"
            yield problem("schema", words)
    keyed = any(column.primary_key for column in table.columns)
    if table.name in facts.keys and not keyed:
        yield problem("schema", f"{table.name} has a primary key, the format gives it none")
    if keyed and table.name not in facts.keys:
        yield note("schema", f"{table.name} has no primary key, the format gives it one")


def _indexes(db: sqlite3.Connection, schema: SchemaSpec, facts: Facts) -> Iterator[Finding]:
    present = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for table in schema.tables.values():
        for name, _ in table.indexes:
            if table.name in facts.tables and name not in present:
                yield note("schema", f"index {name} is missing: queries of {table.name} are slow")


def _constants(schema: SchemaSpec, facts: Facts, detection: Detection) -> Iterator[Finding]:
    """Compare enum tables; a migrated file keeps the rows it was collected with."""
    for table in schema.enum_tables:
        wanted = {int(str(number)): str(name) for number, name in schema.rows[table]}
        found = facts.enums.get(table)
        if found is None:
            yield note("schema", f"{table} is missing")
            continue
        other = {n: name for n, name in found.items() if wanted.get(n, name) != name}
        lacking = sorted(wanted.keys() - found.keys())
        if not other and not lacking:
            continue
        words = f"{table} differs from {schema.revision}:"
        words += "".join(f" {n} is {name!r}, not {wanted[n]!r};" for n, name in other.items())
        words += f" lacks {lacking}" if lacking else ""
        kept = detection.migrated_from is not None or detection.producer == "msMonitor"
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
        words = f"{table}.{column} holds ids that are not in STRING_IDS, such as {example}"
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
        words = f"{table}.{column} holds numbers that are not in {enum}: {_some(strange)}"
        yield problem("enum", words, sum(values[value] for value in strange))
    if newer:
        words = (
            f"{table}.{column} holds numbers that other revisions of {enum} name: {_some(newer)}"
        )
        yield note("enum", words, sum(values[value] for value in newer))


def _named_by_drivers(enum: str) -> set[int]:
    """Return the numbers that any revision has a name for, where drivers choose them.

    A driver may be newer than the exporter, which then has no name for its components.
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
        # The threads of an FFTS+ context are one task with a row each.
        tasks = (
            f"SELECT DISTINCT globalTaskId, {', '.join(_TASK_IDENTITY)}"
            " FROM TASK WHERE globalTaskId >= 0"
        )
        twice = f"SELECT 1 FROM ({tasks}) GROUP BY globalTaskId HAVING count(*) > 1"
        if count := _count(db, f"({twice})"):
            yield problem("duplicate", "TASK: globalTaskId that more than one task has", count)


def _keys(db: sqlite3.Connection, schema: SchemaSpec, facts: Facts) -> Iterator[Finding]:
    """Find keys that are there twice, in files whose tables do not declare them."""
    for table in schema.tables.values():
        for column in table.columns:
            if column.primary_key and facts.has(table.name) and table.name not in facts.keys:
                twice = f"SELECT 1 FROM {table.name} GROUP BY {column.name} HAVING count(*) > 1"
                if count := _count(db, f"({twice})"):
                    words = f"{table.name}.{column.name} that more than one row has"
                    yield problem("duplicate", words, count)


def _count(db: sqlite3.Connection, rows: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])


def _some(values: list[object]) -> str:
    shown = ", ".join(str(value) for value in sorted(values, key=str)[:5])
    return shown + (", ..." if len(values) > 5 else "")
