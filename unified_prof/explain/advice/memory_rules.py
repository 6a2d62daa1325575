"""Advice rules about device memory, and about steps that differ, grow or slow down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import codes
from unified_prof.explain.advice.device_context import Cause, DeviceContext, code_place
from unified_prof.explain.advice.idle_segments import (
    COVERED_SHARE,
    EVIDENCE_ROWS,
    LESS_COLLECTION,
    Flags,
    duration,
    percent,
    times,
)
from unified_prof.explain.schedule.selection import Selection, host_ranges
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.counters import MAX_BYTES, TORCH
from unified_prof.recording.idle import IN_WORDS, REASONS
from unified_prof.recording.model import Evidence
from unified_prof.recording.python_frames import user_frame
from unified_prof.recording.steps import step_of

PRESSURE = 0.92  # Minimum share of the device's memory (TraceML's threshold).
# Minimum variation; servers fill the memory on purpose, with a constant amount.
VARIES_SHARE = 0.05
# TraceML's thresholds: reserved is twice the allocated memory, and 30 % of the device.
RESERVED_FACTOR, RESERVED_SHARE = 2.0, 0.30
# Lines are named if this many hold this share of the peak.
MAX_LINES, PEAK_SHARE = 3, 0.5
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class _AllocatorStates(Frame):
    """States of torch's allocator on one device, by time."""

    at_ns: Ints
    allocated: Ints
    reserved: Ints


def _allocator_states(context: DeviceContext) -> _AllocatorStates:
    table = context.recording.source.integers(
        "MEMORY_RECORD",
        {
            "component": "component",
            "at": "timestamp",
            "allocated": "coalesce(totalAllocated, 0)",
            "reserved": "coalesce(totalReserved, 0)",
            "device": "coalesce(deviceId, -1)",
        },
    )
    ids, number = codes(table["component"])
    torch = np.array([text == TORCH for text in context.recording.strings.texts(ids)] or [False])
    good = torch[number] if len(ids) else np.zeros(0, bool)
    if context.device_id is not None:
        good &= table["device"] == context.device_id
    for name in ("allocated", "reserved"):
        good &= (table[name] >= 0) & (table[name] < MAX_BYTES)
    states = _AllocatorStates(table["at"], table["allocated"], table["reserved"]).take(good)
    return states.take(np.argsort(states.at_ns, kind="stable"))


def device_bytes(context: DeviceContext) -> int | None:
    """Return the memory of the device in bytes, or None if not recorded."""
    size = context.device_property("totalGlobalMem")
    return size if size is not None and size < MAX_BYTES else None


def memory_pressure(context: DeviceContext) -> Iterator[Cause]:
    """Find a device whose memory is nearly full, and the lines that hold most of it."""
    memory, whole_bytes = _allocator_states(context), device_bytes(context)
    assert whole_bytes is not None
    if not len(memory.at_ns):
        return
    peak = int(np.maximum(memory.reserved, memory.allocated).max())
    variation = int(memory.allocated.max() - memory.allocated.min())
    if peak < PRESSURE * whole_bytes or variation < VARIES_SHARE * whole_bytes:
        return
    rows = _lines_in_use(context, int(memory.at_ns[int(memory.allocated.argmax())]))
    held = sum(row["total_bytes"] for row in rows[:MAX_LINES])
    share = held / max(int(memory.allocated.max()), 1)
    lines = "1 line holds" if len(rows) == 1 else f"{len(rows[:MAX_LINES])} lines hold"
    yield context.finding(
        0,
        f"memory nearly full: torch reserves {peak / _GIB:.1f} of {whole_bytes / _GIB:.1f} GiB "
        f"at the peak{f'; {lines} {percent(share)} of it' if share >= PEAK_SHARE else ''}",
        advice="use a smaller batch, activation checkpointing around these lines, or lower "
        "precision, before allocations are retried or fail",
        sure="certain",
        figures={
            "peak_bytes": peak,
            "memory_bytes": whole_bytes,
            "share": round(peak / whole_bytes, 4),
        },
        evidence=rows,
    )


