"""Joins the rows of a GPU recording: host events by nesting, device tasks by correlation id.

The host side is joined and written in time windows. Nesting on a thread determines the operation,
the call chain and the collective of each runtime call and allocation. Device tasks are then joined
to their launches, and OVERLAP_ANALYSIS is written.
"""

from __future__ import annotations

import re
from contextlib import ExitStack

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, distinct, distinct_rows, find
from unified_prof.arrays.intervals import NONE, ROUNDING_NS, call_order, containing, inherit
from unified_prof.base.columns import MISSING
from unified_prof.base.text import TIMES, scaled
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.host_tables import Allocations, HostTables
from unified_prof.decoders.gpu.rows import Forwards, Parts
from unified_prof.decoders.overlap import DeviceOverlap, OverlapWriter, Spans
from unified_prof.decoders.spool import Rows, Spool, row_type, selected, stacked, windows

# ENUM_API_TYPE `runtime`.
API_TYPE_RUNTIME = 5000
_FROM_CALL = ("thread", "operation_name", "signature")
_TASK_WINDOW_ROWS = 1 << 15
_KERNELS = (r.KERNEL, r.COMMUNICATION)
# Maximum clock skew of host and device; a task that begins earlier is counted.
_SKEW_NS = 100_000
# Calls that launch one kernel.
_LAUNCHES_ONE = re.compile(r"(?!.*(?:graph|multi)).*launch", re.IGNORECASE | re.DOTALL)


class TaskChecks:
    """Counts kernels whose recorded times or ids cannot be right, as of some AMD devices."""

    def __init__(self, parts: Parts) -> None:
        self._sink = parts.sink
        self._launching_one = [
            number for name, number in parts.names.items() if _LAUNCHES_ONE.match(str(name))
        ]
        # Stream -> latest end of its kernels, and the latest end that was counted.
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}
        self._sharing = self._early = self._early_ns = self._overlong = self._overlong_ns = 0
        self._repeated = 0

    def add_launches(self, tasks: Rows, launch: Ints, launching: Rows) -> None:
        """Check the ids and starts of tasks with the indexes and rows of their launching calls."""
        early_ns = launching["start"] - tasks["start"]
        self._early += int(np.count_nonzero(early_ns > _SKEW_NS))
        self._early_ns = max(self._early_ns, int(early_ns.max(initial=0)))
        single = np.isin(launching["name"], self._launching_one) & np.isin(tasks["kind"], _KERNELS)
        self._sharing += int(np.count_nonzero(single)) - len(np.unique(launch[single]))

    def add_streams(self, tasks: Rows) -> None:
        """Check tasks, which are sorted by start, against others of their streams.

        Kernels of one graph are exempt, because its branches run in parallel, and collectives: AMD
        devices record queues as streams, and a queue may have kernels of several streams.
        """
        tied = np.zeros(len(tasks), dtype=bool)
        tied[1:] = tasks["start"][1:] == tasks["start"][:-1]
        tied[:-1] |= tied[1:]
        alike = tasks[tied & (tasks["end"] - tasks["start"] > ROUNDING_NS)]
        equal = ("start", "end", "device", "context", "stream", "name")
        alike = alike[np.lexsort([alike[field] for field in equal])]
        same = [alike[field][1:] == alike[field][:-1] for field in equal]
        self._repeated += int(np.count_nonzero(np.logical_and.reduce(same)))
        _, place = distinct(tasks["connection"])
        chosen = (tasks["kind"] == r.KERNEL) & (np.bincount(place)[place] == 1)
        tasks = tasks[chosen & (tasks["graph"] == MISSING) & (tasks["stream"] != MISSING)]
        queue = ("process", "device", "context", "stream")
        first, place = distinct_rows(*(tasks[field].astype(np.int64) for field in queue))
        for at in first.tolist():
            key = tuple(int(tasks[field][at]) for field in queue)
            latest, counted = self._ends.get(key, (NONE, NONE))
            ends = np.append(latest, tasks["end"][place == at])
            latest_ends = np.maximum.accumulate(ends)
            beyond_ns = latest_ends[:-1] - ends[1:]
            overlong = np.append(counted, latest_ends[:-1][beyond_ns > ROUNDING_NS])
            self._overlong += int(np.count_nonzero(np.diff(overlong)))
            self._overlong_ns = max(self._overlong_ns, int(beyond_ns.max(initial=0)))
            self._ends[key] = int(latest_ends[-1]), int(overlong[-1])

    def finish(self) -> None:
        """Write the anomalies."""
        anomaly = self._sink.anomaly
        detail = "kernels with the correlation id of another's launch: operations may be wrong"
        anomaly("shared_launch", self._sharing, detail)
        detail = f"by up to {scaled(self._early_ns, TIMES)}: clocks differ, or ids are wrong"
        anomaly("task_before_launch", self._early, detail)
        beyond = scaled(self._overlong_ns, TIMES)
        detail = f"ends up to {beyond} after a later kernel of its stream: times may be too long"
        anomaly("overlong_kernel", self._overlong, detail)
        anomaly("repeated_task", self._repeated, "device tasks are in the file twice: times add up")


