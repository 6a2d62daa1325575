"""Advice rules about the host: host-bound idle time, input waits, late kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints, by_key
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.advice.device_context import (
    FRAME,
    Cause,
    DeviceContext,
    code_place,
    is_optimizer_step,
)
from unified_prof.explain.advice.host_calls import (
    LONG_NS,
    HostBoundGaps,
    call_with_place,
    host_bound_segments,
    host_bound_spans,
)
from unified_prof.explain.advice.idle_segments import (
    COVERED_SHARE,
    EVIDENCE_ROWS,
    NO_IDLE,
    WARN_SHARE,
    IdleSegments,
    duration,
    evidence_row,
    percent,
    plural,
    times,
)
from unified_prof.explain.advice.optimizer_rules import loop_of_operations
from unified_prof.explain.schedule.selection import Selection, host_ranges
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.idle import HOST, INPUT, LATE_NS, LAUNCHED, SYNCHRONIZING, UNRECORDED
from unified_prof.recording.model import Evidence
from unified_prof.recording.names import LAUNCHES_GRAPH
from unified_prof.recording.python_frames import user_frame

IDLE_SHARE = 0.10  # Minimum idle share (also MindStudio advisor's threshold).
# A launch takes 5 to 10 µs on the host: shorter kernels cannot keep the host ahead.
SMALL_NS = 10_000
LATENCY_SHARE = 0.05  # Minimum share of launch latency in host-bound time to be mentioned.

# Calls that copy to a device, and that hold the host if the memory is pageable.
_COPIES = ("Tensor.to", "Tensor.cuda", "Tensor.npu", "Tensor.copy_")

_GRAPHS = "graphs if shapes are static"
_FEWER_LAUNCHES = f"larger batch, torch.compile or fused operations, %s {_GRAPHS}"
_COMPILED = f'torch.compile(mode="reduce-overhead"), %s {_GRAPHS}, a larger batch'


def host_bound(context: DeviceContext) -> Iterator[Cause]:
    """Find idle time before tasks that the host had not launched yet."""
    if context.share(context.max_idle_ns(HOST, LAUNCHED, SYNCHRONIZING)) < IDLE_SHARE:
        return
    found = HostBoundGaps(context)
    for idle in host_bound_segments(context):
        found.add(idle)
    cost, latency_ns, long, long_ns = found.idle_ns, found.latency_ns, found.long, found.long_ns
    if context.share(cost) < IDLE_SHARE:
        return
    rows, is_sure = found.longest(), True
    text = f"host-bound: the device is idle {percent(context.share(cost))} of the time"
    if latency_ns < LATENCY_SHARE * cost:
        text += " because nothing is enqueued"
    elif latency_ns > (1 - LATENCY_SHARE) * cost:
        text += " in the latency of launches"
    else:
        text += f": {percent(context.share(cost - latency_ns))} because nothing is enqueued, "
        text += f"{percent(context.share(latency_ns))} launch latency"
    text += f" ({plural(found.gaps, 'gap')})"
    fewer = _COMPILED if context.is_compiled else _FEWER_LAUNCHES
    advice = f"reduce launch overhead: {fewer % ('ACL' if context.is_npu else 'CUDA')}"
    if breaks := _graph_breaks(context):
        text += breaks
        advice = f"remove graph breaks (TORCH_LOGS=graph_breaks shows reasons); {advice}"
    why, settings = _npu_causes(context, host_bound_spans(context)) if context.is_npu else ("", "")
    if 2 * long_ns > cost:
        text += (
            f"; {percent(long_ns / cost)} of it in {plural(long, 'gap')} of 1 ms or more, in "
            "which the host does work other than launching"
        )
        advice = (
            "check what the program does before these operations: Python code, garbage "
            "collection, metrics, logging, checkpoints; do it less often or in another thread"
        )
        if "next" in rows[0]:
            text += f", most in {rows[0]['name']}"
            text += f" at {rows[0]['line']}" if "line" in rows[0] else ""
            advice = "make this code faster, or run it less often or in another thread"
            if rows[0]["name"].endswith("search_unused_parameters"):
                advice = "pass find_unused_parameters=False or static_graph=True to DDP"
            elif rows[0]["name"] in _COPIES:
                advice = (
                    "copy batches from pinned memory (DataLoader pin_memory=True) with "
                    "non_blocking=True, and convert dtypes on the device"
                )
        elif not context.steps:
            text += ", or waits for requests (no steps recorded)"
            is_sure = False
        if not context.steps and (share := _initializing(context)) >= COVERED_SHARE:
            text += f"; {percent(share)} of it in calls that allocate memory or load code"
            advice = "record later iterations: a program initializes the device only once"
            is_sure = False
    else:
        advice, text = advice + settings, text + why
        loop, share = (
            ("", 0.0) if context.quick else loop_of_operations(context, host_bound_spans(context))
        )
        if share >= COVERED_SHARE:
            text += f"; {percent(share)} of it in {loop}"
            advice = f"compute all runs of the loop at once, or compile it; {advice}"
        elif not context.quick and (share := _in_optimizer(context)) >= COVERED_SHARE:
            text += f"; {percent(share)} of it in steps of the optimizer"
            advice = f"pass fused=True to the optimizer if it has it, or compile its step; {advice}"
        text += "" if context.quick else _short_kernels(context)
    text += context.slowed_host
    yield context.finding(
        cost,
        text,
        advice=advice,
        sure="possible" if not is_sure else "likely" if context.profiler_overhead else "certain",
        change=Selection(host=intervals.subtract(_host_time(context), context.claimed), gaps=True),
        least=WARN_SHARE,
        figures={
            "idle_ns": cost,
            "gaps": found.gaps,
            "idle_share": round(context.share(cost), 4),
            "longest_gap_ns": found.longest_ns,
            "long_gaps": long,
            "long_gaps_ns": long_ns,
            "reaching_ns": latency_ns,
        },
        evidence=rows,
    )


def _in_optimizer(context: DeviceContext) -> float:
    """Return the share of host-bound time in steps of the optimizer."""
    framework, idle = context.recording.framework, host_bound_spans(context)
    if framework is None:
        return 0.0
    steps = context.ranges(is_optimizer_step)
    spans = intervals.merge(framework.start_ns[steps], framework.end_ns[steps])
    return intervals.intersect(idle, spans).total_ns / idle.total_ns


def _initializing(context: DeviceContext) -> float:
    """Return the share of host-bound time in calls that a program usually makes once."""
    idle = host_bound_spans(context)
    calls = intervals.EMPTY
    for wanted in (names.ALLOCATES, names.COMPILES, names.INITIALIZES):
        start, end, *_ = host_ranges(context.recording, wanted)
        calls = intervals.union(calls, intervals.merge(start, end))
    return intervals.intersect(idle, calls).total_ns / idle.total_ns


# Functions that torch.compile makes of the code after a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+$|<resume in (?P<old>.+)>$")


def _graph_breaks(context: DeviceContext) -> str:
    """Return a clause on graph breaks in the compiled code of the analyzed steps."""
    code = context.host_code
    frames = [FRAME.match(text) for text in code.texts]
    resumed = [frame and _RESUMED.search(frame["name"]) for frame in frames]
    rows = np.flatnonzero(np.array([one is not None for one in resumed] or [False])[code.number])
    rows = rows[intervals.holding(context.host_window, code.start_ns[rows]) >= 0]
    if not len(rows):
        return ""
    most = int(np.bincount(code.number[rows]).argmax())
    frame, function = frames[most], resumed[most]
    assert frame is not None
    assert function is not None
    breaks = plural(-(-len(rows) // context.step_count), "graph break")
    return (
        f", with {breaks}{' per step' * bool(context.steps)} in compiled code, most in "
        f"{function['function'] or function['old']} at {frame['file']}:{frame['line']}"
    )


def _host_time(context: DeviceContext) -> IntervalSet:
    """Return the time of the steps on the host, where torch_npu's queue thread works for them."""
    queue, steps = context.recording.task_queue, context.host_window
    own = intervals.holding(steps, queue.enqueue_ns) >= 0
    others = intervals.merge(queue.dequeue_ns[~own], queue.end_ns[~own])
    own_time = intervals.merge(queue.dequeue_ns[own], queue.end_ns[own])
    return intervals.union(intervals.subtract(steps, others), own_time)