def _lines_in_use(context: DeviceContext, at_ns: int) -> list[Evidence]:
    """Return the source lines whose allocations are in use at a time."""
    framework = context.recording.framework
    table = context.recording.source.integers(
        "OP_MEMORY",
        {"name": "name", "size": "size", "at": "allocationTime", "until": "releaseTime"},
    )
    in_use = (table["at"] > 0) & (table["at"] <= at_ns) & (table["size"] > 0)
    in_use &= (table["until"] <= 0) | (table["until"] > at_ns)
    if framework is None or not in_use.any():
        return []
    names = [context.recording.strings.get(name) or "" for name in table["name"][in_use].tolist()]
    calls = framework.calls_at(names, table["at"][in_use])
    stacks, number = framework.stacks(calls)
    count, total = Counter[str](), Counter[str]()
    for stack, size in zip(number.tolist(), table["size"][in_use].tolist(), strict=True):
        if (frames := stacks[stack]) is not None:
            line = frames.rpartition("\n")[2]
            count[line] += 1
            total[line] += size
    return [
        {"name": line, "line": line, "count": count[line], "total_bytes": size}
        for line, size in total.most_common(EVIDENCE_ROWS)
    ]


def memory_fragmentation(context: DeviceContext) -> Iterator[Cause]:
    """Find memory that the allocator reserves but never uses."""
    memory, whole_bytes = _allocator_states(context), device_bytes(context)
    assert whole_bytes is not None
    if not len(memory.at_ns) or not memory.allocated.any():
        return
    reserved, allocated = int(memory.reserved.max()), int(memory.allocated.max())
    if reserved < RESERVED_FACTOR * allocated or reserved < RESERVED_SHARE * whole_bytes:
        return
    yield context.finding(
        0,
        f"fragmentation: torch reserves {reserved / _GIB:.1f} GiB but allocates at most "
        f"{allocated / _GIB:.1f} GiB",
        advice="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_NPU_ALLOC_CONF), "
        "keep shapes static",
        sure="certain",
        figures={
            "reserved_bytes": reserved,
            "allocated_bytes": allocated,
            "memory_bytes": whole_bytes,
        },
    )


_MALLOC, _FREE, _LAUNCH = 1, 2, 3


def allocation_retries(context: DeviceContext) -> Iterator[Cause]:
    """Find failed allocations after which the allocator empties its cache and retries."""
    calls = context.recording.host_calls
    ids, number = calls.names
    texts = [text or "" for text in context.recording.strings.texts(ids)]
    kind = np.array([_allocator_call(text) for text in texts] or [0])[number.to_array()]
    launching = calls.launching(context.recording.work.connection[context.tasks.row])
    kind[launching[launching >= 0]] = _LAUNCH
    # On NPUs, the threads that allocate enqueue, and another one launches.
    queue = context.recording.task_queue
    thread = np.concatenate((calls.thread.to_array(), queue.enqueue_thread))
    start_ns = np.concatenate((calls.start_ns.to_array(), queue.enqueue_ns))
    kind = np.append(kind, np.full(len(queue), _LAUNCH))
    order = np.lexsort((start_ns, thread))
    order = order[(kind[order] > 0) & context.is_analyzed(start_ns[order])]
    # Launches in a row count as one, because there are millions.
    launches = kind[order] == _LAUNCH
    order = order[~(launches & np.append(False, launches[:-1])[: len(launches)])]
    begins, ends = [], []
    malloc_ns: int | None = None
    freed = False
    for row in order.tolist():
        if kind[row] == _MALLOC:
            if freed and malloc_ns is not None:
                begins.append(malloc_ns)
                ends.append(int(calls.end_ns[row]))
            malloc_ns, freed = int(start_ns[row]), False
        elif kind[row] == _FREE:
            freed = malloc_ns is not None
        else:
            # A thread that launches has its memory: a free there is a normal one.
            malloc_ns, freed = None, False
    if not begins or not context.steps:
        return
    retries = context.clip(np.array(begins, np.int64), np.array(ends, np.int64))
    retries = intervals.subtract(retries, context.claimed)
    cost = context.idle_in(retries)
    context.claim(retries)
    longest = max(zip(begins, ends, strict=True), key=lambda one: one[1] - one[0])
    place = context.host_code.place(*longest)
    yield context.finding(
        cost,
        f"allocation retries: {times(len(begins))} in the steps, the allocator empties its "
        f"cache and retries an allocation{f', longest in {place}' if place else ''}",
        advice="reduce memory use: smaller batch, activation checkpointing, "
        "expandable_segments:True",
        sure="likely",
        change=Selection(host=retries),
        least=0.0,
        figures={"retries": len(begins), "idle_ns": cost},
    )


