"""An optimizer that updates one parameter after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.limits import WARN_SHARE, percent
from unified_prof.analysis.finding import Finding
from unified_prof.analysis.read.framework import OTHER_PASS
from unified_prof.arrays import intervals

UNFUSED_OPTIMIZER = "unfused_optimizer"

OPTIMIZER_SHARE = 0.05
"""Of the time: its kernels and what the device waits for between them."""
MANY = 100
"""Kernels (or operations) of one step: foreach and fused optimizers need a few dozen."""
TOGETHER = 0.5
"""Share of kernels that update many parameters at once, from which it is fused enough."""

_TOGETHER = re.compile(r"multi_tensor|fused|foreach|apply_?(?:adam|momentum)", re.IGNORECASE)
_STEP = re.compile(r"^Optimizer\.step")


def unfused_optimizer(case: Case) -> Iterator[Finding]:
    """Many small kernels below an optimizer's step, and a device that waits for each."""
    if case.device is None:
        yield from _on_host(case)
        return
    pieces, work = case.pieces, case.recording.work
    mine = (work.launches[1][pieces.row] == OTHER_PASS) & (pieces.kind == KERNEL)
    count = int(mine.sum())
    if count < MANY * case.step_count:
        return
    together = mine & (case.named(case.kernel, _TOGETHER) | case.named(case.operator, _TOGETHER))
    if together.sum() >= TOGETHER * count:
        return
    own = np.zeros(len(work), bool)
    own[pieces.row[mine]] = True
    cost = case.starved_ns(own)
    busy = case.within(pieces.start_ns[mine], pieces.end_ns[mine]).total_ns
    share = case.share(busy + cost)
    if share < OPTIMIZER_SHARE or case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        UNFUSED_OPTIMIZER,
        cost,
        f"the optimizer takes {percent(share)} of the time in {count // case.step_count:,} kernels "
        f"a step, and the device waits for the host between them",
        advice="fused=True or foreach=True of the optimizer (torch_npu: NpuFusedAdamW and others)",
        sure="certain",
        figures={"kernels": count, "busy_ns": busy, "idle_ns": cost, "share": round(share, 4)},
        evidence=case.rows(np.flatnonzero(mine)),
    )


def _on_host(case: Case) -> Iterator[Finding]:
    framework = case.recording.framework
    assert framework is not None
    steps = framework.matching(lambda name: bool(_STEP.match(name)))
    steps = steps[case.inside(framework.start_ns[steps])]
    if not len(steps):
        return
    whole = case.within(framework.start_ns[steps], framework.end_ns[steps])
    calls = framework.calls
    last = np.searchsorted(whole.start_ns, framework.start_ns[calls], side="right") - 1
    calls = calls[(last >= 0) & (framework.start_ns[calls] < np.append(whole.end_ns, 0)[last])]
    texts, number = framework.names(calls)
    together = np.array([bool(_TOGETHER.search(text)) for text in [*texts, ""]])[number]
    if len(calls) < MANY * case.step_count or together.sum() >= TOGETHER * len(calls):
        return
    working = intervals.merge(framework.start_ns[calls], framework.end_ns[calls])
    cost = intervals.subtract(whole, working).total_ns
    share = case.share(whole.total_ns)
    if share < OPTIMIZER_SHARE or case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        UNFUSED_OPTIMIZER,
        cost,
        f"the optimizer takes {percent(share)} of the time in {len(calls) // case.step_count:,} "
        "operations a step; between them only Python runs",
        advice="fused=True or foreach=True of the optimizer",
        sure="certain",
        figures={"operations": len(calls), "between_ns": cost, "share": round(share, 4)},
    )