# Minimum share of host-bound time of a cause that is named.
NAMED_SHARE = 0.3
# Minimum share of host-bound time from which torch_npu's queue thread limits the program.
QUEUE_BUSY_SHARE = 0.6


def _npu_causes(context: DeviceContext, idle: IntervalSet) -> tuple[str, str]:
    """Return a clause on causes of host-bound time on an NPU, and the settings that help."""
    recording = context.recording
    calls, queue = recording.host_calls, recording.task_queue

    def covered(start: Ints, end: Ints) -> float:
        return intervals.intersect(idle, intervals.merge(start, end)).total_ns / idle.total_ns

    text, advice = "", ""
    sizes = calls.matching(recording.strings, names.WORKSPACE_SIZE)
    for cause, rows, settings in (
        ("tiling of operators", calls.matching(recording.strings, names.TILING), "bucketed shapes"),
        ("calls of GetWorkspaceSize", sizes, "bucketed shapes, a larger ACLNN_CACHE_LIMIT"),
    ):
        share = covered(calls.start_ns[rows], calls.end_ns[rows])
        if share >= NAMED_SHARE:
            text, advice = f"; {percent(share)} of it in {cause}", f", {settings}"
            break
    busy = covered(queue.dequeue_ns, queue.end_ns)
    if not len(queue):
        launched = calls.launching(recording.work.connection[context.tasks.row])
        launched = launched[launched >= 0]
        framework, at = recording.framework, (calls.thread[launched], calls.start_ns[launched])
        # The thread of a queue that was not recorded has no operations.
        if framework is not None and 2 * (framework.places_at(*at) >= 0).sum() > len(launched):
            text += "; operators are launched without a task queue"
            advice += ", TASK_QUEUE_ENABLE=1 or 2 without ASCEND_LAUNCH_BLOCKING"
    elif busy >= QUEUE_BUSY_SHARE:
        text += f"; the thread of the task queue is busy for {percent(busy)} of it"
    elif not np.isin(calls.thread[sizes], queue.dequeue_thread).any():
        # The queue's thread then prepares the workspaces, too.
        advice += ", TASK_QUEUE_ENABLE=2"
    for (variables,) in recording.source.rows(_ENVIRONMENT):
        if level := _VERBOSE.search(variables or ""):
            text += f"; CANN logs verbosely ({level[1]}={level[2]})"
            advice += f", {level[1]}=3"
    return text, f"{advice}, threads bound to cores (CPU_AFFINITY_CONF)"


