"""Advice rules about communication: exposed, small messages, collective waits, NPU transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Lookup
from unified_prof.arrays.types import Ints
from unified_prof.base.text import NS_PER_S
from unified_prof.explain import kernel_classes
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import LEAST_SHARE, ROWS, WARN_SHARE, percent
from unified_prof.recording import collectives
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.collectives import Messages
from unified_prof.recording.model import Evidence, Finding

EXPOSED_COMMUNICATION = "exposed_communication"
SMALL_BUCKETS = "small_buckets"
WAITING_FOR_RANKS = "waiting_for_ranks"

# Minimum share of the time; the last bucket of a step usually costs less.
EXPOSED_SHARE = 0.10
# Size of the last bucket of a step that nothing can overlap (DDP's default bucket_cap_mb).
BUCKET_BYTES = 25 << 20
# Above this share of communication, waiting for other ranks is the cause, not data transfer.
WAITING_SHARE = 0.5
# Minimum number of messages of one kind and group, each as large or larger, whose fastest defines
# the transfer time.
ENOUGH_ALIKE = 3
# Below this size a message costs its latency: a link of 25 GB/s moves 1 MiB in 40 µs.
SMALL_BYTES = 1 << 20
# The same for SDMA of an NPU (MindStudio advisor's threshold).
SMALL_SDMA_BYTES = 16 << 20
# Minimum share (MindStudio advisor's threshold) and number per step of small messages.
MANY_SMALL, FEW_SMALL = 0.2, 10


class _Talk:
    """Collectives of one device within the analyzed steps."""

    def __init__(self, case: Case) -> None:
        all_of = collectives.messages(case.recording.comms, case.recording.strings)
        mine = case.inside(all_of.start_ns) & (all_of.members != 1)
        if case.number is not None:
            mine &= (all_of.device == case.number) | (all_of.device < 0)
        self.all, self.rows = all_of, np.flatnonzero(mine)
        self.start, self.end = all_of.start_ns[self.rows], all_of.end_ns[self.rows]
        self.exposed = intervals.subtract(case.within(self.start, self.end), case.compute)

    @property
    def length(self) -> Ints:
        return self.end - self.start

    def moving_ns(self) -> Ints:
        """Return the maximum transfer time of each message in ns, -1 if it cannot be determined.

        A message takes no longer to transfer than the fastest message of its kind and group that is
        as large or larger; the rest of its time is waiting.
        """
        size = self.all.size_bytes[self.rows]
        moving = np.full(len(size), -1, np.int64)
        known = np.flatnonzero(size >= 0)
        place = np.stack([self.all.kind[self.rows], self.all.group[self.rows]])[:, known]
        _, number = np.unique(place, axis=1, return_inverse=True)
        number = number.reshape(-1)
        for one in range(int(number.max(initial=-1)) + 1):
            own = known[number == one]
            own = own[np.argsort(-size[own], kind="stable")]
            least = np.minimum.accumulate(self.length[own])
            # Order among messages of one size does not matter.
            as_large = np.searchsorted(-size[own], -size[own], side="right")
            enough = as_large >= ENOUGH_ALIKE
            moving[own[enough]] = least[as_large - 1][enough]
        return moving


def exposed_communication(case: Case) -> Iterator[Finding]:
    """Find communication without overlap with compute, except one last bucket per step."""
    talk = _Talk(case)
    exposed = talk.exposed.total_ns
    if case.share(exposed) < EXPOSED_SHARE:
        return
    each = talk.moving_ns()
    told = each >= 0
    moving, known = int(each[told].sum()), int(talk.length[told].sum())
    waits = known > 0 and moving < (1 - WAITING_SHARE) * known
    figures: dict[str, Any] = {
        "exposed_ns": exposed,
        "exposed_share": round(case.share(exposed), 4),
        "communication_ns": case.within(talk.start, talk.end).total_ns,
        "moving_ns": moving if known else None,
        "messages": len(talk.rows),
    }
    if waits:
        waiting = 1 - moving / known
        yield case.finding(
            WAITING_FOR_RANKS,
            exposed * waiting,
            f"exposed communication: {percent(case.share(exposed))} of the time is not "
            f"overlapped with compute; {percent(waiting)} of it exceeds the transfer time, "
            "mostly waiting for other ranks",
            advice="analyze all ranks together: `uprof cluster build` names the straggling rank, "
            "host or link",
            sure="possible",
            figures=figures,
            evidence=_kinds(talk),
        )
        return
    bucket_ns = _last_buckets_ns(case, talk)
    cost = exposed - bucket_ns
    if case.share(cost) < WARN_SHARE:
        return
    exempt = (
        f"; {percent(case.share(bucket_ns))} is the last bucket of a step, which cannot be "
        "overlapped"
    )
    yield case.finding(
        EXPOSED_COMMUNICATION,
        cost,
        f"exposed communication: {percent(case.share(exposed))} of the time is not "
        f"overlapped with compute{exempt if bucket_ns else ''}",
        advice="overlap it: tune DDP or FSDP buckets (bucket_cap_mb, forward_prefetch), use "
        "gradient accumulation or a separate stream, or change the parallelization",
        sure="likely" if known > exposed / 2 else "possible",
        figures={**figures, "last_bucket_ns": bucket_ns},
        evidence=_kinds(talk),
    )


def _last_buckets_ns(case: Case, talk: _Talk) -> int:
    """Return the exposed time of the last bucket of each step, which cannot be overlapped.

    At most one bucket per step counts: of a larger message its first `BUCKET_BYTES`, of a message
    of unknown size the median length of the messages. A message that a kernel of its step follows
    counts not at all, because the message could overlap with this kernel.
    """
    steps = case.windows
    step = np.searchsorted(steps.start_ns, talk.start, side="right") - 1
    last = np.flatnonzero(np.append(step[1:] != step[:-1], True)[: len(step)])
    if not len(last) or not len(talk.exposed):
        return 0
    start, end = talk.start[last], talk.end[last]
    if len(case.compute):
        step_end = steps.end_ns[step[last]]
        follows = case.covered(case.compute, step_end) > case.covered(case.compute, end)
        last, start, end = last[~follows], start[~follows], end[~follows]
    size, length = talk.all.size_bytes[talk.rows[last]], end - start
    bucket = np.where(
        size > 0,
        length * np.minimum(1.0, BUCKET_BYTES / np.maximum(size, 1)),
        np.minimum(length, np.median(talk.length)),
    )
    exposed = case.covered(talk.exposed, end) - case.covered(talk.exposed, start)
    return int(np.minimum(bucket, exposed).sum())


def small_buckets(case: Case) -> Iterator[Finding]:
    """Find many messages that are so small that latency dominates."""
    talk = _Talk(case)
    size = talk.all.size_bytes[talk.rows]
    least = SMALL_SDMA_BYTES if _by_sdma(case) else SMALL_BYTES
    small = (size >= 0) & (size < least)
    large = size >= least
    few = small.sum() <= MANY_SMALL * len(size) or small.sum() < FEW_SMALL * case.step_count
    if few or not large.any():
        return
    alone = intervals.intersect(
        intervals.merge(talk.start[small], talk.end[small]), talk.exposed
    ).total_ns
    rate = float(np.median(size[large] / np.maximum(talk.length[large], 1)))
    # Time beyond the transfer is waiting, which larger messages would have as well.
    each = talk.moving_ns()[small]
    moving = int(np.where(each >= 0, each, talk.length[small]).sum())
    cost = min(alone, moving) - float(size[small].sum()) / rate
    if case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        SMALL_BUCKETS,
        cost,
        f"{int(small.sum()):,} of {len(size):,} messages are smaller than {least >> 20} "
        f"MiB and exposed for {percent(case.share(alone))} of the time; large ones reach "
        f"{rate:.1f} GB/s",
        advice="send larger messages: larger buckets, one flat buffer, fewer reductions",
        sure="likely",
        figures={
            "small": int(small.sum()),
            "messages": len(size),
            "small_bytes": int(size[small].sum()),
            "exposed_ns": alone,
            "large_gb_per_s": round(rate, 3),
        },
        evidence=_kinds(talk, small),
    )


def _by_sdma(case: Case) -> bool:
    """Return True if SDMA transfers between devices; otherwise RDMA or GPU links do."""
    found = case.recording.source.integers(
        "COMMUNICATION_TASK_INFO", {"transport": "transportType", "link": "linkType"}
    )
    away = (found["link"] != 0) & np.isin(found["transport"], (0, 1))
    return bool(away.any()) and bool((found["transport"][away] == 0).all())


def _kinds(talk: _Talk, chosen: NDArray[np.bool_] | None = None) -> list[Evidence]:
    rows = talk.rows if chosen is None else talk.rows[chosen]
    of: Messages = talk.all
    pairs, number = np.unique(
        np.stack([of.kind[rows], of.size_bytes[rows]]), axis=1, return_inverse=True
    )
    number = number.reshape(-1)
    length = (of.end_ns - of.start_ns)[rows]
    total = np.bincount(number, weights=length)
    count = np.bincount(number)
    found: list[Evidence] = []
    for at in np.argsort(-total, kind="stable")[:ROWS].tolist():
        kind, size = (int(value) for value in pairs[:, at])
        first = int(rows[int(np.flatnonzero(number == at)[0])])
        found.append(
            {
                "name": of.kinds[kind] + (f" of {size:,} bytes" if size >= 0 else ""),
                "count": int(count[at]),
                "total_ns": int(total[at]),
                "start_ns": int(of.start_ns[first]),
            }
        )
    return found


UNALIGNED_MESSAGES = "unaligned_messages"
LINK_CONTENTION = "link_contention"
RETRANSMISSION = "retransmission"

# SDMA transfers whole blocks of this size.
ALIGNED_BYTES = 512
# Minimum share of SDMA time (MindStudio advisor's lowest level).
AFFECTED_SHARE = 0.2
# Maximum rate during matrix kernels, as a share of the rate without them.
SLOW_SHARE = 0.8
# Smaller transfers are not used to determine a rate.
LARGE_BYTES = 1 << 20
# RDMA retransmits a message that is not acknowledged within 4 s (MindStudio advisor's threshold).
RETRIED_NS = 4 * NS_PER_S
# Minimum number of transfers on each side of a comparison.
FEW = 5
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
        """Return the median rate in bytes per ns."""
        return float(np.median(self.size_bytes / np.maximum(self.length_ns, 1)))


def _transfers(case: Case) -> _Transfers:
    """Return the tasks of collectives that transferred bytes within the analyzed steps."""
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
    """Return the exposed time of transfers."""
    own = case.within(chosen.start_ns, chosen.end_ns)
    return intervals.subtract(own, case.compute).total_ns


def unaligned_messages(case: Case) -> Iterator[Finding]:
    """Find SDMA transfers whose sizes are not a multiple of the SDMA block size."""
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
        f"{len(unaligned.op):,} transfers ({percent(share)} of SDMA time) have sizes that "
        f"are not a multiple of 512 bytes: {unaligned.rate:.1f} GB/s, aligned ones "
        f"{aligned.rate:.1f} GB/s",
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
    """Find SDMA transfers that are slower while matrix kernels run."""
    moved = _transfers(case)
    sdma = moved.take(
        (moved.transport == _SDMA) & (moved.link != _ON_CHIP) & (moved.size_bytes >= LARGE_BYTES)
    )
    texts = case.recording.work.labels.texts
    products = [
        number
        for number in np.unique(case.operator).tolist()
        if kernel_classes.of_kernel(texts[number]) == kernel_classes.MATMUL
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
        f"{len(beside.op):,} transfers overlap with matrix kernels at {beside.rate:.1f} "
        f"GB/s, others reach {alone.rate:.1f} GB/s: they compete for memory bandwidth",
        advice="compare with overlap disabled for these layers, or start the transfers later",
        sure="possible",
        figures={
            "transfers": len(beside.op),
            "gb_per_s": round(beside.rate, 3),
            "alone_gb_per_s": round(alone.rate, 3),
        },
    )


def retransmission(case: Case) -> Iterator[Finding]:
    """Find collectives of 4 s or more that spend this time in RDMA transfers."""
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
        f"{len(slow.op):,} RDMA transfers take more than 4 s: messages were retransmitted",
        advice="check the switch (PFC, packet loss), HCCL_RDMA_TC and HCCL_RDMA_SL, and the "
        "counters of the network cards",
        sure="likely",
        figures={"transfers": len(slow.op), "longest_ns": int(slow.length_ns.max())},
    )
