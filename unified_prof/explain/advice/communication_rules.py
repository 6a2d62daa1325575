"""Advice rules about communication: exposed, small messages, collective waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints, Lookup, Runs, by_key
from unified_prof.base.columns import NO_RANK
from unified_prof.base.text import scaled
from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    is_optimizer_step,
    matrix_kernels,
)
from unified_prof.explain.advice.idle_segments import (
    WARN_SHARE,
    Flags,
    duration,
    group_evidence,
    percent,
    plural,
)
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import collectives
from unified_prof.recording.calls import COMMUNICATION, KERNEL
from unified_prof.recording.framework import BACKWARD
from unified_prof.recording.model import Evidence
from unified_prof.recording.operators import numbered

EXPOSED_SHARE = 0.05  # Minimum share of the time; the last bucket of a step usually costs less.
# Size of the last bucket of a step that nothing can overlap (DDP's default bucket_cap_mb).
BUCKET_BYTES = 25 << 20
# Above this share of communication, waiting for other ranks is the cause, not data transfer.
WAITING_SHARE = 0.5
# A message waits if it takes longer than its transfer by more than this share of its time, and than
# so many times the share by which a quarter of the messages of its kind and size do.
WAITS, NOISE = 0.25, 4.0
# Minimum number of messages of one kind and group, each as large or larger, whose fastest defines
# the transfer time.
MIN_COMPARABLE = 3
# Minimum number of ranks that a message waits for, to say that it waits for one of them.
MIN_PEERS = 3
# Below this size a message costs its latency: a link of 25 GB/s moves 1 MiB in 40 µs.
SMALL_BYTES = 1 << 20
SMALL_SDMA_BYTES = 16 << 20  # The same for SDMA of an NPU (MindStudio advisor's threshold).
# Minimum share (MindStudio advisor's threshold) and number per step of small messages.
SMALL_SHARE, MIN_SMALL_PER_STEP = 0.2, 10
# Rate of large messages over RDMA, if the run has none to compare with. Then at least half of the
# small messages must follow the previous one within this time, without a kernel between them.
LARGE_GB_PER_S, BACK_TO_BACK_NS = 20.0, 100_000


class Messages:
    """Collectives of one device within the analyzed steps: all, or a part of them."""

    def __init__(self, context: DeviceContext, part: Literal["retried", "others", ""] = "") -> None:
        messages = collectives.messages(context.recording.comms, context.recording.strings)
        selected = context.is_analyzed(messages.start_ns) & (messages.members != 1)
        if part:
            table = context.recording.source.integers(
                "COMMUNICATION_OP", {"start": "startNs", "retry": "coalesce(retry, 0)"}
            )
            retried = np.isin(messages.start_ns, table["start"][table["retry"] > 0])
            retried &= bool(2 * retried.sum() < len(retried))  # Otherwise, retry is only enabled.
            selected &= retried if part == "retried" else ~retried
        if context.device_id is not None:
            selected &= (messages.device == context.device_id) | (messages.device < 0)
        self.messages, self.rows = messages, np.flatnonzero(selected)
        self.start, self.end = messages.start_ns[self.rows], messages.end_ns[self.rows]
        self.size = messages.size_bytes[self.rows]
        self.intervals = context.clip(self.start, self.end)
        self.exposed = intervals.subtract(self.intervals, context.compute)
        self._context = context

    @property
    def alone_ns(self) -> Ints:
        """Exposed time of each message."""
        return intervals.covered(self.exposed, self.start, self.end)

    @property
    def length(self) -> Ints:
        """Duration of each message."""
        return self.end - self.start

    def transfer_ns(self) -> Ints:
        """Return the maximum transfer time of each message in ns, -1 if it cannot be determined.

        A message takes no longer to transfer than the fastest message of its kind and group that is
        as large or larger; the rest of its time is waiting.
        """
        size, result = self.size, np.full(len(self.size), -1, np.int64)
        known = np.flatnonzero(size >= 0)
        messages, rows = self.messages, self.rows[known]
        for _, same in by_key(numbered(messages.kind[rows], messages.group[rows])):
            rows = known[same]
            rows = rows[np.argsort(-size[rows], kind="stable")]
            fastest = np.minimum.accumulate(self.length[rows])
            # Order among messages of one size does not matter.
            as_large = np.searchsorted(-size[rows], -size[rows], side="right")
            enough = as_large >= MIN_COMPARABLE
            result[rows[enough]] = fastest[as_large - 1][enough]
        return result

    def usual_wait(self, wait_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of its time up to which waiting of each message is usual."""
        share, result = wait_ns / np.maximum(self.length, 1), np.full(len(self.rows), WAITING_SHARE)
        kind, group = self.messages.kind[self.rows], self.messages.group[self.rows]
        for _, rows in by_key(numbered(kind, group, self.size)):
            if len(rows) >= 2 * MIN_COMPARABLE:
                noise = NOISE * float(np.quantile(share[rows], 0.25))
                result[rows] = min(max(noise, WAITS), WAITING_SHARE)
        return result

    @cached_property
    def _tasks(self) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
        """Rows of communication tasks, the place of each message in them, and their launches."""
        tasks, recording = self._context.tasks, self._context.recording
        rows = np.flatnonzero(tasks.kind == COMMUNICATION).astype(np.int64)
        # Messages of several streams may start at one moment, when what they wait for ends.
        keys = tasks.start_ns[rows] + (tasks.length_ns[rows] << 32)
        task = Lookup(keys).rows(self.start + (self.length << 32))
        launches = recording.host_calls.launching(recording.work.connection[tasks.row[rows]])
        return rows, task, launches

    @property
    def launched_ns(self) -> Ints:
        """Time of the launch of each message, -1 if unknown."""
        _, task, launches = self._tasks
        call = np.append(launches, -1)[task]
        start_ns = np.append(self._context.recording.host_calls.start_ns, -1)[call]
        return np.where((task >= 0) & (call >= 0), start_ns, -1)

    @property
    def launched_in_a_row(self) -> Flags:
        """Mask of the messages that are launched after another one, without a kernel between."""
        tasks, recording = self._context.tasks, self._context.recording
        kernels = recording.work.connection[tasks.row[tasks.kind == KERNEL]]
        calls = recording.host_calls.launching(kernels)
        kernels_ns = np.sort(recording.host_calls.start_ns[calls[calls >= 0]])
        launched_ns = self.launched_ns
        place = np.searchsorted(kernels_ns, launched_ns)
        order = np.argsort(launched_ns, kind="stable")
        result = np.zeros(len(order), bool)
        result[order[1:]] = np.diff(place[order]) == 0
        return result & (launched_ns >= 0)

    def saving(self, saved_ns: NDArray[Any], removed: Flags | bool = False) -> Selection | None:
        """Return the change by which messages are shorter; None if their launches are unknown.

        Without launches, the recording does not show which tasks wait for a message. Operations
        that only launch removed messages take no time.
        """
        rows, task, launches = self._tasks
        saved, known = np.zeros(len(rows)), task >= 0
        if not (launches >= 0).any():
            return None
        np.maximum.at(saved, task[known], saved_ns[known])
        change = self._context.saving(rows, saved)
        return change | self._context.launching(rows[np.unique(task[known & removed])])

    def longest_wait(self, wait_ns: NDArray[np.float64]) -> str:
        """Return a clause on the message with most of the waiting, if there is one."""
        at = int(wait_ns.argmax())
        if 2 * wait_ns[at] < wait_ns.sum() or len(wait_ns) < MIN_COMPARABLE:
            return ""
        messages, row = self.messages, self.rows[at]
        same = messages.group == messages.group[row]
        is_first = self.start[at] == messages.start_ns[same].min()
        first = ", the first recorded one of its group: connection setup, or ranks that start late"
        kind = messages.kinds[int(messages.kind[row])]
        why = self._late_peer(at, float(wait_ns[at])) or first * bool(is_first)
        return f"; {duration(int(wait_ns[at]))} of it in one {kind}{why}"

    def _late_peer(self, at: int, wait_ns: float) -> str:
        """Return a clause on the rank that a message waits for far longer than for all others.

        An NPU waits for each peer in a task. If peers form a ring, there are only two, and each
        may itself wait for another rank.
        """
        recording = self._context.recording
        columns = {"task": "globalTaskId", "rank": f"coalesce(dstRank, {NO_RANK})", "size": "size"}
        parts = recording.source.integers("COMMUNICATION_TASK_INFO", columns)
        tasks, row = recording.tasks, Lookup(recording.tasks.identity).rows(parts["task"])
        waits = (row >= 0) & (parts["rank"] != NO_RANK) & (parts["size"] <= 0)
        row, rank = row[waits], parts["rank"][waits]
        start_ns, end_ns = tasks.start_ns[row], tasks.end_ns[row]
        inside = (start_ns >= self.start[at]) & (end_ns <= self.end[at])
        peers, number = np.unique(rank[inside], return_inverse=True)
        if len(peers) < MIN_PEERS:
            return ""
        longest_ns = np.zeros(len(peers), np.int64)
        np.maximum.at(longest_ns, number, (end_ns - start_ns)[inside])
        second_ns, first_ns = np.sort(longest_ns)[-2:].tolist()
        if first_ns < 2 * second_ns or 2 * first_ns < wait_ns:
            return ""
        # Without the length: it may be more than the wait, whose transfer time is estimated.
        return f", which waits mostly for rank {peers[longest_ns.argmax()]} of its group"

    def evidence(self, selected: Flags | None = None) -> Sequence[Evidence]:
        """Return the kinds and sizes of messages with the longest total time."""
        rows = self.rows if selected is None else self.rows[selected]
        messages = self.messages
        pairs, number = np.unique(
            np.stack([messages.kind[rows], messages.size_bytes[rows]]), axis=1, return_inverse=True
        )

        def name_of(at: int) -> str:
            kind, size = (int(value) for value in pairs[:, at])
            return messages.kinds[kind] + (f" of {scaled(size, _BYTES)}" * (size >= 0))

        start = messages.start_ns[rows]
        return group_evidence(number.reshape(-1), messages.end_ns[rows] - start, start, name_of)


