"""Calls that wait for the device until it runs dry; and a mode in which every launch waits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.explain.advice.case import Case, Ints
from unified_prof.analysis.explain.advice.limits import ROWS, WARN_SHARE, percent, times
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.views.idle import SYNCHRONISING, is_synchronising

SYNCHRONISING_CALLS = "synchronising_calls"
BLOCKING_LAUNCHES = "blocking_launches"

STRONG_SHARE, STRONG_OF_IDLE = 0.15, 0.5
"""Of all time, or of the idle time: nsys-ai calls that severe."""
BLOCKING_SHARE = 0.5
"""Of launches that a synchronising call follows at once: the advisor's sign of a blocking mode."""
FEW_LAUNCHES = 20
"""Fewer launches tell no mode."""


def synchronising_calls(case: Case) -> Iterator[Finding]:
    """Idle time from the return of a synchronising call to the next work."""
    if not case.at_most(SYNCHRONISING):
        return
    idle = case.synchronised
    mine = np.flatnonzero((idle.reason == SYNCHRONISING) & (idle.sync >= 0) & (idle.piece >= 0))
    mine = mine[~_ends_a_step(case, mine)]
    if not len(mine):
        return
    mine, lost = _lost(case, mine)
    cost = int(lost.sum())
    share = case.share(cost)
    if share < WARN_SHARE:
        return
    of_idle = cost / max(case.idle_ns, 1)
    strong = share > STRONG_SHARE or of_idle > STRONG_OF_IDLE
    rows = _calls(case, idle.sync[mine], lost)
    first_row = rows[0]
    where = f", {'most ' if len(mine) > 1 else ''}after {first_row['name'].partition(' (')[0]}"
    where += f" at {first_row['line']}" if "line" in first_row else ""
    yield case.finding(
        SYNCHRONISING_CALLS,
        cost,
        f"the host waits for the device {times(len(mine))}, which then idles {percent(share)} of "
        f"the time{where}",
        advice="keep values on the device (no .item(), .cpu(), nonzero or boolean indexing in the "
        "step), or read them once every n steps",
        sure="certain",
        figures={
            "idle_ns": cost,
            "idle_share": round(share, 4),
            "share_of_idle": round(of_idle, 4),
            "calls": len(mine),
            "strong": strong,
        },
        evidence=rows,
    )


def _lost(case: Case, mine: Ints) -> tuple[Ints, Ints]:
    """Return the first stretch of each gap of some, and its time from the call's return on."""
    idle, host = case.synchronised, case.recording.idle_time.host
    begins = case.recording.work.start_ns[idle.piece[mine]]
    returned = np.maximum(host.sync.end_ns[idle.sync[mine]], idle.start_ns[mine])
    lost = np.maximum(begins - returned, 0)
    # A gap may have several stretches due to the same calls: it is lost once.
    _, first = np.unique(idle.piece[mine], return_index=True)
    return mine[first], lost[first]


def _ends_a_step(case: Case, mine: Ints) -> NDArray[np.bool_]:
    """Tell which gaps follow the one call that ends or begins a step, as profilers and timers do.

    Nothing is launched in the step behind it, or nothing was before it.
    """
    idle, steps = case.synchronised, case.recording.steps
    result = np.zeros(len(mine), bool)
    if not steps:
        return result
    calls, work = case.recording.host_calls, case.recording.work
    host = case.recording.idle_time.host
    ends = np.array(sorted(end for _, _, end in steps), np.int64)
    row = calls.launching(work.connection[idle.piece[mine]])
    launched = np.append(calls.start_ns, -1)[row]
    returned = host.sync.end_ns[idle.sync[mine]]
    begun = host.sync.start_ns[idle.sync[mine]]
    at_end = np.searchsorted(ends, launched, side="right") > np.searchsorted(ends, begun)
    at_end &= returned <= launched
    begins = np.array(sorted(begin for _, begin, _ in steps), np.int64)
    step = np.searchsorted(begins, begun, side="right") - 1
    launching = calls.launching(work.connection[case.pieces.row])
    launches = np.sort(calls.start_ns[launching[launching >= 0]])
    before = np.searchsorted(launches, begun) - np.searchsorted(launches, begins[step])
    at_begin = (step >= 0) & (before == 0)
    for at in np.flatnonzero(at_end | at_begin).tolist():
        called, _ = case.recording.idle_time.called(int(idle.sync[mine[at]]))
        result[at] = "(" not in called  # an operation that synchronises is the program's own
    return result


def _calls(case: Case, sync: NDArray[np.integer], lost: Ints) -> list[Evidence]:
    found: dict[tuple[str, str | None], list[int]] = {}
    for call, time in zip(sync.tolist(), lost.tolist(), strict=True):
        sums = found.setdefault(case.recording.idle_time.called(call), [0, 0])
        sums[0] += 1
        sums[1] += time
    heaviest = sorted(found.items(), key=lambda item: -item[1][1])[:ROWS]
    return [
        {"name": name, "count": count, "total_ns": time, **({} if line is None else {"line": line})}
        for (name, line), (count, time) in heaviest
    ]


def blocking_launches(case: Case) -> Iterator[Finding]:
    """A program in which a synchronising call follows most launches: a mode for finding errors."""
    calls = case.recording.host_calls
    launching = np.zeros(len(calls), bool)
    row = calls.launching(case.recording.work.connection[case.pieces.row])
    launching[row[row >= 0]] = True
    ids, number = calls.names
    names = case.recording.strings.texts(ids)
    syncs = np.array([is_synchronising(text) for text in names], bool)[number.whole()]
    order = np.lexsort((calls.start_ns, calls.thread))
    order = order[launching[order] | syncs[order]]
    if len(order) < 2 or int(launching.sum()) < FEW_LAUNCHES:
        return
    same = calls.thread[order[1:]] == calls.thread[order[:-1]]
    followed = int((launching[order[:-1]] & syncs[order[1:]] & same).sum())
    share = followed / int(launching.sum())
    if share <= BLOCKING_SHARE:
        return
    idle = case.synchronised
    known = (idle.reason == SYNCHRONISING) & (idle.sync >= 0) & (idle.piece >= 0)
    mine, lost = _lost(case, np.flatnonzero(known))
    cost = int(lost.sum())
    yield case.finding(
        BLOCKING_LAUNCHES,
        cost,
        f"a synchronising call follows {percent(share)} of the launches: the program runs in a "
        "blocking mode, host and device never work side by side",
        advice="unset CUDA_LAUNCH_BLOCKING, ASCEND_LAUNCH_BLOCKING and the like, or take the "
        "synchronize() out of the loop",
        sure="likely",
        figures={"launches": int(launching.sum()), "followed": followed, "idle_ns": cost},
        evidence=_calls(case, idle.sync[mine], lost),
    )
