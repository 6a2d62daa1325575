"""Advice rules about optimizers: loops over parameters, passes over all, dense gradients."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    is_optimizer_step,
    matrix_kernels,
)
from unified_prof.explain.advice.idle_segments import (
    DENSE_SHARE,
    SPARSE_GRADIENTS,
    TAIL_NS,
    WARN_SHARE,
    Flags,
    percent,
    plural,
)
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import FORWARD

OPTIMIZER_SHARE = 0.05  # Minimum share of the time, kernels and idle time between them included.
# Minimum kernels (or operations) per step; foreach and fused optimizers need a few dozen.
MIN_OPTIMIZER_KERNELS = 100
FUSED_SHARE = 0.5  # Share of multi-tensor kernels from which an optimizer counts as fused.
# Tensors that fused optimizers with two states, such as Adam, and with one read or write.
_FUSED_PASSES, _MOMENTUM_PASSES = 7, 5
_MOVING_SHARE = 0.02  # Minimum share of the time of an optimizer of an operation on all parameters.
_TORCH_FUSED = re.compile(r"Optimizer\.step#(?:Adam|AdamW|SGD|Adagrad)\.")  # Have `fused=True`.
_ADAM = re.compile(r"Optimizer\.step#\w*Adam")
_ONE_STATE = re.compile(r"Optimizer\.step#(?:RMSprop|Adagrad)\.")
_NPU_FUSED = "use torch_npu.optim.NpuFusedAdamW or another NpuFused optimizer"


SHOWN_SHARE = 0.005  # Minimum share of the time to mention host-bound time.


def unfused_optimizer(context: DeviceContext) -> Iterator[Cause]:
    """Find many small kernels of an optimizer.

    A fused optimizer saves the host-bound time before them; if the host is ahead, the gaps between
    them, their tails and part of their memory traffic.
    """
    if context.device is None:
        yield from _unfused_on_host(context)
        return
    tasks = context.tasks
    selected = context.in_optimizer & (tasks.kind == KERNEL)
    # `zero_grad` fills: no optimizer fuses them.
    selected &= ~context.matches(context.operator, names.FILL_OPERATION)
    count = int(selected.sum())
    fused = context.has_name(names.MULTI_TENSOR)
    yield from _many_passes(context, selected & fused)
    few = MIN_OPTIMIZER_KERNELS * context.step_count
    if count < few or (selected & fused).sum() >= FUSED_SHARE * count:
        return
    rows = np.flatnonzero(selected)
    cost = _launch_costs(context, rows, _saved_share(context, rows))
    if cost.share < OPTIMIZER_SHARE:
        return
    steps = Selection(ranges=context.ranges(is_optimizer_step, ahead=True))
    text = f"unfused optimizer: {percent(cost.share)} of the time, "
    text += f"{count // context.step_count:,} kernels per step"
    if (host_bound := context.share(cost.host_bound_ns)) >= SHOWN_SHARE:
        text += f"; {percent(host_bound)} of the time is host-bound idle time before them"
    yield cost.finding(text, _fuse(context, "fused=True or foreach=True"), steps)


def _uses(context: DeviceContext, optimizer: re.Pattern[str]) -> bool:
    """Return True if an optimizer with a matching name steps."""
    framework = context.recording.framework
    assert framework is not None
    return len(framework.matching(lambda text: optimizer.match(text) is not None)) > 0


def _fuse(context: DeviceContext, arguments: str) -> str:
    """Return how to fuse the optimizer; only some of torch's have arguments for it."""
    if context.is_npu:
        return _NPU_FUSED
    if _uses(context, _TORCH_FUSED):
        return f"pass {arguments} to the optimizer"
    return "compile its update (torch.compile), or update all tensors at once (torch._foreach_add_)"