_ENVIRONMENT = "SELECT value FROM META_DATA WHERE name = 'ENV_VARIABLES'"
_VERBOSE = re.compile(r'"(ASCEND_GLOBAL_LOG_LEVEL)"\s*:\s*"([01])"')


def _short_kernels(context: DeviceContext) -> str:
    """Return a clause if kernels are too short for the host to keep ahead; otherwise empty.

    Only kernels with a launch call of their own count: a graph launches many with one call.
    """
    tasks, calls = context.tasks, context.recording.host_calls
    kernels = np.flatnonzero(tasks.kind == KERNEL)
    launch = calls.launching(context.recording.work.connection[tasks.row[kernels]])
    kernels, launch = kernels[launch >= 0], launch[launch >= 0]
    _, number, launched = np.unique(launch, return_inverse=True, return_counts=True)
    single = launched[number] == 1
    kernels = kernels[single]
    count, kernel_ns = len(kernels), int(tasks.length_ns[kernels].sum())
    if kernel_ns >= SMALL_NS * count or 2 * count < len(single):
        return ""
    return (
        f"; {plural(count // context.step_count, 'kernel')}{' per step' * bool(context.steps)} of "
        f"{duration(kernel_ns / count)}, and the host launches one every "
        f"{duration(context.analyzed_ns / count)}"
    )


