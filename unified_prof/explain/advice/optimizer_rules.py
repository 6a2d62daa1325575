"""Advice rules about optimizers: loops over parameters, passes over all, dense gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.explain.advice.device_context import Cause, DeviceContext, is_optimizer_step
from unified_prof.explain.advice.idle_segments import TAIL_NS, WARN_SHARE, Flags, percent
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.idle import LAUNCHED

OPTIMIZER_SHARE = 0.05  # Minimum share of the time, kernels and idle time between them included.
# Minimum kernels (or operations) per step; foreach and fused optimizers need a few dozen.
MIN_OPTIMIZER_KERNELS = 100
FUSED_SHARE = 0.5  # Share of multi-tensor kernels from which an optimizer counts as fused.
# Fusion saves the start and end of kernels, and this share of the rest, because Adam reads and
# writes 7 tensors instead of 14.
TRAFFIC_SHARE = 0.5
LAUNCH_GAP_NS = 10_000  # Longer gaps between kernels are not launch gaps of the device.


def unfused_optimizer(context: DeviceContext) -> Iterator[Cause]:
    """Find many small kernels of an optimizer.

    A fused optimizer saves the host-bound time before them; if the host is ahead, the gaps between
    them, their tails and part of their memory traffic.
    """
    if context.device is None:
        yield from _unfused_on_host(context)
        return
    tasks, work = context.tasks, context.recording.work
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
    launched = np.zeros(len(work), bool)
    launched[tasks.row[rows]] = True
    host_bound_ns = 0
    gap_ns = np.zeros(len(work), np.int64)
    for idle, host_bound in context.host_bound_windows():
        before = launched[idle.task] & (idle.task >= 0)
        gap = before & ~host_bound & (idle.reason == LAUNCHED) & (idle.length_ns <= LAUNCH_GAP_NS)
        host_bound_ns += int(idle.length_ns[before & host_bound].sum())
        np.add.at(gap_ns, idle.task[gap], idle.length_ns[gap])
    length = tasks.length_ns[rows]
    tail = np.minimum(length, TAIL_NS)
    saved_ns = tail + TRAFFIC_SHARE * (length - tail) + gap_ns[tasks.row[rows]]
    steps = context.ranges(is_optimizer_step, ahead=True)
    change = context.saving(rows, saved_ns) | Selection(ranges=steps)
    cost = host_bound_ns + saved_ns.sum()
    busy_ns = context.busy_ns(rows)
    share = context.share(busy_ns + host_bound_ns + int(gap_ns.sum()))
    if share < OPTIMIZER_SHARE:
        return
    yield context.finding(
        cost,
        f"unfused optimizer: {percent(share)} of the time, {count // context.step_count:,} "
        f"kernels per step; {percent(context.share(host_bound_ns))} of the time is host-bound "
        "idle time before them",
        advice="pass fused=True or foreach=True to the optimizer (torch_npu: NpuFusedAdamW and "
        "others)",
        sure="certain" if 2 * host_bound_ns > cost else "likely",
        change=change,
        least=WARN_SHARE,
        figures={
            "kernels": count,
            "busy_ns": busy_ns,
            "idle_ns": host_bound_ns,
            "gap_ns": int(gap_ns.sum()),
            "share": round(share, 4),
        },
        evidence=context.evidence(rows),
    )


# An optimizer of fewer operations has little to fuse; a smaller share is usual with foreach.
MIN_PASSES, PASSES_SHARE = 5, 0.20


def _many_passes(context: DeviceContext, selected: Flags) -> Iterator[Cause]:
    """Find a large optimizer whose operations each read and write all parameters (foreach)."""
    rows = np.flatnonzero(selected)
    passes, busy_ns = len(np.unique(context.operator[rows])), context.busy_ns(rows)
    if passes < MIN_PASSES or context.share(busy_ns) < PASSES_SHARE:
        return
    yield context.tasks_finding(
        f"unfused optimizer: {percent(context.share(busy_ns))} of the time, {passes} operations "
        "that each read and write the parameters or their state",
        rows,
        TRAFFIC_SHARE * context.tasks.length_ns[rows],
        advice="pass fused=True to the optimizer",
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
        advice="pass fused=True or foreach=True to the optimizer",
        sure="certain",
        figures={"operations": len(calls), "between_ns": cost, "share": round(share, 4)},
    )


# Times that an optimizer reads or writes a parameter: fused Adam, or each of several operations.
_FUSED_PASSES, _PASSES = 7, 2
DENSE_SHARE = 0.10  # Minimum share of the time of dense gradients of embeddings.


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
        advice="pass sparse=True to these embeddings, with SGD or SparseAdam, or use tables that "
        "are updated in the backward pass (torchrec, FBGEMM)",
        sure="likely",
        least=WARN_SHARE,
        figures={"fill_ns": fill_ns},
    )