class _LaunchCosts(Struct, frozen=True, eq=False):
    """Time of many small kernels, and what fewer of them save."""

    context: DeviceContext
    rows: Ints
    host_bound_ns: int  # Idle time before them that the host causes.
    gap_ns: int  # Idle time before them with a full queue.
    saved_ns: NDArray[np.floating]  # Time that each takes less, with the gap before it.

    @property
    def share(self) -> float:
        """Share of the analyzed time, idle time included."""
        busy_ns = self.context.busy_ns(self.rows)
        return self.context.share(busy_ns + self.host_bound_ns + self.gap_ns)

    def finding(self, text: str, advice: str, on_host: Selection, kind: str = "") -> Cause:
        """Return the finding; `on_host` is the host time that fewer kernels save."""
        cost = self.host_bound_ns + float(self.saved_ns.sum())
        return self.context.finding(
            cost,
            text,
            kind=kind,
            advice=advice,
            sure="certain" if 2 * self.host_bound_ns > cost else "likely",
            change=self.context.saving(self.rows, self.saved_ns) | on_host,
            least=WARN_SHARE,
            figures={
                "kernels": len(self.rows),
                "busy_ns": self.context.busy_ns(self.rows),
                "idle_ns": self.host_bound_ns,
                "gap_ns": self.gap_ns,
                "share": round(self.share, 4),
            },
            evidence=self.context.evidence(self.rows),
        )


def _launch_costs(
    context: DeviceContext, rows: Ints, removed: float | NDArray[np.floating]
) -> _LaunchCosts:
    """Return the costs of kernels of which a share is removed, apart from their tails."""
    tasks = context.tasks
    host_bound_ns, gap_ns = context.launch_gaps(rows)
    length = tasks.length_ns[rows]
    tail = np.minimum(length, TAIL_NS)
    saved_ns = tail + removed * (length - tail) + gap_ns
    return _LaunchCosts(context, rows, host_bound_ns, int(gap_ns.sum()), saved_ns)


def _saved_share(context: DeviceContext, rows: Ints) -> float:
    """Return the share of the traffic of an optimizer that one kernel for all would save.

    The cheapest operation reads and writes one tensor; the rarest runs once for each parameter.
    """
    operators, number = np.unique(context.operator[rows], return_inverse=True)
    moving_ns = np.maximum(context.tasks.length_ns[rows] - TAIL_NS, 0)
    count, total_ns = np.bincount(number), np.bincount(number, moving_ns)
    # Updates of counters and learning rates move nothing.
    moves = total_ns > _MOVING_SHARE * total_ns.sum()
    if not moves.any():
        return 0.0
    texts = [context.recording.work.labels.texts[one] for one in operators[moves].tolist()]
    two_states = any(map(names.SECOND_MOMENT, texts)) and not _uses(context, _ONE_STATE)
    two_states |= _uses(context, _ADAM)
    passes = _FUSED_PASSES if two_states else _MOMENTUM_PASSES
    pass_ns = float((total_ns / count)[moves].min() * count[moves].min()) / 2
    return max(1 - passes * pass_ns / float(total_ns.sum()), 0.0)


# An optimizer of fewer operations has little to fuse; a smaller share is usual with foreach.
# On an NPU, whose memory is slower, half of it counts.
MIN_PASSES, PASSES_SHARE = 5, 0.20


def _many_passes(context: DeviceContext, selected: Flags) -> Iterator[Cause]:
    """Find a large optimizer whose operations each read and write all parameters (foreach)."""
    rows = np.flatnonzero(selected)
    passes, busy_ns = len(np.unique(context.operator[rows])), context.busy_ns(rows)
    if passes < MIN_PASSES or context.share(busy_ns) < PASSES_SHARE / (1 + context.is_npu):
        return
    yield context.tasks_finding(
        f"unfused optimizer: {percent(context.share(busy_ns))} of the time, {passes} operations "
        "that each read and write the parameters or their state",
        rows,
        _saved_share(context, rows) * context.tasks.length_ns[rows],
        advice=_fuse(context, "fused=True"),
        sure="likely",
        least=WARN_SHARE,
        figures={"kernels": len(rows), "busy_ns": busy_ns, "operations": passes},
    )


