"""Requirements of MindStudio Insight and msprof-analyze, as checks of a report and its directory.

Each check states what these readers (version 26.2.0) look for, and what they would not show
without it. The readers themselves are not needed, and nothing is written.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from unified_prof.base.columns import (
    FIRST_MARK_CONNECTION,
    HOST_ONLY_CONNECTION,
    NO_MARK_CONNECTION,
)

CORES = frozenset(
    "AI_CORE AI_VECTOR_CORE AI_CPU MIX_AIC MIX_AIV FFTS_PLUS HCCL COMMUNICATION DSA DVPP".split()
)
"""Core types for which the viewer lists operators."""

NAMES = re.compile(r"msprof_\d{14}\.db|ascend_(?:pytorch|mindspore)_profiler(?:_\d{1,16})?\.db")
TEXTS = (
    *(("COMPUTE_TASK_INFO", name) for name in ("name", "opType", "taskType")),
    *(("COMPUTE_TASK_INFO", f"input{what}") for what in ("Formats", "DataTypes", "Shapes")),
    *(("COMPUTE_TASK_INFO", f"output{what}") for what in ("Formats", "DataTypes", "Shapes")),
    *(("COMMUNICATION_OP", name) for name in ("opName", "groupName", "opType")),
    *(("COMMUNICATION_TASK_INFO", name) for name in ("name", "taskType", "groupName")),
    *(("TASK", "taskType"), ("CANN_API", "name"), ("MSTX_EVENTS", "message")),
)
ANALYSIS = {
    "StepTraceTime": "deviceId step computing communication_not_overlapped overlapped"
    " communication free stage bubble communication_not_overlapped_and_exclude_receive preparing",
    "CommAnalyzerTime": "hccl_op_name group_name start_timestamp elapse_time transit_time wait_time"
    " synchronization_time idle_time step type",
    "CommAnalyzerBandwidth": "hccl_op_name group_name transport_type transit_size transit_time"
    " bandwidth large_packet_ratio package_size count total_duration step type",
    "CommAnalyzerMatrix": "hccl_op_name group_name src_rank dst_rank transport_type transit_size"
    " transit_time bandwidth step type op_name",
}
OVERALL = {0: "computing", 2: "communication alone", 3: "free"}


class Database:
    """One SQLite file with query helpers."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {name for (name,) in names}

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._connection.execute(sql, values).fetchall()

    def column(self, sql: str, *values: object) -> list[Any]:
        """Return the values of a query of one column."""
        return [value for (value,) in self.rows(sql, *values)]

    def has(self, *tables: str) -> bool:
        """Return True if all these tables exist."""
        return self.tables.issuperset(tables)

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [row[1] for row in self.rows(f"PRAGMA table_info({table})")]


def violations(report: Path) -> list[str]:
    """Return what readers would miss, one sentence each."""
    found = [] if NAMES.fullmatch(report.name) else [f"no reader takes the name {report.name}"]
    with closing(_open(report)) as connection:
        database = Database(connection)
        for check in CHECKS:
            found += check(database)
        found += _directory_is_complete(database, report)
    return found


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)


def _texts_resolve(database: Database) -> Iterator[str]:
    """An operator with a missing text is counted but not shown."""
    for table, column in TEXTS:
        if table in database.tables and column in database.columns(table):
            (missing,) = database.column(
                f"SELECT count(*) FROM {table} t LEFT JOIN STRING_IDS s ON s.id = t.{column}"
                " WHERE s.value IS NULL"
            )
            if missing:
                yield f"{missing} texts of {table}.{column} are missing"


def _devices_are_listed(database: Database) -> Iterator[str]:
    """A device is a row of NPU_INFO; times are shown relative to the start of the session."""
    if database.has("TASK"):
        for device in database.column(
            "SELECT DISTINCT deviceId FROM TASK WHERE deviceId NOT IN (SELECT id FROM NPU_INFO)"
        ):
            yield f"device {device} has no card"
    if database.column("SELECT count(*) FROM SESSION_TIME_INFO") != [1]:
        yield "the session's times are not one row"
    if not database.column("SELECT count(*) FROM RANK_DEVICE_MAP")[0]:
        yield "no rank is known"