# Minimum share of a step (TraceML's threshold), and for a device with waits of `LONG_NS` or more.
WAIT_SHARE, DEVICE_WAIT_SHARE = 0.10, 0.05
# A single wait of this length is reported (MindStudio advisor's threshold) if waits take at least
# WARN_SHARE of the time.
LONG_WAIT_NS = 10_000_000


def input_wait(context: DeviceContext) -> Iterator[Cause]:
    """Find time in which the program only waits for the next batch."""
    framework = context.recording.framework
    assert framework is not None
    if context.device is None:
        fetching = framework.matching(names.FETCHES_INPUT)
        waits = context.clip(framework.start_ns[fetching], framework.end_ns[fetching])
    else:
        if context.share(context.max_idle_ns(INPUT)) < WARN_SHARE:
            return
        # After the last task nothing waits for a batch: the end of an epoch.
        idle = context.idle_where(lambda idle: (idle.reason == INPUT) & (idle.task >= 0))
        waits = intervals.subtract(intervals.merge(idle.start_ns, idle.end_ns), context.claimed)
    cost = waits.total_ns
    longest = int((waits.end_ns - waits.start_ns).max(initial=0))
    share = context.share(cost)
    is_long = context.device is not None and longest >= LONG_NS
    least = DEVICE_WAIT_SHARE if is_long else WAIT_SHARE
    if share < least and (longest <= LONG_WAIT_NS or share < WARN_SHARE):
        return
    subject = "the program" if context.device is None else "the device"
    texts, number = framework.names(context.ranges(names.FETCHES_INPUT))
    in_process = any(names.LOADS_IN_PROCESS(texts[one]) for one in np.unique(number).tolist())
    workers = "load batches in worker processes" if in_process else "use more workers"
    yield context.finding(
        cost,
        f"input wait: {subject} waits for data {percent(share)} of the time, at most "
        f"{duration(longest)} at once{_loading_code(context)}",
        advice=f"{workers} (DataLoader num_workers, prefetch_factor, persistent_workers), or make "
        "batches cheaper to load",
        sure="certain",
        change=Selection(ranges=context.ranges(names.FETCHES_INPUT, ahead=True)),
        least=WARN_SHARE,
        figures={
            "wait_ns": cost,
            "wait_share": round(share, 4),
            "longest_wait_ns": longest,
            "waits": len(waits),
        },
        evidence=_input_ranges(context),
    )


def _loading_code(context: DeviceContext) -> str:
    """Return a clause with the innermost of the user's functions that takes most of the loading."""
    framework, code = context.recording.framework, context.host_code
    assert framework is not None
    ranges = context.ranges(names.FETCHES_INPUT)
    loading = intervals.merge(framework.start_ns[ranges], framework.end_ns[ranges])
    inside = intervals.holding(loading, code.start_ns) >= 0
    inside &= np.isin(code.thread, np.unique(framework.thread[ranges]))
    total = np.bincount(code.number[inside], (code.end_ns - code.start_ns)[inside])
    most = np.flatnonzero(total >= COVERED_SHARE * max(loading.total_ns, 1))
    for number in most[np.argsort(total[most], kind="stable")].tolist():
        if user_frame(code.texts[number]):
            return f", mostly in {code_place(code.texts[number])}"
    return ""


