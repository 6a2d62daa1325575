"""Repeated sequences of kernels on NPUs, which one fused operator could replace."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    highest_ratio,
    matrix_kernels,
    on_ai_cpu,
)
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MAX_STEP_MEDIANS,
    MIN_SHARE,
    Flags,
    evidence_row,
    percent,
    plural,
    times,
)
from unified_prof.explain.basic_breakdowns import join_names
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import NOT_ATTRIBUTED
from unified_prof.recording.idle import HOST, LAUNCHED, NOT_KNOWN, UNRECORDED
from unified_prof.recording.model import Evidence

MIN_LENGTH, MAX_LENGTH = 3, 10  # Length of a sequence in kernels (MindStudio advisor's range).
MAX_RARE = 5  # A sequence must occur more often than this (MindStudio advisor's threshold).
# Below this busy share, a sequence is launch-bound (MindStudio advisor's threshold).
BUSY_SHARE = 0.4
# Share of time spent moving data from which a sequence is memory-bound (MindStudio advisor's
# threshold).
MOVING_SHARE = 0.8
# If more than this share of occurrences overlap the next, they are iterations of a loop.
OVERLAP_SHARE = 0.5
# A gap of this many median gaps and kernels is not a launch gap and splits sequences.
PAUSE_MEDIANS = 10.0
MAX_CANDIDATES = 200  # Maximum number of candidates to evaluate, most promising first.

_MOVES = re.compile(r"^(?:ai[cv]_)?mte[23]_ratio\w*$")


def repeated_sequences(
    token: Ints, segment: Ints, *, shortest: int, longest: int, more_than: int
) -> Iterator[tuple[int, Ints, Ints]]:
    """Find repeated sequences of tokens.

    Args:
        token: Token at each position.
        segment: Ascending segment number of each position; no sequence crosses segments.
        shortest: Minimum length of a sequence.
        longest: Maximum length.
        more_than: A sequence must occur more often than this.

    Yields:
        Length, start positions of sequences of that length, and the sequence number of each. They
        may overlap.
    """
    if not len(token):
        return
    code = np.unique(token, return_inverse=True)[1].astype(np.int64)
    until = np.searchsorted(segment, segment, side="right")
    size = int(code.max()) + 1
    place, number = np.arange(len(token)), code
    for length in range(1, longest + 1):
        if length > 1:
            inside = place + length <= until[place]
            place, number = place[inside], number[inside]
            longer = number * size + code[place + length - 1]
            number = np.unique(longer, return_inverse=True)[1].astype(np.int64)
        if not len(place):
            return
        # A rare sequence is no prefix of a frequent one.
        often = np.bincount(number)[number] > more_than
        place, number = place[often], number[often]
        if length >= shortest and len(place):
            yield length, place, number


def period(sequence: Sequence[int]) -> int:
    """Return the period of a sequence; its length if it has none."""
    size = len(sequence)
    return next((at for at in range(1, size) if sequence[at:] == sequence[: size - at]), size)


def first_rotation(sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the canonical rotation of a sequence."""
    return min((*sequence[at:], *sequence[:at]) for at in range(len(sequence)))


def non_overlapping(begins: Ints, length: int) -> Ints:
    """Return the indices of sequences (ascending `begins`) that overlap no selected earlier one."""
    if not len(begins) or int(np.diff(begins).min(initial=length)) >= length:
        return np.arange(len(begins))
    selected, end = [], 0
    for at, begin in enumerate(begins.tolist()):
        if begin >= end:
            selected.append(at)
            end = begin + length
    return np.array(selected, np.int64)


