"""Time by device, stream and step, from unions of task intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Floats, Ints, by_key
from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, UNKNOWN
from unified_prof.recording.collectives import Collectives
from unified_prof.recording.model import DeviceTime, Row
from unified_prof.recording.source import device_name
from unified_prof.recording.steps import Steps, StepTrace
from unified_prof.recording.tasks import FOREVER, WAIT, TaskRows, Tasks


class TaskSteps:
    """The step that launched each device task, UNKNOWN outside steps."""

    def __init__(
        self,
        step: Callable[[Ints, Ints], NDArray[np.int32]],
        tasks: Tasks,
        comms: Collectives,
        queued_ns: int = 0,
    ) -> None:
        """Store the tables and `step`, which returns steps for connection ids and start times.

        Until `queued_ns`, the device runs tasks that were launched before the recording began.
        """
        self.queued_ns = queued_ns
        self._step, self._tasks, self._comms = step, tasks, comms

    def steps_of(self, rows: TaskRows) -> NDArray[np.int32]:
        """Return the step of each of the given tasks."""
        return self._step(rows.connection, rows.start_ns)

    @cached_property
    def tasks(self) -> NDArray[np.int32]:
        """The step of each task; for millions of tasks, call `steps_of` for each window instead."""
        parts = [self.steps_of(rows) for rows in self._tasks.windows()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    @cached_property
    def comms(self) -> NDArray[np.int32]:
        """The step of each collective."""
        return self._step(self._comms.connection, self._comms.start_ns)


class DeviceWork:
    """Tasks of one device (kernels, copies, collectives) as unions of intervals and their sums.

    A collective lasts from its first task to its last, including the wait for other ranks, as in
    the vendor's viewers and in NCCL kernels.
    """

    def __init__(self, tasks: Tasks, comms: Collectives, device: int | None = None) -> None:
        """Store the task tables; if `device` is None, there is only one device."""
        self._tasks, self.number = tasks, device
        here: Any = slice(None) if device is None else comms.device == device
        self._parts = comms.in_parts(device)
        self._whole = intervals.merge(comms.start_ns[here], comms.end_ns[here])

    @cached_property
    def tasks(self) -> int:
        """Number of tasks, including waits."""
        if self.number is None:
            return len(self._tasks)
        devices = self._tasks.packed["device"].blocks()
        return sum(int((device == self.number).sum()) for device in devices)

    def time_slices(self) -> Iterator[TimeSlice]:
        """Yield consecutive time segments that together cover all tasks."""
        sweep = Sweep(self._whole, parts=self._parts)
        for rows in self._tasks.in_time(self.number):
            yield sweep.take(rows.kind, rows.start_ns, rows.end_ns, rows.until_ns)
        yield sweep.rest()

    @property
    def compute(self) -> IntervalSet:
        """Intervals in which a kernel runs."""
        return self._sets[0]

    @property
    def communication(self) -> IntervalSet:
        """Intervals in which a collective runs."""
        return self._sets[1]

    @property
    def copies(self) -> IntervalSet:
        """Intervals in which a copy or memset runs."""
        return self._sets[2]

    @property
    def busy(self) -> IntervalSet:
        """Intervals in which a kernel, collective, copy or memset runs."""
        return self._sets[3]

    @property
    def window(self) -> IntervalSet:
        """Interval from the first task's start to the last task's end; empty without tasks.

        The profiler's marks, and waits at both ends, do not count.
        """
        return self._sums.span

    def time(self, name: str, window: IntervalSet | None = None) -> DeviceTime:
        """Return the device time by kind of task, within `window` if it is given."""
        result, whole = self._sums, self._sums
        if window is not None:
            result = Sums()
            for time_slice in self.time_slices():
                result.add(time_slice, window)
        return DeviceTime(
            device=name,
            window_ns=(whole.span if window is None else window).total_ns,
            compute_ns=result.compute_ns,
            communication_ns=result.communication_ns if whole.communicates else None,
            overlap_ns=result.overlap_ns if whole.communicates else None,
            copy_ns=result.copy_ns,
            busy_ns=result.busy_ns,
            tasks=self.tasks,
        )

    @cached_property
    def _sums(self) -> Sums:
        sums = Sums()
        for time_slice in self.time_slices():
            sums.add(time_slice)
        return sums

    @cached_property
    def _sets(self) -> tuple[IntervalSet, ...]:
        parts = [
            (time_slice.compute, time_slice.communication, time_slice.copies, time_slice.busy)
            for time_slice in self.time_slices()
        ]
        return tuple(intervals.union(*each) for each in zip(*parts, strict=True))


class StepWindows(Struct, frozen=True, eq=False):
    """The time of each step on one device, in order and without overlaps.

    A device runs behind the host. On a device, a step ends with its last task, or with the step on
    the host if that is later; the next step begins there.
    """

    start_ns: Ints
    end_ns: Ints

    @property
    def all(self) -> IntervalSet:
        """Intervals of all steps."""
        return intervals.merge(self.start_ns, self.end_ns)


def step_windows(
    steps: Steps, tasks: Tasks, comms: Collectives, task_steps: TaskSteps, device: int | None
) -> StepWindows:
    """Return the time of each step on a device; None is the only device."""
    work_ends = np.full(len(steps), np.iinfo(np.int64).min)
    in_parts = comms.in_parts(device)
    for rows in tasks.windows():
        is_work = (rows.kind == KERNEL) | (rows.kind == COPY)
        if in_parts:
            is_work |= rows.kind == COMMUNICATION
        if device is not None:
            is_work &= rows.device == device
        step = task_steps.steps_of(rows)
        is_work &= step != UNKNOWN
        np.maximum.at(work_ends, step[is_work], rows.end_ns[is_work])
    comm_mine = task_steps.comms != UNKNOWN
    if device is not None:
        comm_mine &= comms.device == device
    np.maximum.at(work_ends, task_steps.comms[comm_mine], comms.end_ns[comm_mine])
    begins, ends = [], []
    done_ns = task_steps.queued_ns
    for (_, start_ns, end_ns), work_end_ns in zip(steps, work_ends.tolist(), strict=True):
        begin_ns, done_ns = max(start_ns, done_ns), max(end_ns, work_end_ns, done_ns)
        begins.append(min(begin_ns, done_ns))
        ends.append(done_ns)
    return StepWindows(np.array(begins, np.int64), np.array(ends, np.int64))


class _Stream:
    """Sums of one stream."""

    def __init__(self, types: int) -> None:
        self.sweep = Sweep(parts=True)
        self.sums = Sums()
        self.count = 0
        self.wait_ns = 0
        self.by_type = np.zeros(types)  # Weight of each task type: its time, plus 1 ns per task.


def stream_rows(tasks: Tasks) -> list[Row]:
    """Return one row per stream of each device, with its time by kind of task."""
    streams: dict[int, _Stream] = {}
    types = len(tasks.type_texts)
    for rows in tasks.in_time():
        end_ns = rows.end_ns
        places = rows.device.astype(np.int64) << 32 | (rows.stream.astype(np.int64) & 0xFFFFFFFF)
        for place, own in by_key(places):
            stream = streams.setdefault(place, _Stream(types))
            kind, duration = rows.kind[own], rows.duration_ns[own].astype(np.int64)
            work = stream.sweep.take(kind, rows.start_ns[own], end_ns[own], rows.until_ns)
            stream.sums.add(work)
            stream.count += len(own)
            stream.wait_ns += int(duration[kind == WAIT].sum())
            stream.by_type += np.bincount(rows.type[own], weights=duration + 1, minlength=types)
    result = []
    for place, stream in sorted(streams.items()):
        stream.sums.add(stream.sweep.rest())
        sums, number = stream.sums, place & 0xFFFFFFFF
        several = len(tasks.devices) > 1
        result.append(
            Row(
                name=f"{device_name(place >> 32)} stream {number}"
                if several
                else f"stream {number}",
                kind="stream",
                count=stream.count,
                total_ns=sums.busy_ns,
                detail=_types(tasks, stream.by_type),
                extra={
                    "compute_ns": sums.compute_ns,
                    "communication_ns": sums.communication_ns,
                    "copy_ns": sums.copy_ns,
                    "wait_ns": stream.wait_ns,
                    "window_ns": sums.span.total_ns if len(sums.span) else None,
                },
            )
        )
    return result


def step_rows(
    steps: Steps,
    lengths_ns: Sequence[int],
    devices: Mapping[str, DeviceWork],
    windows: Mapping[str, StepWindows],
) -> list[Row]:
    """Return one row per step, with what runs in its time on the device that takes longest.

    Tasks of another step count, too, so that compute, exposed communication, exposed copies and
    idle time add up to the length of the step. Of equally long devices, the busiest counts.
    """
    longest = [(-1, 0)] * len(steps)
    extras: list[dict[str, int | None]] = [{} for _ in steps]
    for name, whole in devices.items():
        within = IntervalSet(windows[name].start_ns, windows[name].end_ns)
        lengths = within.end_ns - within.start_ns
        sums = {figure: np.zeros(len(steps), np.int64) for figure in _STEP_FIGURES}
        sums["idle_ns"] += lengths
        for time_slice in whole.time_slices():
            compute, communication = time_slice.compute, time_slice.communication
            overlap = intervals.intersect(compute, communication)
            parts = (compute, communication, overlap, time_slice.copies, time_slice.busy)
            for figure, part in zip(_STEP_FIGURES, parts, strict=True):
                start, end, _, step = intervals.overlaps(part, within)
                sign = -1 if figure == "idle_ns" else 1
                np.add.at(sums[figure], step, sign * (end - start))
        exposed = sums["communication_ns"] - sums["overlap_ns"]
        copies = lengths - sums["idle_ns"] - sums["compute_ns"] - exposed
        sums |= {"exposed_communication_ns": exposed, "exposed_copies_ns": copies}
        unknown = _OF_COMMUNICATION if whole.time(name).communication_ns is None else ()
        for at, rank in enumerate(zip(lengths.tolist(), (-sums["idle_ns"]).tolist(), strict=True)):
            if rank > longest[at]:
                longest[at] = rank
                extras[at] = {
                    figure: None if figure in unknown else int(sums[figure][at])
                    for figure in (*_STEP_PARTS, *_STEP_FIGURES)
                }
                if whole.number is not None:
                    extras[at]["device"] = whole.number
    return [
        Row(name=name, kind="step", count=1, total_ns=length_ns, extra=extra)
        for (name, _, _), length_ns, extra in zip(steps, lengths_ns, extras, strict=True)
    ]


_OF_COMMUNICATION = ("communication_ns", "overlap_ns", "exposed_communication_ns")
_STEP_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")
_STEP_FIGURES = ("compute_ns", "communication_ns", "overlap_ns", "copy_ns", "idle_ns")


def with_vendor(rows: list[Row], traces: Iterable[StepTrace]) -> list[Row]:
    """Return step rows with the vendor's figures added, of the device of the row.

    Steps that the vendor's analysis leaves out have no such figures.
    """
    found: dict[tuple[str | None, float | None], dict[str, int | None]] = {}
    for trace in traces:
        figures = ("free_ns", "stage_ns", "preparing_ns", "bubble_ns")
        values = {f"vendor_{figure}": getattr(trace, figure) for figure in figures}
        found[trace.step, trace.device_id] = found[trace.step, None] = values
    return [
        replace(row, extra={**row.extra, **found.get((row.name, row.extra.get("device")), {})})
        for row in rows
    ]


def _types(tasks: Tasks, weight: Floats) -> str:
    """Return the names of the task types with most of a stream's time."""
    top = np.argsort(-weight, kind="stable")[:3]
    return ", ".join(tasks.type_texts[code] or "?" for code in top.tolist() if weight[code] > 0)