def _input_ranges(context: DeviceContext) -> list[Evidence]:
    """Return the ranges that fetch input, by name, without those in others of them."""
    framework = context.recording.framework
    assert framework is not None
    ranges = context.ranges(names.FETCHES_INPUT)
    outermost = np.ones(len(ranges), bool)
    for _, group in by_key(framework.thread[ranges]):
        order = group[np.argsort(framework.start_ns[ranges[group]], kind="stable")]
        end_ns = framework.end_ns[ranges[order]]
        outermost[order[1:]] = end_ns[1:] > np.maximum.accumulate(end_ns)[:-1]
    ranges = ranges[outermost]
    start = framework.start_ns[ranges]
    length = framework.end_ns[ranges] - start
    texts, number = framework.names(ranges)
    stacks, stack = framework.stacks(ranges)
    rows: list[Evidence] = []
    for name in np.unique(number).tolist()[:EVIDENCE_ROWS]:
        same = np.flatnonzero(number == name)
        line, total_ns = stacks[int(stack[same[0]])], int(length[same].sum())
        line = line and line.rpartition("\n")[2]
        start_ns = int(start[same[0]])
        rows.append(evidence_row(texts[name], len(same), total_ns, start_ns, line=line))
    return rows


def late_work(context: DeviceContext) -> Iterator[Cause]:
    """Find launch latencies of a millisecond or more on an idle device."""
    idle = _late_gaps(context, LAUNCHED)
    if not len(idle):
        return
    call, single = _call_in_longest(context, idle), _single_event(context, idle)
    meanwhile = f", while the host is in {call}" if call else ""
    gaps, cost_ns = _describe_gaps(context, idle), int(idle.length_ns.sum())
    text = f"late kernels: the device is idle {gaps}{meanwhile}; no recorded event explains it"
    advice = (
        "record longer, with profiler.step() after each iteration: pending tasks, lazily "
        "loaded kernels, graph uploads and the profiler itself cause this only once; other "
        "programs on the same device cause it repeatedly"
    )
    if is_first := _loads_code(context, idle):
        gaps = gaps.replace("although tasks are enqueued ", "")
        text = f"first launches: the device is idle {gaps}{meanwhile}, probably to load a kernel"
        advice, single = "record later iterations: a program loads a kernel only once", ""
    # A single occurrence has no cost per step.
    yield _late_finding(context, idle, 0 if single or is_first else cost_ns, text + single, advice)


def _loads_code(context: DeviceContext, idle: IdleSegments) -> bool:
    """Return True if in most of the gaps, the host launches a kernel for the first time."""
    work, calls = context.recording.work, context.recording.host_calls
    if context.quick or not len(calls):
        return False
    call = calls.launching(work.connection[idle.task])
    launching = (call >= 0) * (calls.end_ns[call] - calls.start_ns[call])
    rows = np.arange(len(work))
    order = np.argsort(work.start_ns[rows], kind="stable")
    first = order[np.unique(work.kernel[order], return_index=True)[1]]
    loads = (launching >= COVERED_SHARE * idle.length_ns) & np.isin(idle.task, first)
    return int(idle.length_ns[loads].sum()) >= COVERED_SHARE * int(idle.length_ns.sum())


def unrecorded_work(context: DeviceContext) -> Iterator[Cause]:
    """Find gaps with pending tasks during which the host waits for the device.

    The host waits until the gap ends. The device probably ran tasks that were not recorded, such
    as most kernels of a device graph, or before any graph, what was enqueued before the recording.
    """
    idle = _late_gaps(context, UNRECORDED)
    if not len(idle):
        return
    call, calls = _call_in_longest(context, idle), context.recording.host_calls
    graphs = calls.start_ns[calls.matching(context.recording.strings, LAUNCHES_GRAPH)]
    tasks, advice = "kernels of a device graph", "record without graphs, or with a newer profiler,"
    if len(idle) == 1 and not (graphs < idle.end_ns[0]).any():
        tasks = "those launched before the recording began"
        advice = "record later steps, or synchronize before the recording begins,"
    yield _late_finding(
        context,
        idle,
        0,
        f"unrecorded device work: no task is recorded {_describe_gaps(context, idle)}, while the "
        f"host waits{f' in {call}' if call else ''}: the device probably runs tasks that were not "
        f"recorded, such as {tasks}",
        f"do not count this time as idle; {advice} to see these tasks",
    )