class Correlator:
    """Writes CANN_API and CONNECTION_IDS, and completes the device tasks.

    CANN_API.connectionId is a primary key. It is the correlation id of a call, or a new id above
    all correlation ids if an earlier call has the same correlation id.
    """

    def __init__(self, parts: Parts, checks: TaskChecks) -> None:
        self._parts, self._checks = parts, checks
        self._sink = parts.sink
        self._next_id = parts.max_correlation + 1
        self.joined = 0  # Number of tasks matched to their launch.

    def join(self, calls: Spool) -> Spool:
        """Return the device tasks with their launch and operation, sorted by time."""
        tasks = self._parts.new_spool(r.GPU_TASK, "start")
        orphans = self._parts.new_spool(r.GPU_TASK, "external")
        task_windows = windows(calls, self._parts.gpu, window_rows=_TASK_WINDOW_ROWS)
        for window, rows in task_windows:
            connections = self._write_calls(window)
            if len(rows):
                joined = self._join_launches(rows, window, connections)
                orphan = (joined["operation_name"] == NONE) & (joined["external"] != MISSING)
                if self._parts.links_to_operations and orphan.any():
                    orphans.append(joined[orphan])
                    joined = joined[~orphan]
                tasks.append(joined)
        if orphans.rows:
            self._join_external_ids(orphans, tasks)
        missing = self._parts.gpu.rows - self.joined
        self._sink.anomaly("task_without_launch", missing, "no call has the correlation id")
        return tasks

    def _write_calls(self, calls: Rows) -> Ints:
        if not len(calls):
            return np.empty(0, dtype=np.int64)
        connections = calls["correlation"].copy()
        repeated = np.append(False, connections[1:] == connections[:-1])
        needs_id = repeated | (connections < 0)
        count = int(np.count_nonzero(needs_id))
        if count:
            connections[needs_id] = self._new_ids(count)
            duplicates = int(np.count_nonzero(repeated & (calls["correlation"] >= 0)))
            self._sink.anomaly("duplicate_correlation", duplicates, "a new id was assigned")
        threads = self._parts.threads
        self._sink.write(
            "CANN_API",
            {
                "startNs": calls["start"] + self._parts.base_ns,
                "endNs": calls["end"] + self._parts.base_ns,
                "type": API_TYPE_RUNTIME,
                "globalTid": np.array(threads.global_tids)[calls["thread"]],
                "connectionId": connections,
                "name": calls["name"],
            },
        )
        inside = calls["operation"] != NONE
        if inside.any():
            self._sink.write(
                "CONNECTION_IDS",
                {"id": calls["operation"][inside], "connectionId": connections[inside]},
            )
        return connections

    def _join_launches(self, tasks: Rows, calls: Rows, connections: Ints) -> Rows:
        """Return the tasks with the fields of their launching calls."""
        tasks = tasks.copy()  # rows of a file are read-only
        launch = _launches(tasks, calls)
        found = launch != NONE
        self.joined += int(np.count_nonzero(found))
        tasks["connection"] = tasks["correlation"]
        without_id = ~found & (tasks["correlation"] <= 0)
        if without_id.any():
            tasks["connection"][without_id] = self._new_ids(int(np.count_nonzero(without_id)))
        if found.any():
            if found.all():
                found = slice(None)
            launching = selected(calls, launch[found])
            self._checks.add_launches(tasks[found], launch[found], launching)
            tasks["connection"][found] = connections[launch[found]]
            for field in _FROM_CALL:
                tasks[field][found] = launching[field]
            self._add_peers(tasks, found, launching["collective"])
            for field in ("collective", "size", "geometry", "shared_memory"):
                tasks[field][found] = np.where(
                    tasks[field][found] == MISSING, launching[field], tasks[field][found]
                )
            same = calls["correlation"][1:] == calls["correlation"][:-1]
            repeated = np.append(False, same) | np.append(same, False)
            ambiguous = repeated[launch[found]]
            if ambiguous.any():
                count = int(np.count_nonzero(ambiguous))
                self._sink.anomaly("ambiguous_launch", count, "matched by operation and time")
        return tasks

    def _add_peers(self, tasks: Rows, found: Bools | slice, launching: Ints) -> None:
        """Add the peer that only the launch has to the sends and receives among `tasks`."""
        collectives = self._parts.collectives
        kernels = tasks["collective"][found]
        for at in np.flatnonzero((kernels != MISSING) & (launching != MISSING)).tolist():
            call = collectives.all[kernels[at]]
            if call.lacks_peer:
                with_peer = call.with_peer(collectives.all[launching[at]])
                kernels[at] = collectives.number(with_peer)
        tasks["collective"][found] = kernels

    def _join_external_ids(self, orphans: Spool, tasks: Spool) -> None:
        """Join `orphans` with operations by their `External id`, and add them to `tasks`."""
        by_id = self._parts.new_spool(r.HOST, "external")
        for (host,) in windows(self._parts.host):
            by_id.append(host[(host["is_operation"] != 0) & (host["external"] != MISSING)])
        with by_id:
            for host, rows in windows(by_id, orphans):
                if not len(rows):
                    continue
                rows = rows.copy()
                at = find(host["external"], rows["external"])
                found = at != NOWHERE
                operations = host[at[found]]
                rows["operation_name"][found] = operations["name"]
                rows["signature"][found] = operations["signature"]
                for field in ("thread", "collective"):
                    rows[field][found] = np.where(
                        rows[field][found] == MISSING, operations[field], rows[field][found]
                    )
                tasks.append(rows)

    def _new_ids(self, count: int) -> Ints:
        ids = np.arange(self._next_id, self._next_id + count)
        self._next_id += count
        return ids