def _allocator_call(name: str) -> int:
    if name in ("cudaMalloc", "hipMalloc") or name.startswith("aclrtMallocAlign"):
        return _MALLOC
    return _FREE if name in ("cudaFree", "hipFree", "aclrtFree") else 0


MIN_STEPS = 4  # Minimum steps after the first for a meaningful median.
# A step is slow above this many medians; above fewer if one of so many steps is, or if it runs more
# operations.
SLOW_MEDIANS, PERIODIC_MEDIANS = 1.5, 1.15
# Minimum share of its operations that only this step runs; the others run equally many.
MORE_OPERATIONS = 0.02
# TraceML's thresholds: 8 % from first to last quarter, over 100 steps or more.
TREND, LONG_RUN = 0.08, 100


def slow_steps(context: DeviceContext) -> Iterator[Cause]:
    """Find individual steps that are much longer than the median."""
    begin, end = _step_windows(context)
    length = end - begin
    if len(length) < MIN_STEPS:
        return
    median = float(np.median(length))
    extra = _extra_operations(context)
    by_chance = (extra == 0) & (not _are_periodic(length > PERIODIC_MEDIANS * median))
    limit = np.where(by_chance, SLOW_MEDIANS, PERIODIC_MEDIANS)
    slow = np.flatnonzero((length > limit * median) & ~_is_deliberate(context))
    if not len(slow):
        return
    excess_ns = length - median
    if context.device is None:
        # No replay finds that other findings cost the same time.
        rest_ns = length - intervals.covered(context.claimed, begin, end)
        excess_ns = np.clip(rest_ns - np.median(rest_ns), 0, np.maximum(excess_ns, 0))
    cost = float(excess_ns[slow].sum())
    outside = slow[~np.isin(slow + 1, context.analyzed)]
    longest = int(slow[int(length[slow].argmax())])
    step_names = [name for name, _, _ in context.recording.steps][1:]
    grown, growth_ns = _largest_growth(context, begin, end, longest, median)
    more = "" if len(slow) == 1 else f" ({len(slow)} slow steps)"
    half_ns = (length[longest] - median) / 2
    _, *on_host = context.recording.steps[longest + 1]
    start, stop, *_ = host_ranges(context.recording, names.COMPILES)
    compile_ns = intervals.clip(intervals.merge(start, stop), *on_host).total_ns
    collecting_ns = intervals.clip(context.collections, *on_host).total_ns
    compiles, collects = compile_ns >= half_ns, collecting_ns >= half_ns
    cause = f"; {duration(compile_ns)} of it is compilation" if compiles else ""
    if collects:
        cause = f"; {duration(collecting_ns)} of it is garbage collection"
    code, more_calls = (
        (None, False)
        if compiles or collects
        else _grown_code(context, longest, float(length[longest]) - median)
    )
    if code is not None:
        cause = f"; most of it in {code}"
    elif extra[longest]:
        cause = f"; it runs {extra[longest]:,} operations more than others"
    more_calls |= bool(extra[longest])
    regular = _are_periodic(np.isin(np.arange(len(length)), slow))
    # Without a device, other programs make the same calls longer.
    unexplained = context.device is None and not (compiles or collects or regular or more_calls)
    if regular:
        more = f" (one of {slow[1] - slow[0]} steps is slow)"
    elif unexplained:
        cause += "; other programs on the same processors cause this, too"
    yield context.finding(
        cost * context.step_count / len(length),
        f"step {step_names[longest]} takes {duration(int(length[longest]))}, median "
        f"{duration(median)}{more}; {grown} grows most, by {duration(growth_ns)}{cause}",
        advice=LESS_COLLECTION
        if collects
        else "use static or bucketed shapes, check TORCH_LOGS=recompiles"
        if compiles
        else "find what the program does in these steps only: evaluation, checkpoints, logging"
        if regular or extra[longest] or (code is not None and not unexplained)
        else "record again: a cause within the program returns; if it does, look at this step in "
        "`uprof view`",
        sure="possible" if unexplained else "certain",
        figures={
            "slow": len(slow),
            "steps": len(length),
            "median_ns": round(median),
            "grew": grown,
            "compile_ns": compile_ns,
        },
        outside_ns=float(excess_ns[outside].sum()) * context.step_count / len(length),
        evidence=[
            {"name": f"step {step_names[at]}", "count": 1, "total_ns": int(length[at])}
            for at in slow[np.argsort(-length[slow], kind="stable")][:EVIDENCE_ROWS].tolist()
        ],
        steps=[
            int(step_names[at]) if step_names[at].isdecimal() else at + 1 for at in slow.tolist()
        ],
    )