class TimeSlice(Struct, frozen=True, eq=False):
    """Intervals of device tasks in a segment of time, clipped to the segment."""

    begin_ns: int
    until_ns: int
    compute: IntervalSet
    communication: IntervalSet
    copies: IntervalSet
    busy: IntervalSet  # Union of all three.


class Sweep:
    """Splits tasks, given in order of start, into consecutive time segments."""

    def __init__(self, communication: IntervalSet = EMPTY, *, parts: bool) -> None:
        """Start before all tasks.

        `communication` are intervals of whole collectives; if `parts`, their tasks count as
        communication too.
        """
        self._communication = communication
        self._kinds = (KERNEL, COPY, COMMUNICATION) if parts else (KERNEL, COPY)
        self._carried = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        self._begin_ns = 0

    def take(
        self, kind: NDArray[np.int8], start_ns: Ints, end_ns: Ints, until_ns: int = FOREVER
    ) -> TimeSlice:
        """Add tasks, and return the segment up to `until_ns`; later tasks start after it."""
        begin_ns, self._begin_ns = self._begin_ns, until_ns
        now = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        for what in self._kinds:
            chosen = kind == what
            found = intervals.union(
                self._carried[what], intervals.merge(start_ns[chosen], end_ns[chosen])
            )
            now[what] = intervals.part(found, begin_ns, until_ns)
            self._carried[what] = intervals.part(found, until_ns, FOREVER)
        communication = intervals.part(self._communication, begin_ns, until_ns)
        communication = intervals.union(communication, now[COMMUNICATION])
        busy = intervals.union(now[KERNEL], communication, now[COPY])
        return TimeSlice(begin_ns, until_ns, now[KERNEL], communication, now[COPY], busy)

    def rest(self) -> TimeSlice:
        """Return the last segment."""
        nothing = np.zeros(0, np.int64)
        return self.take(nothing.astype(np.int8), nothing, nothing)


