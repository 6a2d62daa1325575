"""Advice rules about links of NPUs: block sizes of SDMA, contention, retransmission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints, Lookup
from unified_prof.base.text import NS_PER_S
from unified_prof.explain.advice.communication_rules import (
    EXPOSED_SHARE,
    ON_CHIP,
    RDMA,
    SDMA,
    Messages,
)
from unified_prof.explain.advice.device_context import Cause, DeviceContext
from unified_prof.explain.advice.idle_segments import MIN_SHARE, duration, percent, plural
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL

ALIGNED_BYTES = 512  # SDMA transfers whole blocks of this size.
AFFECTED_SHARE = 0.2  # Minimum share of SDMA time (MindStudio advisor's lowest level).
SLOW_SHARE = 0.8  # Maximum rate during matrix kernels, as a share of the rate without them.
LARGE_BYTES = 1 << 20  # Smaller transfers are not used to determine a rate.
# RDMA retransmits a message that is not acknowledged within 4 s (MindStudio advisor's threshold).
RETRANSMITTED_NS = 4 * NS_PER_S
# Minimum number of transfers on each side of a comparison.
MIN_TRANSFERS = 5


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers(Frame):
    """Tasks of collectives that transferred bytes within the analyzed steps."""

    start_ns: Ints
    length_ns: Ints
    size_bytes: Ints
    transport: Ints
    link: Ints

    @property
    def sdma(self) -> _Transfers:
        """Transfers between devices by SDMA."""
        return self.take((self.transport == SDMA) & (self.link != ON_CHIP))

    @property
    def end_ns(self) -> Ints:
        return self.start_ns + self.length_ns

    @property
    def rate(self) -> float:
        """Median rate in bytes per ns, that is GB/s."""
        return float(np.median(self.size_bytes / np.maximum(self.length_ns, 1)))


def _slow_transfers(
    context: DeviceContext,
    transfers: _Transfers,
    lost_ns: float,
    text: str,
    *,
    figures: dict[str, Any],
    **details: Any,
) -> Iterator[Cause]:
    """Find transfers that lose time, as far as they are not overlapped with compute."""
    transferring = context.clip(transfers.start_ns, transfers.end_ns)
    messages, total_ns = Messages(context), max(int(transfers.length_ns.sum()), 1)
    inside_ns = intervals.covered(transferring, messages.start, messages.end)
    change = messages.saving(inside_ns * min(lost_ns / total_ns, 1.0))
    cost = min(lost_ns, float(intervals.subtract(transferring, context.compute).total_ns))
    if context.share(cost) >= MIN_SHARE:
        figures = {"transfers": len(transfers), **figures}
        yield context.finding(cost, text, change=change, figures=figures, **details)


def _transfers(context: DeviceContext) -> _Transfers:
    tasks = context.recording.tasks
    table = context.recording.source.integers(
        "COMMUNICATION_TASK_INFO",
        {
            "id": "globalTaskId",
            "size": "coalesce(size, -1)",
            "transport": "coalesce(transportType, -1)",
            "link": "coalesce(linkType, -1)",
        },
    )
    row = Lookup(tasks.identity).rows(table["id"])
    selected = (row >= 0) & (table["size"] > 0)
    selected &= context.is_analyzed(np.append(tasks.start_ns, 0)[row])
    if context.device_id is not None:
        selected &= np.append(tasks.device, -1)[row] == context.device_id
    row = row[selected]
    columns = (table[name][selected] for name in ("size", "transport", "link"))
    return _Transfers(tasks.start_ns[row], tasks.duration_ns[row], *columns)


def unaligned_messages(context: DeviceContext) -> Iterator[Cause]:
    """Find SDMA transfers whose sizes are not a multiple of the SDMA block size."""
    sdma = _transfers(context).sdma
    is_unaligned = (sdma.size_bytes > ALIGNED_BYTES) & (sdma.size_bytes % ALIGNED_BYTES != 0)
    unaligned = sdma.take(is_unaligned)
    aligned = sdma.take(~is_unaligned & (sdma.size_bytes >= LARGE_BYTES))
    share = float(unaligned.length_ns.sum() / max(sdma.length_ns.sum(), 1))
    if not len(unaligned) or share < AFFECTED_SHARE:
        return
    advice = "pad buckets and shards to a multiple of 512 bytes"
    if len(aligned) < MIN_TRANSFERS:
        if context.share(Messages(context).exposed.total_ns) >= EXPOSED_SHARE:
            yield context.finding(
                0,
                f"unaligned messages: {plural(len(unaligned), 'transfer')} ({percent(share)} of "
                f"SDMA time) with sizes that are not a multiple of {ALIGNED_BYTES} bytes; the "
                "saving is unknown without aligned ones",
                advice=advice,
                sure="possible",
                figures={"transfers": len(unaligned), "share_of_sdma": round(share, 4)},
            )
        return
    slower = max(0.0, 1 - unaligned.rate / aligned.rate)
    yield from _slow_transfers(
        context,
        unaligned,
        slower * float(unaligned.length_ns.sum()),
        f"unaligned messages: {plural(len(unaligned), 'transfer')} ({percent(share)} of SDMA "
        f"time) with sizes that are not a multiple of 512 bytes reach {unaligned.rate:.1f} GB/s, "
        f"aligned ones {aligned.rate:.1f} GB/s",
        advice=advice,
        sure="likely",
        figures={
            "share_of_sdma": round(share, 4),
            "gb_per_s": round(unaligned.rate, 3),
            "aligned_gb_per_s": round(aligned.rate, 3),
        },
    )


def link_contention(context: DeviceContext) -> Iterator[Cause]:
    """Find SDMA transfers that are slower while matrix kernels run."""
    sdma = _transfers(context).sdma
    sdma = sdma.take(sdma.size_bytes >= LARGE_BYTES)
    tasks = context.tasks
    matmul = context.in_class(names.MATMUL) & (tasks.kind == KERNEL)
    matmuls = tasks.spans(matmul)
    low = np.searchsorted(matmuls.end_ns, sdma.start_ns, side="right")
    high = np.searchsorted(matmuls.start_ns, sdma.end_ns, side="left")
    during, other = sdma.take(high > low), sdma.take(high <= low)
    if min(len(during), len(other)) < MIN_TRANSFERS or during.rate >= SLOW_SHARE * other.rate:
        return
    lost = float((during.length_ns - during.size_bytes / other.rate).clip(0).sum())
    yield from _slow_transfers(
        context,
        during,
        lost,
        f"link contention: {plural(len(during), 'transfer')} during matrix kernels reach "
        f"{during.rate:.1f} GB/s, others {other.rate:.1f} GB/s: they compete for memory bandwidth",
        advice="compare with overlap disabled for these layers, or start the transfers later",
        sure="possible",
        figures={"gb_per_s": round(during.rate, 3), "alone_gb_per_s": round(other.rate, 3)},
    )


def retransmission(context: DeviceContext) -> Iterator[Cause]:
    """Find messages that HCCL sent again, and RDMA transfers of 4 s or more."""
    advice = (
        "check the switch (PFC, packet loss), HCCL_RDMA_TC and HCCL_RDMA_SL, and the counters of "
        "the network cards"
    )
    messages = Messages(context, "retried")
    if len(messages.rows):
        usual = Messages(context, "others")
        usual_ns = np.median(usual.length) if len(usual.rows) else 0
        lost_ns = np.minimum(messages.alone_ns, (messages.length - usual_ns).clip(0))
        if context.share(float(lost_ns.sum())) >= MIN_SHARE:
            yield context.finding(
                float(lost_ns.sum()),
                f"retransmission: HCCL sent {plural(len(messages.rows), 'message')} again, up to "
                f"{duration(int(messages.length.max()))} long",
                advice=advice,
                sure="likely",
                change=messages.saving(lost_ns),
                figures={"retried": len(messages.rows), "longest_ns": int(messages.length.max())},
                evidence=messages.evidence(),
            )
        return
    transfers = _transfers(context)
    rdma = transfers.take(transfers.transport == RDMA)
    slow = rdma.take(rdma.length_ns > RETRANSMITTED_NS)
    if not len(slow) or len(rdma) < MIN_TRANSFERS:
        return
    yield from _slow_transfers(
        context,
        slow,
        float((slow.length_ns - np.median(rdma.length_ns)).sum()),
        f"retransmission: {plural(len(slow), 'RDMA transfer')} of more than 4 s",
        advice=advice,
        sure="likely",
        figures={"longest_ns": int(slow.length_ns.max())},
    )