def _extra_operations(context: DeviceContext) -> Ints:
    """Return how many operations more than the median each step after the first runs.

    Optimizers do not count: they may not run in each step. It is 0 for all if other steps differ.
    """
    steps, framework = context.recording.steps, context.recording.framework
    if framework is None or context.quick:
        return np.zeros(len(steps) - 1, np.int64)
    calls, ranges = framework.calls, framework.matching(lambda text: text.startswith("Optimizer."))
    optimizer = intervals.merge(framework.start_ns[ranges], framework.end_ns[ranges])
    calls = calls[intervals.holding(optimizer, framework.start_ns[calls]) < 0]
    step = step_of(framework.start_ns[calls], steps)
    count = np.bincount(step[step >= 0], minlength=len(steps))[1:]
    extra = count - int(np.median(count))
    extra[extra <= MORE_OPERATIONS * count] = 0
    return extra if len(np.unique(count[extra == 0])) == 1 else np.zeros_like(extra)


def _are_periodic(chosen: Flags) -> bool:
    """Return True for three or more steps at equal distances from the first to the last step.

    Others are between them. Noise makes such steps, too, but rarely in all of a run.
    """
    rows = np.flatnonzero(chosen)
    gaps = np.diff(rows)
    if len(gaps) < 2 or gaps[0] < 2 or (gaps != gaps[0]).any():
        return False
    return bool(rows[0] < gaps[0] and rows[-1] >= len(chosen) - gaps[0])


def _grown_code(context: DeviceContext, slow: int, excess_ns: float) -> tuple[str | None, bool]:
    """Return the Python function or annotation that makes a slow step longer, or None.

    It is the outermost that most steps do not run, of the user's files if possible, else the
    innermost: `validate`, not the read of a value in it. The flag is true if the slow step does
    more than others: it runs more operations, or only it calls this function, which runs none.
    """
    if context.quick:
        return None, False
    code, least_ns = context.host_code, COVERED_SHARE * excess_ns
    step = step_of(code.start_ns, context.recording.steps)
    rows = np.flatnonzero((step >= 0) & np.isin(code.thread, context.step_threads))
    length = code.end_ns - code.start_ns
    of_step = rows[step[rows] == slow + 1]
    long = np.flatnonzero(np.bincount(code.number[of_step], length[of_step]) >= least_ns)
    rows = rows[np.isin(code.number[rows], long)]
    shape = len(context.recording.steps), len(long)
    cell = step[rows] * len(long) + np.searchsorted(long, code.number[rows])
    total = np.bincount(cell, length[rows], minlength=shape[0] * shape[1]).reshape(shape)
    usual_ns = np.median(total, axis=0)
    growth = total[slow + 1] - usual_ns
    # Functions around the cause grow as much as it, or more.
    found = long[growth >= least_ns]
    if not len(found):
        return None, False
    of_step = of_step[np.isin(code.number[of_step], found)]
    innermost = of_step[np.argmax(code.start_ns[of_step])]
    text = code.texts[int(code.number[innermost])]
    around = of_step[np.argsort(code.start_ns[of_step], kind="stable")]
    unusual = np.isin(code.number[around], long[usual_ns == 0])
    outermost = [code.texts[number] for number in code.number[around[unusual]].tolist()]
    named = code_place(next(filter(user_frame, outermost), outermost[0] if outermost else text))
    only_there = bool((step[rows[code.number[rows] == code.number[innermost]]] == slow + 1).all())
    framework = context.recording.framework
    if framework is None:
        return named, only_there
    start_ns = framework.start_ns[np.flatnonzero(framework.recorded)]
    inside = (start_ns >= code.start_ns[innermost]) & (start_ns < code.end_ns[innermost])
    ran = step_of(start_ns, context.recording.steps)
    operations = np.bincount(ran[ran >= 0], minlength=shape[0])
    # Short calls are not recorded: those of operations are short in other steps.
    more = bool(operations[slow + 1] > np.median(operations))
    alone = only_there and not inside.any() and not text.startswith("<built-in")
    return named, more or alone


