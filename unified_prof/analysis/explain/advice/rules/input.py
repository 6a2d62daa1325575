"""The device, or the program without one, waits for the next batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.limits import ROWS, duration, percent
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.views.idle import INPUT, is_input
from unified_prof.arrays import intervals

INPUT_WAIT = "input_wait"

WAIT_SHARE = 0.10
"""TraceML warns from this part of a step on."""
LONG_WAIT_NS = 10_000_000
"""One wait of so long is told of whatever its share, as MindStudio's advisor does..."""
LEAST_SHARE = 0.03
"""...where waits are this part of the time in all: else nobody would win by it."""


def input_wait(case: Case) -> Iterator[Finding]:
    """Time in which a batch was being fetched and nothing else ran."""
    framework = case.recording.framework
    assert framework is not None
    fetching = framework.matching(is_input)
    start, end = framework.start_ns[fetching], framework.end_ns[fetching]
    if case.device is None:
        waits = case.within(start, end)
    else:
        if case.share(case.at_most(INPUT)) < LEAST_SHARE:
            return
        # Behind the last work nobody waits for a batch: that is the end of an epoch.
        idle = case.idle_where(lambda one: (one.reason == INPUT) & (one.piece >= 0))
        waits = intervals.merge(idle.start_ns, idle.end_ns)
    cost = waits.total_ns
    if not cost:
        return
    longest = int((waits.end_ns - waits.start_ns).max())
    share = case.share(cost)
    if share < WAIT_SHARE and (longest <= LONG_WAIT_NS or share < LEAST_SHARE):
        return
    who = "the program" if case.device is None else "the device"
    yield case.finding(
        INPUT_WAIT,
        cost,
        f"{who} waits for input {percent(share)} of the time, up to {duration(longest)} at "
        "once, with nothing to do meanwhile",
        advice="let more workers fetch (DataLoader num_workers, prefetch_factor, "
        "persistent_workers), or make a batch cheaper: decode less, store it ready",
        sure="certain",
        figures={
            "wait_ns": cost,
            "wait_share": round(share, 4),
            "longest_wait_ns": longest,
            "waits": len(waits),
        },
        evidence=_ranges(case, waits),
    )


def _ranges(case: Case, waits: intervals.IntervalSet) -> list[Evidence]:
    framework = case.recording.framework
    assert framework is not None
    fetching = framework.matching(is_input)
    length = framework.end_ns[fetching] - framework.start_ns[fetching]
    at = case.inside(framework.start_ns[fetching])
    texts, number = framework.names(fetching[at])
    stacks, stack = framework.stacks(fetching[at])
    rows: list[Evidence] = []
    for name in np.unique(number).tolist()[:ROWS]:
        own = np.flatnonzero(number == name)
        line = stacks[int(stack[own[0]])]
        rows.append(
            {
                "name": texts[name],
                "count": len(own),
                "total_ns": int(length[at][own].sum()),
                "start_ns": int(framework.start_ns[fetching[at][own[0]]]),
                **({} if line is None else {"line": line.rpartition("\n")[2]}),
            }
        )
    return rows
