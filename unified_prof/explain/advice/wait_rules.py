"""Advice rules about stalls: copies, garbage collection, allocation, compilation, syncs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.base.text import SIZES, scaled
from unified_prof.explain.advice.device_context import (
    MIN_NAMED_GAP_NS,
    Cause,
    DeviceContext,
)
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    LESS_COLLECTION,
    MIN_SHARE,
    WARN_SHARE,
    Flags,
    IdleSegments,
    duration,
    evidence_row,
    group_evidence,
    percent,
    plural,
    times,
)
from unified_prof.explain.schedule.builder import without_ranges
from unified_prof.explain.schedule.selection import Selection, host_ranges
from unified_prof.recording import names
from unified_prof.recording.calls import COPY, KERNEL
from unified_prof.recording.idle import HOST, INPUT, LAUNCHED, SYNCHRONIZING
from unified_prof.recording.model import Evidence, Sureness
from unified_prof.recording.names import Words
from unified_prof.recording.recording import Recording

# If this share of the bytes is copied in the first 2 s (a fifth of a short recording), it is model
# loading.
SET_UP_SHARE, SET_UP_NS, SET_UP_PART = 0.8, 2_000_000_000, 0.2
# Offloaded weights: minimum size, copies of a size per step, and number of such sizes.
LARGE_BYTES, MIN_REPEATED, MIN_SIZES = 1 << 20, 8, 3
MOST_TIME = 0.8  # If copies take this share of the time, overlap hides less than a quarter of them.


def _without_set_up(context: DeviceContext, copies: Flags, size: Ints) -> Flags:
    """Return a mask of copies without those of model loading."""
    if context.steps or not copies.any():
        return copies
    begin, end = int(context.window.start_ns[0]), int(context.window.end_ns[-1])
    until = begin + min(SET_UP_NS, SET_UP_PART * (end - begin))
    early = copies & (context.tasks.start_ns < until)
    return copies & ~early if size[early].sum() > SET_UP_SHARE * size[copies].sum() else copies


def _copies_alone(context: DeviceContext) -> tuple[Ints, Ints]:
    """Return the copies that no finding has yet, and their time without overlap."""
    tasks, size = context.tasks, np.maximum(context.task_column("MEMCPY_INFO", "size"), 0)
    copies = (tasks.kind == COPY) & context.matches(context.operator, names.COPIES_HOST)
    copies = _without_set_up(context, copies & ~context.explained, size)
    exposed = intervals.subtract(tasks.spans(copies), tasks.spans(~copies))
    rows = np.flatnonzero(copies)
    return rows, intervals.covered(exposed, tasks.start_ns[rows], tasks.end_ns[rows])


def exposed_copies(context: DeviceContext) -> Iterator[Cause]:
    """Find copies between host and device without overlap, and the work of the host after them."""
    rows, alone_ns = _copies_alone(context)
    exposed_ns = int(alone_ns.sum())
    if context.share(exposed_ns) < WARN_SHARE:
        return
    gaps = _sync_gaps(context)
    gaps = gaps.take(gaps.copies)
    size = np.maximum(context.task_column("MEMCPY_INFO", "size")[rows], 0)
    pageable = _are_in(context, rows, names.PAGEABLE)
    pinned = _are_in(context, rows, names.PINNED)
    is_pageable, is_pinned = (
        2 * int(alone_ns[memory].sum()) > exposed_ns for memory in (pageable, pinned)
    )
    memory = "; most of it is from or to pageable memory" if is_pageable else ""
    to_device = context.matches(context.operator[rows], names.COPIES_TO_DEVICE)
    what, keep = plural(len(rows), "copy", "copies") + " between host and device", "the data"
    if repeated := _repeated_sizes(size[to_device], len(context.steps)):
        what, keep = f"probably offloaded weights, {repeated}", "weights"
    tries = "pin_memory=True, " * (not is_pinned) + "non_blocking=True, a separate stream"
    tries = f"overlap the copies: {tries}; or keep {keep} on the device"
    if context.share(exposed_ns) > MOST_TIME:
        memory += "; there is little to overlap them with"
        tries = f"keep {keep} on the device, or copy less: fewer times, or in a smaller dtype"
    # From pinned memory, the host does not wait for the device to begin the copy.
    staged = pageable & context.matches(context.operator[rows], names.COPIES_TO_DEVICE)
    call = context.recording.host_calls.launching(
        context.recording.work.connection[context.tasks.row[rows[staged]]]
    )
    context.claim(intervals.merge(gaps.start_ns, gaps.end_ns))
    yield context.finding(
        exposed_ns + int(gaps.cost_ns.sum()),
        f"exposed copies: {what}, {percent(context.share(exposed_ns))} of the time without overlap"
        f"{memory}",
        advice=tries,
        sure="certain",
        change=context.saving(rows, alone_ns)
        | _without_waits(context, gaps)
        | _without_calls(context.recording, call[call >= 0].astype(np.int64)),
        least=WARN_SHARE,
        figures={
            "exposed_ns": exposed_ns,
            "exposed_share": round(context.share(exposed_ns), 4),
            "copies": len(rows),
            "moved_bytes": int(size.sum()),
        },
        evidence=context.evidence(rows),
    )


def _repeated_sizes(size: Ints, steps: int) -> str:
    """Return number and sizes of repeated copies that move most bytes; empty if sizes are few.

    Offloaded layers have weights of several sizes. A batch has one copy of each tensor per step.
    """
    sizes, count = np.unique(size, return_counts=True)
    often = (sizes >= LARGE_BYTES) & (count >= MIN_REPEATED * max(steps, 2))
    moved = sizes * count * often
    if often.sum() < MIN_SIZES or 2 * int(moved.sum()) < int(size.sum()):
        return ""
    most = [scaled(int(sizes[at]), SIZES) for at in np.argsort(-moved)[:MIN_SIZES]]
    return f"{int(count[often].sum())} copies of {', '.join(most[:-1])} and {most[-1]}"


def _are_in(context: DeviceContext, copies: Ints, memory: Words) -> Flags:
    """Return which copies are from or to a kind of memory; none if it was not recorded."""
    recording = context.recording
    if "UPROF_GPU_TASKS" not in recording.source.tables:
        return np.zeros(len(copies), bool)
    name = context.task_column("UPROF_GPU_TASKS", "name")[copies]
    ids = np.unique(name)
    matching = [memory(text) for text in recording.strings.texts(ids.tolist())]
    result: Flags = np.isin(name, ids[np.array(matching, bool)])
    return result


def garbage_collection(context: DeviceContext) -> Iterator[Cause]:
    """Find garbage collections of a millisecond or more during idle time."""
    pauses = intervals.intersect(context.collections, context.window)
    if context.share(pauses.total_ns) < MIN_SHARE:
        return
    cost = context.idle_in(pauses)
    if context.share(cost) < MIN_SHARE:
        return
    context.claim(pauses)
    on_host = intervals.intersect(context.collections, context.host_window)
    longest = int((pauses.end_ns - pauses.start_ns).max())
    yield context.finding(
        cost,
        f"garbage collection: {times(len(pauses))}, up to {duration(longest)} each; the "
        f"{context.paused} meanwhile for {percent(context.share(cost))} of the time",
        advice=LESS_COLLECTION,
        sure="certain",
        change=Selection(host=on_host),
        figures={"pauses": len(pauses), "longest_ns": longest, "idle_ns": cost},
    )


def allocation_stalls(context: DeviceContext) -> Iterator[Cause]:
    """Find device memory allocations and frees through the driver during idle time."""
    yield from _stalls(
        context,
        names.ALLOCATES,
        "driver allocations: device memory is allocated or freed {often}",
        "keep the allocator's cache: no empty_cache() in the loop, expandable_segments:True, "
        "static shapes, a smaller batch",
        # MindStudio advisor's threshold.
        min_ns=10_000_000,
        min_share=MIN_SHARE,
    )


def compile_stalls(context: DeviceContext) -> Iterator[Cause]:
    """Find compilation or loading of kernels and graphs after warm-up."""
    yield from _stalls(
        context,
        names.COMPILES,
        "compilation: code is compiled or loaded {often}",
        "use static or bucketed shapes (torch.compile(dynamic=True), mark_dynamic), check "
        "TORCH_LOGS=recompiles, precompile operators",
    )
    yield from _stalls(
        context,
        names.COMPILES_NPU_OPERATOR,
        "compilation: operators are compiled, or looked up in the compile cache, {often}",
        "use torch.npu.set_compile_mode(jit_compile=False), or operators with an aclnn "
        "implementation",
        sure="likely",
    )


# Minimum share of a finding's cost for a range or call to be listed as evidence.
LISTED_SHARE = 0.01


def _stalls(
    context: DeviceContext,
    wanted: Words,
    text: str,
    advice: str,
    *,
    sure: Sureness = "certain",
    min_ns: int = 0,
    min_share: float = WARN_SHARE,
) -> Iterator[Cause]:
    """Find host calls that take `min_ns`, and leave the device idle for a share of the time."""
    start, end, number, texts, enqueued = host_ranges(context.recording, wanted)
    stalls = intervals.subtract(context.clip(start, end), context.claimed)
    # Without steps, the beginning of the program counts as warm-up.
    if not context.steps or context.share(stalls.total_ns) < min_share:
        return
    cost = context.idle_in(stalls)
    if stalls.total_ns < min_ns or not cost or context.share(cost) < min_share:
        return
    # The ranges that the program runs, or enqueued, in the steps of the host.
    queued = enqueued < start
    on_host = intervals.intersect(
        intervals.merge(start[~queued], end[~queued]), context.host_window
    )
    queued &= intervals.holding(context.host_window, enqueued) >= 0
    on_host = intervals.union(on_host, intervals.merge(start[queued], end[queued]))
    on_host = intervals.subtract(on_host, context.claimed)
    context.claim(stalls)
    # A host that runs ahead enters an analyzed step while the device is in the one before.
    rows = np.flatnonzero(intervals.covered(context.window, start, end) > 0)
    # A compilation has ranges for its parts.
    count = len(intervals.merge(start[rows], end[rows]))
    often = times(count) + (" after the first step" if len(context.steps) > 1 else "")
    longest = rows[int((end - start)[rows].argmax())]
    # The program enqueued it there, and may be elsewhere when a thread behind it runs it.
    begin_ns = int(enqueued[longest])
    place = context.host_code.place(begin_ns, begin_ns + int((end - start)[longest]))
    often += f", longest in {place}" * bool(place)
    yield context.finding(
        cost,
        f"{text.format(often=often)}; the {context.paused} meanwhile for "
        f"{percent(context.share(cost))} of the time",
        advice=advice,
        sure=sure,
        change=Selection(host=on_host),
        least=min_share,
        figures={"calls": count, "calls_ns": stalls.total_ns, "idle_ns": cost},
        evidence=group_evidence(
            number[rows],
            (end - start)[rows],
            start[rows],
            texts.__getitem__,
            least_ns=LISTED_SHARE * cost,
        ),
    )


# Severe above these shares of the time and of the idle time (nsys-ai's thresholds).
STRONG_SHARE, STRONG_OF_IDLE = 0.15, 0.5
# Share of blocking launches from which the mode is blocking (MindStudio advisor's threshold).
BLOCKING_SHARE = 0.5
MIN_LAUNCHES = 20  # Minimum number of launches to detect the mode.
# A launch call that returns within this time after its kernel has waited for it.
RETURN_NS = 20_000
LAUNCH_CALL_NS = 10_000  # Usual maximum length of a launch call of a profiled program.
# Share of shorter kernels from which the mode is blocking; some end before their call returns.
BLOCKING_SHORT_SHARE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class _SyncGaps(Frame):
    """Idle time from the return of a synchronization to the next task, one entry per gap."""

    sync: Ints  # Row of `HostSide.sync`.
    # Row of `Recording.work` of the next task, -1 for none.
    task: Ints
    start_ns: Ints
    end_ns: Ints
    # Idle time that belongs to this gap: without input waits and what other findings explain.
    cost_ns: Ints
    # Copy that the call waited for, a row of `DeviceContext.tasks` or -1, and its time alone.
    copy: Ints
    copy_ns: Ints
    copies: Flags  # True if copies take longer than the gaps after calls at the same line.


_AFTER_COPY_NS = 20_000  # Maximum idle time between a copy and the segment of its call.


def _sync_gaps(context: DeviceContext) -> _SyncGaps:
    """Return the gaps, without those at the borders of steps."""
    idle, recording = context.sync_idle, context.recording
    host, tasks = recording.idle_time.host, context.tasks
    rows = np.flatnonzero(idle.sync >= 0)
    # A gap with several segments of the same calls counts once.
    rows = rows[np.unique(idle.task[rows], return_index=True)[1]]
    sync, task = idle.sync[rows].astype(np.int64), idle.task[rows].astype(np.int64)
    start = np.maximum(host.sync.end_ns[sync], idle.start_ns[rows])
    # No task follows the last synchronization of a recording.
    until = np.where(task >= 0, recording.work.start_ns[task], idle.end_ns[rows])
    end = np.maximum(until, start)
    fetching = context.idle_where(lambda one: one.reason == INPUT)
    other = intervals.union(intervals.merge(fetching.start_ns, fetching.end_ns), context.claimed)
    other = intervals.union(other, context.pauses)
    cost = end - start - intervals.covered(other, start, end)
    copies, alone_ns = _copies_alone(context)
    order = np.argsort(tasks.end_ns[copies], kind="stable")
    ends = tasks.end_ns[copies[order]]
    place = np.searchsorted(ends, idle.start_ns[rows] + _AFTER_COPY_NS, side="right") - 1
    known = (place >= 0) & (idle.start_ns[rows] - np.append(ends, 0)[place] <= _AFTER_COPY_NS)
    copy = np.where(known, np.append(copies[order], -1)[place], -1)
    copy_ns = np.where(known, np.append(alone_ns[order], 0)[place], 0)
    places = dict[tuple[str, str | None], int]()
    called = (recording.idle_time.called(one) for one in sync.tolist())
    place = np.array([places.setdefault(one, len(places)) for one in called], np.int64)
    copies_longer = np.bincount(place, copy_ns - cost) > 0
    gaps = _SyncGaps(sync, task, start, end, cost, copy, copy_ns, copies_longer[place])
    # Pauses are not analyzed. The windows of steps may leave out some time between steps.
    is_pause = 2 * intervals.covered(context.pauses, start, end) > end - start
    return gaps.take(~is_pause & ~_is_step_boundary(context, gaps))


def synchronising_calls(context: DeviceContext) -> Iterator[Cause]:
    """Find idle time between the return of a synchronization and the next task."""
    if not context.max_idle_ns(SYNCHRONIZING):
        return
    gaps = _sync_gaps(context)
    gaps = gaps.take(~gaps.copies)
    idle_ns, copied = int(gaps.cost_ns.sum()), gaps.copy >= 0
    share = context.share(idle_ns)
    # The host also catches up with launches later, so the replay may gain more.
    behind_ns = 0 if context.quick else context.max_idle_ns(HOST, LAUNCHED, SYNCHRONIZING)
    if not idle_ns or context.share(max(idle_ns, behind_ns)) < MIN_SHARE:
        return
    of_idle = idle_ns / max(context.idle_ns, 1)
    count = int((gaps.cost_ns > 0).sum())
    rows = _syncs_by_name(context, gaps)
    where = f", {'mostly ' if count > 1 else ''}in {rows[0]['name'].partition(' (')[0]}"
    where += f" at {rows[0]['line']}" if "line" in rows[0] else ""
    checks = _checks(context, gaps.copy[copied])
    if any(names.NONZERO(row["name"].partition(" (")[0]) for row in rows):  # its own kernels
        nonzero = context.launched_in(names.NONZERO) & (context.tasks.kind == KERNEL)
        checks = np.union1d(checks, np.flatnonzero(nonzero))
    context.explained[np.append(gaps.copy[copied], checks)] = True
    checks_ns = context.busy_ns(checks)
    if checks_ns > WARN_SHARE * idle_ns:
        where += f", with {plural(len(checks), 'kernel')} that only compute the value"
    advice = (
        "keep values on the device (avoid .item(), .cpu(), nonzero, boolean indexing in "
        "the step), or read them every n steps"
    )
    work = _work_after(context, gaps)
    if work:
        advice = f"make this code faster, or run it in another thread; {advice}"
    yield context.finding(
        idle_ns + int(gaps.copy_ns.sum()) + checks_ns,
        f"synchronization: the device is idle for {percent(share)} of the time after the host "
        f"waited for it ({times(count)}{where})"
        + f"; most of it while the host runs {work}" * bool(work)
        + ("; then the host launches late until it catches up" if share < WARN_SHARE else "")
        # A server that waits for requests looks the same.
        + ("" if context.steps else "; no steps recorded, so these may be pauses between requests"),
        advice=advice,
        sure="certain" if context.steps else "possible",
        change=_without_waits(context, gaps) | context.removal(checks),
        least=WARN_SHARE,
        figures={
            "idle_ns": idle_ns,
            "checks_ns": checks_ns,
            "idle_share": round(share, 4),
            "share_of_idle": round(of_idle, 4),
            "calls": count,
            "copies_ns": int(gaps.copy_ns.sum()),
            "strong": share > STRONG_SHARE or of_idle > STRONG_OF_IDLE,
        },
        evidence=[*rows, *context.evidence(gaps.copy[copied])][:EVIDENCE_ROWS],
    )


# Shorter gaps are no work of a function after a synchronization, and number of gaps to examine.
WORK_AFTER_NS, EXAMINED_GAPS = 200_000, 50


def _work_after(context: DeviceContext, gaps: _SyncGaps) -> str:
    """Return the function that the host runs in most of the time of the gaps; empty if none.

    A function that ends after a gap launches the task after it.
    """
    length, total_ns = gaps.end_ns - gaps.start_ns, Counter[str]()
    rows = np.argsort(-length, kind="stable")[:EXAMINED_GAPS]
    for at in rows[length[rows] >= WORK_AFTER_NS].tolist():
        begin, end = int(gaps.start_ns[at]), int(gaps.end_ns[at])
        for thread in context.step_threads or (None,):
            total_ns[context.host_code.place(begin, end, thread, ended=True)] += end - begin
    name, most_ns = next(iter(total_ns.most_common(1)), ("", 0))
    return name if 2 * most_ns > length[rows].sum() else ""


MAX_CHECK = 6  # Maximum kernels that compute a value to read.


def _checks(context: DeviceContext, copies: Ints) -> Ints:
    """Return the kernels before some copies that compare values only for them, as `isnan().any()`.

    Results of comparisons have no gradient, and are read to decide what the program does next.
    """
    tasks, found = context.tasks, []
    compares, sums = (context.matches(context.operator, one) for one in (names.CHECK, names.SUM))
    order = np.lexsort((tasks.start_ns, tasks.stream))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for copy in copies.tolist():
        before = order[max(place[copy] - MAX_CHECK, 0) : place[copy]][::-1]
        before = before[np.cumprod((compares | sums)[before] & (tasks.kind[before] == KERNEL)) > 0]
        before = before[tasks.stream[before] == tasks.stream[copy]]
        found.append(before[: int(np.flatnonzero(compares[before]).max(initial=-1)) + 1])
    return np.unique(np.concatenate(found or [order[:0]]))


def _without_waits(context: DeviceContext, gaps: _SyncGaps) -> Selection:
    """Return the change without the synchronizations before some gaps, and their operations.

    It also removes the copies for which they waited, and functions that the host runs in the gaps.
    """
    recording, sync = context.recording, context.recording.idle_time.host.sync
    calls, copied = recording.host_calls, gaps.copy >= 0
    rows = np.flatnonzero(calls.matching(recording.strings, names.SYNCHRONIZES))
    rows = rows[np.isin(intervals.holding(sync, calls.start_ns[rows]), np.unique(gaps.sync))]
    change = _without_calls(recording, rows)
    if copied.any():
        change |= context.saving(gaps.copy[copied], gaps.copy_ns[copied])
    return change if context.quick else change | Selection(host=_work_in_gaps(context, gaps))


# Minimum time between two operations that is more than their own Python code: so many lower
# quartiles of such times, within these limits.
WORK_QUARTILES, WORK_LIMITS_NS = 4, (50_000, 200_000)


def _work_in_gaps(context: DeviceContext, gaps: _SyncGaps) -> IntervalSet:
    """Return the time in gaps in which the host runs other code than that of operations."""
    long = gaps.end_ns - gaps.start_ns >= MIN_NAMED_GAP_NS
    result = intervals.merge(gaps.start_ns[long], gaps.end_ns[long])
    framework = context.recording.framework
    if framework is None or len(framework.calls) < 2:
        return result
    calls = framework.calls[np.isin(framework.thread[framework.calls], context.step_threads)]
    calls = calls[np.argsort(framework.start_ns[calls], kind="stable")]
    begin, end = framework.end_ns[calls[:-1]], framework.start_ns[calls[1:]]
    usual_ns = float(np.percentile(end - begin, 25)) if len(begin) else 0.0
    work = end - begin >= np.clip(WORK_QUARTILES * usual_ns, *WORK_LIMITS_NS)
    within = intervals.intersect(
        intervals.merge(begin[work], end[work]), intervals.merge(gaps.start_ns, gaps.end_ns)
    )
    return intervals.union(result, within)


def _without_calls(recording: Recording, rows: Ints) -> Selection:
    """Return the change without some calls that wait, and their operations."""
    calls, framework = recording.host_calls, recording.framework
    if framework is None or not len(rows):
        return Selection(calls=rows)
    around = np.unique(framework.places_at(calls.thread[rows], calls.start_ns[rows]))
    around = around[around >= 0]
    return without_ranges(recording, around[framework.is_operation(around)]) | Selection(calls=rows)


def _is_step_boundary(context: DeviceContext, gaps: _SyncGaps) -> Flags:
    """Return a mask of gaps after the call that ends or begins a step, as profilers and timers do.

    Nothing is launched in the step after it, or before it.
    """
    recording, steps = context.recording, context.recording.steps
    result = np.zeros(len(gaps.task), bool)
    if not steps:
        return result
    calls, work, host = recording.host_calls, recording.work, recording.idle_time.host
    begins = np.array(sorted(begin for _, begin, _ in steps), np.int64)
    ends = np.array(sorted(end for _, _, end in steps), np.int64)
    call_start, call_end = host.sync.start_ns[gaps.sync], host.sync.end_ns[gaps.sync]
    launched = np.append(calls.start_ns, -1)[calls.launching(work.connection[gaps.task])]
    launched = np.where(gaps.task >= 0, launched, gaps.end_ns)
    at_end = np.searchsorted(ends, launched, side="right") > np.searchsorted(ends, call_start)
    at_end &= call_end <= launched
    step = np.searchsorted(begins, call_start, side="right") - 1
    launching = calls.launching(work.connection[context.tasks.row])
    launches = np.sort(calls.start_ns[launching[launching >= 0]])
    before = np.searchsorted(launches, call_start) - np.searchsorted(launches, begins[step])
    at_begin = (step >= 0) & (before == 0)
    for at in np.flatnonzero(at_end | at_begin).tolist():
        name, _ = recording.idle_time.called(int(gaps.sync[at]))
        # An operation that synchronizes, such as `aten::item (cudaStreamSynchronize)`, is the
        # program's own.
        result[at] = "(" not in name
    return result


def _syncs_by_name(context: DeviceContext, gaps: _SyncGaps) -> list[Evidence]:
    """Return the synchronizations with the longest idle time after them as evidence."""
    places = [context.recording.idle_time.called(sync) for sync in gaps.sync.tolist()]
    count, total_ns = Counter(places), Counter[tuple[str, str | None]]()
    for place, cost in zip(places, gaps.cost_ns.tolist(), strict=True):
        total_ns[place] += cost
    return [
        evidence_row(name, count[name, line], time, line=line)
        for (name, line), time in total_ns.most_common(EVIDENCE_ROWS)
    ]


def blocking_launches(context: DeviceContext) -> Iterator[Cause]:
    """Find programs that wait for the device after most launches, as in debugging modes.

    Either a synchronization follows the launch, or the launch call returns after its kernel.
    """
    recording, calls, tasks = context.recording, context.recording.host_calls, context.tasks
    row = calls.launching(recording.work.connection[tasks.row])
    launching = np.zeros(len(calls), bool)
    launching[row[row >= 0]] = True
    launches = int(launching.sum())
    if launches < MIN_LAUNCHES:
        return
    is_sync = calls.matching(recording.strings, names.SYNCHRONIZES)
    order = np.lexsort((calls.start_ns, calls.thread))
    order = order[launching[order] | is_sync[order]]
    same_thread = calls.thread[order[1:]] == calls.thread[order[:-1]]
    followed = int((launching[order[:-1]] & is_sync[order[1:]] & same_thread).sum())
    kernels = np.flatnonzero((row >= 0) & (tasks.kind == KERNEL))
    long, limit = kernels[tasks.length_ns[kernels] >= LAUNCH_CALL_NS], BLOCKING_SHORT_SHARE
    if len(np.unique(row[long])) >= MIN_LAUNCHES:
        kernels, limit = long, BLOCKING_SHARE
    after_end = calls.end_ns[row[kernels]] - tasks.end_ns[kernels]
    # A call of usual length returns after a kernel that is shorter, without a wait.
    call_ns = calls.end_ns[row[kernels]] - calls.start_ns[row[kernels]]
    waiting = (after_end >= 0) & (after_end <= RETURN_NS) & (call_ns > LAUNCH_CALL_NS)
    returned, judged = len(np.unique(row[kernels[waiting]])), len(np.unique(row[kernels]))
    by_return = returned / judged if judged >= MIN_LAUNCHES else 0.0
    share = max(followed / launches, by_return)
    if followed <= BLOCKING_SHARE * launches and by_return <= limit:
        return
    if followed >= returned:
        gaps = _sync_gaps(context)
        cost, evidence = int(gaps.cost_ns.sum()), _syncs_by_name(context, gaps)
        by_operations = sum(
            row["total_ns"]
            for row in evidence
            if names.READS_RESULT(row["name"].partition(" (")[0])
        )
        if 2 * by_operations > cost:
            return
        idle = intervals.merge(gaps.start_ns, gaps.end_ns)
        change = _without_waits(context, gaps)
        text = "are followed by a synchronization"
    else:
        # Without the wait, a launch call returns when its kernel begins.
        every = np.flatnonzero(row >= 0)
        every = every[calls.end_ns[row[every]] >= tasks.end_ns[every]]
        blocked = context.clip(tasks.start_ns[every], calls.end_ns[row[every]])
        windows = [idle.take(mask) for idle, mask in context.host_bound_windows()]
        host_bound = IdleSegments.concatenate(windows)
        idle = intervals.merge(host_bound.start_ns, host_bound.end_ns)
        idle = intervals.subtract(idle, context.claimed)
        cost, evidence = idle.total_ns, list(context.evidence(kernels[waiting]))
        idle = intervals.intersect(idle, blocked)
        change = Selection(host=blocked)
        text = "return only after their kernel"
    context.claim(idle)
    yield context.finding(
        cost,
        f"blocking launches: {percent(share)} of the launches {text}, so host and device never "
        "overlap",
        advice=f"unset {'ASCEND' if context.is_npu else 'CUDA'}_LAUNCH_BLOCKING, or remove "
        "synchronize() from the loop",
        sure="likely",
        change=change,
        figures={"launches": launches, "followed": max(followed, returned), "idle_ns": cost},
        evidence=evidence,
    )