def _tasks_are_counted_once(database: Database) -> Iterator[str]:
    """Task ids are unique, except on Ascend, where graphs run a task several times."""
    if not database.has("TASK", "UPROF_GPU_TASKS"):
        return
    if database.rows("SELECT 1 FROM TASK GROUP BY globalTaskId HAVING count(*) > 1"):
        yield "tasks share a number"
    if database.rows("SELECT 1 FROM TASK WHERE endNs < startNs"):
        yield "tasks end before they start"
    if database.has("COMPUTE_TASK_INFO") and database.rows(
        "SELECT 1 FROM COMPUTE_TASK_INFO WHERE globalTaskId NOT IN (SELECT globalTaskId FROM TASK)"
    ):
        yield "operators without a task"


def _core_types_are_known(database: Database) -> Iterator[str]:
    """Operators are listed by core type; those of Ascend devices keep their recorded type."""
    if database.has("COMPUTE_TASK_INFO", "UPROF_GPU_TASKS"):
        for core in database.column(
            "SELECT DISTINCT s.value FROM COMPUTE_TASK_INFO c"
            " JOIN STRING_IDS s ON s.id = c.taskType"
        ):
            if core not in CORES:
                yield f"no reader lists operators of {core}"


def _marks_have_a_task_or_a_reserved_connection(database: Database) -> Iterator[str]:
    """A mark with another connection is looked up; NULL hides all marks of the device.

    In Ascend recordings 4000000000 is what the vendor's exporter writes.
    """
    if not database.has("MSTX_EVENTS"):
        return
    skipped = [NO_MARK_CONNECTION]
    if not database.has("UPROF_GPU_TASKS"):
        skipped.append(HOST_ONLY_CONNECTION)
    tasks = "SELECT connectionId FROM TASK" if database.has("TASK") else "SELECT NULL"
    for connection in database.column(
        f"SELECT DISTINCT connectionId FROM MSTX_EVENTS WHERE connectionId IS NULL OR"
        f" (connectionId NOT IN ({', '.join(map(str, skipped))})"
        f" AND connectionId < {FIRST_MARK_CONNECTION} AND connectionId NOT IN ({tasks}))"
    ):
        yield f"marks have connection {connection}, which no task has"


def _collectives_are_joined(database: Database) -> Iterator[str]:
    """Collective details are joined by connectionId, their tasks by opId."""
    if not database.has("COMMUNICATION_OP", "TASK") or not database.rows(
        "SELECT 1 FROM COMMUNICATION_OP"
    ):
        return
    if database.rows(
        "SELECT 1 FROM COMMUNICATION_OP"
        " WHERE connectionId NOT IN (SELECT connectionId FROM TASK WHERE connectionId IS NOT NULL)"
    ):
        yield "collectives without a task"
    # Ascend devices may have tasks of collectives whose own record was lost.
    if database.has("UPROF_GPU_TASKS") and database.rows(
        "SELECT 1 FROM COMMUNICATION_TASK_INFO"
        " WHERE opId NOT IN (SELECT opId FROM COMMUNICATION_OP)"
    ):
        yield "tasks without a collective"
    if database.has("ENUM_HCCL_DATA_TYPE") and database.rows(
        "SELECT 1 FROM COMMUNICATION_OP WHERE dataType NOT IN (SELECT id FROM ENUM_HCCL_DATA_TYPE)"
    ):
        yield "collectives with an unknown data type"


def _overall_times_are_complete(database: Database) -> Iterator[str]:
    """The overall view adds three kinds of intervals and fails if one is missing.

    The viewer creates a missing table, with the same limitation. Rows of Ascend devices come from
    the vendor's exporter, which omits kinds without intervals.
    """
    if not database.has("UPROF_GPU_TASKS"):
        return
    devices = database.column("SELECT DISTINCT deviceId FROM TASK")
    if devices and not database.has("OVERLAP_ANALYSIS"):
        yield "overall times are missing"
        return
    for device in devices:
        kinds = database.rows(
            "SELECT type, sum(endNs - startNs) FROM OVERLAP_ANALYSIS"
            " WHERE deviceId = ? AND type != 1 GROUP BY type",
            device,
        )
        for missing in OVERALL.keys() - {kind for kind, _ in kinds}:
            yield f"device {device}: overall times lack {OVERALL[missing]}"


