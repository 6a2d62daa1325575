"""Writes the databases and JSON files that viewers of torch_npu and msprof expect beside a report.

`analysis.db` of torch_npu holds the times of every training step and, for every collective, its
times and the links it used. `communication_analyzer.db` of msprof contains only the collectives. As
in the originals, times are in microseconds and milliseconds, and sizes in megabytes.

MindStudio Insight and msprof-analyze look for the layout of torch_npu:
`<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_<rank>.db`, with `analysis.db`
beside it, and `profiler_info_<rank>.json` and `profiler_metadata.json` one directory above.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.base.text import NS_PER_US
from unified_prof.pipeline.outputs import make_directory
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import replacing
from unified_prof.sqlite.reader import Report, open_report
from unified_prof.sqlite.statements import open_unfinished
from unified_prof.version import VERSION

# Every conversion needs the names of files; what reads a report to write the databases takes a
# tenth of the conversion of a small trace to import.
if TYPE_CHECKING:
    from unified_prof.pipeline.analysis_db.collectives import Collective, RecordingDetails
    from unified_prof.recording.steps import Range, StepTrace

FILE_NAME = "analysis.db"
COMMUNICATION_FILE = "analyze/communication_analyzer.db"
DIRECTORY_SUFFIX = "_ascend_pt"
OUTPUT_DIRECTORY = "ASCEND_PROFILER_OUTPUT"
# Schema that the layout's readers support best: without the OVERLAP_ANALYSIS rows of older
# revisions, MindStudio Insight shows the overall times of a recording without collectives.
SCHEMA = "latest"
# Files in which torch_npu describes the recording.
DESCRIPTION = re.compile(r"profiler_(?:info(?:_\d+)?|metadata)\.json")
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
# Beginnings of META_DATA names that describe the database and not the recording.
_DATABASE_METADATA = ("SCHEMA_VERSION", "UPROF_")

_STEPS = (
    "CREATE TABLE StepTraceTime (deviceId INTEGER, step TEXT, computing NUMERIC,"
    " communication_not_overlapped NUMERIC, overlapped NUMERIC, communication NUMERIC,"
    " free NUMERIC, stage NUMERIC, bubble NUMERIC,"
    " communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC)"
)
_COLLECTIVES = {
    "CommAnalyzerTime": "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC,"
    " elapse_time NUMERIC, transit_time NUMERIC, wait_time NUMERIC,"
    " synchronization_time NUMERIC, idle_time NUMERIC",
    "CommAnalyzerBandwidth": "hccl_op_name TEXT, group_name TEXT, transport_type TEXT,"
    " transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, large_packet_ratio NUMERIC,"
    " package_size NUMERIC, count NUMERIC, total_duration NUMERIC",
    "CommAnalyzerMatrix": "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT,"
    " transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC",
}
_STEP_COLUMNS = ", step TEXT, type TEXT"
_OPERATION_COLUMN = ", op_name TEXT"
_POINT_TO_POINT = ("hcom_send", "hcom_receive", "hcom_batchsendrecv", "send", "receive")
Row = tuple[object, ...]
Rows = dict[str, list[Row]]


def write_analysis(
    report: Report, directory: Path, *, overwrite: bool, details: RecordingDetails | None = None
) -> Path:
    """Write `analysis.db` of `report` into `directory` and return its path.

    Values that GPU recordings do not contain, such as the waiting time in a collective, are NULL.
    `directory` is usually that of the database; `details` are values from the raw recording of
    Ascend devices. Raises OutputError if it exists and `overwrite` is false, or it cannot be
    written.
    """
    from unified_prof.pipeline.analysis_db import collectives as parts
    from unified_prof.recording import steps

    placed: Iterable[tuple[int, Collective]]
    if details is not None or steps.is_of_ascend(report):
        tasks = steps.read_tasks(report)
        ranges = steps.ranges(report, tasks)
        work = steps.read_work(report, tasks)
        collectives = parts.read_collectives(report, details or parts.RecordingDetails())
        placed = ((collective.start_ns, collective) for collective in collectives)
    else:
        ranges, work = parts.read_ranges(report), parts.read_work(report)
        placed = parts.read_gpu_collectives(report)
    rows: dict[str, Iterable[Row]] = {
        "StepTraceTime": _step_rows(steps.traces(report, work, ranges)),
        **_rows_by_step(placed, ranges),
    }
    path = directory / FILE_NAME
    statements = [_STEPS]
    for name, columns in _COLLECTIVES.items():
        operation = _OPERATION_COLUMN if name == "CommAnalyzerMatrix" else ""
        statements.append(f"CREATE TABLE {name} ({columns}{_STEP_COLUMNS}{operation})")
    _write(path, statements, rows, overwrite=overwrite)
    return path


def write_communication(
    report: Report, directory: Path, *, overwrite: bool, details: RecordingDetails
) -> Path:
    """Write the database that `msprof --analyze=on` writes into PROF_*, and return its path.

    Raises OutputError if it exists and `overwrite` is false, or it cannot be written.
    """
    from unified_prof.pipeline.analysis_db.collectives import read_collectives

    collectives = read_collectives(report, details)
    path = directory / COMMUNICATION_FILE
    make_directory(path.parent)
    statements = [f"CREATE TABLE {name} ({columns})" for name, columns in _COLLECTIVES.items()]
    rows: dict[str, Iterable[Row]] = {
        "CommAnalyzerTime": (one.times for one in collectives),
        "CommAnalyzerBandwidth": (row for one in collectives for row in one.bandwidth_rows()),
        "CommAnalyzerMatrix": (row for one in collectives for row in one.link_rows()),
    }
    _write(path, statements, rows, overwrite=overwrite)
    return path


def _step_rows(traces: Iterable[StepTrace]) -> Iterable[Row]:
    """Yield rows of StepTraceTime (us): each step of each device that was active in any step."""
    for trace in traces:
        times = (
            *(trace.computing_ns, trace.communication_not_overlapped_ns, trace.overlapped_ns),
            *(trace.communication_ns, trace.free_ns, trace.stage_ns, trace.bubble_ns),
            trace.communication_not_overlapped_and_exclude_receive_ns,
            trace.preparing_ns,
        )
        yield (trace.device_id, trace.step, *(ns / NS_PER_US for ns in times))


def _rows_by_step(placed: Iterable[tuple[int, Collective]], ranges: list[Range]) -> Rows:
    """Return the rows of collectives with step and type; those outside all steps are omitted.

    Each collective in `placed` has the time that determines its step.
    """
    from unified_prof.pipeline.analysis_db.collectives import matrix_rows

    rows: Rows = {name: [] for name in _COLLECTIVES}
    in_steps: list[tuple[Collective, str, str]] = []
    for at_ns, collective in placed:
        found = next((r for r in ranges if r.start_ns <= at_ns <= r.end_ns), None)
        if found is None:
            continue
        step = "step" if found.name is None else f"step{found.name}"
        kind = "p2p" if collective.name.lower().startswith(_POINT_TO_POINT) else "collective"
        in_steps.append((collective, step, kind))
        rows["CommAnalyzerTime"].append((*collective.times, step, kind))
        rows["CommAnalyzerBandwidth"] += [(*r, step, kind) for r in collective.bandwidth_rows()]
    rows["CommAnalyzerMatrix"] = list(matrix_rows(in_steps))
    return rows


def _write(
    path: Path, statements: Iterable[str], rows: Mapping[str, Iterable[Row]], *, overwrite: bool
) -> None:
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.execute("BEGIN")
        for statement in statements:
            db.execute(statement)
        for table, values in rows.items():
            for row in values:
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        db.execute("COMMIT")


def database_name(rank: int | None) -> str:
    """Return the database name for a rank; `rank` is None if the recording has no ranks."""
    return "ascend_pytorch_profiler.db" if rank is None else f"ascend_pytorch_profiler_{rank}.db"


def databases_in(directory: Path) -> list[Path]:
    """Return the databases that exist in the layout below `directory`."""
    return sorted((directory / OUTPUT_DIRECTORY).glob("ascend_pytorch_profiler*.db"))


def empty_tables(revision: str) -> frozenset[str]:
    """Return the tables that readers of the layout expect even if they are empty.

    msprof-analyze fails if COMMUNICATION_OP is missing. OVERLAP_ANALYSIS of newer revisions is
    omitted, because MindStudio Insight computes its own only if the table is missing.
    """
    return frozenset(catalogue.load(catalogue.MSPROF, revision).tables) - {"OVERLAP_ANALYSIS"}


def write_companions(
    report: Path, rank: int | None, *, description: str | None, force: bool
) -> None:
    """Write `analysis.db` and the description files for a report in torch_npu's layout.

    The report is complete and in the layout's directory, under any name. `description` is the kind
    of the recording; None if it has its own description files. If `force`, the report replaces that
    of another rank.
    """
    with open_report(report) as opened:
        write_analysis(opened, report.parent, overwrite=True)
        if description is not None:
            _describe(opened, report.parents[1], rank, description, force=force)


def has_description(recording: Path) -> bool:
    """Return True if the directory of a recording has torch_npu's profiler_info*.json."""
    return any(_INFO.fullmatch(child.name) for child in recording.iterdir())