def _unfused_on_host(context: DeviceContext) -> Iterator[Cause]:
    """Find many operations of an optimizer with Python between them, without device tasks."""
    framework = context.recording.framework
    assert framework is not None
    steps = context.ranges(is_optimizer_step)
    if not len(steps):
        return
    optimizer = context.clip(framework.start_ns[steps], framework.end_ns[steps])
    calls = framework.calls
    calls = calls[intervals.holding(optimizer, framework.start_ns[calls]) >= 0]
    texts, number = framework.names(calls)
    fused = np.array([names.MULTI_TENSOR(text) for text in [*texts, ""]])[number]
    few = MIN_OPTIMIZER_KERNELS * context.step_count
    if len(calls) < few or fused.sum() >= FUSED_SHARE * len(calls):
        return
    working = intervals.merge(framework.start_ns[calls], framework.end_ns[calls])
    between = intervals.subtract(optimizer, working)
    # Longer gaps than usual are those of other programs.
    cost = int(np.median(between.end_ns - between.start_ns)) * len(between)
    share = context.share(optimizer.total_ns)
    if share < OPTIMIZER_SHARE or context.share(cost) < WARN_SHARE:
        return
    yield context.finding(
        cost,
        f"unfused optimizer: {percent(share)} of the time, "
        f"{len(calls) // context.step_count:,} operations per step with only Python between "
        "them",
        advice=_fuse(context, "fused=True or foreach=True"),
        sure="certain",
        figures={"operations": len(calls), "between_ns": cost, "share": round(share, 4)},
    )


MAX_LOOP_BODY = 6  # Maximum operations in the body of a loop over parameters.
MIN_LOOP_RUNS = 12  # Minimum runs of the body one after another.


class _Loops(Struct, frozen=True, eq=False):
    """Loops of small operations over many tensors, outside the passes and optimizers."""

    rows: Flags  # Mask of the tasks.
    merged: Flags  # Those that one kernel for the body, such as that of lerp_, would not move.
    host: IntervalSet  # When the host launches them.
    names: set[str]  # Names of the operations.


def _loops(context: DeviceContext) -> _Loops:
    """Return the loops over tensors: the same few operations again and again, also in place."""
    framework, tasks = context.recording.framework, context.tasks
    assert framework is not None
    call = framework.outermost(context.recording.work.connection[tasks.row])
    alone = (tasks.kind == KERNEL) & (context.recording.work.launches.passes[tasks.row] == FORWARD)
    alone &= ~matrix_kernels(context) & ~context.has_name(names.MULTI_TENSOR)
    calls, number = np.unique(call, return_inverse=True)
    other = np.bincount(number, ~alone) > 0
    texts, name = framework.names(calls)
    updates = np.array([text.endswith("_") or names.NORM(text) for text in texts])[name]
    inputs, shape = framework.inputs(calls)
    key = np.where(other | (calls < 0), -1 - np.arange(len(calls)), name)
    chosen, merged = np.zeros((2, len(calls)), bool)
    norms = np.array([bool(names.NORM(text)) for text in texts])[name]
    writes = np.array([text.endswith("_") and not names.SCALES(text) for text in texts])[name]
    begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high, body in repeated(key, MIN_LOOP_RUNS):
        part = slice(low, high)
        if chosen[part].any() or not updates[part].any():
            continue
        # The same tensor again and again is a recurrence, which nothing can batch.
        shapes = np.unique(shape[part])
        if len(shapes) <= body and inputs[int(shapes[0])]:
            continue
        chosen[part] = True
        # Scalings and casts can be part of an update; a norm is needed before all of them.
        merged[part] = ~writes[part] & writes[part].any() & ~norms[part].any()
        begins.append(framework.start_ns[calls[low : low + 1]])
        ends.append(framework.end_ns[calls[high - 1 : high]])
    host = intervals.merge(np.concatenate(begins), np.concatenate(ends))
    found = {texts[one] for one in np.unique(name[chosen]).tolist()}
    return _Loops(chosen[number], merged[number], host, found)


