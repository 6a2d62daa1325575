"""Collectives and steps of GPU recordings for `analysis.db`.

A task belongs to the step that launched it, even if the device runs it later, so no task belongs to
two steps. Everything else is computed as for Ascend devices. A collective is one kernel that both
waits for other ranks and transfers data. Its wait and transfer times are therefore NULL, and
bandwidths refer to the whole duration. Links are not recorded, so transfers have no link name
(torch_npu counts those as SDMA). A transfer goes from sender to receiver if two ranks take part,
otherwise from the rank to itself, so that readers find the ranks of the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import NO_RANK, NOT_AVAILABLE, group_hash
from unified_prof.base.text import NS_PER_MS, NS_PER_US
from unified_prof.pipeline.analysis_db.collectives import BYTES_PER_MB, Collective, Transfer
from unified_prof.recording import collectives
from unified_prof.recording.steps import FOREVER, Range, Work
from unified_prof.sqlite.reader import Report

_LAUNCHED = "coalesce(a.startNs, t.startNs)"
_COMPUTE = f"""
SELECT t.deviceId AS device, t.startNs AS start, t.endNs AS end, {_LAUNCHED} AS at
FROM COMPUTE_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId
  LEFT JOIN CANN_API a ON a.connectionId = t.connectionId
"""
_COMMUNICATION = f"""
SELECT t.deviceId AS device, t.startNs AS start, t.endNs AS end, {_LAUNCHED} AS at,
  coalesce(s.value, '') LIKE 'receive%' AS receives
FROM COMMUNICATION_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId
  LEFT JOIN COMMUNICATION_OP o ON o.opId = c.opId LEFT JOIN STRING_IDS s ON s.id = o.opName
  LEFT JOIN CANN_API a ON a.connectionId = t.connectionId
"""
_COLLECTIVES = """
SELECT o.value, g.value, {ranks}, c.startNs, c.endNs, coalesce(a.startNs, c.startNs),
  i.size, i.srcRank, i.dstRank
FROM COMMUNICATION_OP c JOIN STRING_IDS o ON o.id = c.opName
  JOIN STRING_IDS g ON g.id = c.groupName
  LEFT JOIN COMMUNICATION_TASK_INFO i ON i.opId = c.opId
  LEFT JOIN CANN_API a ON a.connectionId = c.connectionId {join}
ORDER BY c.startNs, c.opId
"""
_PARAMETERS = "UPROF_COLLECTIVES"
_RANKS = (
    "(SELECT value FROM STRING_IDS WHERE id = p.groupRanks)",
    (f"LEFT JOIN {_PARAMETERS} p ON p.opId = c.opId"),
)
_NO_RANKS = "NULL", ""
_UNKNOWN_RANKS = (None, NO_RANK)

Ranks = tuple[int, ...]


def read_ranges(report: Report) -> list[Range]:
    """Return the host time range of each step; tasks launched in the range belong to the step."""
    steps = [
        Range(str(number), int(start), int(start), int(end))
        for number, start, end in report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY 2")
    ]
    return steps or [Range(None, None, 0, FOREVER)]


def read_work(report: Report) -> tuple[Work, Work]:
    """Return compute and collective kernels with their launch times."""
    compute, communication = report.columns(_COMPUTE), report.columns(_COMMUNICATION)
    return _work(compute), _work(communication, receives=communication["receives"] != 0)


def _work(columns: dict[str, Ints], *, receives: NDArray[np.bool_] | None = None) -> Work:
    return Work(
        columns["device"], columns["start"], columns["end"], at_ns=columns["at"], receives=receives
    )


def read_collectives(report: Report) -> Iterator[tuple[int, Collective]]:
    """Yield the launch time and each call of a collective."""
    groups = collectives.load_groups(report)
    rank = _recorded_rank(report)
    ranks, join = _RANKS if _PARAMETERS in report.tables else _NO_RANKS
    for name, group, listed, start, end, launched, size, source, target in report.rows(
        _COLLECTIVES.format(ranks=ranks, join=join)
    ):
        if listed in (None, NOT_AVAILABLE):
            members = groups[group].ranks if group in groups else ()
        else:
            members = _parse_ranks(listed)
        ends = _endpoints(rank, members, source, target)
        yield launched, _collective(name, str(group_hash(group)), start, end, size, ends)


def _collective(
    name: str, group: str, start: int, end: int, size: int | None, ends: tuple[int, int] | None
) -> Collective:
    ms = (end - start) / NS_PER_MS
    transfers: tuple[Transfer, ...] = ()
    if size is not None:
        transfers = (Transfer(None, ends or (None, None), size / BYTES_PER_MB, ms, start),)
    times = (name, group, start / NS_PER_US, ms, None, None, None, None)
    return Collective(name, group, start, times, transfers)


def _recorded_rank(report: Report) -> int | None:
    ranks = {rank for (rank,) in report.rows("SELECT rankId FROM RANK_DEVICE_MAP")}
    rank = ranks.pop() if len(ranks) == 1 else None
    return rank if rank is not None and rank >= 0 else None


def _parse_ranks(text: str) -> Ranks:
    """Parse a list of ranks such as `[0, 1]`; return () if the list is truncated in the trace."""
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    is_complete = isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
    return tuple(ranks) if is_complete else ()


def _endpoints(
    rank: int | None, members: Ranks, source: int | None, target: int | None
) -> tuple[int, int] | None:
    """Return the indexes of sender and receiver in the group, None if they are unknown.

    If the ranks of the group are known, `source` and `target` already are such indexes.
    """
    if rank not in members:
        return None
    if source in _UNKNOWN_RANKS or target in _UNKNOWN_RANKS:
        index = members.index(rank)
        return index, index
    return source, target
