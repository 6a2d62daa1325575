"""Columns of the tables of a report: breakdowns and devices.

If the terminal is narrow, the least informative columns are left out first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from unified_prof.recording.calls import SIZES
from unified_prof.recording.idle import IN_WORDS, IdleReasons
from unified_prof.recording.model import KINDS, THEN, By, DeviceTime, Row
from unified_prof.report import names
from unified_prof.report.document import Column, name_column

if TYPE_CHECKING:
    from unified_prof.report.figures import Selection

_SIZE_HEADINGS = ("weights", "gradients", "activations", "allocated")
_REMARKS = re.compile("; .*")
# Parts of the time of a device and their importance; without 10: shown if there is any.
_PARTS: Final[Mapping[str, int]] = {
    "compute": 10,
    "exposed communication": 9,
    "exposed copies": 9,
    IN_WORDS["unrecorded"]: 9,
    "idle": 10,
}
# Importance of columns in breakdowns that have more important figures than others have.
_IMPORTANCE: Final[Mapping[By, Mapping[str, int]]] = {
    "shape": {"inputs": 9},
    "step": {
        "device": 9,
        "compute": 9,
        "exposed communication": 9,
        "exposed copies": 9,
        "idle": 9,
    },
    "path": {"per step": 8, "at": 7, "sections": 6, "min": 5, "max": 5},
    "roofline": {
        "of peak": 10,
        "limit": 9,
        "above target": 6,
        "intensity, FLOP/B": 9,
        "calls": 5,
        "share": 5,
        "average": 1,
        "work": 2,
        "moved": 2,
        "compute": 3,
        "memory": 3,
    },
}


def breakdown_columns(selection: Selection) -> list[Column]:
    """Return the columns of a breakdown."""
    breakdown, rows, by = selection.breakdown, selection.rows, selection.breakdown.by

    def column(
        heading: str,
        value: Callable[[Row], float | None],
        show: Callable[..., str],
        importance: int,
    ) -> Column:
        return Column(heading, tuple(show(value(row)) for row in rows), importance=importance)

    duration = names.format_duration
    labels = [row.name for row in rows]
    result = [name_column(by, labels)]
    if by != "step":
        result.append(column(selection.counted, lambda row: row.count, names.format_number, 8))
    result.append(column("time", lambda row: row.total_ns, duration, 10))
    result.append(column("share", breakdown.percent, names.format_percent, 9))
    if breakdown.total_ns is not None and by != "step":
        result.append(column("average", lambda row: row.average_ns, duration, 3))
    if any(row.forward_ns not in (None, row.total_ns) for row in rows):
        result.append(column("forward", lambda row: row.forward_ns, duration, 7))
    result.append(column("backward", lambda row: row.backward_ns, duration, 7))
    # Requested allocations were not all in use at once, so a sum would not be memory in use.
    sizes = [size for size in SIZES if any(getattr(row, size) is not None for row in rows)]
    if len(sizes) > 1 and "allocated_bytes" not in sizes:
        result.append(column("memory", lambda row: row.size_bytes, names.format_size, 6))
    result += [
        column(heading, attrgetter(size), names.format_size, 2 if size == "allocated_bytes" else 5)
        for heading, size in zip(_SIZE_HEADINGS, SIZES, strict=True)
    ]
    for key in dict.fromkeys(key for row in rows for key in row.extra):
        heading, show = extra_column(key)
        importance = 8 if key in _STATISTICS else 4
        result.append(column(heading, lambda row, key=key: row.extra.get(key), show, importance))  # type: ignore[misc]
    cells = tuple(names.neutral(row.detail or "") for row in rows)
    is_prose = by == "roofline"  # A limit and remarks about it, which are left out.
    if is_prose:
        cells = tuple(_REMARKS.sub("; ...", cell) for cell in cells)
    lines = 3 if any(THEN in cell for cell in cells) else 1
    if by == "path":  # The kind of work is short, and tells rows with equal names apart.
        parts = [cell.partition(", ") for cell in cells]
        result.append(Column("what", tuple(kind for kind, *_ in parts), True, True, importance=9))
        cells = tuple(place for *_, place in parts)
    # Rows with equal names differ in their details.
    importance = 4 if len(set(labels)) == len(labels) else 9
    heading = "at" if by == "path" else KINDS[by].detailed
    result.append(Column(heading, cells, True, is_prose, lines=lines, importance=importance))
    special = _IMPORTANCE.get(by, {})
    return [
        replace(one, importance=special.get(one.heading, one.importance))
        for one in result
        if one.filled or not rows
    ]


# Figures of --stats: whoever asks for them needs them more than the parts of a time.
_STATISTICS = ("min_ns", "median_ns", "p99_ns", "max_ns", "stddev_ns")
# Ending of a key -> formatter.
_UNITS = {
    "_ns": names.format_duration,
    "_bytes": names.format_size,
    "_percent": names.format_percent,
    "_tflop_per_s": names.format_flops_per_second,
    "_gb_per_s": names.format_gb_per_second,
    "_flops": names.format_flops,
    "_flops_per_byte": names.format_number,
    "_ns_per_token": names.format_duration,
}
# Key without its unit -> heading, if it is not the same.
_EXTRA_HEADINGS = {
    "waited": "waiting for CPU",
    "cpu": "CPU time",
    "least": "min",
    "most": "max",
    "delay_median": "latency median",
    "delay_p99": "latency p99",
    "delay_max": "latency max",
}
# Endings whose unit is part of the heading.
_KEPT_UNITS = {"_flops_per_byte": ", FLOP/B", "_ns_per_token": " per token"}


def extra_column(key: str) -> tuple[str, Callable[..., str]]:
    """Return heading and formatter of an extra figure, by the unit in its key."""
    for unit, show in _UNITS.items():
        if key.endswith(unit):
            key = key.removesuffix(unit)
            heading = _EXTRA_HEADINGS.get(key, key.replace("_", " "))
            return heading + _KEPT_UNITS.get(unit, ""), show
    return key.replace("_", " "), names.format_number


def step_parts(device: DeviceTime, why: Iterable[IdleReasons]) -> list[tuple[str, int]]:
    """Return the parts of a device's time in its steps, or in its window if there are none.

    The parts add up to that time. Work that was probably not recorded is no idle time.
    """
    unrecorded_ns = _unrecorded_ns(why).get(device.device, 0)
    time = device.share_basis
    exposed_ns = (time.communication_ns or 0) - (time.overlap_ns or 0)
    parts = [
        ("compute", time.compute_ns),
        ("exposed communication", exposed_ns),
        ("exposed copies", time.busy_ns - time.compute_ns - exposed_ns),
        (IN_WORDS["unrecorded"], unrecorded_ns),
        ("idle", time.idle_ns - unrecorded_ns),
    ]
    return [(name, ns) for name, ns in parts if ns > 0]


def _unrecorded_ns(why: Iterable[IdleReasons]) -> dict[str, int]:
    """Return the time of each device in which work probably ran that was not recorded."""
    return {one.device: one.unrecorded_ns for one in why if one.step is None}


def device_columns(devices: tuple[DeviceTime, ...], why: Iterable[IdleReasons]) -> list[Column]:
    """Return the table of device times, within steps if they are known.

    The parts add up to the time in the second column. Total communication and copies follow.
    """
    why = tuple(why)
    stepped = any(one.steps is not None for one in devices)

    def length(one: DeviceTime) -> str:
        text = names.format_duration(one.share_basis.window_ns)
        return f"window {text}" if stepped and one.steps is None else text

    def column(heading: str, values: Iterable[int | None], importance: int) -> Column:
        cells = zip(values, (one.share_basis.window_ns for one in devices), strict=True)
        return Column(heading, tuple(_time_column(*cell) for cell in cells), importance=importance)

    found = [dict(step_parts(one, why)) for one in devices]
    result = [
        name_column("device", (one.device for one in devices)),
        Column("in steps" if stepped else "window", tuple(map(length, devices)), importance=8),
    ]
    for name, importance in _PARTS.items():
        if importance == 10 or any(name in parts for parts in found):
            heading = "idle in window" if name == "idle" and not stepped else name
            result.append(column(heading, (parts.get(name, 0) for parts in found), importance))
    times = [one.share_basis for one in devices]
    if any(one.overlap_ns for one in times):
        result.append(column("communication", (one.communication_ns for one in times), 5))
        result.append(column("overlapped", (one.overlap_ns for one in times), 5))
    exposed = [parts.get("exposed copies", 0) for parts in found]
    if any(one.copy_ns != ns for one, ns in zip(times, exposed, strict=True)):
        result.append(column("copies", (one.copy_ns for one in times), 4))
    if stepped:
        window = tuple(names.format_duration(one.window_ns) for one in devices)
        idle = tuple(_time_column(one.idle_ns, one.window_ns) for one in devices)
        result.append(Column("window", window, importance=3))
        result.append(Column("idle in window", idle, importance=3))
    tasks = tuple(names.format_number(one.tasks) for one in devices)
    return [*result, Column("tasks", tasks, importance=2)]


def _time_column(value_ns: int | None, whole_ns: int) -> str:
    text = names.format_duration(value_ns)
    return text if value_ns is None else f"{text} ({names.format_share(value_ns, whole_ns)})"