CHECKS: tuple[Callable[[Database], Iterator[str]], ...] = (
    _texts_resolve,
    _devices_are_listed,
    _tasks_are_counted_once,
    _core_types_are_known,
    _marks_have_a_task_or_a_reserved_connection,
    _collectives_are_joined,
    _overall_times_are_complete,
)


def _directory_is_complete(database: Database, report: Path) -> Iterator[str]:
    """Check the files that identify devices and ranks, and the analysis."""
    if report.name.startswith("msprof_"):
        yield from _prof_folder(report.parent)
    else:
        yield from _torch_folder(database, report)
    analysis = report.with_name("analysis.db")
    collectives = database.has("COMMUNICATION_TASK_INFO") and bool(
        database.rows("SELECT 1 FROM COMMUNICATION_TASK_INFO")
    )
    if analysis.exists():
        with closing(_open(analysis)) as connection:
            yield from _analysis(Database(connection), database, collectives=collectives)
    elif collectives:
        yield "collectives without an analysis"


def _prof_folder(folder: Path) -> Iterator[str]:
    """The viewer asks for device_<N>/, msprof-analyze for info.json.<N> with a rank in it."""
    if not folder.name.startswith("PROF_"):
        yield f"msprof-analyze passes {folder.name} over"
    infos = [path for path in folder.glob("device_*/info.json.*") if path.suffix[1:].isdecimal()]
    if not infos:
        yield "no device_<N>/info.json.<N>"
    for info in infos:
        if "rank_id" not in json.loads(info.read_text()):
            yield f"{info.name} says no rank: all recordings are taken for one"


def _torch_folder(database: Database, report: Path) -> Iterator[str]:
    """The rank comes from the file name, groups from profiler_metadata.json and META_DATA."""
    if report.parent.name != "ASCEND_PROFILER_OUTPUT":
        yield f"{report.parent} is not where readers look"
    outer = report.parents[1]
    if not outer.name.endswith("_ascend_pt"):
        yield f"{outer.name} is no folder of torch_npu"
    number = report.stem.removeprefix("ascend_pytorch_profiler")
    info = outer / f"profiler_info{number}.json"
    if not info.exists():
        yield f"no {info.name}"
    elif number and int(json.loads(info.read_text()).get("rank_id", -1)) != int(number[1:]):
        yield f"{info.name} is of another rank"
    metadata = outer / "profiler_metadata.json"
    told = json.loads(metadata.read_text()) if metadata.exists() else {}
    groups = database.column("SELECT value FROM META_DATA WHERE name = 'parallel_group_info'")
    if groups and told.get("parallel_group_info") != json.loads(groups[0]):
        yield "profiler_metadata.json says other groups"


def _analysis(analysis: Database, report: Database, *, collectives: bool) -> Iterator[str]:
    """Steps and devices must agree; bandwidths and links make the views of communication."""
    for table, columns in ANALYSIS.items():
        if table not in analysis.tables:
            yield f"analysis.db lacks {table}"
            return
        if analysis.columns(table) != columns.split():
            yield f"analysis.db: {table} has other columns"
    steps = {
        "step" if step is None else f"step{step}"
        for step in analysis.column("SELECT DISTINCT step FROM StepTraceTime")
    }
    for table in ("CommAnalyzerTime", "CommAnalyzerBandwidth", "CommAnalyzerMatrix"):
        for step in set(analysis.column(f"SELECT DISTINCT step FROM {table}")) - steps:
            yield f"{table} has {step}, of which StepTraceTime knows nothing"
    cards = report.column("SELECT id FROM NPU_INFO")
    for device in analysis.column("SELECT DISTINCT deviceId FROM StepTraceTime"):
        if device not in cards:
            yield f"StepTraceTime has device {device}, which has no card"
    if collectives and not analysis.column("SELECT count(*) FROM CommAnalyzerTime")[0]:
        yield "no times of collectives"
    if analysis.rows("SELECT 1 FROM CommAnalyzerTime WHERE group_name GLOB '*[^0-9]*'"):
        yield "groups by name, where readers look for their numbers"
    for value in ("computing", "free", "stage", "bubble", "preparing"):
        if analysis.rows(f"SELECT 1 FROM StepTraceTime WHERE {value} IS NULL"):
            yield f"StepTraceTime.{value} is unknown"
