"""The device runs dry because the host launches too slowly; and kernels too short to be fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.limits import ROWS, percent
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.views.idle import HOST, LAUNCHED

HOST_BOUND = "host_bound"
SMALL_KERNELS = "small_kernels"

IDLE_SHARE = 0.10
"""A device that idles for less of a step is well fed: MindStudio's advisor warns from here, too."""
SMALL_NS = 10_000
"""Launching takes a host 5 to 10 µs: kernels that are shorter on average cannot keep it ahead."""
LONG_NS = 1_000_000
"""No launch takes so long: in a gap like this the host does something else."""
MANY_LAUNCHES = 100
"""Of a step: fewer launches are no matter of their number."""


def host_bound(case: Case) -> Iterator[Finding]:
    """Idle time before work that the host had not launched yet."""
    if case.share(case.at_most(HOST) + case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    idle, mine = case.idle, case.starved
    cost = int(idle.length_ns[mine].sum())
    if case.share(cost) < IDLE_SHARE:
        return
    gaps = len(np.unique(idle.piece[mine]))
    reaching_ns = int(idle.length_ns[mine & (idle.reason == LAUNCHED)].sum())
    long = mine & (idle.length_ns >= LONG_NS)
    long_ns = int(idle.length_ns[long].sum())
    elsewhere = 2 * long_ns > cost
    most = (
        f"; {percent(long_ns / cost)} of that in {int(long.sum()):,} gaps of 1 ms and more, in "
        "which it does something else than launching"
    )
    reaching = (
        f"; {percent(reaching_ns / cost)} of that is what launches take to reach a device that has "
        "nothing else to do"
    )
    yield case.finding(
        HOST_BOUND,
        cost,
        f"the device is idle {percent(case.share(cost))} of the time because the host has not "
        f"launched its next work yet ({gaps:,} gaps){most if elsewhere else ''}"
        f"{reaching if 2 * reaching_ns > cost else ''}",
        advice="see what the program does before these operations: Python's own work, collecting "
        "garbage, metrics, logging, checkpoints; do it less often, or beside the steps"
        if elsewhere
        else "give each launch more work: a larger batch, torch.compile or fused operations; "
        "CUDA graphs (ACL graphs) if shapes do not change",
        sure="certain",
        figures={
            "idle_ns": cost,
            "gaps": gaps,
            "idle_share": round(case.share(cost), 4),
            "longest_gap_ns": int(idle.length_ns[mine].max()),
            "long_gaps": int(long.sum()),
            "long_gaps_ns": long_ns,
            "reaching_ns": reaching_ns,
        },
        evidence=_gaps(case, np.flatnonzero(mine)),
    )


def _gaps(case: Case, gaps: NDArray[np.intp]) -> Sequence[Evidence]:
    """Return the operations that the device waited longest for, each at its line."""
    idle, work = case.idle, case.recording.work
    operator = work.operator[idle.piece[gaps]]
    total = np.bincount(operator, weights=idle.length_ns[gaps])
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    # What launched a kind of work is asked for once; kinds that one place launched are one row.
    for number in np.argsort(-total, kind="stable").tolist():
        own = gaps[operator == number]
        if not len(own):
            break
        longest = int(own[int(idle.length_ns[own].argmax())])
        name, line = work.place(int(idle.piece[longest]))
        row = rows.setdefault(
            (name, line),
            {
                "name": f"before {name}",
                "count": 0,
                "total_ns": 0,
                "start_ns": int(idle.start_ns[longest]),
                **({} if line is None else {"line": line}),
            },
        )
        row["count"] += len(np.unique(idle.piece[own]))
        row["total_ns"] += int(total[number])
    return sorted(rows.values(), key=lambda row: -int(row["total_ns"]))[:ROWS]


def small_kernels(case: Case) -> Iterator[Finding]:
    """Kernels that take less time than their launches, in steps that wait for the host."""
    if case.share(case.at_most(HOST) + case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    idle, pieces, waited = case.idle, case.pieces, case.starved
    if case.share(int(idle.length_ns[waited].sum())) < IDLE_SHARE:
        return
    kernels = np.flatnonzero(pieces.kind == KERNEL)
    calls = case.recording.host_calls
    launch = calls.launching(case.recording.work.connection[pieces.row[kernels]])
    kernels, launch = kernels[launch >= 0], launch[launch >= 0]
    # A graph launches many kernels with one call: those cost the host nothing each.
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
    next_to = waited & np.isin(idle.piece, pieces.row[kernels])
    cost = min(int(idle.length_ns[next_to].sum()), launch_ns - kernel_ns)
    mean_us = kernel_ns / len(kernels) / 1e3
    each = launch_ns / len(kernels) / 1e3
    yield case.finding(
        SMALL_KERNELS,
        cost,
        f"{len(kernels) // case.step_count:,} kernels a step take {mean_us:.1f} µs each, launching "
        f"one takes the host {each:.1f} µs",
        advice="make fewer kernels of them: torch.compile, fused or foreach operations and "
        "optimizers; CUDA graphs (ACL graphs) if every step launches the same",
        sure="certain",
        figures={
            "kernels": len(kernels),
            "kernel_ns": kernel_ns,
            "launch_ns": launch_ns,
            "mean_ns": round(kernel_ns / len(kernels)),
        },
        evidence=case.rows(kernels),
    )
