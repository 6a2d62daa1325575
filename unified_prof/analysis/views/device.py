"""What the devices did, as unions of intervals: per device, per stream, per step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, KINDS
from unified_prof.analysis.model import DeviceTime, Row
from unified_prof.analysis.read.collectives import Collectives
from unified_prof.analysis.read.tasks import WAIT, Tasks
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]

_PIECE = 1 << 19


class DeviceWork:
    """The work of one device as merged sets of intervals."""

    def __init__(self, tasks: Tasks, comms: Collectives, device: int | None) -> None:
        here = slice(None) if device is None else np.flatnonzero(tasks.device == device)
        kind, start, duration = tasks.kind[here], tasks.start_ns[here], tasks.duration_ns[here]
        comm_here = slice(None) if device is None else comms.device == device
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

    def time(self, name: str, start_ns: int, end_ns: int) -> DeviceTime:
        """Return how the device spent `[start_ns, end_ns)`."""
        within = start_ns <= self.start_ns and self.end_ns <= end_ns

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


def step_rows(steps: list[tuple[str, int, int]], work: dict[str, DeviceWork]) -> list[Row]:
    """Return one row per step, with what each device did between its start and its end."""
    rows = []
    for name, start_ns, end_ns in steps:
        times = [one.time(device, start_ns, end_ns) for device, one in work.items()]
        extra: dict[str, int | None] = {}
        for figure in ("compute_ns", "communication_ns", "overlap_ns", "copy_ns", "idle_ns"):
            known = [value for time in times if (value := getattr(time, figure)) is not None]
            extra[figure] = sum(known) if known else None
        rows.append(Row(name=name, kind="step", count=1, total_ns=end_ns - start_ns, extra=extra))
    return rows


def _types(tasks: Tasks, own: Ints) -> str:
    """Name the types of task that took most of a stream's time."""
    time = np.bincount(tasks.type[own], weights=tasks.duration_ns[own] + 1)
    top = np.argsort(-time, kind="stable")[:3]
    return ", ".join(tasks.type_texts[code] or "?" for code in top.tolist() if time[code] > 0)