@dataclass(slots=True)
class Sums:
    """Busy, compute, communication and copy time summed over segments."""

    compute_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0  # Communication that ran while a compute kernel did.
    copy_ns: int = 0
    busy_ns: int = 0
    communicates: bool = False
    # From the start of the first task to the end of the last; None: no task.
    span_ns: tuple[int, int] | None = field(default=None)

    def add(self, one: TimeSlice, within: IntervalSet | None = None) -> None:
        """Add a segment, or the part of it within `within`."""
        compute, communication, copies, busy = one.compute, one.communication, one.copies, one.busy
        if within is not None:
            here = intervals.part(within, one.begin_ns, one.until_ns)
            compute, communication = (
                intervals.intersect(here, each) for each in (compute, communication)
            )
            copies, busy = (intervals.intersect(here, each) for each in (copies, busy))
        self.compute_ns += compute.total_ns
        self.copy_ns += copies.total_ns
        self.busy_ns += compute.total_ns if busy is compute else busy.total_ns
        if len(one.communication):
            self.communicates = True
            self.communication_ns += communication.total_ns
            self.overlap_ns += intervals.intersect(compute, communication).total_ns
        if len(busy):
            first = int(busy.start_ns[0]) if self.span_ns is None else self.span_ns[0]
            self.span_ns = first, int(busy.end_ns[-1])

    @property
    def span(self) -> IntervalSet:
        """The span as a set of intervals."""
        ends = [] if self.span_ns is None else [self.span_ns]
        return IntervalSet(*(np.array([end[at] for end in ends], np.int64) for at in (0, 1)))
