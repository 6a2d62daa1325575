"""How collectives of NPUs move their bytes: alignment, contention, retransmission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain import classes
from unified_prof.analysis.explain.advice.case import Case, Flags, Ints
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, percent
from unified_prof.analysis.finding import Finding
from unified_prof.arrays import intervals
from unified_prof.arrays.lookup import Lookup
from unified_prof.units import NS_PER_S

UNALIGNED_MESSAGES = "unaligned_messages"
LINK_CONTENTION = "link_contention"
RETRANSMISSION = "retransmission"

ALIGNED_BYTES = 512
"""SDMA moves whole blocks of this size."""
AFFECTED_SHARE = 0.2
"""Of the time of SDMA; the advisor's lowest degree."""
SLOW_SHARE = 0.8
"""Of the rate that transfers have while no matrix product runs."""
LARGE_BYTES = 1 << 20
"""Smaller transfers tell no rate."""
RETRIED_NS = 4 * NS_PER_S
"""RDMA repeats a message that is not acknowledged after four seconds; the advisor's."""
FEW = 5
"""Transfers on either side of a comparison."""
_SDMA, _RDMA, _ON_CHIP = 0, 1, 0


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers:
    start_ns: Ints
    length_ns: Ints
    size_bytes: Ints
    transport: Ints
    link: Ints
    op: Ints

    def take(self, chosen: Flags) -> _Transfers:
        columns = (getattr(self, name)[chosen] for name in self.__slots__)
        return _Transfers(*columns)

    @property
    def end_ns(self) -> Ints:
        return self.start_ns + self.length_ns

    @property
    def rate(self) -> float:
        """Median bytes a nanosecond."""
        return float(np.median(self.size_bytes / np.maximum(self.length_ns, 1)))


def _transfers(case: Case) -> _Transfers:
    """Return the tasks of collectives in the judged time that moved bytes."""
    tasks = case.recording.tasks
    found = case.recording.source.integers(
        "COMMUNICATION_TASK_INFO",
        {
            "id": "globalTaskId",
            "size": "coalesce(size, -1)",
            "transport": "coalesce(transportType, -1)",
            "link": "coalesce(linkType, -1)",
            "op": "coalesce(opId, -1)",
        },
    )
    row = Lookup(tasks.identity).rows(found["id"])
    known = (row >= 0) & (found["size"] > 0)
    row = row[known]
    start = tasks.start_ns[row]
    mine = case.inside(start)
    if case.number is not None:
        mine &= tasks.device[row] == case.number
    columns = {name: values[known][mine] for name, values in found.items()}
    length = tasks.duration_ns[row][mine]
    return _Transfers(
        start[mine], length, columns["size"], columns["transport"], columns["link"], columns["op"]
    )


def _exposed(case: Case, chosen: _Transfers) -> int:
    """Return how long transfers stand alone."""
    own = case.within(chosen.start_ns, chosen.end_ns)
    return intervals.subtract(own, case.compute).total_ns


def unaligned_messages(case: Case) -> Iterator[Finding]:
    """Transfers by SDMA whose sizes are no multiple of what it moves at once."""
    moved = _transfers(case)
    sdma = moved.take((moved.transport == _SDMA) & (moved.link != _ON_CHIP))
    odd = (sdma.size_bytes > ALIGNED_BYTES) & (sdma.size_bytes % ALIGNED_BYTES != 0)
    unaligned = sdma.take(odd)
    aligned = sdma.take(~odd & (sdma.size_bytes >= LARGE_BYTES))
    if len(unaligned.op) == 0 or len(aligned.op) < FEW:
        return
    share = float(unaligned.length_ns.sum() / max(sdma.length_ns.sum(), 1))
    slower = max(0.0, 1 - unaligned.rate / aligned.rate)
    cost = min(slower * float(unaligned.length_ns.sum()), float(_exposed(case, unaligned)))
    if share < AFFECTED_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        UNALIGNED_MESSAGES,
        cost,
        f"{len(unaligned.op):,} transfers, {percent(share)} of the time of SDMA, have sizes that "
        f"are no multiple of 512 bytes: {unaligned.rate:.1f} GB/s against {aligned.rate:.1f}",
        advice="pad buckets and shards to a multiple of 512 bytes",
        sure="likely",
        figures={
            "transfers": len(unaligned.op),
            "share_of_sdma": round(share, 4),
            "gb_per_s": round(unaligned.rate, 3),
            "aligned_gb_per_s": round(aligned.rate, 3),
        },
    )


def link_contention(case: Case) -> Iterator[Finding]:
    """Transfers by SDMA that are slower while matrix products run than else."""
    moved = _transfers(case)
    sdma = moved.take(
        (moved.transport == _SDMA) & (moved.link != _ON_CHIP) & (moved.size_bytes >= LARGE_BYTES)
    )
    texts = case.recording.work.labels.texts
    products = [
        number
        for number in np.unique(case.operator).tolist()
        if classes.of_kernel(texts[number]) == classes.MATMUL
    ]
    computing = np.isin(case.operator, products) & (case.pieces.kind == KERNEL)
    product = intervals.merge(case.pieces.start_ns[computing], case.pieces.end_ns[computing])
    low = np.searchsorted(product.end_ns, sdma.start_ns, side="right")
    high = np.searchsorted(product.start_ns, sdma.end_ns, side="left")
    beside, alone = sdma.take(high > low), sdma.take(high <= low)
    if len(beside.op) < FEW or len(alone.op) < FEW or beside.rate >= SLOW_SHARE * alone.rate:
        return
    lost = float((beside.length_ns - beside.size_bytes / alone.rate).clip(0).sum())
    cost = min(lost, float(_exposed(case, beside)))
    if case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        LINK_CONTENTION,
        cost,
        f"{len(beside.op):,} transfers beside matrix products move {beside.rate:.1f} GB/s, without "
        f"them {alone.rate:.1f}: both want the same memory",
        advice="compare with overlap switched off for these layers, or start them later",
        sure="possible",
        figures={
            "transfers": len(beside.op),
            "gb_per_s": round(beside.rate, 3),
            "alone_gb_per_s": round(alone.rate, 3),
        },
    )


def retransmission(case: Case) -> Iterator[Finding]:
    """A collective of four seconds and more that spends them moving bytes by RDMA."""
    moved = _transfers(case)
    rdma = moved.take(moved.transport == _RDMA)
    slow = rdma.take(rdma.length_ns > RETRIED_NS)
    if not len(slow.op) or len(rdma.op) < FEW:
        return
    cost = float((slow.length_ns - np.median(rdma.length_ns)).sum())
    cost = min(cost, float(_exposed(case, slow)))
    if case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        RETRANSMISSION,
        cost,
        f"{len(slow.op):,} transfers by RDMA take more than four seconds: messages were sent again",
        advice="look at the switch (PFC, lost packets), HCCL_RDMA_TC and HCCL_RDMA_SL, and the "
        "counters of the network cards",
        sure="likely",
        figures={"transfers": len(slow.op), "longest_ns": int(slow.length_ns.max())},
    )