def steps_grow(context: DeviceContext) -> Iterator[Cause]:
    """Find steps that become longer over time."""
    begin, end = _step_windows(context)
    length = end - begin
    if len(length) < LONG_RUN:
        return
    quarter = len(length) // 4
    first, last = (float(np.median(part)) for part in (length[:quarter], length[-quarter:]))
    if last <= (1 + TREND) * first:
        return
    cost = float(np.maximum(length - first, 0).sum()) * context.step_count / len(length)
    yield context.finding(
        cost,
        f"steps become longer: {duration(first)} in the first quarter, {duration(last)} in "
        f"the last ({percent(last / first - 1)} more)",
        advice="look for accumulation: lists of tensors, retained graphs, longer inputs, "
        "fragmentation, thermal throttling",
        sure="certain",
        figures={"first_ns": round(first), "last_ns": round(last), "steps": len(length)},
    )


# Minimum slowdown, and the share of kernel time in kernels that every step runs equally often.
SLOWDOWN, STEADY_SHARE = 0.05, 0.5
MIN_SIDE = 3  # Minimum steps, and parts of steps, on each side of a slowdown.
STEP_PARTS = 32  # Parts of a step with equal kernel time: a clock may change within steps.
# Clocks have two values if this share of the parts is close to one of them: within this share of
# the distance, which a change within a part does not reach.
TWO_VALUES, CLOSE = 0.75, 0.25


def kernels_slow_down(context: DeviceContext) -> Iterator[Cause]:
    """Find times in which the same kernels take longer, as on a device with throttled clocks."""
    tasks, steps = context.tasks, context.windows
    count = len(context.steps)
    rows = np.flatnonzero(tasks.kind == KERNEL)
    if count < 2 * MIN_SIDE or not len(rows):
        return
    step = np.searchsorted(steps.start_ns, tasks.start_ns[rows], side="right") - 1
    grid = np.zeros(len(rows), np.int64)
    if "UPROF_GPU_TASKS" in context.recording.source.tables:
        # Inputs of another size have another grid.
        grid = context.task_column("UPROF_GPU_TASKS", "gridDim")[rows]
    _, number = np.unique(np.stack((context.kernel[rows], grid)), axis=1, return_inverse=True)
    number = number.reshape(-1)
    runs = np.bincount(number * count + step, minlength=count * (number.max() + 1))
    steady = (np.ptp(runs.reshape(-1, count), axis=1) == 0)[number]
    all_ns = tasks.length_ns[rows].sum()
    rows, number, step = rows[steady], number[steady], step[steady]
    length = tasks.length_ns[rows]
    if length.sum() < STEADY_SHARE * all_ns:
        return
    # Kernels at the same place of each step, in order of the first step.
    order = np.lexsort((np.arange(len(rows)), number, step)).reshape(count, -1)
    order = order[:, np.argsort(order[0], kind="stable")]
    by_step = length[order]
    fast = np.partition(by_step, MIN_SIDE - 2, axis=0)[MIN_SIDE - 2].astype(np.float64)
    slowest = -np.partition(-by_step, MIN_SIDE - 2, axis=0)[MIN_SIDE - 2]
    affected = slowest > (1 + SLOWDOWN) * fast
    if fast[affected].sum() < STEADY_SHARE * fast.sum():
        return
    order, by_step, fast = order[:, affected], by_step[:, affected], fast[affected]
    until = np.cumsum(fast)
    _, part = np.unique((STEP_PARTS * until / until[-1]).astype(np.int64), return_inverse=True)
    factor = np.stack([np.bincount(part, one) for one in by_step]) / np.bincount(part, fast)
    middle = (factor.min() + factor.max()) / 2
    slow = factor > middle
    low, high = np.median(factor[~slow]), np.median(factor[slow]) if slow.any() else 0.0
    near = np.abs(factor - np.where(slow, high, low)) <= CLOSE * (high - low)
    if high < (1 + SLOWDOWN) * low or near.mean() < TWO_VALUES:
        return
    first = int(np.argmax(slow.all(axis=1)))
    once = slow[first:].all() and not slow[: max(first - 1, 0)].any()
    slow_steps = count - first if once else slow.mean() * count
    # Without grids, steps may differ by the size of their inputs.
    if min(slow_steps, count - slow_steps) < MIN_SIDE or not (once or grid.any()):
        return
    excess = by_step / np.maximum(low * fast, 1) - 1
    lost = np.where(slow[:, part], np.maximum(excess, 0), 0.0)
    share, ratio = float(slow.mean()), high / low
    when = f"from step {context.steps[first]} on, " if once else f"{percent(share)} of the time, "
    yield context.tasks_finding(
        f"slower kernels: {when}the same kernels take {ratio:.2f} times as long"
        + (", as if clocks changed between two values" if not once else ""),
        rows[order].reshape(-1),
        (lost / (1 + np.maximum(excess, 0)) * by_step).reshape(-1),
        names_place=False,
        advice="check clocks, temperature and power limit (nvidia-smi -q -d PERFORMANCE, npu-smi "
        "info), other programs on the device, and whether inputs become larger",
        sure="likely",
        figures={"factor": round(float(ratio), 4), "slow_share": round(share, 4)}
        | ({"first_slow_step": context.steps[first]} if once else {}),
    )


