"""Quantities that follow from intervals, as lines over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COPY, Labels
from unified_prof.analysis.model import Series
from unified_prof.analysis.read.collectives import device_name
from unified_prof.analysis.read.counters import MAX_BYTES
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays.lookup import Lookup
from unified_prof.units import NS_PER_S

Ints = NDArray[np.int64]

_SLOTS = 10_000
"""Of a longer line the lowest and the highest point of so many stretches are kept."""
_SIZES = {"MEMCPY_INFO": "size", "UPROF_GPU_TASKS": "sizeBytes"}
"""Where the bytes of copies and of memory sets are."""


def stacked(start_ns: Ints, end_ns: Ints, height: NDArray[Any]) -> tuple[Ints, NDArray[np.float64]]:
    """Return the sum of the heights of all intervals that are open, from each change to the next.

    Where none is open the sum is exactly zero, whatever the rounding of the heights.
    """
    moments = np.concatenate((start_ns, end_ns))
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    opened = np.cumsum(np.repeat(np.array([1, -1]), len(start_ns))[order])
    level = np.cumsum(np.concatenate((height, -height)).astype(np.float64)[order])
    last = np.flatnonzero(np.append(moments[1:] != moments[:-1], True)[: len(moments)])
    return moments[last], np.where(opened[last] > 0, np.maximum(level[last], 0), 0.0)


def thinned(time_ns: Ints, value: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    """Return a line with no more points than a viewer can use: its extremes stay, and both ends."""
    if len(value) <= 2 * _SLOTS:
        return time_ns, value
    edges = np.linspace(0, len(value), _SLOTS + 1).astype(np.int64)
    by_value = np.lexsort((value, np.repeat(np.arange(_SLOTS), np.diff(edges))))
    ends = np.array([0, len(value) - 1])
    kept = np.unique(np.concatenate((by_value[edges[:-1]], by_value[edges[1:] - 1], ends)))
    return time_ns[kept], value[kept]


def copy_rates(source: Source, tasks: Tasks) -> tuple[Series, ...]:
    """Return the rate of copies and memory sets of each device over time, a series for each kind.

    Copies that run at the same time add up. A rate is the one that was recorded, where there is one
    (the profiler knew times that it then rounded), else size over time; those of which neither is
    known are left out.
    """
    if not tasks.counts[COPY]:
        return ()
    columns = ("start_ns", "duration_ns", "identity", "device", "rows")
    found = []
    for rows in tasks.windows():
        chosen = rows.where((rows.kind == COPY) & (rows.duration_ns > 0))
        found.append([getattr(chosen, column).astype(np.int64) for column in columns])
    start, lasted, identity, device, copies = map(np.concatenate, zip(*found, strict=True))
    rates = _rates(source, identity, lasted)
    labels = Labels()
    what = tasks.operator_labels(labels, copies).astype(np.int64)
    result = []
    known = np.flatnonzero(rates > 0)
    for place, mine in by_key(device[known] << 32 | what[known]):
        own = known[mine]
        time_ns, value = thinned(*stacked(start[own], start[own] + lasted[own], rates[own]))
        name = labels.texts[place & 0xFFFFFFFF]
        result.append(Series(name, "B/s", device_name(place >> 32), time_ns, value))
    return tuple(result)


def _rates(
    source: Source, identity: NDArray[np.integer], lasted_ns: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return the bytes a second of each task, -1 where that is not known."""
    size = _sizes(source, identity)
    result = np.where(size > 0, size * (NS_PER_S / lasted_ns.astype(np.float64)), -1.0)
    if "UPROF_GPU_TASKS" in source.tables:
        # In whole bytes a second, as integers are read; what is impossible is not recorded.
        rate = f"CAST(bandwidthGBps * {NS_PER_S} AS INTEGER)"
        found = source.integers("UPROF_GPU_TASKS", {"id": "globalTaskId", "rate": rate})
        row = Lookup(found["id"]).rows(identity)
        recorded = np.append(found["rate"], -1)[row]
        good = (row >= 0) & (recorded > 0) & (recorded < MAX_BYTES)
        result[good] = recorded[good]
    return result


def _sizes(source: Source, identity: NDArray[np.integer]) -> Ints:
    """Return how many bytes each task copied or set, -1 where that is not known."""
    result = np.full(len(identity), -1, np.int64)
    for table, column in _SIZES.items():
        if table in source.tables:
            found = source.integers(table, {"id": "globalTaskId", "size": column})
            row = Lookup(found["id"]).rows(identity)
            size = np.append(found["size"], -1)[row]
            good = (row >= 0) & (size > 0) & (size < MAX_BYTES)
            result[good] = size[good]
    return result
