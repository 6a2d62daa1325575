"""Advice rules about kernels that could be fused: optimizers and chains of element-wise kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.explain.advice.device_context import Cause, DeviceContext
from unified_prof.explain.advice.idle_segments import WARN_SHARE, percent, plural
from unified_prof.explain.advice.kernel_rules import layout_kernels
from unified_prof.explain.what_if import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.idle import LAUNCHED

OPTIMIZER_SHARE = 0.05  # Minimum share of the time, kernels and idle time between them included.
# Minimum kernels (or operations) per step; foreach and fused optimizers need a few dozen.
MIN_OPTIMIZER_KERNELS = 100
FUSED_SHARE = 0.5  # Share of multi-tensor kernels from which an optimizer counts as fused.
# Start and end of a kernel in which the device is mostly idle: fusion saves all of it...
TAIL_NS = 2_000
# ...and this share of the rest, because Adam reads and writes 7 tensors instead of 14.
TRAFFIC_SHARE = 0.5
LAUNCH_GAP_NS = 10_000  # Longer gaps between kernels are not launch gaps of the device.


def _is_step(name: str) -> bool:
    return name.startswith("Optimizer.step")


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
    count = int(selected.sum())
    if count < MIN_OPTIMIZER_KERNELS * context.step_count:
        return
    fused = context.matches(context.kernel, names.MULTI_TENSOR)
    fused |= context.matches(context.operator, names.MULTI_TENSOR)
    if (selected & fused).sum() >= FUSED_SHARE * count:
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
    steps = context.ranges(_is_step, ahead=True)
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


def _unfused_on_host(context: DeviceContext) -> Iterator[Cause]:
    """Find many operations of an optimizer with Python between them, without device tasks."""
    framework = context.recording.framework
    assert framework is not None
    steps = context.ranges(_is_step)
    if not len(steps):
        return
    optimizer = context.clip(framework.start_ns[steps], framework.end_ns[steps])
    calls = framework.calls
    calls = calls[intervals.holding(optimizer, framework.start_ns[calls]) >= 0]
    texts, number = framework.names(calls)
    fused = np.array([names.MULTI_TENSOR(text) for text in [*texts, ""]])[number]
    if len(calls) < MIN_OPTIMIZER_KERNELS * context.step_count:
        return
    if fused.sum() >= FUSED_SHARE * len(calls):
        return
    working = intervals.merge(framework.start_ns[calls], framework.end_ns[calls])
    cost = intervals.subtract(optimizer, working).total_ns
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


# Minimum share of kernel time of memory-bound kernels that torch.compile could fuse.
ELEMENTWISE_SHARE = 0.20
_FUSIBLE = (
    names.ELEMENT_WISE,
    names.CAST,
    names.REDUCTION,
    names.NORMALISATION,
)


def unfused_elementwise(context: DeviceContext) -> Iterator[Cause]:
    """Find chains of memory-bound kernels on a GPU in a program without torch.compile.

    One kernel per chain would move the bytes of the longest kernel of the chain.
    """
    if context.is_compiled or "UPROF_GPU_TASKS" not in context.recording.source.tables:
        return
    tasks = context.tasks
    selected = context.in_class(*_FUSIBLE) & (tasks.kind == KERNEL) & ~context.in_optimizer
    # `casts_and_copies` has these: avoiding them saves more than fusing them.
    selected &= ~layout_kernels(context) & ~context.explained
    kernel_ns = int(tasks.length_ns[tasks.kind == KERNEL].sum())
    share = int(tasks.length_ns[selected].sum()) / kernel_ns if kernel_ns else 0.0
    if share < ELEMENTWISE_SHARE:
        return
    order = np.lexsort((tasks.start_ns, tasks.stream))
    stream, fusible = tasks.stream[order], selected[order]
    breaks = np.append(True, (stream[1:] != stream[:-1]) | ~(fusible[1:] & fusible[:-1]))
    chain = np.cumsum(breaks[: len(order)]) - 1
    rows, chain = order[fusible], chain[fusible]
    length = tasks.length_ns[rows]
    longest = np.zeros(int(chain.max()) + 1, np.int64)
    np.maximum.at(longest, chain, length)
    # The longest kernel of each chain stays.
    first = np.lexsort((np.arange(len(rows)), -length, chain))
    stays = np.append(True, np.diff(chain[first]) != 0)
    removed = np.ones(len(rows), bool)
    removed[first[stays]] = False
    yield context.tasks_finding(
        f"unfused element-wise kernels: {plural(len(rows), 'memory-bound kernel')} (element-wise, "
        f"casts, reductions, normalization), {percent(share)} of kernel time, in "
        f"{plural(int(stays.sum()), 'chain')}",
        rows[removed],
        advice="use torch.compile, or fused operations (RMSNorm, rotary embedding, SwiGLU, "
        "dropout and residual)",
        sure="possible",
        least=WARN_SHARE,
        figures={
            "kernels": len(rows),
            "chains": int(stays.sum()),
            "share_of_compute": round(share, 4),
        },
    )
