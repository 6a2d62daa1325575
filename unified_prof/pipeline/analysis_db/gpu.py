"""The same of a GPU's recording, whose launches are those of CUDA or HIP.

A task belongs to the step in which it was launched. Of collectives nothing is known but when they
ran: waiting, links and sizes are NULL or without rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import merge
from unified_prof.store.reader import Report
from unified_prof.units import NS_PER_MS, NS_PER_US
from unified_prof.vocabulary import group_hash

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


def steps_of(report: Report) -> list[Step]:
    """Return number, start and end of every step."""
    return [
        (str(number), int(start), int(end))
        for number, start, end in report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY 2")
    ]


def step_rows(report: Report) -> Iterator[tuple[object, ...]]:
    """Yield rows of StepTraceTime."""
    steps = steps_of(report) or [_WHOLE]
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


def collective_rows(report: Report) -> Iterator[tuple[object, ...]]:
    """Yield rows of CommAnalyzerTime."""
    steps = steps_of(report)
    for name, group, start, end, launched in report.rows(_COLLECTIVES):
        step = next((f"step{s}" for s, begin, stop in steps if begin <= launched < stop), "step")
        kind = "p2p" if any(word in name.lower() for word in _POINT_TO_POINT) else "collective"
        elapsed = (end - start) / NS_PER_MS
        yield (
            *(name, str(group_hash(group)), start / NS_PER_US, elapsed),
            *(None, None, None, None, step, kind),
        )