def _step_windows(context: DeviceContext) -> tuple[Ints, Ints]:
    """Return begin and end of each step except the first, on the device if one was recorded."""
    if context.device is not None:
        windows = context.recording.step_windows[context.device]
        return windows.start_ns[1:], windows.end_ns[1:]
    times_ns = np.array([step[1:] for step in context.recording.steps[1:]], np.int64)
    begin, end = times_ns.reshape(-1, 2).T
    return begin, end


def _is_deliberate(context: DeviceContext) -> Flags:
    """Return a mask of steps with an evaluation or a checkpoint, by the names of their ranges.

    Ranges belong to the step in which the host runs them: the device may be steps behind.
    """
    framework = context.recording.framework
    _, begin, end = (np.array(column) for column in zip(*context.recording.steps[1:], strict=True))
    result = np.zeros(len(begin), bool)
    if framework is not None:
        ranges = framework.matching(
            lambda name: "::" not in name and names.EVALUATES_OR_SAVES(name)
        )
        for at in ranges.tolist():
            result |= (framework.start_ns[at] < end) & (framework.end_ns[at] > begin)
    return result


def _largest_growth(
    context: DeviceContext, begin: Ints, end: Ints, step: int, median_ns: float
) -> tuple[str, float]:
    """Return the part of a step that exceeds its median most, and the excess."""
    if context.device is None:
        return "host time", float(end[step] - begin[step]) - median_ns
    steps = IntervalSet(begin, end)
    parts = defaultdict[str, Ints](lambda: np.zeros(len(begin), np.int64))
    for time_slice in context.recording.devices[context.device].time_slices():
        for name, part in (
            ("computation", time_slice.compute),
            ("communication", time_slice.communication),
            ("copies", time_slice.copies),
        ):
            start, stop, _, number = intervals.overlaps(part, steps)
            np.add.at(parts[name], number, stop - start)
    for segments in context.recording.idle_time.parts(context.device):
        idle = IntervalSet(segments.start_ns, segments.end_ns)
        start, stop, row, number = intervals.overlaps(idle, steps)
        for reason, name in enumerate(REASONS):
            rows = segments.reason[row] == reason
            np.add.at(parts[f"idle ({IN_WORDS[name]})"], number[rows], (stop - start)[rows])
    growth = {name: float(sums[step] - np.median(sums)) for name, sums in parts.items()}
    largest = max(growth, key=lambda name: growth[name])
    return largest, growth[largest]