_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
GRADIENT_BYTES = 4096  # Smaller messages are losses and metrics.


def repeated_reductions(context: DeviceContext) -> Iterator[Cause]:
    """Find gradients that DDP reduces more than once per optimizer step."""
    framework = context.recording.framework
    assert framework is not None
    messages = Messages(context, "others")
    ranges = context.ranges(lambda name: name == "DistributedDataParallel.forward", ahead=True)
    forward_ns = np.sort(framework.start_ns[ranges])
    optimizer_ns = np.sort(framework.start_ns[context.ranges(is_optimizer_step, ahead=True)])
    if not len(messages.rows) or len(forward_ns) < 2 or not len(optimizer_ns):
        return
    launched_ns = messages.launched_ns
    forward = np.searchsorted(forward_ns, launched_ns, side="right") - 1
    kind = np.array(messages.messages.kinds)[messages.messages.kind[messages.rows]]
    group = messages.messages.group[messages.rows]
    # Groups of tensor parallelism and synchronized batch norm reduce in each pass on purpose.
    within = intervals.merge(framework.start_ns[ranges], framework.end_ns[ranges])
    others = (intervals.holding(within, launched_ns) >= 0) & (kind != "broadcast")
    reduces = np.isin(kind, ("all_reduce", "reduce_scatter")) & (forward >= 0)
    reduces &= (messages.size >= GRADIENT_BYTES) & ~np.isin(group, group[others])
    step = np.searchsorted(optimizer_ns, forward_ns)
    # Optimizers with parts of the parameters may follow each other: their passes are the same.
    passes = np.unique(forward[reduces])
    passes = passes[step[passes] < len(optimizer_ns)]
    last = np.isin(np.arange(len(forward_ns)), passes[Runs(step[passes]).last])
    early = reduces & np.isin(forward, passes) & ~last[forward]
    steps = len(np.unique(step[passes]))
    if not steps or 2 * steps > len(passes):
        return
    # Fewer bytes than in the last pass are not all gradients.
    early_bytes = float(messages.size[early].sum()) / (len(passes) - steps)
    if 2 * early_bytes < float(messages.size[reduces & last[forward]].sum()) / steps:
        return
    yield context.finding(
        float(messages.alone_ns[early].sum()),
        f"repeated reductions: gradients are reduced {len(passes) / steps:.3g} times per optimizer "
        f"step ({plural(int(early.sum()), 'collective')} before the last backward pass)",
        advice="accumulate gradients on each rank: run all but the last micro-step in no_sync() "
        "of DistributedDataParallel",
        sure="likely",
        change=messages.saving(np.where(early, messages.length, 0)),
        least=WARN_SHARE,
        figures={"passes": len(passes), "optimizer_steps": steps, "collectives": int(early.sum())},
        evidence=messages.evidence(early),
    )


