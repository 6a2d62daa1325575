"""Device tasks over time, merged to blocks in large recordings, and tracks for timeline viewers.

Tracks are slices of streams and threads, and launch flows. Copy rates are also computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Floats, Frame, Ints, Runs, by_key, value_by_key
from unified_prof.arrays.packed import codes
from unified_prof.base.columns import API_QUEUE
from unified_prof.base.text import NS_PER_S
from unified_prof.recording.calls import COMMUNICATION, COPY, KINDS, Labels
from unified_prof.recording.collectives import CollectiveNames, Collectives
from unified_prof.recording.counters import MAX_BYTES
from unified_prof.recording.host_calls import UNCONNECTED
from unified_prof.recording.model import Series
from unified_prof.recording.source import Source, Strings, device_name, possible
from unified_prof.recording.tasks import WAIT, TaskRows, Tasks

_PART = 5  # Share of the blocks reserved for the busiest time range, in which tasks are not merged.


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Blocks of one stream, or of the collectives of one device, in order of time."""

    device: str
    name: str
    start_ns: Ints  # Relative to the timeline's start.
    duration_ns: Ints  # From the start of the first task in the block to the end of the last.
    busy_ns: Ints  # Sum of the durations of the tasks in the block.
    count: Ints  # Number of tasks in the block; `label` and `kind` are those of the longest task.
    label: NDArray[np.int32]  # Number in the timeline's labels.
    kind: NDArray[np.int8]
    connection: Ints  # Connection id of the longest task.

    def __len__(self) -> int:
        return len(self.start_ns)


class Timeline(Struct, frozen=True, eq=False):
    """All lanes of one time window."""

    start_ns: int  # Unix time of the window's start.
    duration_ns: int
    labels: tuple[str, ...]
    lanes: tuple[Lane, ...]
    # Tasks shorter than this may be merged with their neighbors; 0: no tasks are merged.
    merged_below_ns: int
    tasks: int  # Number of tasks in all blocks.
    # Start and end of the busiest part, in which no tasks are merged; None if none are merged at
    # all.
    whole_ns: tuple[int, int] | None = None


