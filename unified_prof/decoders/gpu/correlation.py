"""Joins device tasks to their launches by correlation id, and writes OVERLAP_ANALYSIS."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, find
from unified_prof.arrays.nesting import NONE
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.memory import MISSING, Int64s
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.overlap import DeviceOverlap, OverlapWriter, Spans
from unified_prof.decoders.spool import Rows, Spool, selected, windows

# ENUM_API_TYPE `runtime`.
API_TYPE_RUNTIME = 5000

_FROM_CALL = ("thread", "operation_name", "signature")
_WINDOW_ROWS = 1 << 15


class Correlator:
    """Writes CANN_API and CONNECTION_IDS, and completes the device tasks.

    CANN_API.connectionId is a primary key. It is the correlation id of a call, or a new id above
    all correlation ids if an earlier call has the same correlation id.
    """

    def __init__(self, parts: Parts, base_ns: int) -> None:
        self._parts = parts
        self._sink = parts.sink
        self._base_ns = base_ns
        self._next_id = parts.max_correlation + 1
        self.joined = 0
        """Number of tasks matched to their launch."""

    def join(self, calls: Spool) -> Spool:
        """Return the device tasks with their launch and operation, sorted by time."""
        tasks = self._parts.new_spool(r.GPU_TASK, "start")
        orphans = self._parts.new_spool(r.GPU_TASK, "external")
        for window, rows in windows(calls, self._parts.gpu, window_rows=_WINDOW_ROWS):
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
        if missing:
            self._sink.anomaly("task_without_launch", missing, "no call has the correlation id")
        return tasks

    def _write_calls(self, calls: Rows) -> Int64s:
        """Write a window of calls and return their connection ids."""
        if not len(calls):
            return np.empty(0, dtype=np.int64)
        connections = calls["correlation"].copy()
        repeated = np.append(False, connections[1:] == connections[:-1])
        needs_id = repeated | (connections < 0)
        count = int(np.count_nonzero(needs_id))
        if count:
            connections[needs_id] = self._new_ids(count)
            duplicates = int(np.count_nonzero(repeated & (calls["correlation"] >= 0)))
            if duplicates:
                self._sink.anomaly("duplicate_correlation", duplicates, "a new id was assigned")
        threads = self._parts.threads
        self._sink.write(
            "CANN_API",
            {
                "startNs": calls["start"] + self._base_ns,
                "endNs": calls["end"] + self._base_ns,
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

    def _join_launches(self, tasks: Rows, calls: Rows, connections: Int64s) -> Rows:
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
            tasks["connection"][found] = connections[launch[found]]
            for field in _FROM_CALL:
                tasks[field][found] = launching[field]
            for field in ("collective", "size", "geometry", "shared_memory"):
                tasks[field][found] = np.where(
                    tasks[field][found] == MISSING, launching[field], tasks[field][found]
                )
            ambiguous = _repeated(calls["correlation"])[launch[found]]
            if ambiguous.any():
                count = int(np.count_nonzero(ambiguous))
                self._sink.anomaly("ambiguous_launch", count, "matched by operation and time")
        return tasks

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

    def _new_ids(self, count: int) -> Int64s:
        ids = np.arange(self._next_id, self._next_id + count)
        self._next_id += count
        return ids


def _repeated(keys: Int64s) -> Bools:
    """Return a mask of the keys that occur more than once; `keys` is sorted."""
    same: Bools = keys[1:] == keys[:-1]
    repeated: Bools = np.append(False, same) | np.append(same, False)
    return repeated


def _launches(tasks: Rows, calls: Rows) -> Int64s:
    """Return the index of the call that launched each task, or `NONE`.

    Args:
        tasks: Sorted by correlation id.
        calls: Sorted by correlation id, then by start.

    If several calls have the correlation id (several processes in one trace), the call with the
    same external id is used, otherwise the last one that started before the task.
    """
    correlation, wanted = calls["correlation"], tasks["correlation"]
    first = np.searchsorted(correlation, wanted, side="left")
    end = np.searchsorted(correlation, wanted, side="right")
    launch = np.where((end > first) & (wanted > 0), first, NONE)
    several = np.flatnonzero((end - first > 1) & (wanted > 0))
    for index in several.tolist():
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

    def __init__(self, parts: Parts, base_ns: int) -> None:
        self._writer = OverlapWriter(parts.sink, parts.new_spool, whole=True)
        self._base_ns = base_ns
        self._stack = ExitStack()
        self._devices: dict[int, DeviceOverlap] = {}
        self._communication: dict[int, list[Spans]] = {}

    def __enter__(self) -> Overlap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

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
