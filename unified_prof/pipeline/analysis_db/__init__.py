"""What torch_npu and msprof compute of a database and leave beside it, for its readers.

`analysis.db` of torch_npu: the times of every training step, and of every collective where its time
went and over which links. `communication_analyzer.db` of msprof: the collectives alone. Times are
microseconds and milliseconds, sizes megabytes, as they have them.

The names and folders under which MindStudio Insight and msprof-analyze find a database.

torch_npu leaves `<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_<rank>.db`,
with an `analysis.db` beside it, and `profiler_info_<rank>.json` and `profiler_metadata.json` one
folder above.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from unified_prof.pipeline.analysis_db import collectives as matrix
from unified_prof.pipeline.analysis_db import gpu as steps
from unified_prof.pipeline.analysis_db.collectives import (
    Collective,
    Recorded,
    read_collectives,
    read_recorded,
)
from unified_prof.pipeline.analysis_db.gpu import Range
from unified_prof.pipeline.outputs import make_directory
from unified_prof.sqlite.atomic import replacing
from unified_prof.sqlite.reader import Report
from unified_prof.sqlite.statements import open_unfinished
from unified_prof.version import VERSION

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

        ranges = gpu.ranges_gpu(report)
        work = gpu.read_work_gpu(report)
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


FOLDER_SUFFIX = "_ascend_pt"
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"
ANALYSIS = "analysis.db"
SCHEMA = "latest"
"""What its readers do best with: without the rows of OVERLAP_ANALYSIS, which older revisions lack,
MindStudio Insight shows no overall times of a recording without collectives."""

DESCRIPTION = re.compile(r"profiler_(?:info(?:_\d+)?|metadata)\.json")
"""Files in which torch_npu says what was recorded, beside the layout's folder."""
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_OF_THE_FILE = ("SCHEMA_VERSION", "UPROF_")
"""Rows of META_DATA that are not of the recording."""


def database_name(rank: int | None) -> str:
    """Return the name of the database of a rank; None: recorded without ranks."""
    return "ascend_pytorch_profiler.db" if rank is None else f"ascend_pytorch_profiler_{rank}.db"


def databases_in(folder: Path) -> list[Path]:
    """Return the databases that are in the layout already."""
    return sorted((folder / OUTPUT_FOLDER).glob("ascend_pytorch_profiler*.db"))


def empty_tables(revision: str) -> frozenset[str]:
    """Return the tables that readers of the layout do better with empty than without.

    msprof-analyze fails where COMMUNICATION_OP is missing. But an empty OVERLAP_ANALYSIS, which
    newer revisions have, would keep MindStudio Insight from computing its own.
    """
    from unified_prof.schema import catalogue

    return frozenset(catalogue.load(catalogue.MSPROF, revision).tables) - {"OVERLAP_ANALYSIS"}


def accompany(report: Path, rank: int | None, *, what: str | None, force: bool) -> None:
    """Write what belongs beside a report of the layout: its analysis, and what it is.

    Args:
        report: Complete, in the layout's folder, under whatever name.
        rank: That was recorded, or None.
        what: Which kind of recording it was made of; None: that brings what says so.
        force: Whether it replaces the report of another rank.
    """
    from unified_prof.sqlite.reader import open_report

    with open_report(report) as opened:
        write_analysis(opened, report.parent, overwrite=True)
        if what is not None:
            _describe(opened, report.parents[1], rank, what, force=force)


def is_described(recording: Path) -> bool:
    """Tell whether torch_npu left its profiler_info*.json in the folder of a recording."""
    return any(_INFO.fullmatch(child.name) for child in recording.iterdir())


def copy_description(recording: Path, folder: Path) -> None:
    """Copy what torch_npu says of a recording into the folder of its report, if it is another.

    Raises:
        OutputError: it cannot be written there.
    """
    if folder.samefile(recording):
        return
    for child in sorted(recording.iterdir()):
        if DESCRIPTION.fullmatch(child.name) and child.is_file():
            with replacing(folder / child.name, overwrite=True) as partial:
                shutil.copyfile(child, partial)


def _describe(report: Report, folder: Path, rank: int | None, what: str, *, force: bool) -> None:
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
        "made_by": f"uprof {VERSION}, of {what}",
    }
    if rank is not None:
        info["rank_id"] = rank
    told = {
        name: _value(text)
        for name, text in report.rows("SELECT name, value FROM META_DATA ORDER BY name")
        if not name.startswith(_OF_THE_FILE)
    }
    name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
    for old in folder.iterdir() if force else ():
        if _INFO.fullmatch(old.name) and old.name != name:
            old.unlink()
    for path, value in ((folder / name, info), (folder / "profiler_metadata.json", told)):
        with replacing(path, overwrite=True) as partial:
            partial.write_text(json.dumps(value, indent=4), encoding="utf-8")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
