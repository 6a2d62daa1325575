"""What torch_npu computes of a database and leaves beside it in `analysis.db`, for its readers.

Per training step: how long the device computed, communicated, did both, or neither. Per
collective: when and how long. Times are microseconds and milliseconds as torch_npu has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import merge
from unified_prof.store.atomic import replacing
from unified_prof.store.reader import Report
from unified_prof.store.sql import open_unfinished
from unified_prof.units import NS_PER_MS, NS_PER_US

FILE_NAME = "analysis.db"

_SCHEMA = """
CREATE TABLE StepTraceTime (deviceId INTEGER, step TEXT, computing NUMERIC,
  communication_not_overlapped NUMERIC, overlapped NUMERIC, communication NUMERIC, free NUMERIC,
  stage NUMERIC, bubble NUMERIC, communication_not_overlapped_and_exclude_receive NUMERIC,
  preparing NUMERIC);
CREATE TABLE CommAnalyzerTime (hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC,
  elapse_time NUMERIC, transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC,
  idle_time NUMERIC, step TEXT, type TEXT);
"""

# A task belongs to the step in which it was launched: the device runs behind the host.
_TASKS = """
SELECT t.deviceId AS device, t.startNs AS start, t.endNs AS end,
  coalesce(a.startNs, t.startNs) AS launched, c.globalTaskId IS NULL AS communicates
FROM TASK t LEFT JOIN CANN_API a ON a.connectionId = t.connectionId
  LEFT JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId
WHERE c.globalTaskId IS NOT NULL
  OR t.globalTaskId IN (SELECT globalTaskId FROM COMMUNICATION_TASK_INFO)
"""
_COLLECTIVES = """
SELECT o.value, g.value, c.startNs, c.endNs, coalesce(a.startNs, c.startNs)
FROM COMMUNICATION_OP c JOIN STRING_IDS o ON o.id = c.opName
  JOIN STRING_IDS g ON g.id = c.groupName
  LEFT JOIN CANN_API a ON a.connectionId = c.connectionId
ORDER BY c.startNs
"""

_WHOLE = ("", 0, 2**63 - 1)
_POINT_TO_POINT = ("send", "recv", "receive")

Step = tuple[str, int, int]


def write_analysis(report: Report, folder: Path, *, overwrite: bool) -> Path:
    """Write `analysis.db` of `report` into `folder` and return its path.

    What a GPU trace cannot say is NULL: how much of a collective was waiting.

    Raises:
        OutputError: it exists and `overwrite` is false, or it cannot be written.
    """
    steps = [
        (str(number), int(start), int(end))
        for number, start, end in report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY 2")
    ]
    path = folder / FILE_NAME
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(_SCHEMA)
        db.execute("BEGIN")
        db.executemany(
            f"INSERT INTO StepTraceTime VALUES ({', '.join('?' * 11)})",
            _step_rows(report, steps or [_WHOLE]),
        )
        db.executemany(
            f"INSERT INTO CommAnalyzerTime VALUES ({', '.join('?' * 10)})",
            _collective_rows(report, steps),
        )
        db.execute("COMMIT")
    return path


def _step_rows(report: Report, steps: list[Step]) -> Iterator[tuple[object, ...]]:
    tasks = report.columns(_TASKS)
    for device in np.unique(tasks["device"]).tolist():
        for name, begin, end in steps:
            mine = (
                (tasks["device"] == device)
                & (tasks["launched"] >= begin)
                & (tasks["launched"] < end)
            )
            if mine.any():
                yield (device, name, *_step_times(tasks, mine, begin if name else None))


def _step_times(
    tasks: dict[str, NDArray[np.int64]], mine: NDArray[np.bool_], begin: int | None
) -> tuple[float | None, ...]:
    start, end = tasks["start"][mine], tasks["end"][mine]
    communicates = tasks["communicates"][mine] != 0
    computing = merge(start[~communicates], end[~communicates]).total_ns
    communication = merge(start[communicates], end[communicates]).total_ns
    busy = merge(start, end).total_ns
    overlapped = computing + communication - busy
    stage = int(end.max() - start.min())
    alone = communication - overlapped
    preparing = None if begin is None else (int(start.min()) - begin) / NS_PER_US
    times = (computing, alone, overlapped, communication, stage - busy, stage, 0, alone)
    return (*(time / NS_PER_US for time in times), preparing)


def _collective_rows(report: Report, steps: list[Step]) -> Iterator[tuple[object, ...]]:
    for name, group, start, end, launched in report.rows(_COLLECTIVES):
        step = next((f"step{s}" for s, begin, stop in steps if begin <= launched < stop), "step")
        kind = "p2p" if any(word in name.lower() for word in _POINT_TO_POINT) else "collective"
        elapsed = (end - start) / NS_PER_MS
        yield (
            *(name, str(group_hash(group)), start / NS_PER_US, elapsed),
            *(None, None, None, None, step, kind),
        )


def group_hash(group: str) -> int:
    """Return the number that stands for a group in `analysis.db`: two 32-bit hashes in a row."""
    high = low = 0
    for char in group:
        high = (high * 29 + ord(char)) % 2**32
        low = (low * 131 + ord(char)) % 2**32
    return high << 32 | low