def exposed_communication(context: DeviceContext) -> Iterator[Cause]:
    """Find communication without overlap with compute, except one last bucket per step."""
    messages = Messages(context, "others")
    exposed = messages.exposed.total_ns
    if context.share(exposed) < EXPOSED_SHARE:
        return
    transfer = messages.transfer_ns()
    known = transfer >= 0
    transfer_ns, known_ns = int(transfer[known].sum()), int(messages.length[known].sum())
    figures: dict[str, Any] = {
        "exposed_ns": exposed,
        "exposed_share": round(context.share(exposed), 4),
        "communication_ns": messages.intervals.total_ns,
        "moving_ns": transfer_ns if known_ns else None,
        "messages": len(messages.rows),
    }
    # Waits that compute hides delay the messages after them.
    wait_ns = np.where(known, messages.length - transfer, 0).astype(np.float64)
    wait_ns[wait_ns <= messages.usual_wait(wait_ns) * messages.length] = 0
    fill_ns = wait_ns - _without_fill_ns(context, messages, wait_ns)
    figures |= {"fill_ns": round(float(fill_ns.sum()))} if fill_ns.any() else {}
    wait_ns -= fill_ns
    waited = wait_ns / np.maximum(messages.length, 1)
    if context.share(float(wait_ns.sum())) >= EXPOSED_SHARE:
        yield context.finding(
            float((messages.alone_ns * waited).sum()),
            f"waiting for other ranks: {percent(context.share(float(wait_ns.sum())))} of the time "
            f"is communication beyond its transfer time{messages.longest_wait(wait_ns)}",
            kind="waiting_for_ranks",
            advice="analyze all ranks together: `uprof cluster build` names the straggling rank, "
            "host or link",
            sure="possible",
            change=messages.saving(wait_ns),
            least=0.0,
            figures=figures,
            evidence=messages.evidence(),
        )
    if transfer_ns < (1 - WAITING_SHARE) * known_ns:
        return
    exempt_ns = _last_buckets_ns(context, messages)
    bucket_ns = int(exempt_ns.sum())
    moving_ns = messages.alone_ns * (1 - waited)
    cost = float(moving_ns.sum()) - bucket_ns
    if context.share(cost) < WARN_SHARE:
        return
    receives = np.array([name == collectives.RECEIVE for name in messages.messages.kinds])
    received = receives[messages.messages.kind[messages.rows]]
    if 2 * messages.alone_ns[received].sum() > exposed:
        lost_ns = received * (messages.alone_ns - messages.size.clip(0) / LARGE_GB_PER_S).clip(0)
        cost = min(exposed, float(lost_ns.sum()))
        yield context.finding(
            cost,
            f"pipeline bubble: {percent(context.share(cost))} of the time, the device waits for "
            f"data of another stage ({plural(int(received.sum()), 'receive')})",
            kind="pipeline_bubble",
            advice="use more micro-batches per step or an interleaved schedule, or balance the "
            "layers of the stages; `uprof cluster build` compares the ranks",
            sure="likely",
            change=messages.saving(lost_ns),
            least=WARN_SHARE,
            figures=figures,
            evidence=messages.evidence(received),
        )
        return
    text = f"exposed communication: {percent(context.share(exposed))} of the time is communication "
    text += "that does not overlap with compute"
    if bucket_ns:
        text += f"; {percent(context.share(bucket_ns))} is the last bucket of each step, which "
        text += "cannot be overlapped"
        if context.share(bucket_ns) >= EXPOSED_SHARE:
            text += ", so faster communication may save more"
    advice = (
        "overlap it: tune DDP or FSDP buckets (bucket_cap_mb, forward_prefetch), use gradient "
        "accumulation or a separate stream, or change the parallelization"
    )
    if context.recording.framework is not None and not _trains(context):
        advice = (
            "overlap it, use fewer ranks per replica, or faster collectives (fused, quantized); "
            "they also wait for the slowest rank: `uprof cluster build` compares the ranks"
        )
    few = ~known & (messages.size >= SMALL_BYTES)  # Too few to compare with each other.
    rate = messages.size[few].sum() / max(int(messages.length[few].sum()), 1)
    if rate < LARGE_GB_PER_S and 2 * messages.alone_ns[few].sum() > exposed:
        text += f"; large messages move {rate:.1f} GB/s: a slow link, or waits for other ranks"
        advice = f"compare the ranks (`uprof cluster build`); {advice}"
    yield context.finding(
        cost,
        text,
        advice=advice,
        sure="likely" if known_ns > exposed / 2 else "possible",
        change=messages.saving(wait_ns + moving_ns - exempt_ns),
        least=WARN_SHARE,
        figures={**figures, "last_bucket_ns": bucket_ns},
        evidence=messages.evidence(),
    )


