"""StepTraceTime: what the devices did in each training step, as torch_npu counts it.

What a GPU's recording, whose launches are those of CUDA or HIP, says for `analysis.db`.

A task belongs to the step in which it was launched: the device runs behind the host, and no task
belongs to two. All else is counted as for Ascend devices. A collective is one kernel, in which
waiting for other ranks and moving data are one: how they share its time is NULL, bandwidths are
those of the whole time. What it ran over is not recorded either: it is a transfer by a link of no
name (SDMA, as torch_npu has those), from sender to receiver where two ranks take part, and else at
the rank itself, so that readers find the ranks of the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
from unified_prof.base.text import NS_PER_MS, NS_PER_US
from unified_prof.base.vocabulary import NO_RANK, NOT_AVAILABLE, group_hash
from unified_prof.pipeline.analysis_db.collectives import BYTES_PER_MB, Collective, Transfer
from unified_prof.recording import collectives, steps
from unified_prof.recording.steps import (
    FOREVER,
    Range,
    Work,
    is_of_ascend,
    ranges,
    read_tasks,
    read_work,
)
from unified_prof.sqlite.reader import Report

__all__ = ["FOREVER", "Range", "Work", "is_of_ascend", "ranges", "read_tasks", "read_work", "rows"]


def rows(
    report: Report, work: tuple[Work, Work], all_ranges: Sequence[Range]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for every step and device that worked anywhere; times are microseconds.

    Args:
        report: Whose operators say when a recording without steps began.
        work: What computed, and what communicated.
        all_ranges: Of the steps.
    """
    for one in steps.traces(report, work, all_ranges):
        times = (
            one.computing_ns,
            one.communication_not_overlapped_ns,
            one.overlapped_ns,
            one.communication_ns,
            one.free_ns,
            one.stage_ns,
            one.bubble_ns,
            one.communication_not_overlapped_and_exclude_receive_ns,
            one.preparing_ns,
        )
        yield (one.device_id, one.step, *(ns / NS_PER_US for ns in times))


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
_NONE = (None, NO_RANK)

Ranks = tuple[int, ...]


def ranges_gpu(report: Report) -> list[Range]:
    """Return when the host was in each step; what it launched then belongs to it."""
    found = [
        Range(str(number), int(start), int(start), int(end))
        for number, start, end in report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY 2")
    ]
    return found or [Range(None, None, 0, FOREVER)]


def read_work_gpu(report: Report) -> tuple[Work, Work]:
    """Return the kernels, and the kernels of collectives: each counts where it was launched."""
    compute, communication = report.columns(_COMPUTE), report.columns(_COMMUNICATION)
    return _work(compute), _work(communication, receives=communication["receives"] != 0)


def _work(found: dict[str, Ints], *, receives: NDArray[np.bool_] | None = None) -> Work:
    return Work(found["device"], found["start"], found["end"], at_ns=found["at"], receives=receives)


def read_collectives(report: Report) -> Iterator[tuple[int, Collective]]:
    """Yield every call of a collective and when it was launched."""
    named = collectives.load_groups(report)
    own = _own_rank(report)
    ranks, join = _RANKS if _PARAMETERS in report.tables else _NO_RANKS
    for name, group, listed, start, end, launched, size, source, target in report.rows(
        _COLLECTIVES.format(ranks=ranks, join=join)
    ):
        if listed in (None, NOT_AVAILABLE):
            members = named[group].ranks if group in named else ()
        else:
            members = _ranks(listed)
        ends = _ends(own, members, source, target)
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


def _own_rank(report: Report) -> int | None:
    found = {rank for (rank,) in report.rows("SELECT rankId FROM RANK_DEVICE_MAP")}
    rank = found.pop() if len(found) == 1 else None
    return rank if rank is not None and rank >= 0 else None


def _ranks(listed: str) -> Ranks:
    """Read the ranks of a group as a trace lists them, `[0, 1]`; long lists have gaps: no ranks."""
    try:
        found = json.loads(listed)
    except ValueError:
        return ()
    whole = isinstance(found, list) and all(type(rank) is int for rank in found)
    return tuple(found) if whole else ()


def _ends(
    own: int | None, members: Ranks, source: int | None, target: int | None
) -> tuple[int, int] | None:
    """Return the places in the group of who sent and who received; None: not known.

    Where a group's ranks are known, source and target are places in it already.
    """
    if own not in members:
        return None
    if source in _NONE or target in _NONE:
        here = members.index(own)
        return here, here
    return source, target
