"""What the devices did, as unions of intervals: per device, per stream, per step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, KINDS, UNKNOWN
from unified_prof.analysis.model import DeviceTime, Row
from unified_prof.analysis.read.collectives import Collectives
from unified_prof.analysis.read.tasks import WAIT, Tasks
from unified_prof.analysis.views.groups import by_key
from unified_prof.analysis.views.work import Steps, step_of
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]

_NOTHING = np.zeros(0, np.int64)
_PIECE = 1 << 19


@dataclass(frozen=True, slots=True)
class Launches:
    """When the host launched each piece of work; its own start where that is not known."""

    tasks_ns: Ints
    comms_ns: Ints


class DeviceWork:
    """The work of one device as merged sets of intervals."""

    def __init__(
        self,
        tasks: Tasks,
        comms: Collectives,
        device: int | None = None,
        chosen: tuple[Ints, Ints] | None = None,
    ) -> None:
        here: Any = slice(None) if device is None else np.flatnonzero(tasks.device == device)
        comm_here: Any = slice(None) if device is None else comms.device == device
        if chosen is not None:
            here, comm_here = chosen
        kind, start, duration = tasks.kind[here], tasks.start_ns[here], tasks.duration_ns[here]
        self.tasks = len(kind)
        self.compute = _merged(start, duration, kind, KERNEL)
        self.copies = _merged(start, duration, kind, COPY)
        # The collectives as a whole; their parts only where the file has nothing but parts.
        comm_start, comm_end = comms.start_ns[comm_here], comms.end_ns[comm_here]
        self.communication = intervals.merge(comm_start, comm_end)
        if not len(self.communication):
            self.communication = _merged(start, duration, kind, COMMUNICATION)
        starts = [one.min() for one in (start, comm_start) if len(one)]
        ends = [(start[piece] + duration[piece]).max() for piece in _pieces(len(start))]
        ends += [comm_end.max()] if len(comm_end) else []
        self.start_ns, self.end_ns = int(min(starts, default=0)), int(max(ends, default=0))

    def time(self, name: str, start_ns: int, end_ns: int, *, whole: bool = False) -> DeviceTime:
        """Return how the device spent `[start_ns, end_ns)`; with all its work where `whole`."""
        within = whole or (start_ns <= self.start_ns and self.end_ns <= end_ns)

        def part(one: IntervalSet) -> IntervalSet:
            return one if within else intervals.clip(one, start_ns, end_ns)

        compute, communication = part(self.compute), part(self.communication)
        copies = part(self.copies)
        has_communication = len(self.communication) > 0
        return DeviceTime(
            device=name,
            window_ns=end_ns - start_ns,
            compute_ns=compute.total_ns,
            communication_ns=communication.total_ns if has_communication else None,
            overlap_ns=(
                intervals.intersect(compute, communication).total_ns if has_communication else None
            ),
            copy_ns=copies.total_ns,
            busy_ns=intervals.union(compute, communication, copies).total_ns,
            tasks=self.tasks,
        )


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
        stream = place & 0xFFFFFFFF
        rows.append(
            Row(
                name=f"device {place >> 32} stream {stream}" if several else f"stream {stream}",
                kind="stream",
                count=len(own),
                total_ns=busy.total_ns,
                detail=_types(tasks, own),
                extra={
                    **{name: part.total_ns for name, part in parts.items()},
                    "wait_ns": int(duration[waiting].sum()),
                    "window_ns": int((start + duration).max() - start.min()),
                },
            )
        )
    return rows


def step_rows(
    steps: Steps,
    devices: Mapping[str, int | None],
    tasks: Tasks,
    comms: Collectives,
    launches: Launches,
) -> list[Row]:
    """Return one row per step, with what each device did of what was launched within it.

    A device runs behind the host: the step that launched work is the one that it is of, whenever
    it ran. A step lasts on a device until the last of its work is done, or the host is done with it
    if that is later; the next one begins there.

    Args:
        steps: The steps in order of time.
        devices: Name -> number, None where there is only one.
        tasks: All tasks.
        comms: All collectives.
        launches: When each was launched.
    """
    step_of_task = step_of(launches.tasks_ns, steps)
    step_of_comm = step_of(launches.comms_ns, steps)
    times: list[list[DeviceTime]] = [[] for _ in steps]
    for device, only in devices.items():
        own_tasks = _by_step(step_of_task, None if only is None else tasks.device == only)
        own_comms = _by_step(step_of_comm, None if only is None else comms.device == only)
        begins_ns = 0
        for number, (_, start_ns, end_ns) in enumerate(steps):
            work = DeviceWork(
                tasks,
                comms,
                chosen=(own_tasks.get(number, _NOTHING), own_comms.get(number, _NOTHING)),
            )
            begins_ns, ends_ns = max(start_ns, begins_ns), max(end_ns, work.end_ns)
            times[number].append(work.time(device, min(begins_ns, ends_ns), ends_ns, whole=True))
            begins_ns = ends_ns
    rows = []
    for (name, start_ns, end_ns), found in zip(steps, times, strict=True):
        extra: dict[str, int | None] = {}
        for figure in ("compute_ns", "communication_ns", "overlap_ns", "copy_ns", "idle_ns"):
            known = [value for time in found if (value := getattr(time, figure)) is not None]
            extra[figure] = sum(known) if known else None
        rows.append(Row(name=name, kind="step", count=1, total_ns=end_ns - start_ns, extra=extra))
    return rows


def _by_step(steps: Ints, here: NDArray[np.bool_] | None) -> dict[int, Ints]:
    """Return where the work of each step stands, of a device's where `here`."""
    steps = steps if here is None else np.where(here, steps, UNKNOWN)
    return {number: own for number, own in by_key(steps) if number != UNKNOWN}


def _types(tasks: Tasks, own: Ints) -> str:
    """Name the types of task that took most of a stream's time."""
    time = np.bincount(tasks.type[own], weights=tasks.duration_ns[own] + 1)
    top = np.argsort(-time, kind="stable")[:3]
    return ", ".join(tasks.type_texts[code] or "?" for code in top.tolist() if time[code] > 0)
