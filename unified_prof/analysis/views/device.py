"""What the devices did, as unions of intervals: per device, per stream, per step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, KINDS, UNKNOWN
from unified_prof.analysis.model import DeviceTime, Row
from unified_prof.analysis.read.collectives import Collectives, device_name
from unified_prof.analysis.read.tasks import WAIT, Tasks
from unified_prof.analysis.views.groups import by_key
from unified_prof.analysis.views.step_trace import StepTrace
from unified_prof.analysis.views.work import Steps
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]

_NOTHING = np.zeros(0, np.int64)
_PIECE = 1 << 19


@dataclass(frozen=True, slots=True, eq=False)
class OfSteps:
    """The step that launched each piece of work, UNKNOWN where none did."""

    tasks: NDArray[np.int32]
    comms: NDArray[np.int32]


class DeviceWork:
    """The work of one device as merged sets of intervals.

    Work is what computes, communicates or copies. A collective communicates from its first task to
    its last, waiting for other ranks included, as the vendor's viewers count it and as the one
    kernel of NCCL does.
    """

    def __init__(self, tasks: Tasks, comms: Collectives, device: int | None = None) -> None:
        """Take the work of a device; None: there is only one."""
        here: Any = slice(None) if device is None else np.flatnonzero(tasks.device == device)
        comm_here: Any = slice(None) if device is None else comms.device == device
        kind, start, duration = tasks.kind[here], tasks.start_ns[here], tasks.duration_ns[here]
        self.tasks = len(kind)
        self.compute = _merged(start, duration, kind, KERNEL)
        self.copies = _merged(start, duration, kind, COPY)
        self.communication = intervals.merge(comms.start_ns[comm_here], comms.end_ns[comm_here])
        if comms.in_parts(device):
            parts = _merged(start, duration, kind, COMMUNICATION)
            self.communication = intervals.union(self.communication, parts)
        self.busy = intervals.union(self.compute, self.communication, self.copies)

    @property
    def window(self) -> IntervalSet:
        """From the start of the first work to the end of the last; empty: there is none.

        What the profiler marks, records and waits for at both ends is no work.
        """
        return intervals.hull(self.busy)

    def time(self, name: str, window: IntervalSet) -> DeviceTime:
        """Return how the device spent a window, which may have gaps."""
        compute = intervals.intersect(self.compute, window)
        communication = intervals.intersect(self.communication, window)
        has_communication = len(self.communication) > 0
        return DeviceTime(
            device=name,
            window_ns=window.total_ns,
            compute_ns=compute.total_ns,
            communication_ns=communication.total_ns if has_communication else None,
            overlap_ns=(
                intervals.intersect(compute, communication).total_ns if has_communication else None
            ),
            copy_ns=intervals.intersect(self.copies, window).total_ns,
            busy_ns=intervals.intersect(self.busy, window).total_ns,
            tasks=self.tasks,
        )


@dataclass(frozen=True, slots=True, eq=False)
class StepWindows:
    """The time of each step on one device, in order; none overlaps another.

    A device runs behind the host. A step lasts on it until the last of its work is done, or the
    host is done with it if that is later; the next one begins there.
    """

    start_ns: Ints
    end_ns: Ints

    @property
    def all(self) -> IntervalSet:
        """The time of all steps."""
        return intervals.merge(self.start_ns, self.end_ns)


def step_windows(
    steps: Steps, tasks: Tasks, comms: Collectives, of: OfSteps, device: int | None
) -> StepWindows:
    """Return the time of each step on a device; None: there is only one."""
    work_ends = np.full(len(steps), np.iinfo(np.int64).min)
    is_work = (tasks.kind == KERNEL) | (tasks.kind == COPY)
    if comms.in_parts(device):
        is_work |= tasks.kind == COMMUNICATION
    mine = is_work & (of.tasks != UNKNOWN)
    comm_mine = of.comms != UNKNOWN
    if device is not None:
        mine &= tasks.device == device
        comm_mine &= comms.device == device
    for piece in _pieces(len(mine)):
        rows = np.flatnonzero(mine[piece]) + piece.start
        np.maximum.at(work_ends, of.tasks[rows], tasks.start_ns[rows] + tasks.duration_ns[rows])
    np.maximum.at(work_ends, of.comms[comm_mine], comms.end_ns[comm_mine])
    begins, ends = [], []
    done_ns = 0
    for (_, start_ns, end_ns), work_end_ns in zip(steps, work_ends.tolist(), strict=True):
        begin_ns, done_ns = max(start_ns, done_ns), max(end_ns, work_end_ns, done_ns)
        begins.append(min(begin_ns, done_ns))
        ends.append(done_ns)
    return StepWindows(np.array(begins, np.int64), np.array(ends, np.int64))


def _merged(start_ns: Ints, duration_ns: Ints, kind: NDArray[np.int8], wanted: int) -> IntervalSet:
    """Merge the tasks of one kind, a piece at a time: the whole would need many times its size."""
    sets = []
    for piece in _pieces(len(start_ns)):
        chosen = kind[piece] == wanted
        start = start_ns[piece][chosen]
        sets.append(intervals.merge(start, start + duration_ns[piece][chosen]))
    return intervals.union(*sets)


def _pieces(length: int) -> list[slice]:
    return [slice(low, low + _PIECE) for low in range(0, length, _PIECE)]


def stream_rows(tasks: Tasks) -> list[Row]:
    """Return one row per stream of each device, with its time by kind of task."""
    places = tasks.device.astype(np.int64) << 32 | (tasks.stream.astype(np.int64) & 0xFFFFFFFF)
    several = len(np.unique(tasks.device)) > 1
    rows = []
    for place, own in by_key(places):
        kind, start, duration = tasks.kind[own], tasks.start_ns[own], tasks.duration_ns[own]
        parts = {
            f"{KINDS[what] if what != KERNEL else 'compute'}_ns": _merged(
                start, duration, kind, what
            )
            for what in (KERNEL, COMMUNICATION, COPY)
        }
        waiting = kind == WAIT
        busy = intervals.union(*parts.values())
        window = intervals.hull(busy)
        stream = place & 0xFFFFFFFF
        rows.append(
            Row(
                name=f"{device_name(place >> 32)} stream {stream}"
                if several
                else f"stream {stream}",
                kind="stream",
                count=len(own),
                total_ns=busy.total_ns,
                detail=_types(tasks, own),
                extra={
                    **{name: part.total_ns for name, part in parts.items()},
                    "wait_ns": int(duration[waiting].sum()),
                    "window_ns": window.total_ns if len(window) else None,
                },
            )
        )
    return rows


def step_rows(
    steps: Steps,
    devices: Mapping[str, DeviceWork],
    windows: Mapping[str, StepWindows],
    numbers: Mapping[str, int | None],
    tasks: Tasks,
    comms: Collectives,
    of: OfSteps,
) -> list[Row]:
    """Return one row per step, with what each device did of what was launched within it.

    The step that launched work is the one that it is of, whenever it ran. A step's device is idle
    while no work at all runs on it, whoever launched it.

    Args:
        steps: The steps in order of time.
        devices: The work of each device.
        windows: The time of the steps on each device.
        numbers: The number of each device, None where there is only one.
        tasks: All tasks.
        comms: All collectives.
        of: The step that launched each piece.
    """
    extras: list[dict[str, int | None]] = [{} for _ in steps]

    def add(step: int, figure: str, value: int | None) -> None:
        known = extras[step].setdefault(figure, None)
        extras[step][figure] = known if value is None else (known or 0) + value

    for name, whole in devices.items():
        only = numbers[name]
        own_tasks = _by_step(of.tasks, None if only is None else tasks.device == only)
        own_comms = _by_step(of.comms, None if only is None else comms.device == only)
        for step in range(len(steps)):
            rows = own_tasks.get(step, _NOTHING)
            kind, start, duration = tasks.kind[rows], tasks.start_ns[rows], tasks.duration_ns[rows]
            talk = own_comms.get(step, _NOTHING)
            compute = _merged(start, duration, kind, KERNEL)
            communication = intervals.merge(comms.start_ns[talk], comms.end_ns[talk])
            if comms.in_parts(only):
                communication = _merged(start, duration, kind, COMMUNICATION)
            communicates = len(whole.communication) > 0
            overlap = intervals.intersect(compute, communication)
            begin_ns, end_ns = int(windows[name].start_ns[step]), int(windows[name].end_ns[step])
            busy = intervals.clip(whole.busy, begin_ns, end_ns)
            add(step, "compute_ns", compute.total_ns)
            add(step, "communication_ns", communication.total_ns if communicates else None)
            add(step, "overlap_ns", overlap.total_ns if communicates else None)
            add(step, "copy_ns", _merged(start, duration, kind, COPY).total_ns)
            add(step, "idle_ns", end_ns - begin_ns - busy.total_ns)
    return [
        Row(name=name, kind="step", count=1, total_ns=end_ns - start_ns, extra=extra)
        for (name, start_ns, end_ns), extra in zip(steps, extras, strict=True)
    ]


def with_vendor(rows: list[Row], traces: Iterable[StepTrace]) -> list[Row]:
    """Return the rows of steps with the vendor's figures of each beside ours, all devices summed.

    A step that the vendor's analysis leaves out has none.
    """
    sums: dict[str | None, dict[str, int | None]] = {}
    for one in traces:
        known = sums.setdefault(one.step, {})
        for figure in ("free_ns", "stage_ns", "preparing_ns", "bubble_ns"):
            name = f"vendor_{figure}"
            known[name] = (known.get(name) or 0) + getattr(one, figure)
    return [
        replace(row, extra={**row.extra, **sums[row.name]}) if row.name in sums else row
        for row in rows
    ]


def _by_step(steps: NDArray[np.int32], here: NDArray[np.bool_] | None) -> dict[int, Ints]:
    """Return where the work of each step stands, of a device's where `here`."""
    steps = steps if here is None else np.where(here, steps, UNKNOWN)
    return {number: own for number, own in by_key(steps) if number != UNKNOWN}


def _types(tasks: Tasks, own: Ints) -> str:
    """Name the types of task that took most of a stream's time."""
    time = np.bincount(tasks.type[own], weights=tasks.duration_ns[own] + 1)
    top = np.argsort(-time, kind="stable")[:3]
    return ", ".join(tasks.type_texts[code] or "?" for code in top.tolist() if time[code] > 0)