def copy_description(recording: Path, directory: Path) -> None:
    """Copy torch_npu's description files into `directory`, unless they are already there.

    Raises OutputError if it cannot be written there.
    """
    if directory.samefile(recording):
        return
    for child in sorted(recording.iterdir()):
        if DESCRIPTION.fullmatch(child.name) and child.is_file():
            with replacing(directory / child.name, overwrite=True) as partial:
                shutil.copyfile(child, partial)


def _describe(
    report: Report, directory: Path, rank: int | None, description: str, *, force: bool
) -> None:
    """Write profiler_info*.json and profiler_metadata.json as torch_npu does."""
    activities = [
        f"ProfilerActivity.{name}"
        for name, table in (("CPU", "PYTORCH_API"), ("CPU", "CANN_API"), ("NPU", "TASK"))
        if report.rows(f"SELECT 1 FROM {table} LIMIT 1")
    ]
    info: dict[str, Any] = {
        "config": {
            "common_config": {"activities": list(dict.fromkeys(activities))},
            "experimental_config": {"_profiler_level": "Level1", "_export_type": ["db"]},
        },
        "made_by": f"uprof {VERSION}, of {description}",
    }
    if rank is not None:
        info["rank_id"] = rank
    metadata = {
        name: _value(text)
        for name, text in report.rows("SELECT name, value FROM META_DATA ORDER BY name")
        if not name.startswith(_DATABASE_METADATA)
    }
    name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
    for old in directory.iterdir() if force else ():
        if _INFO.fullmatch(old.name) and old.name != name:
            old.unlink()
    for path, value in ((directory / name, info), (directory / "profiler_metadata.json", metadata)):
        with replacing(path, overwrite=True) as partial:
            partial.write_text(json.dumps(value, indent=4), encoding="utf-8")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text