def _launches(tasks: Rows, calls: Rows) -> Ints:
    """Return the index of the call that launched each task, or `NONE`.

    Both are sorted by correlation id, calls then by start. If several calls have the correlation id
    (several processes in one trace), the call with the same external id is used, otherwise the last
    one that started before the task.
    """
    correlation, wanted = calls["correlation"], tasks["correlation"]
    first = np.searchsorted(correlation, wanted, side="left")
    end = np.searchsorted(correlation, wanted, side="right")
    launch = np.where((end > first) & (wanted > 0), first, NONE)
    repeated = np.flatnonzero((end - first > 1) & (wanted > 0))
    for index in repeated.tolist():
        choices = np.arange(first[index], end[index])
        same = choices[calls["external"][choices] == tasks["external"][index]]
        if len(same) == 1:
            launch[index] = same[0]
            continue
        choices = same if len(same) else choices
        before = choices[calls["start"][choices] <= tasks["start"][index]]
        if len(before):
            launch[index] = before[np.argmax(calls["start"][before])]
    return launch


_COMPUTING = (r.KERNEL, r.GRAPH)


class Overlap:
    """Context manager that writes OVERLAP_ANALYSIS from the tasks of all devices.

    As in msprof's exporter, copies and memory sets count neither as compute nor as idle time.
    """

    def __init__(self, parts: Parts) -> None:
        self._writer = OverlapWriter(parts.sink, parts.new_spool, with_empty=True)
        self._base_ns = parts.base_ns
        self._stack = ExitStack()
        self._devices: dict[int, DeviceOverlap] = {}
        self._communication: dict[int, list[Spans]] = {}

    def __enter__(self) -> Overlap:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def add(self, rows: Rows) -> None:
        """Add a window of tasks, in order of their start."""
        computes = np.isin(rows["kind"], _COMPUTING)
        communicates = rows["kind"] == r.COMMUNICATION
        for device in np.unique(rows["device"]).tolist():
            if device not in self._devices:
                opened = self._stack.enter_context(self._writer.device(device))
                self._devices[device], self._communication[device] = opened, []
            on_device = rows["device"] == device
            tasks, computing = self._spans(rows[on_device]), self._spans(rows[on_device & computes])
            self._devices[device].add(tasks, computing)
            self._communication[device].append(self._spans(rows[on_device & communicates]))

    def finish(self) -> None:
        """Write the intervals of all devices, in order of device numbers."""
        for device in sorted(self._devices):
            starts, ends = zip(*self._communication[device], strict=True)
            self._devices[device].finish((np.concatenate(starts), np.concatenate(ends)))

    def _spans(self, rows: Rows) -> Spans:
        return rows["start"] + self._base_ns, rows["end"] + self._base_ns


WINDOW_ROWS = 1 << 16  # Host rows of all kinds that are joined at a time.