def fusible_sequences(context: DeviceContext) -> Iterator[Cause]:
    """Find sequences of kernels that repeat more than five times."""
    kernels = _Kernels(context)
    sequences = list(_most_expensive(kernels))
    cost = sum(sequence.lost_ns for sequence in sequences)
    if not sequences or context.share(cost) < MIN_SHARE:
        return
    lengths = sorted({sequence.length for sequence in sequences})
    length = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    count = sum(len(sequence.begins) for sequence in sequences)
    elapsed_ns = sum(sequence.elapsed_ns for sequence in sequences)
    busy_ns = sum(sequence.busy_ns for sequence in sequences)
    memory_bound = sum(sequence.is_memory_bound for sequence in sequences)
    text = (
        f"fusible sequences: {plural(len(sequences), 'sequence')} of {length} kernels "
        f"({times(count)} in total), busy {percent(busy_ns / elapsed_ns if elapsed_ns else 1.0)} "
        "of the time from first to last kernel"
    )
    text += f"; {memory_bound} memory-bound" if memory_bound else ""
    text += "" if kernels.has_modules else "; modules were not recorded"
    yield context.finding(
        cost,
        text,
        advice="use torch.compile on the module, or a fused operation (torch_npu: npu_rms_norm, "
        "npu_swiglu, npu_rotary_mul and others)",
        sure="possible",
        change=_without_sequences(kernels, sequences),
        figures={
            "sequences": [
                {
                    "sequence": kernels.names(sequence),
                    "kernels": sequence.length,
                    "count": len(sequence.begins),
                    "elapsed_ns": sequence.elapsed_ns,
                    "busy_ns": sequence.busy_ns,
                    "longest_ns": sequence.longest_ns,
                    "bound_by": "moving data" if sequence.is_memory_bound else "launches",
                }
                for sequence in sequences
            ],
            "elapsed_ns": elapsed_ns,
            "busy_ns": busy_ns,
        },
        evidence=map(kernels.evidence, sequences),
    )


def _without_sequences(kernels: _Kernels, sequences: Sequence[_Sequence]) -> Selection | None:
    """Return the change by which only the longest kernel of each occurrence stays.

    Returns None if launches are unknown: the gaps between the kernels are part of the saving.
    """
    context, change = kernels.context, Selection()
    calls, work = context.recording.host_calls, context.recording.work
    for sequence in sequences:
        places = sequence.begins + np.arange(sequence.length)[:, None]
        length = kernels.length_ns[places]
        busy, longest = length.sum(axis=0), length.max(axis=0)
        # Each occurrence saves what its kernels take beyond the longest one.
        saved_ns = length * ((busy - longest) / np.maximum(busy, 1))
        rows = kernels.row[places]
        change |= context.saving(rows.ravel(), saved_ns.ravel())
        call = calls.launching(work.connection[context.tasks.row[rows]].ravel())
        if not len(calls) or (call < 0).any():
            return None
        launched = calls.start_ns[call].reshape(rows.shape)
        change |= Selection(host=context.clip(launched.min(axis=0), launched.max(axis=0)))
    return change