# Minimum kernels next to collectives and alone of which medians are compared, and their ratio.
MIN_ALIKE, CONTENDED = 5, 1.15
BESIDE, ALONE = 0.9, 0.05  # Share of its time that a kernel runs next to collectives.


def contention(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels that take longer next to collectives than alone, with the same inputs."""
    framework, tasks = context.recording.framework, context.tasks
    assert framework is not None
    call = framework.direct(context.recording.work.connection.to_array())[tasks.row]
    beside = intervals.covered(Messages(context).intervals, tasks.start_ns, tasks.end_ns)
    share = beside / np.maximum(tasks.length_ns, 1)
    rows = np.flatnonzero(
        (tasks.kind == KERNEL) & (call >= 0) & ((share >= BESIDE) | (share <= ALONE))
    )
    _, name = framework.names(call[rows])
    texts, shape = framework.inputs(call[rows])
    known = np.array([bool(text) for text in texts], bool)[shape]
    rows, name, shape = rows[known], name[known], shape[known]
    grid = context.task_column("UPROF_GPU_TASKS", "gridDim")[rows]
    length, lost = tasks.length_ns, np.zeros(len(tasks.row), np.float64)
    for _, same in by_key(numbered(context.kernel[rows], grid, name, shape)):
        next_to = share[rows[same]] >= BESIDE
        slow, alone = rows[same[next_to]], rows[same[~next_to]]
        if min(len(slow), len(alone)) < MIN_ALIKE:
            continue
        usual = float(np.median(length[alone]))
        if np.median(length[slow]) >= CONTENDED * usual:
            lost[slow] = np.maximum(length[slow] - usual, 0)
    slowed = np.flatnonzero(lost)
    if not len(slowed):
        return
    ratio = length[slowed].sum() / (length[slowed] - lost[slowed]).sum()
    yield context.tasks_finding(
        f"contention: {plural(len(slowed), 'kernel')} that run {ratio:.1f} times as long next to "
        "collectives as alone",
        slowed,
        lost[slowed],
        advice="let collectives use fewer multiprocessors (NCCL_MAX_CTAS) or move fewer bytes "
        "(16-bit gradients); without overlap they may cost more",
        sure="possible",
        least=WARN_SHARE,
        figures={"kernels": len(slowed), "ratio": round(float(ratio), 3)},
    )


def _trains(context: DeviceContext) -> bool:
    """Return True if a backward pass launched tasks."""
    return bool((context.recording.work.launches.passes[context.tasks.row] == BACKWARD).any())


def _without_fill_ns(
    context: DeviceContext, messages: Messages, wait_ns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the waits without those in which a pipeline fills at the start of a step.

    Stages of equal length wait there as well; its first receive costs what the others do.
    """
    result, rows = wait_ns.copy(), messages.rows
    receives = np.array([name == "receive" for name in messages.messages.kinds])
    if not context.steps or not receives.any():
        return result
    at = np.flatnonzero(receives[messages.messages.kind[rows]])
    step = np.searchsorted(context.windows.start_ns, messages.start[at], side="right")
    for _, places in by_key(numbered(step, messages.messages.group[rows[at]])):
        if len(places) > MIN_COMPARABLE:
            first, *others = at[places[np.argsort(messages.start[at[places]], kind="stable")]]
            result[first] = min(wait_ns[first], float(np.median(wait_ns[others])))
    return result


def _last_buckets_ns(context: DeviceContext, messages: Messages) -> Ints:
    """Return the exposed time of each message that is the last bucket of a step, 0 for others.

    Nothing can overlap it. At most one bucket per step counts: the first `BUCKET_BYTES` of a larger
    message, or the median length of the messages if the size is unknown. A message does not count
    if a kernel of its step follows, because the message could overlap with this kernel.
    """
    steps = context.windows
    step = np.searchsorted(steps.start_ns, messages.start, side="right") - 1
    last = Runs(step).last
    result = np.zeros(len(step), np.int64)
    start, end = messages.start[last], messages.end[last]
    # Clipping and the optimizer need the last bucket.
    rest = context.tasks.spans(matrix_kernels(context)) or context.compute
    follows = intervals.covered(rest, end, steps.end_ns[step[last]]) > 0
    last, start, end = last[~follows], start[~follows], end[~follows]
    size, length = messages.size[last], end - start
    bucket = np.where(
        size > 0,
        length * np.minimum(1.0, BUCKET_BYTES / np.maximum(size, 1)),
        np.minimum(length, np.median(messages.length) if len(last) else 0),
    )
    result[last] = np.minimum(bucket, intervals.covered(messages.exposed, start, end))
    return result


def small_buckets(context: DeviceContext) -> Iterator[Cause]:
    """Find many messages that are so small that latency dominates."""
    messages = Messages(context)
    size = messages.size
    limit = SMALL_SDMA_BYTES if _by_sdma(context) else SMALL_BYTES
    small, large = (size >= 0) & (size < limit), size >= limit
    count = int(small.sum())
    if count <= SMALL_SHARE * len(size) or count < MIN_SMALL_PER_STEP * context.step_count:
        return
    measured = bool(large.any())
    if not measured:
        before, start = messages.end[:-1], messages.start[1:]
        computed = intervals.covered(context.compute, before, np.maximum(before, start))
        # Messages that could have been part of the message before them.
        back_to_back = (start - before <= BACK_TO_BACK_NS) & (computed == 0)
        back_to_back |= messages.launched_in_a_row[1:]
        if 2 * int(back_to_back.sum()) < len(size):
            return
    exposed = intervals.intersect(
        intervals.merge(messages.start[small], messages.end[small]), messages.exposed
    ).total_ns
    rates = size[large] / np.maximum(messages.length[large], 1)
    rate = float(np.median(rates)) if measured else LARGE_GB_PER_S
    # Time beyond the transfer is waiting, which larger messages would have as well.
    transfer = messages.transfer_ns()
    transfer_ns = np.where(transfer >= 0, transfer, messages.length)
    cost = min(exposed, int(transfer_ns[small].sum())) - float(size[small].sum()) / rate
    if context.share(cost) < WARN_SHARE:
        return
    yield context.finding(
        cost,
        f"small messages: {count:,} of {len(size):,} are smaller than {limit >> 20} MiB, exposed "
        f"for {percent(context.share(exposed))} of the time; "
        + (
            f"large messages reach {rate:.1f} GB/s"
            if measured
            else "most directly follow another one"
        ),
        advice="send larger messages: larger buckets, one flat buffer, fewer reductions",
        sure="likely" if measured else "possible",
        change=messages.saving(np.where(small, transfer_ns - size / rate, 0), small),
        least=WARN_SHARE,
        figures={
            "small": count,
            "messages": len(size),
            "small_bytes": int(size[small].sum()),
            "exposed_ns": exposed,
            "large_gb_per_s": round(rate, 3),
        },
        evidence=messages.evidence(small),
    )


def _by_sdma(context: DeviceContext) -> bool:
    """Return True if SDMA transfers between devices; otherwise RDMA or GPU links do."""
    table = context.recording.source.integers(
        "COMMUNICATION_TASK_INFO", {"transport": "transportType", "link": "linkType"}
    )
    remote = (table["link"] != collectives.ON_CHIP) & np.isin(
        table["transport"], (collectives.SDMA, collectives.RDMA)
    )
    return bool(remote.any()) and bool((table["transport"][remote] == collectives.SDMA).all())
