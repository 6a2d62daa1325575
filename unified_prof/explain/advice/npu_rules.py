"""Advice rules for NPUs: AI CPUs, clocks, cores, pipes, repeated sequences."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.advice.device_context import PARTS, Cause, DeviceContext, matrix_kernels
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MAX_STEP_MEDIANS,
    MIN_SHARE,
    WARN_SHARE,
    Flags,
    duration,
    evidence_row,
    percent,
    plural,
    times,
)
from unified_prof.explain.basic_breakdowns import join_names
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import BACKWARD, NOT_ATTRIBUTED
from unified_prof.recording.idle import HOST, LAUNCHED, NOT_KNOWN, UNRECORDED
from unified_prof.recording.model import Evidence

LONG_NS = 20_000  # Shorter tasks are dominated by their launch (MindStudio advisor's threshold).
DROP_SHARE = 0.05  # Minimum drop of the mean clock over tasks (MindStudio advisor's threshold).
# Below this share of its highest clock a chip is idle, not throttled (800 of 1800 MHz).
IDLE_CLOCK = 0.5
# Cores that are idle for less than this share of a task are the tail of many blocks.
TAIL_SHARE = 0.05
BUSY_PIPE = 0.8  # A pipe that is less busy does not bound a task (MindStudio advisor's threshold).

_CHIP = re.compile(r"\((.*)\)$")
_RATIO = re.compile(
    r"^ai[cv]_(?!icache|scalar).*_ratio\w*$|^(?:mac|vec|mte[123]|fixpipe)_ratio\w*$"
)


def _on_ai_cpu(context: DeviceContext) -> Flags:
    """Return a mask of the kernels that ran on an AI CPU."""
    tasks, row = context.recording.tasks, context.task_row
    slow = np.array([names.ON_AI_CPU(text) for text in [*tasks.type_texts, ""]])
    result: Flags = (context.tasks.kind == KERNEL) & (row >= 0)
    result &= slow[np.append(tasks.type, -1)[row]]
    return result


def ai_cpu(context: DeviceContext) -> Iterator[Cause]:
    """Find operators that ran on an AI CPU because no AI core kernel supports them."""
    selected = _on_ai_cpu(context)
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
    sample = np.searchsorted(at, context.tasks.start_ns[rows], side="right") - 1
    clock = np.where(sample >= 0, mhz[sample], highest)
    lost = np.where(clock > IDLE_CLOCK * highest, 1 - clock / highest, 0.0)
    length = context.tasks.length_ns[rows]
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


def _highest_ratio(context: DeviceContext, counters: re.Pattern[str]) -> NDArray[np.float64]:
    """Return the maximum of given pipe ratios for each task; NaN if not recorded."""
    table = context.recording.source.integers(
        context.recording.task_counters,
        {"id": "globalTaskId", "name": "name", "value": f"CAST(value * {PARTS} AS INTEGER)"},
    )
    ids = np.unique(table["name"])
    texts = context.recording.strings.texts(ids.tolist())
    ratios = ids[[bool(counters.match(text or "")) for text in texts]]
    selected = np.isin(table["name"], ratios) & (table["value"] != MISSING)
    if not selected.any():
        return np.full(len(context.tasks), np.nan)
    keys, number = np.unique(table["id"][selected], return_inverse=True)
    highest = np.zeros(len(keys), np.int64)
    np.maximum.at(highest, number, table["value"][selected])
    row = context.table_row(keys)
    return np.where(row >= 0, highest[row] / PARTS, np.nan)


def no_pipe_busy(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels bound neither by compute nor by memory: no such pipe is busy."""
    rows, _ = _long_kernels(context)
    ratio = _highest_ratio(context, _RATIO)[rows]
    idle = (ratio > 0) & (ratio < BUSY_PIPE)
    rows, ratio = rows[idle], ratio[idle]
    length = context.tasks.length_ns[rows]
    lost = (1 - ratio) * length
    if not len(rows):
        return
    scalar = int((_highest_ratio(context, _SCALAR)[rows] >= BUSY_PIPE).sum())
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
    if name[1] == peaks.AMBIGUOUS_CHIP and "AICORE_FREQ" not in context.recording.source.tables:
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

_SCALAR = re.compile(r"^(?:ai[cv]_)?scalar_ratio$")
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
        # Optimizer kernels have their own rule.
        usable = (tasks.kind == KERNEL) & (module >= 0)
        usable &= ~_on_ai_cpu(context) & ~context.in_optimizer
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
        return _highest_ratio(self.context, _MOVES)[self.row]

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


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
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
