"""What devices did under each annotation: ranges of record_function, NVTX, vLLM and SGLang.

Profilers of GPUs record an annotation twice, on the host and, around the work launched under it,
on the device. The device's range is what counts; where a recording lacks those, as after a replay
of graphs, the work launched while the host's range was open is taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, sort_rows
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.analysis.views.device import DeviceWork
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]

STEP = re.compile(r"ProfilerStep\s*[#*]")
_ANY_DEVICE = -1
_KINDS = {
    "busy_ns": (KERNEL, COMMUNICATION, COPY),
    "compute_ns": (KERNEL,),
    "communication_ns": (COMMUNICATION,),
    "copy_ns": (COPY,),
}
_TABLES = {
    "UPROF_GPU_ANNOTATIONS": {"name": "name", "device": "deviceId"},
    "MSTX_EVENTS": {"name": "message", "device": str(_ANY_DEVICE)},
}
"""Where annotations are, and as which columns; the first table with some is taken."""
NOTE_OF_LAUNCHES = "work launched meanwhile"


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Annotations as columns, those of steps left out."""

    name: Ints
    device: Ints
    start_ns: Ints
    end_ns: Ints
    on_device: bool
    """Whether the ranges are the device's, not the host's."""

    def __len__(self) -> int:
        return len(self.name)


def read(source: Source, strings: Strings) -> Ranges:
    """Read the annotations of a recording of GPUs; of others there are none."""
    tables = _TABLES if "UPROF_GPU_TASKS" in source.tables else {}
    for table, columns in tables.items():
        times = {"start": "startNs", "duration": "endNs - startNs"}
        found = source.integers(table, columns | times)
        good = possible(found["start"], found["duration"])
        names = np.unique(found["name"]).tolist()
        wanted = [
            number
            for number, text in zip(names, strings.texts(names), strict=True)
            if text is not None and not STEP.match(text)
        ]
        good &= np.isin(found["name"], wanted)
        if good.any():
            start = found["start"][good]
            return Ranges(
                found["name"][good],
                found["device"][good],
                start,
                start + found["duration"][good],
                on_device=table != "MSTX_EVENTS",
            )
    nothing = np.empty(0, np.int64)
    return Ranges(nothing, nothing, nothing, nothing, on_device=True)


def breakdown(
    ranges: Ranges,
    devices: Mapping[int | None, DeviceWork],
    tasks: Tasks,
    launched_ns: Callable[[], Ints],
    strings: Strings,
) -> Breakdown:
    """Divide the devices' time by annotation; one inside another counts for both.

    Args:
        ranges: All of them.
        devices: The work of each device; None stands for the only one.
        tasks: All tasks.
        launched_ns: Returns when the host launched each of them.
        strings: Texts.
    """
    under = _ran_in(devices) if ranges.on_device else _launched_in(tasks, launched_ns())
    rows = []
    for name, own in by_key(ranges.name):
        figures: Counter[str] = Counter()
        for device, here in by_key(ranges.device[own]):
            window = intervals.merge(ranges.start_ns[own[here]], ranges.end_ns[own[here]])
            figures["window_ns"] += window.total_ns
            figures.update(under(device, window))
        rows.append(
            Row(
                name=strings.get(name) or "?",
                kind="annotation",
                count=len(own),
                total_ns=figures.pop("busy_ns", 0),
                detail=None if ranges.on_device else NOTE_OF_LAUNCHES,
                extra=dict(figures),
            )
        )
    whole = sum(work.busy.total_ns for work in devices.values())
    return Breakdown("annotation", tuple(sort_rows(rows)), whole or None, None)


Under = Callable[[int, IntervalSet], dict[str, int]]
"""Returns what a device did in, or because of, a window."""


def _ran_in(devices: Mapping[int | None, DeviceWork]) -> Under:
    def under(device: int, window: IntervalSet) -> dict[str, int]:
        work = devices.get(device, devices.get(None))
        if work is None:
            return {}
        parts = {
            "busy_ns": work.busy,
            "compute_ns": work.compute,
            "communication_ns": work.communication,
            "copy_ns": work.copies,
        }
        return {what: intervals.intersect(window, one).total_ns for what, one in parts.items()}

    return under


def _launched_in(tasks: Tasks, launched_ns: Ints) -> Under:
    order = np.argsort(launched_ns, kind="stable")
    launches = launched_ns[order]

    def under(_: int, window: IntervalSet) -> dict[str, int]:
        low = np.searchsorted(launches, window.start_ns)
        high = np.searchsorted(launches, window.end_ns)
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        mine = np.concatenate([order[first:behind] for first, behind in pairs])
        found: Counter[str] = Counter()
        for _device, rows in by_key(tasks.device[mine]):
            chosen = mine[rows]
            kind, start = tasks.kind[chosen], tasks.start_ns[chosen]
            end = start + tasks.duration_ns[chosen]
            for what, kinds in _KINDS.items():
                at = np.isin(kind, kinds)
                found[what] += intervals.merge(start[at], end[at]).total_ns
        return found

    return under