class _Kernels:
    """Kernels of a device, by stream and start time.

    Attributes:
        row: Index of each kernel among the device tasks.
        segment: Ascending number of the segment of each kernel: no sequence crosses segments.
        token: Operator type of each kernel.
        has_modules: True if the module of any kernel is known.
    """

    def __init__(self, context: DeviceContext) -> None:
        self.context = context
        tasks = context.tasks
        module, self.has_modules = _modules(context)
        order = np.lexsort((tasks.start_ns, tasks.stream))
        # Optimizer kernels and explained ones have their own rules.
        usable = (tasks.kind == KERNEL) & (module >= 0)
        usable &= ~on_ai_cpu(context) & ~context.in_optimizer & ~context.explained
        cut = ~usable[order]
        cut[1:] |= np.diff(tasks.stream[order]) != 0
        cut[1:] |= (np.diff(module[order]) != 0) | cut[:-1]
        cut |= _follows_pause(tasks.start_ns[order], tasks.end_ns[order])
        kept = usable[order]
        self.row: Ints = order[kept].astype(np.int64)
        self.segment: Ints = np.cumsum(cut)[kept].astype(np.int64)
        self.token: Ints = context.operator[self.row].astype(np.int64)
        self.start_ns, self.end_ns = tasks.start_ns[self.row], tasks.end_ns[self.row]
        self.length_ns = tasks.length_ns[self.row]

    def names(self, sequence: _Sequence) -> str:
        """Return the operator types of a sequence."""
        texts, first = self.context.recording.work.labels.texts, int(sequence.begins[0])
        return join_names(texts[at] for at in self.token[first : first + sequence.length].tolist())

    def evidence(self, sequence: _Sequence) -> Evidence:
        """Return a row with the line of the first occurrence of a sequence."""
        name, count, first = self.names(sequence), len(sequence.begins), sequence.begins[0]
        task = int(self.context.tasks.row[self.row[first]])
        _, line = self.context.recording.work.place(task)
        return evidence_row(name, count, sequence.lost_ns, int(self.start_ns[first]), line=line)

    @cached_property
    def is_matrix(self) -> Flags:
        """Mask of matrix kernels, two of which cannot be fused."""
        return matrix_kernels(self.context)[self.row]

    @cached_property
    def moving_share(self) -> NDArray[np.float64]:
        """Share of its time that each kernel moves data; NaN without counters."""
        recording = self.context.recording
        if recording.task_counters not in recording.source.tables:
            return np.full(len(self.row), np.nan)
        return highest_ratio(self.context, _MOVES)[self.row]

    @cached_property
    def _time_of_streams(self) -> dict[int, IntervalSet]:
        """Intervals in which only the kernels and launches of one stream took time, by stream."""
        tasks, idle = self.context.tasks, self.context.idle
        waiting = ~np.isin(idle.reason, (HOST, LAUNCHED, UNRECORDED, NOT_KNOWN))
        waits = intervals.merge(idle.start_ns[waiting], idle.end_ns[waiting])
        waits = intervals.union(waits, self.context.claimed)
        time = intervals.subtract(self.context.window, waits)
        result = {}
        for stream in np.unique(tasks.stream[self.row]).tolist():
            others = tasks.stream != stream
            result[stream] = intervals.subtract(time, tasks.spans(others))
        return result

    def evaluate(self, length: int, begins: Ints) -> _Sequence | None:
        """Return a sequence if it occurs often enough and fusing it saves time."""
        if len(begins) <= MAX_RARE:
            return None
        places = begins + np.arange(length)[:, None]
        longest, busy = self.length_ns[places].max(axis=0), self.length_ns[places].sum(axis=0)
        elapsed = np.zeros(len(begins), np.int64)
        stream = self.context.tasks.stream[self.row[begins]]
        for number, time in self._time_of_streams.items():
            rows = np.flatnonzero(stream == number)
            elapsed[rows] = intervals.covered(
                time, self.start_ns[begins[rows]], self.end_ns[begins[rows] + length - 1]
            )
        # One kernel as long as the longest would remain. Occurrences that take much longer than
        # usual have another cause and are limited.
        lost = np.maximum(elapsed - longest, 0)
        lost_ns = int(np.minimum(lost, int(MAX_STEP_MEDIANS * np.median(lost))).sum())
        elapsed_ns, busy_ns = int(elapsed.sum()), int(busy.sum())
        # NaN, hence False, if a kernel has no counter.
        is_memory_bound = bool(self.moving_share[places].mean() > MOVING_SHARE)
        if not lost_ns or not (is_memory_bound or busy_ns < BUSY_SHARE * elapsed_ns):
            return None
        if not is_memory_bound and self.context.share(lost_ns) < MIN_SHARE:
            return None
        return _Sequence(
            length, begins, lost_ns, elapsed_ns, busy_ns, int(longest.sum()), is_memory_bound
        )


class _Sequence(Struct, frozen=True, eq=False):
    """A repeated sequence, the places where it begins, and its times."""

    length: int
    begins: Ints
    lost_ns: int
    # From the first kernel's start to the last one's end, without unrelated tasks.
    elapsed_ns: int
    busy_ns: int
    longest_ns: int
    is_memory_bound: bool