# Anything with a beginning and an end on a thread, and its attributes. Of two equal intervals the
# one with the smaller `rank` is outside; `frame` is NONE if it is not a Python function.
INTERVAL = row_type(
    "start i8, end i8, thread i4, rank i8, frame i4, chain i4, operation i8, operation_name i4,"
    "signature i4, collective i4"
)

_HOST_RANK, _CALL_RANK, _POINT_RANK = 1 << 60, 2 << 60, 3 << 60


def _graph_launch_ids(parts: Parts) -> Ints:
    """Return the external ids of graph launches; in old traces they equal correlation ids."""
    names = [number for name, number in parts.names.items() if "GraphLaunch" in str(name)]
    found = [np.zeros(0, np.int64)]
    for (calls,) in windows(parts.calls) if names else ():
        linked = np.isin(calls["name"], names) & (calls["external"] != calls["correlation"])
        found.append(calls["external"][linked & (calls["external"] != MISSING)])
    return np.unique(np.concatenate(found))


def write_host(parts: Parts, tables: HostTables, allocations: Allocations) -> Spool:
    """Write the host tables; return the calls with operations, sorted by correlation id."""
    calls = parts.new_spool(r.CALL, "correlation")
    joiner = _HostJoiner(parts, tables, allocations, calls)
    spools = (parts.host, parts.frames, parts.calls, parts.allocations)
    for host, frames, window_calls, allocated in windows(*spools, window_rows=WINDOW_ROWS):
        joiner.add(host, frames, window_calls, allocated)
    joiner.finish()
    return calls


