"""Tracks of a recording for timeline viewers: slices of streams and threads, launch flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import nesting
from unified_prof.arrays.grouping import Ints, by_key
from unified_prof.arrays.packed import codes
from unified_prof.base.columns import API_QUEUE
from unified_prof.recording.calls import COMMUNICATION, KINDS, Labels
from unified_prof.recording.collectives import Collectives, device_name
from unified_prof.recording.communication import CollectiveNames
from unified_prof.recording.host_calls import UNCONNECTED
from unified_prof.recording.source import Source, Strings, possible
from unified_prof.recording.tasks import WAIT, Tasks

_HOST_TABLES = (
    # table, name of its tracks, columns: start, end, thread, name, connection
    ("PYTORCH_API", "PyTorch", "CAST(startNs AS INTEGER)", "CAST(endNs AS INTEGER)", "name"),
    ("UPROF_PYTHON_FRAMES", "Python", "startNs", "endNs", "name"),
    ("CANN_API", "runtime", "startNs", "endNs", "name"),
    ("MSTX_EVENTS", "marks", "startNs", "endNs", "message"),
    ("OSRT_API", "operating system", "startNs", "endNs", "name"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Slices of one stream or thread in order of start, nested or disjoint."""

    group: str  # Device or process.
    name: str
    labels: list[str]
    start_ns: Ints  # Unix time.
    end_ns: Ints
    label: NDArray[np.integer]
    category: list[str]  # One number per slice, or one for all slices.
    flow_in: Ints  # Number of the flow that ends at each slice; 0: none.
    flow_first: Ints  # First of the `flow_count` flows that begin at each slice.
    flow_count: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: NDArray[Any]) -> Track:
        """Return selected slices, by index or mask."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        if len(self.category) > 1:
            columns["category"] = [
                self.category[row] for row in np.arange(len(self))[rows].tolist()
            ]
        return replace(self, **columns)


_COLUMNS = ("start_ns", "end_ns", "label", "flow_in", "flow_first", "flow_count")


class Flows:
    """Numbers of the flows from launch calls to device tasks, counted from 1, by connection id."""

    def __init__(self, work: Ints, calls: Ints) -> None:
        self.of_work = np.zeros(len(work), np.int64)  # Flow that ends at each device task; 0: none.
        linked = np.flatnonzero(np.isin(work, calls) & ~np.isin(work, UNCONNECTED))
        order = linked[np.argsort(work[linked], kind="stable")]
        self._sorted = work[order]
        self.of_work[order] = np.arange(1, len(order) + 1)

    def from_calls(self, connection: Ints) -> tuple[Ints, Ints]:
        """Return the first flow and the number of flows that begin at each call."""
        first = np.searchsorted(self._sorted, connection, side="left")
        last = np.searchsorted(self._sorted, connection, side="right")
        return first + 1, last - first


def tracks(
    source: Source, tasks: Tasks, comms: Collectives, names: CollectiveNames, strings: Strings
) -> Iterator[Track]:
    """Yield the tracks of devices, then those of host threads."""
    calls = source.integers("CANN_API", {"connection": "connectionId"})["connection"]
    flows = Flows(tasks.connection.astype(np.int64), calls)
    yield from _device_tracks(tasks, comms, names, flows)
    for table, title, start, end, name in _HOST_TABLES:
        if table in source.tables:
            yield from _host_tracks(source, strings, table, title, start, end, name, flows)


def _device_tracks(
    tasks: Tasks, comms: Collectives, names: CollectiveNames, flows: Flows
) -> Iterator[Track]:
    labels = Labels()
    label = tasks.kernel_labels(labels, np.arange(len(tasks)))
    comm_label = names.names(labels)
    kinds = [*KINDS, "wait"]
    assert len(kinds) == WAIT + 1
    for device, own in by_key(comms.device):
        none = np.zeros(len(own), np.int64)
        whole = Track(
            group=device_name(device),
            name="collectives",
            labels=labels.texts,
            start_ns=comms.start_ns[own],
            end_ns=comms.end_ns[own],
            label=comm_label[own],
            category=[KINDS[COMMUNICATION]],
            flow_in=none,
            flow_first=none,
            flow_count=none,
        )
        yield from _split_overlaps(whole)
    places = tasks.device.astype(np.int64) << 32 | (tasks.stream.astype(np.int64) & 0xFFFFFFFF)
    for place, own in by_key(places):
        none = np.zeros(len(own), np.int64)
        start = tasks.start_ns[own]
        whole = Track(
            group=device_name(place >> 32),
            name=f"stream {place & 0xFFFFFFFF}",
            labels=labels.texts,
            start_ns=start,
            end_ns=start + tasks.duration_ns[own],
            label=label[own],
            category=[kinds[kind] for kind in tasks.kind[own].tolist()],
            flow_in=flows.of_work[own],
            flow_first=none,
            flow_count=none,
        )
        yield from _split_overlaps(whole)


def _host_tracks(
    source: Source,
    strings: Strings,
    table: str,
    title: str,
    start: str,
    end: str,
    name: str,
    flows: Flows,
) -> Iterator[Track]:
    columns = {"start": start, "end": end, "thread": "coalesce(globalTid, 0)", "name": name}
    if table == "PYTORCH_API":
        columns["type"] = "coalesce(type, 0)"
    if table == "CANN_API":
        columns["connection"] = "coalesce(connectionId, -1)"
    found = source.integers(table, columns)
    # Invalid times are left out; analyses count them.
    valid = possible(found["start"], found["end"] - found["start"]) & (found["start"] > 0)
    found = {key: values[valid] for key, values in found.items()}
    queue = found.get("type", np.zeros(len(found["start"]), np.int64)) == API_QUEUE
    labels = Labels()
    ids, number = codes(found["name"])
    texts = [text or "(unnamed)" for text in strings.texts(ids)]
    label = labels.numbers(texts)[number] if ids else np.zeros(0, np.int32)
    for in_queue, suffix in ((False, title), (True, "queue")):
        chosen = np.flatnonzero(queue == in_queue)
        for thread, rows in by_key(found["thread"][chosen]):
            own = chosen[rows]
            own = own[
                nesting.call_order(found["thread"][own], found["start"][own], found["end"][own])
            ]
            first = count = np.zeros(len(own), np.int64)
            if "connection" in found:
                first, count = flows.from_calls(found["connection"][own])
            yield Track(
                group=f"process {thread >> 32}" if thread >> 32 else "host",
                name=f"thread {thread & 0xFFFFFFFF} {suffix}",
                labels=labels.texts,
                start_ns=found["start"][own],
                end_ns=_nested_ends(found["thread"][own], found["start"][own], found["end"][own]),
                label=label[own],
                category=[suffix],
                flow_in=np.zeros(len(own), np.int64),
                flow_first=first,
                flow_count=count,
            )


def _nested_ends(thread: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the ends of ranges, clipped to the enclosing range because clocks are rounded."""
    ends = end_ns.tolist()
    for index, above in enumerate(nesting.parents(thread, start_ns, end_ns).tolist()):
        if above != nesting.NONE and ends[index] > ends[above]:
            ends[index] = ends[above]
    return np.array(ends, np.int64)


def _split_overlaps(whole: Track) -> Iterator[Track]:
    """Yield the slices of a stream on as many tracks as needed to avoid overlaps."""
    order = np.argsort(whole.start_ns, kind="stable")
    start, end = whole.start_ns[order], whole.end_ns[order]
    for number, rows in by_key(_row_of_each(start, end)):
        name = whole.name if number == 0 else f"{whole.name} (overlapping {number})"
        yield replace(whole.take(order[rows]), name=name)


def _row_of_each(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the lowest free row for each slice; slices must be in order of start."""
    row = np.zeros(len(start_ns), np.int64)
    if not np.any(start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]):
        return row
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    rows = 0
    for index, (begin, finish) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            number = heappop(free)
        else:
            number, rows = rows, rows + 1
        heappush(busy, (finish, number))
        row[index] = number
    return row
