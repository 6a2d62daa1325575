"""What torch_npu and msprof compute of a database and leave beside it, for its readers.

`analysis.db` of torch_npu: the times of every training step, and of every collective where its time
went and over which links. `communication_analyzer.db` of msprof: the collectives alone. Times are
microseconds and milliseconds, sizes megabytes, as they have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from unified_prof.pipeline.analysis_db import matrix, steps
from unified_prof.pipeline.analysis_db.collectives import Collective, read_collectives
from unified_prof.pipeline.analysis_db.recorded import Recorded, read_recorded
from unified_prof.pipeline.analysis_db.steps import Range
from unified_prof.pipeline.outputs import make_directory
from unified_prof.store.atomic import replacing
from unified_prof.store.reader import Report
from unified_prof.store.sql import open_unfinished

__all__ = [
    "COMMUNICATION_FILE",
    "FILE_NAME",
    "read_recorded",
    "write_analysis",
    "write_communication",
]

FILE_NAME = "analysis.db"
COMMUNICATION_FILE = "analyze/communication_analyzer.db"

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
_IN_STEP = ", step TEXT, type TEXT"
_OF_OPERATION = ", op_name TEXT"
_POINT_TO_POINT = ("hcom_send", "hcom_receive", "hcom_batchsendrecv", "send", "receive")

Row = tuple[object, ...]
Rows = dict[str, list[Row]]


def write_analysis(
    report: Report, folder: Path, *, overwrite: bool, recorded: Recorded | None = None
) -> Path:
    """Write `analysis.db` of `report` into `folder` and return its path.

    What a recording of GPUs cannot say is NULL: how much of a collective was waiting, see `gpu`.

    Args:
        report: The database.
        folder: Where it lies, usually.
        overwrite: Whether another analysis may be replaced.
        recorded: What a recording of Ascend devices says besides, if it is at hand.

    Raises:
        OutputError: it exists and `overwrite` is false, or it cannot be written.
    """
    launched: Iterable[tuple[int, Collective]]
    if recorded is not None or steps.is_of_ascend(report):
        tasks = steps.read_tasks(report)
        ranges = steps.ranges(report, tasks)
        work = steps.read_work(report, tasks)
        collectives = read_collectives(report, recorded or Recorded())
        launched = ((one.start_ns, one) for one in collectives)
    else:
        from unified_prof.pipeline.analysis_db import gpu

        ranges = gpu.ranges(report)
        work = gpu.read_work(report)
        launched = gpu.read_collectives(report)
    rows: dict[str, Iterable[Row]] = {
        "StepTraceTime": steps.rows(report, work, ranges),
        **_in_steps(launched, ranges),
    }
    path = folder / FILE_NAME
    statements = [_STEPS]
    for name, columns in _COLLECTIVES.items():
        more = _OF_OPERATION if name == "CommAnalyzerMatrix" else ""
        statements.append(f"CREATE TABLE {name} ({columns}{_IN_STEP}{more})")
    _write(path, statements, rows, overwrite=overwrite)
    return path


def write_communication(
    report: Report, folder: Path, *, overwrite: bool, recorded: Recorded
) -> Path:
    """Write what `msprof --analyze=on` leaves in a PROF_* directory and return its path.

    Raises:
        OutputError: it exists and `overwrite` is false, or it cannot be written.
    """
    collectives = read_collectives(report, recorded)
    path = folder / COMMUNICATION_FILE
    make_directory(path.parent)
    statements = [f"CREATE TABLE {name} ({columns})" for name, columns in _COLLECTIVES.items()]
    rows: Rows = {name: [] for name in _COLLECTIVES}
    for one in collectives:
        rows["CommAnalyzerTime"].append(one.times)
        rows["CommAnalyzerBandwidth"] += one.bandwidths()
        rows["CommAnalyzerMatrix"] += one.links()
    _write(path, statements, rows, overwrite=overwrite)
    return path


def _in_steps(collectives: Iterable[tuple[int, Collective]], ranges: list[Range]) -> Rows:
    """Return the rows with step and type; collectives outside every step are left out.

    Args:
        collectives: With the moment by which each belongs to a step.
        ranges: Of the steps.
    """
    rows: Rows = {name: [] for name in _COLLECTIVES}
    placed: list[tuple[Collective, str, str]] = []
    for at, one in collectives:
        place = next((r for r in ranges if r.start_ns <= at <= r.end_ns), None)
        if place is None:
            continue
        step = "step" if place.name is None else f"step{place.name}"
        kind = "p2p" if one.name.lower().startswith(_POINT_TO_POINT) else "collective"
        placed.append((one, step, kind))
        rows["CommAnalyzerTime"].append((*one.times, step, kind))
        rows["CommAnalyzerBandwidth"] += [(*row, step, kind) for row in one.bandwidths()]
    rows["CommAnalyzerMatrix"] = list(matrix.rows(placed))
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
