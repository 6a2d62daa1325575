"""Kernels whose grid leaves most of a GPU empty."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, percent
from unified_prof.analysis.finding import Finding
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING

LOW_OCCUPANCY = "low_occupancy"

KERNELS_SHARE = 0.05
"""Of the time: kernels that have less than one block for each processor of the GPU."""
_PARTS = 1_000_000

# Few blocks on purpose: matrix products, attention, collectives, kernels that stay.
_ON_PURPOSE = re.compile(
    r"gemm|cutlass|nvjet|cijk_|tensorop|splitk|matmul|conv|wgrad|dgrad|fprop|flash|fmha|attention"
    r"|nccl|rccl|persistent|cooperative",
    re.IGNORECASE,
)


def low_occupancy(case: Case) -> Iterator[Finding]:
    """Kernels of which some processors of the GPU get no block at all."""
    recording, pieces = case.recording, case.pieces
    found = recording.source.integers(
        "UPROF_GPU_TASKS",
        {"id": "globalTaskId", "blocks": f"CAST(blocksPerSm * {_PARTS} AS INTEGER)"},
    )
    task = recording.work.task[pieces.row]
    row = Lookup(found["id"]).rows(np.append(recording.tasks.identity, MISSING)[task])
    blocks = np.append(found["blocks"], MISSING)[row] / _PARTS
    tiny = (row >= 0) & (blocks > 0) & (blocks < 1) & (pieces.kind == KERNEL)
    tiny &= ~case.named(case.kernel, _ON_PURPOSE) & ~case.named(case.operator, _ON_PURPOSE)
    rows = np.flatnonzero(tiny)
    total = case.within(pieces.start_ns[rows], pieces.end_ns[rows]).total_ns
    lost = pieces.length_ns[rows] * (1 - blocks[rows])
    cost = case.gains(rows, lost)
    if case.share(total) < KERNELS_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        LOW_OCCUPANCY,
        cost,
        f"{len(rows):,} kernels have less than one block for each processor of the GPU; they take "
        f"{percent(case.share(total))} of the time",
        advice="give them more to do at once: a larger batch, fused neighbours, torch.compile, or "
        "independent ones on several streams",
        sure="possible",
        figures={"kernels": len(rows), "kernel_ns": total},
        evidence=case.rows(rows, lost.astype(np.int64)),
    )
