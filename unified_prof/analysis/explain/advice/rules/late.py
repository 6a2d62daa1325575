"""Work that begins long after its launch, though the device has nothing else to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.idle_rows import Idle
from unified_prof.analysis.explain.advice.limits import ROWS, duration, percent, times
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.views.idle import LAUNCHED

LATE_WORK = "late_work"

LATE_NS = 1_000_000
"""A launch takes microseconds to reach a device; what takes longer has another reason."""
MOST = 0.5
"""Of a gap: a call of the host that covers as much of it goes with it."""
IDLE_SHARE = 0.10
"""Of the time, as of a device that waits for its host."""


def late_work(case: Case) -> Iterator[Finding]:
    """Gaps of a millisecond and more between a launch and the beginning of what it launched."""
    if case.share(case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    idle = case.idle_where(
        lambda one: (one.reason == LAUNCHED) & (one.length_ns >= LATE_NS) & (one.piece >= 0)
    )
    lost = int(idle.length_ns.sum())
    if case.share(lost) < IDLE_SHARE:
        return
    longest = int(idle.length_ns.argmax())
    again = _again(case, idle)
    gaps = len(idle.start_ns)
    yield case.finding(
        LATE_WORK,
        # Once is no loop: what a step would gain by it, nobody can tell then.
        0 if again else lost,
        f"the device idles {percent(case.share(lost))} of the time although work was launched for "
        f"it ({times(gaps)}, {'for' if gaps == 1 else 'up to'} "
        f"{duration(int(idle.length_ns[longest]))}"
        f"{_meanwhile(case, idle, longest)}), and nothing that was recorded explains it{again}",
        advice="see whether it comes back in a longer recording, with profiler.step() after each "
        "iteration: work from before the recording, kernels that are loaded when they are first "
        "used, graphs that are uploaded and the profiler itself do this once; work that was not "
        "recorded, such as another program's on the same device, does it always",
        sure="possible",
        figures={
            "idle_ns": lost,
            "gaps": gaps,
            "idle_share": round(case.share(lost), 4),
            "longest_gap_ns": int(idle.length_ns[longest]),
        },
        evidence=_rows(case, idle),
    )


def _again(case: Case, idle: Idle) -> str:
    """Say why nobody can tell whether it comes back; empty: it does, in several steps."""
    if not case.steps:
        return "; no step is known: whether it comes back is not told"
    begins = case.windows.start_ns
    step = np.searchsorted(begins, idle.start_ns, side="right")
    if len(np.unique(step)) > 1:
        return ""
    of = f"one of {len(case.steps)} steps only" if len(case.steps) > 1 else "the only step"
    return f"; it is in {of}: whether it comes back is not told"


def _meanwhile(case: Case, idle: Idle, gap: int) -> str:
    """Say which call the launching thread is in for most of a gap."""
    calls, recording = case.recording.host_calls, case.recording
    if not len(calls):
        return ""
    launch = calls.launching(recording.work.connection[idle.piece[gap : gap + 1]])
    of_thread = np.flatnonzero(calls.thread == calls.thread[launch[0]])
    inside = np.minimum(calls.end_ns[of_thread], idle.end_ns[gap])
    inside -= np.maximum(calls.start_ns[of_thread], idle.start_ns[gap])
    longest = int(inside.argmax())
    if inside[longest] < MOST * idle.length_ns[gap]:
        return ""
    call = of_thread[longest : longest + 1]
    said = f", in which the host is in {recording.strings.get(int(calls.name[call[0]]))}"
    framework = recording.framework
    if framework is None:
        return said
    around = framework.places_at(calls.thread[call], calls.start_ns[call])
    if around[0] < 0:
        return said
    names, number = framework.names(around)
    stack = framework.stacks(around)
    line = (stack[0][int(stack[1][0])] or "").rpartition("\n")[2]
    return f"{said} of {names[int(number[0])]}" + (f" at {line}" if line else "")


def _rows(case: Case, idle: Idle) -> list[Evidence]:
    """Return the longest gaps, each with the call that had launched what ended it."""
    work, calls = case.recording.work, case.recording.host_calls
    rows: list[Evidence] = []
    for at in np.argsort(-idle.length_ns, kind="stable")[:ROWS].tolist():
        piece = int(idle.piece[at])
        name, line = work.place(piece)
        call = (
            int(calls.launching(work.connection[idle.piece[at : at + 1]])[0]) if len(calls) else -1
        )
        called = case.recording.strings.get(int(calls.name[call])) if call >= 0 else None
        row = {
            "name": f"before {name}" + (f" ({called})" if called else ""),
            "count": 1,
            "total_ns": int(idle.length_ns[at]),
            "start_ns": int(idle.start_ns[at]),
        }
        rows.append(row if line is None else {**row, "line": line})
    return rows
