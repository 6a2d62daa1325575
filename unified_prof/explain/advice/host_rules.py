"""Advice rules about the host: host-bound idle time, short kernels, input waits, late kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import ROWS, Idle, duration, percent, times
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.idle import HOST, INPUT, LAUNCHED, is_input
from unified_prof.recording.model import Evidence, Finding

HOST_BOUND = "host_bound"
SMALL_KERNELS = "small_kernels"

# Minimum idle share (also MindStudio advisor's threshold).
IDLE_SHARE = 0.10
# A launch takes 5 to 10 µs on the host: shorter kernels cannot keep the host ahead.
SMALL_NS = 10_000
# Longer gaps are not caused by launching: the host does something else.
LONG_NS = 1_000_000
# Minimum share of launch latency in this idle time to be mentioned.
TOLD_SHARE = 0.05
# Minimum number of launches per step for the rule to apply.
MANY_LAUNCHES = 100


def host_bound(case: Case) -> Iterator[Finding]:
    """Find idle time before tasks that the host had not launched yet."""
    if case.share(case.at_most(HOST) + case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    cost = gaps = reaching_ns = long = long_ns = longest = 0
    for idle, starved in case.starved_windows():
        own = idle.at(starved)
        length = own.length_ns
        is_long = length >= LONG_NS
        cost, gaps = cost + int(length.sum()), gaps + int(_firsts(own.piece).sum())
        reaching_ns += int(length[own.reason == LAUNCHED].sum())
        long, long_ns = long + int(is_long.sum()), long_ns + int(length[is_long].sum())
        longest = max(longest, int(length.max(initial=0)))
    if case.share(cost) < IDLE_SHARE:
        return
    elsewhere = 2 * long_ns > cost
    most = (
        f"; {percent(long_ns / cost)} of it in {long:,} gaps of 1 ms or more, in which the "
        "host does other work than launching"
    )
    reaching = f"; {percent(reaching_ns / cost)} of it is the latency of launches to an idle device"
    yield case.finding(
        HOST_BOUND,
        cost,
        f"host-bound: the device is idle {percent(case.share(cost))} of the time because "
        f"nothing is enqueued ({gaps:,} "
        f"gaps){most if elsewhere else ''}{reaching if reaching_ns >= TOLD_SHARE * cost else ''}",
        advice="check what the program does before these operations: Python code, garbage "
        "collection, metrics, logging, checkpoints; do it less often or in another thread"
        if elsewhere
        else "reduce launch overhead: larger batch, torch.compile or fused operations, CUDA "
        "graphs (ACL graphs) if shapes are static",
        sure="certain",
        figures={
            "idle_ns": cost,
            "gaps": gaps,
            "idle_share": round(case.share(cost), 4),
            "longest_gap_ns": longest,
            "long_gaps": long,
            "long_gaps_ns": long_ns,
            "reaching_ns": reaching_ns,
        },
        evidence=_gaps(case),
    )


def _firsts(piece: NDArray[np.int32]) -> Flags:
    """Return a mask of the first segment of each gap."""
    found: Flags = np.append(True, piece[1:] != piece[:-1])[: len(piece)]
    return found


def _gaps(case: Case) -> Sequence[Evidence]:
    """Return the operations with the longest idle time before them, with their lines."""
    work = case.recording.work
    operators, size = work.operator, len(work.labels.texts)
    total, count = np.zeros(size), np.zeros(size, np.int64)
    longest, piece, begin = (np.zeros(size, np.int64) for _ in range(3))
    for idle, starved in case.starved_windows():
        own = idle.at(starved)
        if not len(own.piece):
            continue
        operator, length = operators[own.piece], own.length_ns
        total += np.bincount(operator, length, minlength=size)
        # One task may end several segments.
        count += np.bincount(operator[_firsts(own.piece)], minlength=size)
        most = longest.copy()
        np.maximum.at(most, operator, length)
        # From last to first, so that the first of several is kept.
        better = np.flatnonzero((length == most[operator]) & (length > longest[operator]))[::-1]
        at = operator[better]
        longest[at], piece[at], begin[at] = length[better], own.piece[better], own.start_ns[better]
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    # The launching operation is looked up once per kind of task; kinds with the same one are
    # merged.
    for number in np.argsort(-total, kind="stable")[: int((count > 0).sum())].tolist():
        name, line = work.place(int(piece[number]))
        row = rows.setdefault(
            (name, line),
            {
                "name": f"before {name}",
                "count": 0,
                "total_ns": 0,
                "start_ns": int(begin[number]),
                **({} if line is None else {"line": line}),
            },
        )
        row["count"] += int(count[number])
        row["total_ns"] += int(total[number])
    return sorted(rows.values(), key=lambda row: -int(row["total_ns"]))[:ROWS]


def small_kernels(case: Case) -> Iterator[Finding]:
    """Find kernels that are shorter than their launches, in host-bound steps."""
    if case.share(case.at_most(HOST) + case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    if case.share(case.starved_ns()) < IDLE_SHARE:
        return
    pieces = case.pieces
    kernels = np.flatnonzero(pieces.kind == KERNEL)
    calls = case.recording.host_calls
    launch = calls.launching(case.recording.work.connection[pieces.row[kernels]])
    kernels, launch = kernels[launch >= 0], launch[launch >= 0]
    # A graph launches many kernels with one call, at no cost per kernel.
    _, number, times = np.unique(launch, return_inverse=True, return_counts=True)
    alone = times[number] == 1
    kernels, launch = kernels[alone], launch[alone]
    if len(kernels) < MANY_LAUNCHES * case.step_count:
        return
    length = pieces.length_ns[kernels]
    launching = (calls.end_ns - calls.start_ns)[launch]
    kernel_ns, launch_ns = int(length.sum()), int(launching.sum())
    if kernel_ns >= SMALL_NS * len(kernels) or launch_ns <= kernel_ns:
        return
    own = np.zeros(len(case.recording.work), bool)
    own[pieces.row[kernels]] = True
    cost = min(case.starved_ns(own), launch_ns - kernel_ns)
    mean_us = kernel_ns / len(kernels) / 1e3
    each = launch_ns / len(kernels) / 1e3
    yield case.finding(
        SMALL_KERNELS,
        cost,
        f"{len(kernels) // case.step_count:,} kernels per step take {mean_us:.1f} µs each, "
        f"but {each:.1f} µs to launch",
        advice="launch fewer kernels: torch.compile, fused or foreach operations and optimizers; "
        "CUDA graphs (ACL graphs) if all steps launch the same",
        sure="certain",
        figures={
            "kernels": len(kernels),
            "kernel_ns": kernel_ns,
            "launch_ns": launch_ns,
            "mean_ns": round(kernel_ns / len(kernels)),
        },
        evidence=case.rows(kernels),
    )


INPUT_WAIT = "input_wait"

# Minimum share of a step (TraceML's threshold).
WAIT_SHARE = 0.10
# A single wait of this length is reported (MindStudio advisor's threshold)...
LONG_WAIT_NS = 10_000_000
# ...if waits take at least this share of the time.
LEAST_SHARE = 0.03


def input_wait(case: Case) -> Iterator[Finding]:
    """Find time in which a batch was fetched and nothing else ran."""
    framework = case.recording.framework
    assert framework is not None
    fetching = framework.matching(is_input)
    start, end = framework.start_ns[fetching], framework.end_ns[fetching]
    if case.device is None:
        waits = case.within(start, end)
    else:
        if case.share(case.at_most(INPUT)) < LEAST_SHARE:
            return
        # After the last task nothing waits for a batch: the end of an epoch.
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
        f"input wait: {who} waits for data {percent(share)} of the time, at most "
        f"{duration(longest)} at once",
        advice="use more workers (DataLoader num_workers, prefetch_factor, persistent_workers), "
        "or make batches cheaper to load",
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


LATE_WORK = "late_work"

# A launch latency above this has another cause.
LATE_NS = 1_000_000
# A host call that covers at least this share of a gap is named with it.
MOST = 0.5


def late_work(case: Case) -> Iterator[Finding]:
    """Find launch latencies of a millisecond or more on an idle device."""
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
        # A single occurrence has no cost per step.
        0 if again else lost,
        f"late kernels: the device is idle {percent(case.share(lost))} of the time "
        f"although tasks are enqueued ({times(gaps)}, {'for' if gaps == 1 else 'up to'} "
        f"{duration(int(idle.length_ns[longest]))}){_meanwhile(case, idle, longest)}; no "
        f"recorded event explains it{again}",
        advice="record longer, with profiler.step() after each iteration: pending tasks, lazily "
        "loaded kernels, graph uploads and the profiler itself cause this once, other "
        "programs on the same device always",
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
    """Return why it is unknown whether this repeats; empty if it occurs in several steps."""
    if not case.steps:
        return "; no steps recorded, so it may be a single event"
    begins = case.windows.start_ns
    step = np.searchsorted(begins, idle.start_ns, side="right")
    if len(np.unique(step)) > 1:
        return ""
    of = f"one of {len(case.steps)} steps only" if len(case.steps) > 1 else "the only step"
    return f"; it occurs in {of}, so it may be a single event"


def _meanwhile(case: Case, idle: Idle, gap: int) -> str:
    """Return the call that the launching thread is in for most of a gap."""
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
    said = f", while the host is in {recording.strings.get(int(calls.name[call[0]]))}"
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
    """Return the longest gaps, each with the call that launched the task after it."""
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
