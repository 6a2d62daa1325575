"""Advice rules for NPUs: AI CPUs, clocks, cores, pipes, and links (SDMA, contention)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints, Lookup, Runs, by_key
from unified_prof.base.text import NS_PER_S
from unified_prof.explain.advice.communication_rules import EXPOSED_SHARE, Messages
from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    highest_ratio,
    matrix_kernels,
    on_ai_cpu,
)
from unified_prof.explain.advice.idle_segments import (
    MIN_SHARE,
    WARN_SHARE,
    Flags,
    duration,
    percent,
    plural,
    times,
)
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.collectives import ON_CHIP, RDMA, SDMA
from unified_prof.recording.framework import BACKWARD

LONG_NS = 20_000  # Shorter tasks are dominated by their launch (MindStudio advisor's threshold).
DROP_SHARE = 0.05  # Minimum drop of the mean clock over tasks (MindStudio advisor's threshold).
# Below this share of its highest clock a chip is idle, not throttled (800 of 1800 MHz).
IDLE_CLOCK = 0.5
SLOWER = 1.2  # Unless kernels take this many times longer than at the highest clock.
# Cores that are idle for less than this share of a task are the tail of many blocks.
TAIL_SHARE = 0.05
BUSY_PIPE = 0.8  # A pipe that is less busy does not bound a task (MindStudio advisor's threshold).

_CHIP = re.compile(r"\((.*)\)$")
_SCALAR = re.compile(r"^(?:ai[cv]_)?scalar_ratio$")
_RATIO = re.compile(
    r"^ai[cv]_(?!icache|scalar).*_ratio\w*$|^(?:mac|vec|mte[123]|fixpipe)_ratio\w*$"
)


def ai_cpu(context: DeviceContext) -> Iterator[Cause]:
    """Find operators that ran on an AI CPU because no AI core kernel supports them."""
    selected = on_ai_cpu(context)
    rows = np.flatnonzero(selected)
    length = context.tasks.length_ns[rows]
    share = context.share(int(length.sum()))
    if share < WARN_SHARE or int(length.max()) < LONG_NS:
        return
    context.explained[rows] = True
    yield context.tasks_finding(
        f"AI CPU: {plural(len(rows), 'operator')} on AI CPUs instead of AI cores, "
        f"{percent(share)} of the time",
        rows,
        advice="change the dtype (avoid float64, int64, complex) or the form (index, nonzero, "
        "unique) of these operators",
        sure="likely",
        least=WARN_SHARE,
        figures={"tasks": len(rows), "task_ns": int(length.sum())},
    )


def frequency_drop(context: DeviceContext) -> Iterator[Cause]:
    """Find AI cores that compute below the highest clock of their chip."""
    table = context.recording.source.integers(
        "AICORE_FREQ", {"device": "deviceId", "at": "timestampNs", "mhz": "CAST(freq AS INTEGER)"}
    )
    good = (table["mhz"] > 0) & (table["at"] >= 0)
    if context.device_id is not None:
        good &= table["device"] == context.device_id
    order = np.argsort(table["at"][good], kind="stable")
    at, mhz = table["at"][good][order], table["mhz"][good][order]
    rows = np.flatnonzero(matrix_kernels(context))
    if not len(at) or not len(rows):
        return
    chip = _chip(context)
    chip_mhz = None if chip is None else chip.mhz
    highest = max(int(mhz.max()), int(chip_mhz or 0))
    length = context.tasks.length_ns[rows]
    clock = _mean_clock(at, mhz, highest, context.tasks.start_ns[rows], length)
    slowed = (clock > IDLE_CLOCK * highest) | _is_slower(context.kernel[rows], length, clock)
    lost = np.where(slowed, 1 - clock / highest, 0.0)
    lost_share = float((lost * length).sum() / length.sum())
    if lost_share < DROP_SHARE:
        return
    mean = float((clock * length).sum() / length.sum())
    yield context.tasks_finding(
        f"clock drop: the AI cores run at a mean of {mean:,.0f} MHz; the maximum "
        f"of this {'chip' if chip_mhz else 'recording'} is {highest:,} MHz",
        rows,
        lost * length,
        names_place=False,
        advice="check temperature, power limit and neighboring devices (npu-smi info)",
        sure="certain" if chip_mhz else "likely",
        least=0.0,
        figures={
            "mean_mhz": round(mean),
            "highest_mhz": highest,
            "lost_share": round(lost_share, 4),
        },
    )


def _mean_clock(
    at: Ints, mhz: Ints, before: int, start_ns: Ints, length_ns: Ints
) -> NDArray[np.float64]:
    """Return the mean clock of each task; `before` is the clock until the first sample."""
    cycles = np.append(0, np.cumsum(mhz[:-1] * np.diff(at)))

    def cycles_until(time_ns: Ints) -> Ints:
        sample = np.searchsorted(at, time_ns, side="right") - 1
        rate = np.where(sample >= 0, mhz[sample], before)
        sample = np.maximum(sample, 0)
        result: Ints = cycles[sample] + rate * (time_ns - at[sample])
        return result

    length_ns = np.maximum(length_ns, 1)
    return (cycles_until(start_ns + length_ns) - cycles_until(start_ns)) / length_ns


def _is_slower(kernel: NDArray[np.integer], length_ns: Ints, clock: NDArray[np.float64]) -> Flags:
    """Return a mask of the kernels that take longer than those of the same name at full clock."""
    result, full = np.zeros(len(kernel), bool), clock > (1 - DROP_SHARE) * clock.max()
    for _, rows in by_key(kernel.astype(np.int64)):
        low = rows[~full[rows]]
        if len(low) and len(low) < len(rows):
            usual_ns = np.median(length_ns[rows[full[rows]]])
            result[low] = np.median(length_ns[low]) > SLOWER * usual_ns
    return result


def _long_kernels(context: DeviceContext) -> tuple[Ints, Ints]:
    """Return the kernels that are long enough, and their rows of COMPUTE_TASK_INFO."""
    row = context.task_row
    info = np.where(row >= 0, np.append(context.recording.tasks.info, -1)[row], -1)
    rows = np.flatnonzero((info >= 0) & (context.tasks.length_ns >= LONG_NS))
    return rows, info[rows].astype(np.int64)


def idle_cores(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels whose blocks do not use all cores."""
    cubes, vectors = _cores(context)
    rows, info = _long_kernels(context)
    columns = context.recording.source.integers(
        "COMPUTE_TASK_INFO", {"blocks": "blockNum", "type": "taskType"}
    )
    blocks, types = columns["blocks"][info], columns["type"][info]
    ids, number = np.unique(types, return_inverse=True)
    texts = [text or "" for text in context.recording.strings.texts(ids.tolist())]
    on_vector = np.array([names.ON_VECTOR_CORE(text) for text in [*texts, ""]])[number]
    on_cores = np.array(["AI_CPU" not in text for text in [*texts, ""]])[number]
    cores = np.where(on_vector, vectors, cubes)
    rounds = np.maximum(-(-blocks // cores), 1)
    idle = np.where((blocks > 0) & on_cores, 1 - blocks / (cores * rounds), 0.0)
    rows, idle = rows[idle >= TAIL_SHARE], idle[idle >= TAIL_SHARE]
    lost = idle * context.tasks.length_ns[rows]
    if not len(rows):
        return
    context.explained[rows] = True
    yield context.tasks_finding(
        f"idle cores: {plural(len(rows), 'kernel')} with blocks that do not fill {cubes} cube and "
        f"{vectors} vector cores",
        rows,
        lost,
        advice="choose sizes (batch, heads, hidden) that divide evenly among the cores, or tune "
        "the tiling",
        sure="possible",
        figures={"kernels": len(rows), "cubes": cubes, "vectors": vectors},
    )


def no_pipe_busy(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels bound neither by compute nor by memory: no such pipe is busy."""
    rows, _ = _long_kernels(context)
    ratio = highest_ratio(context, _RATIO)[rows]
    idle = (ratio > 0) & (ratio < BUSY_PIPE)
    rows, ratio = rows[idle], ratio[idle]
    length = context.tasks.length_ns[rows]
    lost = (1 - ratio) * length
    if not len(rows):
        return
    scalar = int((highest_ratio(context, _SCALAR)[rows] >= BUSY_PIPE).sum())
    yield context.tasks_finding(
        f"no busy pipe: {plural(len(rows), 'long kernel')} ({duration(int(length.sum()))}) "
        f"with every pipe busy for less than {percent(BUSY_PIPE)}, bound neither by compute nor "
        f"by memory{f'; {scalar:,} bound by the scalar unit' if scalar else ''}",
        rows,
        lost,
        advice="use larger or aligned shapes (inner dimensions in multiples of 256), fused "
        "operators, a tuned tiling; index and scatter operators are slow on the scalar unit",
        sure="possible",
        least=WARN_SHARE,
        figures={"kernels": len(rows), "lost_ns": int(lost.sum())},
    )


def _chip(context: DeviceContext) -> Device | None:
    """Return the row of this chip in the table of devices."""
    device = known_devices(context.recording)[context.device or ""]
    if device is not None and device.is_recorded:
        return device
    name = _CHIP.search(context.device or "")
    if name is None or device is None:
        return None  # its clock is of another chip than its name
    if name[1] == peaks.AMBIGUOUS_CHIP and (
        device.vector_cores is not None or "AICORE_FREQ" not in context.recording.source.tables
    ):
        return None
    return peaks.find(name[1])


def _cores(context: DeviceContext) -> tuple[int, int]:
    """Return the number of cube and vector cores of a chip, 0 if unknown."""
    chip = _chip(context)
    if chip is None or chip.cores is None:
        return 0, 0
    return int(chip.cores), int(chip.vector_cores or chip.cores)


def lacks_cores(context: DeviceContext) -> str | None:
    """Return a reason if the number of cores is unknown."""
    if _cores(context)[0]:
        return None
    return f"{context.device}: number of cores unknown for this name in NPU_INFO"


BACKWARD_PASSES = 1.5  # Tensors that gradients of an element-wise operation move, of those before.


def unfused_operations(context: DeviceContext) -> Iterator[Cause]:
    """Find operations that CANN computes in one operator, by the operators that compute them."""
    tasks = context.tasks
    rows = np.flatnonzero((tasks.kind == KERNEL) & ~context.in_optimizer & ~context.explained)
    rows = rows[np.lexsort((tasks.start_ns[rows], tasks.stream[rows]))]
    texts = context.recording.work.labels.texts
    streams = [
        (order, "".join(names.step_of_fusion(texts[one]) for one in context.operator[order]))
        for order in np.split(rows, np.flatnonzero(np.diff(tasks.stream[rows])) + 1)
    ]
    for name, pattern, replacement, stays in names.FUSED_OPERATIONS:
        places = [
            order[slice(*match.span())]
            for order, text in streams
            for match in pattern.finditer(text)
        ]
        streams = [
            (order, pattern.sub(lambda match: "." * len(match[0]), text)) for order, text in streams
        ]
        if not places:
            continue
        found, saved_ns = _without_parts(context, places, stays)
        context.explained[found] = True
        yield context.tasks_finding(
            f"{name} by hand: {times(len(places))}, {plural(len(found), 'kernel')}, "
            f"{percent(context.share(context.busy_ns(found)))} of the time",
            found,
            saved_ns,
            kind=f"unfused_{name.lower().replace(' ', '_')}",
            advice=f"use {replacement}: one operator moves less data",
            sure="likely",
            figures={"operation": name, "count": len(places), "kernels": len(found)},
        )


def _without_parts(
    context: DeviceContext, places: list[Ints], stays: float
) -> tuple[Ints, NDArray[np.float64]]:
    """Return the kernels of operations and of their gradients, and what each saves if fused.

    A share of the last kernel of each place stays, and in proportion to it of its gradients.
    """
    tasks, work = context.tasks, context.recording.work
    share = np.zeros(len(tasks))
    call, backward = np.full(len(tasks), -1), np.zeros(0, np.int64)
    if context.recording.framework is not None:
        call = work.launches.call[tasks.row]
        backward = np.flatnonzero((work.launches.passes[tasks.row] == BACKWARD) & (call >= 0))
    for rows in places:
        share[rows] = 1.0
        share[rows[-1]] -= stays
        left_ns = BACKWARD_PASSES * stays * float(tasks.length_ns[rows[-1]])
        again = backward[np.isin(call[backward], call[rows])]
        again = again[share[again] == 0]
        share[again] = max(1 - left_ns / max(float(tasks.length_ns[again].sum()), 1.0), 0.0)
    rows = np.flatnonzero(share)
    gap_ns = np.where(share[rows] == 1, context.launch_gaps(rows)[1], 0)
    return rows, share[rows] * tasks.length_ns[rows] + gap_ns


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
    rdma = _until_acknowledged(context, transfers.take(transfers.transport == RDMA))
    is_slow = rdma.length_ns > RETRANSMITTED_NS
    if not is_slow.any() or len(rdma) < MIN_TRANSFERS:
        return
    slow, in_time = rdma.take(is_slow), rdma.take(~is_slow)
    in_time_ns = float(np.median(in_time.length_ns)) if len(in_time) else 0.0
    yield from _slow_transfers(
        context,
        slow,
        float((slow.length_ns - in_time_ns).sum()),
        f"retransmission: {plural(len(slow), 'RDMA transfer')} of more than 4 s",
        advice=advice,
        sure="likely",
        figures={"longest_ns": int(slow.length_ns.max())},
    )


def _until_acknowledged(context: DeviceContext, rdma: _Transfers) -> _Transfers:
    """Return one transfer for each message: from its first RDMA task until the message ends.

    HCCL's task only posts the transfer; later tasks of the message wait for the acknowledgement.
    """
    messages = Messages(context)
    order = np.argsort(messages.start, kind="stable")
    row = np.searchsorted(messages.start[order], rdma.start_ns, side="right") - 1
    end_ns = np.append(messages.end[order], 0)[row]
    inside = (row >= 0) & (rdma.start_ns < end_ns)
    posted = rdma.take(inside)
    by_start = np.lexsort((posted.start_ns, row[inside]))
    first = by_start[Runs(row[inside][by_start]).starts]
    whole = posted.take(first)
    whole = replace(whole, length_ns=end_ns[inside][first] - whole.start_ns)
    return _Transfers.concatenate([whole, rdma.take(~inside)])
