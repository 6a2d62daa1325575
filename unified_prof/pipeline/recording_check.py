"""Checks a recording, and compares the database of another exporter with its raw data.

The recording is converted to the revision of the other database. Ids, which exporters may choose,
are replaced by what they refer to; then the rows of each table are compared as multisets. Rules
that hold in every correct database, and values that one side lacks, decide which side the raw data
supports.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from unified_prof.arrays import intervals
from unified_prof.base.columns import (
    HOST_ONLY_CONNECTION,
    NO_CONNECTION,
    NO_NUMBER,
    NOT_AVAILABLE,
    TYPE_INVALID,
    TYPE_NOT_AVAILABLE,
    anomaly_fields,
    anomaly_lines,
    coverage_text,
)
from unified_prof.errors import UsageError
from unified_prof.migrate.check import Finding
from unified_prof.migrate.check import check as check_database
from unified_prof.pipeline import discovery, sources
from unified_prof.pipeline.convert import Conversion, convert
from unified_prof.schema import catalogue, msprof
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.sqlite.reader import Report, open_report
from unified_prof.sqlite.statements import quoted

RECORDING, DATABASE = "recording", "database"
# Rows of a table that are kept to find the columns that differ, and rows that are shown.
_MAX_KEPT, _MAX_SHOWN = 10_000, 3
# Rows with equal times that a row is compared with.
_MAX_TRIED = 100
_ROWS = 1 << 14
_SEPARATOR = "\x1f"
# Cells that mean unknown in some column.
_UNKNOWN = frozenset(
    (
        *("NULL", "''", "'?'", f"'{NOT_AVAILABLE}'"),
        *map(str, (NO_CONNECTION, NO_NUMBER, TYPE_NOT_AVAILABLE, TYPE_INVALID)),
    )
)
# Columns that only number rows.
_NUMBERS = frozenset(
    (
        *(("CANN_API", "connectionId"), ("OVERLAP_ANALYSIS", "id")),
        *(("COMMUNICATION_OP", "opId"), ("TASK", "globalTaskId")),
    )
)
# Text that replaces an id, computed from the row it refers to.
_LABELS = {
    "TASK.globalTaskId": (
        "deviceId || '.' || streamId || '.' || taskId || '.' || contextId || '@' || min(startNs)"
    ),
    "CANN_API.connectionId": "min(type || '@' || startNs || '/' || globalTid)",
    "COMMUNICATION_OP.opId": "min(deviceId || '@' || startNs || '-' || endNs)",
    "STRING_IDS.id": "min(value)",
}


@dataclass(slots=True)
class TableCheck:
    """Comparison of one table."""

    table: str
    rows: dict[str, int]  # Rows of each side.
    # Rows that only one side has.
    only: dict[str, int] = field(default_factory=lambda: {RECORDING: 0, DATABASE: 0})
    # Columns in which rows with equal times differ.
    columns: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: {RECORDING: [], DATABASE: []})
    supports: str | None = None  # Side that the raw data supports, None if undecided.
    reasons: list[str] = field(default_factory=list)
    # Rows of the recording to which no row of the database has equal times.
    records_without_row: int = 0
    rows_without_record: int = 0  # The opposite.

    @property
    def agrees(self) -> bool:
        """True if both sides have the same rows."""
        return not any(self.only.values())

    def lines(self) -> Iterator[str]:
        """Yield the comparison as lines of text."""
        if self.agrees:
            yield f"  equal   {self.table}: {_row_count(self.rows['recording'])}"
            return
        sides = ", ".join(f"{count:,} only in the {side}" for side, count in self.only.items())
        columns = f"; different columns: {', '.join(self.columns)}" if self.columns else ""
        yield f"  differs {self.table}: {sides}{columns}"
        judged = f"supports the {self.supports}" if self.supports else "does not decide"
        yield f"          raw data {judged}: {'; '.join(self.reasons) or 'no rule applies'}"
        for side, rows in self.examples.items():
            for row in rows[:1]:
                yield f"          in the {side}: {row}"


class RecordingCheck(Struct, frozen=True):
    """Result of a check."""

    conversion: Conversion
    findings: Sequence[Finding]  # Problems in the converted database.
    # Tables of both databases; empty if only the recording was checked.
    tables: Sequence[TableCheck]

    @property
    def passes(self) -> bool:
        """True if nothing was skipped or lost and all tables agree."""
        agree = all(one.agrees for one in self.tables)
        return _is_complete(self.conversion) and agree and not self.findings

    def fields(self, database: Path | None) -> dict[str, Any]:
        """Return the result as plain data."""
        conversion = self.conversion
        return {
            "recording": str(conversion.recording),
            "kind": conversion.kind,
            "database": None if database is None else str(database),
            "passes": self.passes,
            "coverage": [part._asdict() for part in conversion.coverage],
            "anomalies": anomaly_fields(conversion.anomalies),
            "problems": [asdict(one) for one in self.findings],
            "tables": [{**asdict(one), "agrees": one.agrees} for one in self.tables],
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        conversion = self.conversion
        yield f"{conversion.recording}: decoded {coverage_text(conversion.coverage)}"
        yield from anomaly_lines(conversion.anomalies)
        for finding in self.findings:
            yield f"  problem {finding.kind}: {finding.message} ({_row_count(finding.count)})"
        for table in self.tables:
            yield from table.lines()
        if self.tables:
            differ = sum(not one.agrees for one in self.tables)
            yield f"{len(self.tables):,} tables: {differ:,} differ"


def _only_recording(directory: Path) -> Path:
    """Return the only recording in a directory; an unreadable one is an error, too."""
    recordings = []
    for one in discovery.find([directory]):
        if isinstance(one, tuple):
            raise one[1]
        recordings.append(one.path)
    if len(recordings) > 1:
        raise UsageError(
            f"{directory} has {len(recordings)} recordings, expected one",
            hint=f"check each by itself: `uprof check {shlex.quote(str(recordings[0]))}`",
            slug="several-recordings",
        )
    return recordings[0]


def check_recording(
    path: Path, database: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> RecordingCheck:
    """Convert a recording in a temporary directory, check it, and compare it with `database`.

    Raises UprofError if the recording or the database cannot be read.
    """
    if path.is_dir() and sources.find_source(path) is None:
        path = _only_recording(path)
    with temporary_folder() as folder:
        schema = "latest"
        if database is not None:
            with open_report(database) as other:
                if other.family != catalogue.MSPROF or other.revision is None:
                    what = f"{database} is a report of family {other.family}, expected msprof"
                    raise UsageError(what, slug="wrong-kind-of-report")
                schema = other.revision
        conversion = convert(path, folder / "recording.db", schema=schema, progress=progress)
        problems = [one for one in check_database(conversion.database).findings if one.is_problem]
        tables: list[TableCheck] = []
        if database is not None:
            progress("comparing tables")
            with open_report(conversion.database) as ours, open_report(database) as other:
                sides = {RECORDING: ours, DATABASE: other}
                tables = _compared(sides, schema, is_complete=_is_complete(conversion))
        return RecordingCheck(conversion, problems, tables)


def _is_complete(conversion: Conversion) -> bool:
    """Return False if data was skipped, or if the recording lacks slices or records."""
    skipped = any(part.skipped for part in conversion.coverage)
    return not (skipped or any(name.startswith("lost_") for name in conversion.anomalies))


def _compared(sides: Mapping[str, Report], revision: str, *, is_complete: bool) -> list[TableCheck]:
    known = catalogue.load(catalogue.MSPROF, "latest").tables | catalogue.extension_tables()
    names = sorted(
        name
        for name in known
        if not name.startswith(("UPROF_", "ENUM_"))
        and name not in ("STRING_IDS", "META_DATA", "CONNECTION_IDS", "PYTORCH_CALLCHAINS")
        and any(name in side.tables for side in sides.values())
    )
    broken = {side: _broken_rules(report) for side, report in sides.items()}
    found = []
    for name in names:
        columns = [c for c in known[name].column_names if (name, c) not in _NUMBERS]
        result = _compare(name, columns, sides, revision)
        if any(result.rows.values()):
            rules = {side: found_rules.get(name, {}) for side, found_rules in broken.items()}
            found.append(_judged(result, rules, is_complete=is_complete))
    return found


def _row_count(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _rows(
    report: Report, table: str, columns: Sequence[str], revision: str
) -> Iterator[tuple[str, int]]:
    """Yield distinct rows with labels in place of ids, in order, and their number."""
    if table not in report.tables:
        return
    targets = {
        one.column: f"{one.target_table}.{one.target_column}"
        for one in msprof.references(revision)
        if one.table == table
    }
    labels, joins, cells = [], [], []
    for number, column in enumerate(columns):
        target = targets.get(column, "")
        cell = f"t.{quoted(column)}"
        if target in _LABELS and target.partition(".")[0] in (*report.tables, table):
            origin, _, key = target.partition(".")
            labels.append(
                f"l{number} AS MATERIALIZED (SELECT {key} AS id, {_LABELS[target]} AS label"
                f" FROM {origin} GROUP BY {key})"
            )
            joins.append(f"LEFT JOIN l{number} ON l{number}.id = {cell}")
            rest = f"CASE WHEN {cell} >= {HOST_ONLY_CONNECTION} THEN {cell} ELSE '?' END"
            cell = f"CASE WHEN {cell} IS NULL THEN NULL ELSE coalesce(l{number}.label, {rest}) END"
        cells.append(
            f"CASE typeof({cell}) WHEN 'real' THEN printf('%.12g', {cell}) ELSE quote({cell}) END"
        )
    row = f" || char({ord(_SEPARATOR)}) || ".join(cells)
    distinct = "min(1, count(*))" if table == "AICORE_FREQ" else "count(*)"
    sql = (
        (f"WITH {', '.join(labels)} " if labels else "")
        + f"SELECT {row} AS row, {distinct} AS number FROM {quoted(table)} t {' '.join(joins)}"
        + " GROUP BY 1 ORDER BY 1"
    )
    for part in report.parts(sql, rows=_ROWS):
        yield from zip(map(str, part["row"].tolist()), part["number"].tolist(), strict=True)


def _compare(
    table: str, columns: Sequence[str], sides: Mapping[str, Report], revision: str
) -> TableCheck:
    result = TableCheck(table, dict.fromkeys(sides, 0))
    kept: dict[str, list[list[str]]] = {side: [] for side in sides}

    def stream(side: str) -> Iterator[tuple[str, str, int]]:
        for row, number in _rows(sides[side], table, columns, revision):
            yield row, side, number

    for row, same in groupby(merge(*map(stream, sides)), key=lambda one: one[0]):
        counts = dict.fromkeys(sides, 0)
        for _, side, number in same:
            counts[side] += number
            result.rows[side] += number
        for side, count in counts.items():
            if more := max(0, count - min(counts.values())):
                result.only[side] += more
                kept[side] += [row.split(_SEPARATOR)] * min(more, _MAX_KEPT - len(kept[side]))
    for side, rows in kept.items():
        result.examples[side] = [", ".join(row) for row in rows[:_MAX_SHOWN]]
    _find_columns(result, columns, kept)
    return result


def _find_columns(
    result: TableCheck, columns: Sequence[str], kept: Mapping[str, list[list[str]]]
) -> None:
    """Pair rows with equal times; find the columns that differ, and values one side lacks."""
    times = [at for at, name in enumerate(columns) if name in msprof.times(result.table)]
    others = defaultdict(list)
    for row in kept[DATABASE]:
        others[tuple(row[at] for at in times)].append(row)
    different: Counter[str] = Counter()
    unpaired = dict.fromkeys(kept, 0)
    lacks: dict[str, Counter[str]] = {side: Counter() for side in kept}
    for row in kept[RECORDING]:
        candidates = others[tuple(row[at] for at in times)]
        if not candidates:
            unpaired[RECORDING] += 1
            continue
        other = max(candidates[:_MAX_TRIED], key=lambda one: sum(map(str.__eq__, one, row)))
        candidates.remove(other)
        for name, ours, theirs in zip(columns, row, other, strict=True):
            if ours != theirs:
                different[name] += 1
                if (ours in _UNKNOWN) != (theirs in _UNKNOWN):
                    lacks[RECORDING if ours in _UNKNOWN else DATABASE][name] += 1
    result.columns = [name for name, _ in different.most_common()]
    unpaired[DATABASE] = sum(map(len, others.values()))
    result.records_without_row, result.rows_without_record = unpaired.values()
    for side, names in lacks.items():
        result.reasons += [
            f"the {side} lacks {name} of {_row_count(count)}" for name, count in names.items()
        ]


def _judged(
    result: TableCheck, broken: Mapping[str, Mapping[str, int]], *, is_complete: bool
) -> TableCheck:
    """Set the side that the raw data supports: it breaks fewer rules and lacks fewer values.

    If no rule tells, and the recording was decoded completely, rows need a record.
    """
    if result.agrees:
        return result
    votes: Counter[str] = Counter()
    for rule in sorted({*broken[RECORDING], *broken[DATABASE]}):
        counts = {side: broken[side].get(rule, 0) for side in (RECORDING, DATABASE)}
        if counts[RECORDING] != counts[DATABASE]:
            worse = max(counts, key=lambda side: counts[side])
            votes[worse] += 1
            result.reasons.append(f"{rule}: {counts[worse]:,} times in the {worse}")
    if not votes:
        lacking = [reason.split()[1] for reason in result.reasons]
        votes.update(dict.fromkeys(lacking, 1))
        for count, text in (
            (result.records_without_row, "records without a row in the database"),
            (result.rows_without_record, "rows of the database without a record"),
        ):
            if count and is_complete:
                votes[DATABASE] += 1
                result.reasons.append(f"{count:,} {text}")
    if votes[RECORDING] != votes[DATABASE]:
        result.supports = DATABASE if votes[RECORDING] > votes[DATABASE] else RECORDING
    return result


def _broken_rules(report: Report) -> dict[str, dict[str, int]]:
    """Return how often a database breaks each rule, by table."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    tasks = (
        "COMMUNICATION_TASK_INFO i JOIN (SELECT globalTaskId, min(startNs) AS startNs,"
        " max(endNs) AS endNs, max(connectionId) AS launch FROM TASK GROUP BY globalTaskId) t"
        " USING (globalTaskId)"
    )
    for tables, rule, sql in (
        (
            ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO"),
            "tasks of one launch call in several collectives of a group",
            f"SELECT 1 FROM {tasks} WHERE launch >= 0 GROUP BY launch, groupName"
            " HAVING count(DISTINCT opId) > 1",
        ),
        (
            ("COMMUNICATION_OP",),
            "collectives without the time of their tasks",
            f"SELECT 1 FROM COMMUNICATION_OP o JOIN (SELECT opId, min(startNs) AS first,"
            f" max(endNs) AS last FROM {tasks} GROUP BY opId) USING (opId)"
            " WHERE first <> o.startNs OR last <> o.endNs",
        ),
        (
            ("TASK", "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO"),
            "kernels and collective tasks without launch",
            "SELECT 1 FROM TASK JOIN (SELECT globalTaskId FROM COMPUTE_TASK_INFO UNION"
            " SELECT globalTaskId FROM COMMUNICATION_TASK_INFO) USING (globalTaskId)"
            " WHERE connectionId NOT IN (SELECT connectionId FROM CANN_API)",
        ),
    ):
        ((count,),) = report.rows(f"SELECT count(*) FROM ({sql})")
        for table in tables:
            found[table][rule] = count
    rule = "exposed communication during computation"
    found["OVERLAP_ANALYSIS"][rule] = _exposed_during_compute(report)
    found["OVERLAP_ANALYSIS"] |= found["COMMUNICATION_OP"]  # it is computed from them
    return found


def _exposed_during_compute(report: Report) -> int:
    compute_type, exposed_type = 0, 2
    cells = report.columns(
        "SELECT deviceId, CAST(startNs AS INTEGER) AS s, CAST(endNs AS INTEGER) AS e, type"
        f" FROM OVERLAP_ANALYSIS WHERE type IN ({compute_type}, {exposed_type})"
    )
    count = 0
    for device in set(cells["deviceId"].tolist()):
        sets: list[Any] = []
        for kind in (compute_type, exposed_type):
            rows = (cells["deviceId"] == device) & (cells["type"] == kind)
            sets.append(intervals.merge(cells["s"][rows], cells["e"][rows]))
        count += len(intervals.intersect(*sets))
    return count