def build(
    tasks: Tasks, comms: Collectives, names: CollectiveNames, *, limit: int | None = None
) -> Timeline | None:
    """Return the timeline of a report, None if it has no device tasks.

    Collectives get a separate lane; `limit` is the approximate maximum number of blocks, None: no
    limit.
    """
    rows = _Rows(tasks, comms, names)
    if not rows.count:
        return None
    busiest = resolution = None
    if limit is not None and rows.count > limit:
        busiest = _busiest(rows, max(1, limit // _PART))
        resolution = max(1, rows.window_ns * len(rows.places) // (4 * limit))
    drawn = _BlockMerger(limit, resolution, rows.window_ns)
    for part in rows.parts(busiest):
        drawn.add(part)
    blocks = drawn.blocks()
    bounds = np.searchsorted(blocks.lane, np.arange(len(rows.places) + 1))
    lanes = []
    for number, where in enumerate(rows.places.tolist()):
        own = slice(bounds[number], bounds[number + 1])
        stream = (where & 0xFFFFFFFF) - 1
        lanes.append(
            Lane(
                device=device_name(where >> 32),
                name="collectives" if stream < 0 else f"stream {stream}",
                duration_ns=blocks.end_ns[own] - blocks.start_ns[own],
                **{name: getattr(blocks, name)[own] for name in _OF_BLOCKS},
            )
        )
    return Timeline(
        rows.origin_ns,
        rows.window_ns,
        tuple(rows.labels.texts),
        tuple(lanes),
        drawn.resolution or 0,
        rows.count,
        busiest,
    )


# Columns of blocks that lanes have too.
_OF_BLOCKS = ("start_ns", "busy_ns", "count", "label", "kind", "connection")


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks(Frame):
    """Tasks or merged blocks of tasks, by lane and in order of time."""

    lane: Ints
    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints
    count: Ints
    longest_ns: Ints  # Duration of the longest task; the next three columns describe that task.
    label: NDArray[np.int32]
    kind: NDArray[np.int8]
    connection: Ints
    kept: Bools  # True if the block must not be merged.

    def merged(self, resolution: int) -> _Blocks:
        """Merge blocks shorter than the resolution with the others in their time slot."""
        if not len(self):
            return self
        slot = self.start_ns // resolution
        first = np.ones(len(self), bool)
        apart = self.kept | ((self.count == 1) & (self.longest_ns >= resolution))
        first[1:] = (slot[1:] != slot[:-1]) | (self.lane[1:] != self.lane[:-1])
        first[1:] |= apart[1:] | apart[:-1]
        heads = np.flatnonzero(first)
        if len(heads) == len(self):
            return self
        longest_ns = np.maximum.reduceat(self.longest_ns, heads)
        block = np.cumsum(first) - 1
        is_longest = np.flatnonzero(self.longest_ns == longest_ns[block])
        longest = np.empty(len(heads), np.int64)
        longest[block[is_longest][::-1]] = is_longest[::-1]
        return _Blocks(
            lane=self.lane[heads],
            start_ns=self.start_ns[heads],
            end_ns=np.maximum.reduceat(self.end_ns, heads),
            busy_ns=np.add.reduceat(self.busy_ns, heads),
            count=np.add.reduceat(self.count, heads),
            longest_ns=longest_ns,
            label=self.label[longest],
            kind=self.kind[longest],
            connection=self.connection[longest],
            kept=self.kept[heads],
        )


class _Rows:
    """Windows of the program's tasks and the collectives.

    The profiler's marks at both ends are left out, as they would stretch the time axis.
    """

    def __init__(self, tasks: Tasks, comms: Collectives, names: CollectiveNames) -> None:
        self._tasks, self._comms = tasks, comms
        self.labels = Labels()
        self._names = tasks.kernel_names(self.labels, self._is_shown)
        self._comm_names = names.names(self.labels)
        first, last, self.count = [], [], 0
        places = [np.zeros(0, np.int64)]
        for rows in tasks.windows():
            shown = rows.where(self._is_shown(rows))
            if len(shown):
                first.append(int(shown.start_ns.min()))
                last.append(int(shown.end_ns.max()))
                places.append(np.unique(self._places(shown)))
                self.count += len(shown)
        if len(comms):
            first.append(int(comms.start_ns.min()))
            last.append(int(comms.end_ns.max()))
            places.append(comms.device << 32)
            self.count += len(comms)
        # The lanes: by device, its collectives before its streams.
        self.places = np.unique(np.concatenate(places))
        self.origin_ns = min(first, default=0)
        self.window_ns = max(last, default=0) - self.origin_ns

    def parts(self, whole: tuple[int, int] | None) -> Iterator[_Blocks]:
        """Yield all rows, those of each lane in order of time.

        Tasks are not merged in the time range `whole`.
        """
        for rows in self._tasks.in_time():
            shown = rows.where(self._is_shown(rows))
            start, duration = shown.start_ns - self.origin_ns, shown.duration_ns.astype(np.int64)
            place, connection = self._places(shown), shown.connection.astype(np.int64)
            yield self._part(
                place, start, duration, self._names.find(shown), shown.kind, connection, whole
            )
        order = np.argsort(self._comms.start_ns, kind="stable")
        start = self._comms.start_ns[order] - self.origin_ns
        kind = np.full(len(order), COMMUNICATION, np.int8)
        place, duration = self._comms.device[order] << 32, self._comms.duration_ns[order]
        connection = self._comms.connection[order]
        yield self._part(place, start, duration, self._comm_names[order], kind, connection, whole)

    def starts(self) -> Iterator[Ints]:
        """Yield the starts of all rows in order."""
        comms = np.sort(self._comms.start_ns)
        at = 0
        for rows in self._tasks.in_time():
            until = int(np.searchsorted(comms, rows.until_ns))
            start = rows.start_ns[self._is_shown(rows)]
            if until > at:
                start = np.sort(np.concatenate((start, comms[at:until])))
            at = until
            yield start - self.origin_ns
        yield comms[at:] - self.origin_ns

    def _part(
        self,
        place: Ints,
        start: Ints,
        duration: Ints,
        label: NDArray[np.int32],
        kind: NDArray[np.int8],
        connection: Ints,
        whole: tuple[int, int] | None,
    ) -> _Blocks:
        kept = np.zeros(len(start), bool)
        if whole is not None:
            kept = (start >= whole[0]) & (start < whole[1])
        lane = np.searchsorted(self.places, place)
        one = np.ones(len(start), np.int64)
        blocks = _Blocks(
            lane, start, start + duration, duration, one, duration, label, kind, connection, kept
        )
        return blocks.take(np.argsort(lane, kind="stable"))

    def _is_shown(self, rows: TaskRows) -> Bools:
        return self._tasks.program_types.take(rows.type)

    def _places(self, rows: TaskRows) -> Ints:
        stream = rows.stream.astype(np.int64) & 0x7FFFFFFF
        return rows.device.astype(np.int64) << 32 | (stream + 1)


class _BlockMerger:
    """Merges tasks to a limited number of blocks; in memory are twice as many, plus one window.

    Tasks of one lane that are shorter than the resolution and start in the same slot of that length
    become one block; others are not merged. The resolution doubles whenever there are too many
    blocks.
    """

    def __init__(self, limit: int | None, resolution: int | None, window_ns: int) -> None:
        self._limit, self._window_ns = limit, window_ns
        self.resolution = resolution  # Length of a time slot; None: all tasks fit.
        self._parts: list[_Blocks] = []
        self._count = 0

    def add(self, part: _Blocks) -> None:
        """Add tasks."""
        self._parts.append(part if self.resolution is None else part.merged(self.resolution))
        self._count += len(self._parts[-1])
        if self._limit is not None and self._count > 2 * self._limit:
            self._join()

    def blocks(self) -> _Blocks:
        """Return all blocks."""
        self._join()
        return self._parts[0]

    def _join(self) -> None:
        parts, self._parts = self._parts, []
        joined = _Blocks.concatenate(parts)
        del parts
        joined = joined.take(np.argsort(joined.lane, kind="stable"))
        if self.resolution is not None:
            assert self._limit is not None
            joined = joined.merged(self.resolution)
            while len(joined) > self._limit and self.resolution <= self._window_ns:
                self.resolution *= 2
                joined = joined.merged(self.resolution)
        self._parts, self._count = [joined], len(joined)


def _busiest(rows: _Rows, tasks: int) -> tuple[int, int] | None:
    """Return the shortest time in which `tasks` tasks start; None if far more start at once."""
    best: tuple[int, int, int] | None = None
    last = np.zeros(0, np.int64)
    for starts in rows.starts():
        ordered = np.concatenate((last, starts))
        length = ordered[tasks - 1 :] - ordered[: max(len(ordered) - tasks + 1, 0)]
        if len(length):
            first = int(length.argmin())
            if best is None or length[first] < best[0]:
                best = int(length[first]), int(ordered[first]), int(ordered[first + tasks - 1]) + 1
        last = ordered[max(len(ordered) - tasks + 1, 0) :] if tasks > 1 else ordered[:0]
    assert best is not None, "fewer rows than `tasks`"
    _, begin, end = best
    inside = sum(int(((start >= begin) & (start < end)).sum()) for start in rows.starts())
    return (begin, end) if inside <= 2 * tasks else None


# Lines with more points keep the lowest and highest point in each of this many slots.
_SLOTS = 10_000
# Tables and columns with the sizes of copies and memory sets.
_SIZES = {"MEMCPY_INFO": "size", "UPROF_GPU_TASKS": "sizeBytes"}


def stacked(start_ns: Ints, end_ns: Ints, height: NDArray[Any]) -> tuple[Ints, Floats]:
    """Return the times at which the sum of the heights of open intervals changes, and the sums.

    Without open intervals, the sum is exactly 0 despite rounding.
    """
    moments = np.concatenate((start_ns, end_ns))
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    opened = np.cumsum(np.repeat(np.array([1, -1]), len(start_ns))[order])
    level = np.cumsum(np.concatenate((height, -height)).astype(np.float64)[order])
    last = Runs(moments).last
    return moments[last], np.where(opened[last] > 0, np.maximum(level[last], 0), 0.0)


def thin_line(time_ns: Ints, value: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    """Return a line with fewer points, keeping extremes and both ends."""
    if len(value) <= 2 * _SLOTS:
        return time_ns, value
    edges = np.linspace(0, len(value), _SLOTS + 1).astype(np.int64)
    by_value = np.lexsort((value, np.repeat(np.arange(_SLOTS), np.diff(edges))))
    ends = np.array([0, len(value) - 1])
    kept = np.unique(np.concatenate((by_value[edges[:-1]], by_value[edges[1:] - 1], ends)))
    return time_ns[kept], value[kept]


def copy_rates(source: Source, tasks: Tasks) -> tuple[Series, ...]:
    """Return the rate of copies and memsets of each device over time, one series for each kind.

    Rates of concurrent copies add up. The rate of a copy is the recorded one, which the profiler
    computed from unrounded times, else its size divided by its duration; copies without either are
    left out.
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
    for place, selected in by_key(device[known] << 32 | what[known]):
        own = known[selected]
        time_ns, value = thin_line(*stacked(start[own], start[own] + lasted[own], rates[own]))
        name = labels.texts[place & 0xFFFFFFFF]
        result.append(Series(name, "B/s", device_name(place >> 32), time_ns, value))
    return tuple(result)


def _rates(source: Source, identity: NDArray[np.integer], lasted_ns: NDArray[np.integer]) -> Floats:
    """Return the rate of each task in B/s, -1 if unknown."""
    size = _sizes(source, identity)
    result = np.where(size > 0, size * (NS_PER_S / lasted_ns.astype(np.float64)), -1.0)
    if "UPROF_GPU_TASKS" in source.tables:
        # Whole bytes per second; invalid values count as not recorded.
        rate = f"CAST(bandwidthGBps * {NS_PER_S} AS INTEGER)"
        found = source.integers("UPROF_GPU_TASKS", {"id": "globalTaskId", "rate": rate})
        recorded = _possible(found["id"], found["rate"], identity)
        result = np.where(recorded > 0, recorded, result)
    return result


def _sizes(source: Source, identity: NDArray[np.integer]) -> Ints:
    """Return the number of bytes that each task copied or set, -1 if unknown."""
    result = np.full(len(identity), -1, np.int64)
    for table, column in _SIZES.items():
        if table in source.tables:
            found = source.integers(table, {"id": "globalTaskId", "size": column})
            size = _possible(found["id"], found["size"], identity)
            result = np.where(size > 0, size, result)
    return result


def _possible(ids: Ints, values: Ints, identity: NDArray[np.integer]) -> Ints:
    """Return the value of each task, -1 if it is unknown, impossible or 0."""
    found = value_by_key(ids, values, identity, -1)
    return np.where((found > 0) & (found < MAX_BYTES), found, -1)


_HOST_TABLES = (
    # table, name of its tracks, columns: start, end, thread, name, connection
    ("PYTORCH_API", "PyTorch", "CAST(startNs AS INTEGER)", "CAST(endNs AS INTEGER)", "name"),
    ("UPROF_PYTHON_FRAMES", "Python", "startNs", "endNs", "name"),
    ("CANN_API", "runtime", "startNs", "endNs", "name"),
    ("MSTX_EVENTS", "marks", "startNs", "endNs", "message"),
    ("OSRT_API", "operating system", "startNs", "endNs", "name"),
)


class Track(Struct, frozen=True, eq=False):
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
                intervals.call_order(found["thread"][own], found["start"][own], found["end"][own])
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
    for index, above in enumerate(intervals.parents(thread, start_ns, end_ns).tolist()):
        if above != intervals.NONE and ends[index] > ends[above]:
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