def repeated(key: Ints, runs: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and period of sequences in which a few keys repeat, short periods first."""
    for body in range(1, MAX_LOOP_BODY + 1):
        same = np.concatenate(([False], key[body:] == key[:-body], [False]))
        first, last = np.flatnonzero(same[1:] > same[:-1]), np.flatnonzero(same[1:] < same[:-1])
        for low, high in zip(first.tolist(), (last + body).tolist(), strict=True):
            if high - low >= body * runs:
                yield low, high, body


# Minimum runs of the same operations one after another that are a loop, and not layers of a model.
MIN_ROWS = 64


def loop_of_operations(context: DeviceContext, idle: IntervalSet) -> tuple[str, float]:
    """Describe the loop of a few operations in which the host spends most idle time, and how much.

    The share of the idle time is 0 if there is none. Whether the runs depend on each other is
    not recorded.
    """
    framework, work = context.recording.framework, context.recording.work
    if framework is None:
        return "", 0.0
    calls = framework.outermost(work.connection[context.tasks.row])
    row = np.flatnonzero(calls >= 0)
    calls, first, number = np.unique(calls[row], return_index=True, return_inverse=True)
    texts, name = framework.names(calls)
    # Neither the end of a step nor operations with other causes are within a loop.
    step = np.searchsorted(context.windows.start_ns, framework.start_ns[calls], side="right")
    other = np.bincount(number, (context.in_optimizer | context.explained)[row]) > 0
    key = np.where(
        other, -1 - np.arange(len(calls)), name.astype(np.int64) * (step.max(initial=0) + 1) + step
    )
    spent: Counter[tuple[str, str]] = Counter()
    runs: Counter[tuple[str, str]] = Counter()
    counted = np.zeros(len(calls), bool)
    for low, high, body in repeated(key, MIN_ROWS):
        if counted[low:high].any():  # two runs of a loop are a loop of twice the period
            continue
        counted[low:high] = True
        line = work.place(int(context.tasks.row[row[first[low]]]))[1] or ""
        operations = dict.fromkeys(texts[one] for one in name[low : low + body].tolist())
        loop = ", ".join(operations), line
        begin, end = framework.start_ns[calls[low]], framework.end_ns[calls[high - 1]]
        spent[loop] += intervals.clip(idle, int(begin), int(end)).total_ns
        runs[loop] += (high - low) // body
    for loop, time_ns in spent.most_common(1):
        count = f"{runs[loop] // context.step_count:,} times per step"
        where = f" at {loop[1].rpartition('/')[2]}" * bool(loop[1])
        return f"a loop that runs {loop[0]} {count}{where}", time_ns / max(idle.total_ns, 1)
    return "", 0.0


def parameter_loop(context: DeviceContext) -> Iterator[Cause]:
    """Find loops over parameters outside the optimizer: averages, clipping, norms."""
    loops = _loops(context)
    yield from _zeroed_gradients(context, loops)
    rows = np.flatnonzero(loops.rows & ~context.explained)
    context.explained[rows] = True
    cost = _launch_costs(context, rows, loops.merged[rows].astype(np.float64))
    if cost.share < WARN_SHARE:
        return
    count = plural(len(rows) // context.step_count, "kernel")
    advice = "update all tensors at once: torch._foreach_lerp_ (for mul_ and add_), _foreach_norm; "
    advice += "clip_grad_norm_(foreach=True), AveragedModel without avg_fn"
    clips = _clips_gradients(context, loops)
    if clips:
        advice = "pass foreach=True to clip_grad_norm_" + context.is_npu * (
            ", or call clip_grad_norm_fused_ of a fused optimizer (torch_npu.optim)"
        )
    yield cost.finding(
        f"loop over tensors{' that clips gradients' * clips}: {percent(cost.share)} of the time, "
        f"{count} per step, a few for each "
        f"tensor{context.mostly(rows, context.tasks.length_ns[rows])}",
        advice,
        Selection(host=loops.host),
    )


def _clips_gradients(context: DeviceContext, loops: _Loops) -> bool:
    """Return True if most of the loops clip gradients: by Python functions, or by operations."""
    frames, framework = context.recording.python_calls, context.recording.framework
    assert framework is not None
    clips = np.array([names.CLIPS_GRADIENTS(one) for one in [*frames.texts, ""]])[frames.name]
    ranges = framework.matching(names.CLIPS_GRADIENTS)
    if clips.any() or len(ranges):
        clipping = intervals.union(
            intervals.merge(frames.start_ns[clips], frames.end_ns[clips]),
            intervals.merge(framework.start_ns[ranges], framework.end_ns[ranges]),
        )
        return 2 * intervals.intersect(clipping, loops.host).total_ns > loops.host.total_ns
    return "aten::mul_" in loops.names and any(map(names.NORM, loops.names))


def _is_zero_grad(name: str) -> bool:
    return name.startswith("Optimizer.zero_grad")


def _zeroed_gradients(context: DeviceContext, loops: _Loops) -> Iterator[Cause]:
    """Find gradients that are set to zero, and to which the backward pass then adds."""
    zeros = loops.rows & context.matches(context.operator, names.FILL_OPERATION)
    zeros |= context.launched_in(_is_zero_grad)
    context.explained[zeros] = True
    added = context.launched_in(names.ACCUMULATES_GRADIENT) & (context.tasks.kind == KERNEL)
    added &= context.matches(context.operator, names.ADDITION)
    count, rows = int(zeros.sum()), np.flatnonzero(zeros | added)
    # If a step has several backward passes, all but the first have to add.
    first = min(count / max(int(added.sum()), 1), 1.0)
    cost = _launch_costs(context, rows, np.where(zeros[rows], 1.0, first))
    if not count or cost.share < WARN_SHARE:
        return
    framework = context.recording.framework
    assert framework is not None
    calls = framework.outermost(context.recording.work.connection[context.tasks.row[rows]])
    calls = np.union1d(calls[calls >= 0], context.ranges(_is_zero_grad, ahead=True))
    yield cost.finding(
        f"zeroed gradients: {percent(cost.share)} of the time, "
        f"{plural(count // context.step_count, 'kernel')} per step set gradients to zero, and the "
        "backward pass adds to them",
        "call zero_grad() with set_to_none=True, its default: the backward pass then writes "
        "gradients instead of adding to them",
        Selection(ranges=calls),
        kind="zeroed_gradients",
    )


_PASSES = 2  # Tensors that one of several operations of an optimizer reads or writes.


def dense_embedding(context: DeviceContext) -> Iterator[Cause]:
    """Find embeddings whose gradients are mostly zeros, with which an optimizer updates all rows.

    The optimizer moves the bytes of a filled gradient several times.
    """
    fill = context.matches(context.operator, names.FILL_OPERATION)
    kernels, length = context.tasks.kind == KERNEL, context.tasks.length_ns
    inside = context.launched_in(names.UPDATES_EMBEDDING) & kernels
    zeros, updates = inside & fill, context.in_optimizer & kernels & ~fill
    fill_ns, all_ns = int(length[zeros].sum()), int(length[updates].sum())
    # Writing the rows of the batch takes longer if they are most of the table.
    if fill_ns <= length[inside & ~fill].sum() or not all_ns:
        return
    fused = context.matches(context.kernel, names.FUSED_ADAM)[updates].any()
    passes = _FUSED_PASSES if fused else _PASSES * len(np.unique(context.operator[updates]))
    rows = np.flatnonzero(zeros | updates)
    lost_ns = length[rows] * np.where(zeros[rows], 1.0, min(fill_ns * passes / all_ns, 1.0))
    if (share := context.share(float(lost_ns.sum()))) < DENSE_SHARE:
        return
    context.explained[zeros] = True
    yield context.tasks_finding(
        f"dense embedding gradients: {percent(share)} of the time, gradients are filled with "
        "zeros and all rows are updated",
        rows,
        lost_ns,
        advice=SPARSE_GRADIENTS,
        sure="likely",
        least=WARN_SHARE,
        figures={"fill_ns": fill_ns},
    )