class _HostJoiner:
    def __init__(
        self, parts: Parts, tables: HostTables, allocations: Allocations, calls: Spool
    ) -> None:
        self._parts, self._tables, self._allocations = parts, tables, allocations
        self._calls = calls
        self._forwards = Forwards()
        self._open = np.empty(0, dtype=INTERVAL)
        self._operations = 0
        self._graph_ids = _graph_launch_ids(parts)
        # External id -> fields of the operation that launched a graph.
        self._launching: dict[int, tuple[int, int, int]] = {}

    def add(self, host: Rows, frames: Rows, calls: Rows, allocated: Rows) -> None:
        """Join the rows of one time window, given one array per kind."""
        bound = max(int(p["start"][-1]) for p in (host, frames, calls, allocated) if len(p))
        new_frames = self._frame_intervals(frames)
        new_host, numbers = self._host_intervals(host)
        launching = self._note_launching(host, numbers)
        if not len(self._open) + len(new_frames) + len(new_host):
            # Nothing can be nested, as in recordings of kernels only.
            self._add_calls(calls, _points(calls, _CALL_RANK))
            around = _points(allocated, _POINT_RANK)
            self._allocations.add(allocated, around["operation_name"])
            called = np.full(len(calls), MISSING, np.int64)
            self._tables.add(host, numbers, new_host["chain"], called, bound)
            return
        call_points, points = _points(calls, _CALL_RANK), _points(allocated, _POINT_RANK)
        intervals = stacked((self._open, new_frames, new_host, call_points, points))
        order = call_order(*(intervals[name] for name in ("thread", "start", "end", "rank")))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        intervals = selected(intervals, order)
        parent = containing(intervals["thread"], intervals["end"])
        first = len(self._open) + len(new_frames)
        host_place = place[first : first + len(host)]
        if len(self._parts.chains):
            self._inherit_chains(intervals, parent, host, host_place)
        source = np.where(intervals["operation"] != NONE, np.arange(len(intervals)), NONE)
        source = inherit(source, parent)
        for field in ("operation", "operation_name", "signature"):
            intervals[field] = np.where(source != NONE, intervals[field][source], NONE)
        intervals["collective"] = inherit(intervals["collective"], parent)

        point_place = place[len(intervals) - len(calls) - len(allocated) :]
        call_place, allocated_place = point_place[: len(calls)], point_place[len(calls) :]
        self._add_calls(calls, selected(intervals, call_place))
        self._allocations.add(allocated, intervals[allocated_place]["operation_name"])
        chains = selected(intervals, host_place)["chain"]
        called = np.concatenate((intervals["operation"][call_place], launching))
        self._tables.add(host, numbers, chains, called, bound)
        intervals = intervals[(place < 0) | (intervals["rank"] < _CALL_RANK)]
        self._open = intervals[intervals["end"] > bound]

    def finish(self) -> None:
        """Write the remaining rows."""
        self._tables.finish()
        self._allocations.finish()

    def _frame_intervals(self, frames: Rows) -> Rows:
        """Return intervals of Python functions with their call chains."""
        if not len(frames):
            return np.empty(0, dtype=INTERVAL)
        new = _intervals(frames, np.arange(len(frames)))
        new["frame"] = frames["frame"]
        around = self._open[self._open["frame"] != NONE]
        both = np.concatenate((around, new))
        order = call_order(both["thread"], both["start"], both["end"], both["rank"])
        ordered = both[order]
        chains = self._parts.chains.extend_all(
            containing(ordered["thread"], ordered["end"]).tolist(),
            ordered["chain"].tolist(),
            ordered["frame"].tolist(),
        )
        both["chain"][order] = chains
        return both[len(around) :]

    def _host_intervals(self, host: Rows) -> tuple[Rows, Ints]:
        external = np.clip(host["external"], 0, _HOST_RANK - 1)
        new = _intervals(host, _HOST_RANK + external)
        is_operation = host["is_operation"] != 0
        numbers = self._operations + np.cumsum(is_operation) - 1
        numbers = np.where(is_operation, numbers, NONE)
        self._operations += int(np.count_nonzero(is_operation))
        new["operation"] = numbers
        new["operation_name"] = host["name"]
        new["signature"] = host["signature"]
        new["collective"] = host["collective"]
        new["chain"] = host["stack"]
        return new, numbers

    def _note_launching(self, host: Rows, numbers: Ints) -> Ints:
        """Remember the operations with the external id of a graph launch; return their numbers."""
        found = (numbers != NONE) & np.isin(host["external"], self._graph_ids)
        rows = host[found]
        columns = (numbers[found], rows["name"], rows["signature"])
        fields = zip(*(column.tolist() for column in columns), strict=True)
        self._launching.update(zip(rows["external"].tolist(), fields, strict=True))
        return np.asarray(numbers[found])

    def _inherit_chains(self, intervals: Rows, parent: Ints, host: Rows, place: Ints) -> None:
        """Set the call chain of each interval to that of the Python function that encloses it.

        A backward operation and all events inside it get the call chain of the forward operation,
        because the enclosing Python functions only call `backward()`.
        """
        recorded = intervals["chain"].astype(np.int64)
        chain = inherit(recorded, parent)
        numbered = (host["sequence"] >= 0) & (host["is_operation"] != 0)
        forward = numbered & (host["forward_thread"] <= 0)
        self._forwards.add(
            host["sequence"][forward],
            chain[place[forward]],
            host["thread"][forward].astype(np.int64),
        )
        backward = numbered & (host["forward_thread"] > 0)
        if backward.any():
            found, ambiguous = self._forwards.find(host["sequence"][backward])
            missing = int(np.count_nonzero(found == NONE)) - ambiguous
            self._parts.sink.anomaly("ambiguous_forward_operation", ambiguous)
            self._parts.sink.anomaly("backward_without_forward", missing)
            where = place[backward]
            recorded[where] = np.where(found != NONE, found, recorded[where])
            chain = inherit(recorded, parent)
        intervals["chain"] = chain

    def _add_calls(self, calls: Rows, around: Rows) -> None:
        if len(calls):
            calls = calls.copy()
            for field in ("operation", "operation_name", "signature"):
                calls[field] = around[field]
            if self._launching:
                # HIP records some graph launches outside the operation that its id names.
                linked = np.isin(calls["external"], list(self._launching))
                for at in np.flatnonzero(linked & (calls["operation"] == NONE)).tolist():
                    fields = self._launching[int(calls["external"][at])]
                    calls["operation"][at], calls["operation_name"][at] = fields[:2]
                    calls["signature"][at] = fields[2]
            recorded = calls["collective"]
            calls["collective"] = np.where(recorded != MISSING, recorded, around["collective"])
            self._calls.append(calls)


def _intervals(rows: Rows, rank: Ints) -> Rows:
    new = np.empty(len(rows), dtype=INTERVAL)
    for field in ("start", "end", "thread"):
        new[field] = rows[field]
    new["rank"] = rank
    for field in ("frame", "chain", "operation", "operation_name", "signature", "collective"):
        new[field] = MISSING
    return new


def _points(rows: Rows, rank: int) -> Rows:
    """Return intervals for rows that do not enclose other events."""
    new = np.full(len(rows), MISSING, dtype=INTERVAL)
    new["start"] = rows["start"]
    new["end"] = rows["end"] if "end" in (rows.dtype.names or ()) else rows["start"]
    new["thread"] = rows["thread"]
    new["rank"] = rank + np.arange(len(rows))
    return new
