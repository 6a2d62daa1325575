"""StepTraceTime: what the devices did in each training step, as torch_npu counts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import merge, subtract, union
from unified_prof.store.reader import Report
from unified_prof.units import NS_PER_US
from unified_prof.vocabulary import API_OPERATION

_NODE = 10_000
"""ENUM_API_TYPE `node`, the level that launches."""
FOREVER = 2**63 - 1
"""The end of what has none."""
_RECEIVE = "hcom_receive"

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Range:
    """What belongs to a step: whatever starts on a device in it."""

    name: str | None
    """Its number; None: the whole recording, which has no steps."""
    begun_ns: int | None
    """Start on the host."""
    start_ns: int
    end_ns: int


def is_of_ascend(report: Report) -> bool:
    """Tell whether the launches of the report are those of CANN."""
    return bool(report.rows(f"SELECT 1 FROM CANN_API WHERE type = {_NODE} LIMIT 1"))


def read_tasks(report: Report) -> Columns:
    """Return device, connection, start and end of all tasks, and their ids."""
    return report.columns(
        "SELECT deviceId AS device, connectionId AS id, startNs AS start, endNs AS end,"
        " globalTaskId AS task FROM TASK"
    )


def ranges(report: Report, tasks: Columns) -> list[Range]:
    """Return the range of every step: what it launched, and as long as it lasted."""
    found = report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY startNs")
    calls = report.columns(
        f"SELECT startNs AS start, endNs AS end, connectionId AS id FROM CANN_API"
        f" WHERE type = {_NODE}"
    )
    # Of one globalTaskId the last row is meant.
    _, from_end = np.unique(tasks["task"][::-1], return_index=True)
    last_rows = len(tasks["task"]) - 1 - from_end
    tasks = {name: values[last_rows] for name, values in tasks.items()}
    if not found:
        start, _ = _hull(tasks, calls["id"])
        return [Range(None, None, start or 0, FOREVER)]
    result = []
    for number, begin, end in found:
        inside = (calls["start"] >= begin) & (calls["end"] <= end)
        first, last = _hull(tasks, calls["id"][inside])
        start = begin if first is None else first
        result.append(Range(str(number), begin, start, end if last is None else max(last, end)))
    return result


def _hull(tasks: Columns, launched: Ints) -> tuple[int | None, int | None]:
    mine = np.isin(tasks["id"], launched)
    if not mine.any():
        return None, None
    return int(tasks["start"][mine].min()), int(tasks["end"][mine].max())


def read_work(report: Report, tasks: Columns) -> tuple[Columns, Columns]:
    """Return device, start and end of operators, and of collectives.

    Column `at` says in which range each of them counts: that of its start.
    """
    operators = report.columns("SELECT globalTaskId AS task FROM COMPUTE_TASK_INFO")["task"]
    computes = np.isin(tasks["task"], operators)
    compute = {name: tasks[name][computes] for name in ("device", "start", "end")}
    communication = _communication(report)
    for found in (compute, communication):
        found["at"] = found["start"]
    return compute, communication


def rows(
    report: Report, work: tuple[Columns, Columns], all_ranges: list[Range]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for every step and device that worked anywhere.

    Args:
        report: Whose operators say when a recording without steps began.
        work: What computed, and what communicated, which also says whether it `receives`.
        all_ranges: Of the steps.
    """
    compute, communication = work
    ((first_operator,),) = report.rows(
        f"SELECT min(CAST(startNs AS INTEGER)) FROM PYTORCH_API WHERE type = {API_OPERATION}"
    )
    devices = np.unique(np.concatenate([compute["device"], communication["device"]]))
    for device in devices.tolist():
        for one in all_ranges:
            times = _times(_in(compute, device, one), _in(communication, device, one))
            begun = first_operator if one.name is None else one.begun_ns
            # torch_npu takes the start of a device that computes for the first; without one,
            # and without operators, nothing is known of preparing.
            first = times.pop("first")
            preparing = first - begun if first is not None and begun is not None else 0
            yield (
                device,
                one.name,
                *(ns / NS_PER_US for ns in times.values()),
                preparing / NS_PER_US,
            )


def _communication(report: Report) -> Columns:
    """Return collectives from first to last task, of those whose device is known."""
    return report.columns(
        "WITH d AS (SELECT connectionId AS id, min(deviceId) AS device FROM TASK"
        " GROUP BY connectionId HAVING min(deviceId) = max(deviceId))"
        " SELECT d.device AS device, c.startNs AS start, c.endNs AS end,"
        f" coalesce(s.value, '') LIKE '{_RECEIVE}%' AS receives"
        " FROM COMMUNICATION_OP c JOIN d ON d.id = c.connectionId"
        " LEFT JOIN STRING_IDS s ON s.id = c.opName"
    )


def _in(columns: Columns, device: int, one: Range) -> Columns:
    at = columns["at"]
    mine = (columns["device"] == device) & (at >= one.start_ns) & (at < one.end_ns)
    return {name: values[mine] for name, values in columns.items()}


def _times(compute: Columns, communication: Columns) -> dict[str, Any]:
    computing = merge(compute["start"], compute["end"])
    communicating = merge(communication["start"], communication["end"])
    alone = subtract(communicating, computing).total_ns
    busy = union(computing, communicating)
    stage = int(busy.end_ns[-1] - busy.start_ns[0]) if len(busy) else 0
    received = communication["receives"] != 0
    bubble = int((communication["end"] - communication["start"])[received].sum())
    first = None
    if len(computing):
        first = int(busy.start_ns[0])
    return {
        "computing": computing.total_ns,
        "alone": alone,
        "overlapped": communicating.total_ns - alone,
        "communication": communicating.total_ns,
        "free": stage - busy.total_ns,
        "stage": stage - bubble,
        "bubble": bubble,
        "without_receive": max(alone - bubble, 0),
        "first": first,
    }