def _modules(context: DeviceContext) -> tuple[Ints, bool]:
    """Return the module index of each task (-1 if unknown), and whether any is known."""
    framework, tasks = context.recording.framework, context.tasks
    no_module = np.zeros(len(tasks), np.int64)
    if framework is None:
        return no_module, False
    paths, number = framework.modules(context.recording.work.launches.call[tasks.row])
    if not {*paths} - {None, NOT_ATTRIBUTED}:
        return no_module, False
    known = np.array([path != NOT_ATTRIBUTED for path in paths])[number]
    return np.where(known, number, -1).astype(np.int64), True


def _follows_pause(start_ns: Ints, end_ns: Ints) -> Flags:
    """Return a mask of tasks after gaps that launching does not explain."""
    if not len(start_ns):
        return np.zeros(0, np.bool_)
    gap = np.append(0, np.maximum(start_ns[1:] - end_ns[:-1], 0))
    median = max(float(np.median(gap)), float(np.median(end_ns - start_ns)))
    return gap > PAUSE_MEDIANS * median


def _most_expensive(kernels: _Kernels) -> Iterator[_Sequence]:
    """Yield the most expensive sequences without common kernels."""
    used = np.zeros(len(kernels.row), bool)
    queue = [
        (-candidate.lost_ns, candidate.length, int(candidate.begins[0]), candidate)
        for candidate in _candidates(kernels)
    ]
    heapq.heapify(queue)
    found = tried = 0
    while queue and found < EVIDENCE_ROWS and tried < MAX_CANDIDATES:
        tried += 1
        _, length, first, sequence = heapq.heappop(queue)
        used_before = np.append(0, np.cumsum(used))
        begins = sequence.begins
        begins = begins[used_before[begins + length] == used_before[begins]]
        begins = begins[non_overlapping(begins, length)]
        if len(begins) < len(sequence.begins):
            remaining = kernels.evaluate(length, begins)
            if remaining is None:
                continue
            if queue and remaining.lost_ns < -queue[0][0]:
                heapq.heappush(queue, (-remaining.lost_ns, length, first, remaining))
                continue
            sequence = remaining
        used[(begins + np.arange(length)[:, None]).ravel()] = True
        found += 1
        yield sequence


def _candidates(kernels: _Kernels) -> Iterator[_Sequence]:
    """Yield candidate sequences; among rotations of one loop, the one with the smallest gaps."""
    tightest: dict[tuple[int, ...], tuple[float, int, Ints]] = {}
    for length, place, number in repeated_sequences(
        kernels.token, kernels.segment, shortest=MIN_LENGTH, longest=MAX_LENGTH, more_than=MAX_RARE
    ):
        matrix_count = np.sum([kernels.is_matrix[place + at] for at in range(length)], axis=0)
        order = np.lexsort((place, number))
        order = order[matrix_count[order] <= 1]
        borders = np.flatnonzero(np.diff(number[order])) + 1
        for begins in np.split(place[order], borders):
            if len(begins) <= MAX_RARE:
                continue
            tokens = kernels.token[begins[0] : begins[0] + length].tolist()
            turn = period(tokens)
            if turn < length and float(np.mean(np.diff(begins) == turn)) > OVERLAP_SHARE:
                continue  # iterations of a loop: the sequence is what repeats within it
            separate = begins[non_overlapping(begins, length)]
            rotation = first_rotation(tokens)
            ends = kernels.end_ns[separate + length - 1]
            mean_ns = float(np.mean(ends - kernels.start_ns[separate]))
            if rotation not in tightest or mean_ns < tightest[rotation][0]:
                tightest[rotation] = mean_ns, length, separate
    for _, length, begins in tightest.values():
        if (sequence := kernels.evaluate(length, begins)) is not None:
            yield sequence