def _late_gaps(context: DeviceContext, reason: int) -> IdleSegments:
    """Return gaps of `LATE_NS` or more with a reason; empty if they take little of the time."""
    if context.share(context.max_idle_ns(reason)) < IDLE_SHARE:
        return NO_IDLE
    idle = context.idle_where(
        lambda idle: (idle.reason == reason) & (idle.length_ns >= LATE_NS) & (idle.task >= 0)
    )
    return idle if context.share(int(idle.length_ns.sum())) >= IDLE_SHARE else NO_IDLE


def _describe_gaps(context: DeviceContext, idle: IdleSegments) -> str:
    share, longest = context.share(int(idle.length_ns.sum())), int(idle.length_ns.max())
    return (
        f"{percent(share)} of the time although tasks are enqueued ({times(len(idle))}, up to "
        f"{duration(longest)})"
    )


def _late_finding(
    context: DeviceContext, idle: IdleSegments, cost_ns: int, text: str, advice: str
) -> Cause:
    """Return a finding about gaps, each with the call that launched the task after it."""
    work, calls = context.recording.work, context.recording.host_calls
    rows: list[Evidence] = []
    for at in np.argsort(-idle.length_ns, kind="stable")[:EVIDENCE_ROWS].tolist():
        task = int(idle.task[at])
        name, line = work.place(task)
        call = int(calls.launching(work.connection[task : task + 1])[0]) if len(calls) else -1
        launch = context.recording.strings.get(int(calls.name[call])) if call >= 0 else None
        name = f"before {name}" + (f" ({launch})" if launch else "")
        rows.append(
            evidence_row(name, 1, int(idle.length_ns[at]), int(idle.start_ns[at]), line=line)
        )
    lost = int(idle.length_ns.sum())
    return context.finding(
        cost_ns,
        text,
        advice=advice,
        sure="possible",
        figures={
            "idle_ns": lost,
            "gaps": len(idle),
            "idle_share": round(context.share(lost), 4),
            "longest_gap_ns": int(idle.length_ns.max()),
        },
        evidence=rows,
    )


def _single_event(context: DeviceContext, idle: IdleSegments) -> str:
    """Return why gaps may be a single event; empty if they occur in several steps."""
    if not context.steps:
        return "; no steps recorded, so it may be a single event"
    step = np.searchsorted(context.windows.start_ns, idle.start_ns, side="right")
    if len(np.unique(step)) > 1:
        return ""
    count = len(context.steps)
    where = f"only one of {count} steps" if count > 1 else "the only step"
    return f"; it occurs in {where}, so it may be a single event"


def _call_in_longest(context: DeviceContext, idle: IdleSegments) -> str:
    """Return the call, operation and line that the launching thread is in for most of a gap."""
    calls = context.recording.host_calls
    if not len(calls):
        return ""
    gap = int(idle.length_ns.argmax())
    launch = calls.launching(context.recording.work.connection[idle.task[gap : gap + 1]])
    rows = np.flatnonzero(calls.thread == calls.thread[launch[0]])
    overlap = np.minimum(calls.end_ns[rows], idle.end_ns[gap])
    overlap -= np.maximum(calls.start_ns[rows], idle.start_ns[gap])
    at = rows[[int(overlap.argmax())]]
    if overlap.max() < COVERED_SHARE * idle.length_ns[gap]:
        return ""
    return call_with_place(context.recording, int(at[0]))
