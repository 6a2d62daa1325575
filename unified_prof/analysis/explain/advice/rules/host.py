"""The device runs dry because the host launches too slowly; and kernels too short to be fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case, Flags
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
TOLD_SHARE = 0.05
"""Of that idle time: so much of it on the way from launch to device is said."""
MANY_LAUNCHES = 100
"""Of a step: fewer launches are no matter of their number."""


def host_bound(case: Case) -> Iterator[Finding]:
    """Idle time before work that the host had not launched yet."""
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
        f"; {percent(long_ns / cost)} of that in {long:,} gaps of 1 ms and more, in "
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
        f"{reaching if reaching_ns >= TOLD_SHARE * cost else ''}",
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
            "longest_gap_ns": longest,
            "long_gaps": long,
            "long_gaps_ns": long_ns,
            "reaching_ns": reaching_ns,
        },
        evidence=_gaps(case),
    )


def _firsts(piece: NDArray[np.int32]) -> Flags:
    """Tell which stretches are the first that a piece ends: those of one follow one another."""
    found: Flags = np.append(True, piece[1:] != piece[:-1])[: len(piece)]
    return found


def _gaps(case: Case) -> Sequence[Evidence]:
    """Return the operations that the device waited longest for, each at its line."""
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
        # One piece may end several stretches.
        count += np.bincount(operator[_firsts(own.piece)], minlength=size)
        most = longest.copy()
        np.maximum.at(most, operator, length)
        # From the last to the first, so that of several the first one stays.
        better = np.flatnonzero((length == most[operator]) & (length > longest[operator]))[::-1]
        at = operator[better]
        longest[at], piece[at], begin[at] = length[better], own.piece[better], own.start_ns[better]
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    # What launched a kind of work is asked for once; kinds that one place launched are one row.
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
    """Kernels that take less time than their launches, in steps that wait for the host."""
    if case.share(case.at_most(HOST) + case.at_most(LAUNCHED)) < IDLE_SHARE:
        return
    if case.share(case.starved_ns()) < IDLE_SHARE:
        return
    pieces = case.pieces
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
    own = np.zeros(len(case.recording.work), bool)
    own[pieces.row[kernels]] = True
    cost = min(case.starved_ns(own), launch_ns - kernel_ns)
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
