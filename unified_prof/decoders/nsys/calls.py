"""Reads runtime calls, device-side synchronizations and device tasks of an export.

Device tasks are kernels, copies, memory sets, and graph replays that were traced as one task.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, distinct, find, mapped
from unified_prof.base.columns import MISSING, Cells
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.nsys.columns import NO_ID, NO_TIME, Fields
from unified_prof.decoders.nsys.ranges import NcclCalls
from unified_prof.decoders.spool import Rows

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_VERSION = re.compile(r"_v[0-9]+$")
_SUCCESS = 0
# Failures that are listed in the detail of an anomaly.
_MAX_NAMED_FAILURES = 5

# Names as in Kineto.
_WAIT_NAMES = {
    1: "Event Synchronize",
    2: "Stream Wait Event",
    3: "Stream Synchronize",
    4: "Context Synchronize",
}
_RECORD = "Event Record"
# CUPTI's number for an event or a stream that does not apply.
_NONE_32 = 2**32 - 1


def read_calls(fields: Fields, nccl: NcclCalls) -> None:
    """Read runtime and driver calls into `Parts.calls`, with their enclosing collectives."""
    parts = fields.parts
    wanted = {
        "start": NO_TIME,
        "end": NO_TIME,
        "globalTid": NO_ID,
        "correlationId": MISSING,
        "nameId": MISSING,
        "returnValue": _SUCCESS,
    }
    plain_names: dict[int, int] = {}
    failures: Counter[tuple[int, int]] = Counter()
    for cells in fields.tables.slices(CALLS, wanted):
        rows, valid = fields.timed(cells, r.CALL, "runtime_call")
        packed = cells["globalTid"]
        rows["thread"], valid = fields.on_threads(packed, valid, "runtime_call")
        rows["name"] = _without_versions(fields, fields.names(cells["nameId"]), plain_names)
        rows["correlation"] = fields.correlations(fields.processes(packed), cells["correlationId"])
        rows["collective"] = nccl.collectives_at(packed, rows["start"])
        failed = cells["returnValue"] != _SUCCESS
        if failed.any():
            codes = cells["returnValue"][failed].tolist()
            failures.update(zip(rows["name"][failed].tolist(), codes, strict=True))
        rows = rows[valid]
        parts.note_correlations(rows)
        parts.calls.append(rows)
    if failures:
        texts = {number: str(text) for text, number in parts.names.items()}
        most = [
            f"{texts[name]} returned {value} ({count} times)"
            for (name, value), count in failures.most_common(_MAX_NAMED_FAILURES)
        ]
        parts.sink.anomaly("failed_call", failures.total(), ", ".join(most))


def _without_versions(fields: Fields, names: Ints, plain: dict[int, int]) -> Ints:
    """Return function names without version suffixes such as `_v7000` in cudaLaunchKernel_v7000."""
    new = [number for number in distinct(names)[0].tolist() if number not in plain]
    if new:
        texts = {number: str(text) for text, number in fields.parts.names.items()}
        for number in new:
            plain[number] = fields.parts.names[_VERSION.sub("", texts[number])]
    return mapped(plain.__getitem__, names)


def read_waits(fields: Fields) -> None:
    """Read synchronizations and event records into `Parts.syncs`."""
    parts = fields.parts
    records = _EventRecords(fields)
    records.read()
    wanted = {
        "start": NO_TIME,
        "end": NO_TIME,
        "globalPid": NO_ID,
        **dict.fromkeys(("deviceId", "contextId", "streamId", "correlationId"), MISSING),
        **dict.fromkeys(("syncType", "eventId", "eventSyncId"), MISSING),
    }
    for cells in fields.tables.slices(WAITS, wanted):
        rows, valid = fields.timed(cells, r.SYNC, "synchronization")
        packed = cells["globalPid"]
        processes = fields.processes(packed)
        kinds = cells["syncType"]
        for kind in np.unique(kinds).tolist():
            name = _WAIT_NAMES.get(kind, "Synchronize")
            rows["kind"][kinds == kind] = parts.names[name]
        rows["device"] = fields.devices_of_contexts(packed, cells["contextId"], cells["deviceId"])
        rows["stream"] = _or_missing(cells["streamId"])
        rows["context"] = cells["contextId"]
        rows["correlation"] = fields.correlations(processes, cells["correlationId"])
        rows["wait_event"] = _or_missing(cells["eventId"])
        stream, record = records.lookup(processes, _or_missing(cells["eventSyncId"]))
        rows["wait_stream"], rows["wait_record"] = stream, record
        parts.syncs.append(rows[valid])


class _EventRecords:
    """Table CUDA_EVENT: maps the event ids in synchronizations to the recording stream and call."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._keys = self._streams = self._calls = np.empty(0, np.int64)

    def read(self) -> None:
        """Read all event records; records with a time are also added to `Parts.syncs`."""
        fields = self._fields
        wanted = {
            "timestamp": NO_TIME,
            "globalPid": NO_ID,
            **dict.fromkeys(("deviceId", "contextId", "streamId", "correlationId"), MISSING),
            **dict.fromkeys(("eventId", "eventSyncId"), MISSING),
        }
        found: list[tuple[Ints, Ints, Ints]] = []
        for cells in fields.tables.slices(EVENTS, wanted):
            packed = cells["globalPid"]
            processes = fields.processes(packed)
            correlations = fields.correlations(processes, cells["correlationId"])
            streams = _or_missing(cells["streamId"])
            found.append((_key(processes, cells["eventSyncId"]), streams, correlations))
            if "timestamp" not in fields.tables.columns(EVENTS):
                continue
            timed = {"start": cells["timestamp"], "end": cells["timestamp"]}
            rows, valid = fields.timed(timed, r.SYNC, "event_record")
            rows["kind"] = fields.parts.names[_RECORD]
            rows["device"] = fields.devices_of_contexts(
                packed, cells["contextId"], cells["deviceId"]
            )
            rows["stream"] = streams
            rows["context"] = cells["contextId"]
            rows["correlation"] = correlations
            rows["wait_event"] = _or_missing(cells["eventId"])
            rows["wait_stream"] = rows["wait_record"] = MISSING
            fields.parts.syncs.append(rows[valid])
        if found:
            keys, streams, calls = (np.concatenate(part) for part in zip(*found, strict=True))
            order = np.argsort(keys, kind="stable")
            self._keys, self._streams, self._calls = keys[order], streams[order], calls[order]

    def lookup(self, processes: Ints, syncs: Ints) -> tuple[Ints, Ints]:
        """Return the stream each synchronization waits for, and the call that recorded it."""
        place = find(self._keys, _key(processes, syncs))
        known = (place != NOWHERE) & (syncs != MISSING)
        if not known.any():
            return np.full(len(syncs), MISSING), np.full(len(syncs), MISSING)
        streams = np.where(known, self._streams[place], MISSING)
        return streams, np.where(known, self._calls[place], MISSING)


def _key(processes: Ints, syncs: Ints) -> Ints:
    return processes << 32 | syncs & _NONE_32


def _or_missing(ids: Ints) -> Ints:
    return np.where(ids == _NONE_32, MISSING, ids)


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_PLACE = {
    "start": NO_TIME,
    "end": NO_TIME,
    "globalPid": NO_ID,
    **dict.fromkeys(("deviceId", "streamId", "contextId", "correlationId"), MISSING),
    "graphNodeId": MISSING,
}
_GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_NAMES = ("demangledName", "shortName", "mangledName")

# Directions as Kineto writes them, so that the copies of both have the same names.
_DIRECTIONS = dict(
    enumerate("Unknown HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP HtoD DtoH DtoD".split())
)
_UNIFIED = frozenset({11, 12, 13})
_MEMORIES = dict(
    enumerate("Pageable,Pinned,Device,Array,Managed,Device Static,Managed Static".split(","))
)


class Tasks:
    """Reads the device tasks into `Parts.gpu`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._parts = fields.parts
        self._copy_names: dict[tuple[int, int, int], int] = {}

    def read(self) -> None:
        """Read all tables of device tasks; must be called after `read_calls`."""
        self._kernels()
        self._copies()
        self._sets()
        self._graphs()

    def _kernels(self) -> None:
        existing = self._fields.tables.columns(KERNELS)
        name = next((name for name in _NAMES if name in existing), _NAMES[0])
        more = {
            name: MISSING,
            "registersPerThread": MISSING,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": MISSING if "dynamicSharedMemory" not in existing else 0,
            "graphId": MISSING,
            **dict.fromkeys(_GEOMETRY, MISSING),
        }
        for cells in self._slices(KERNELS, more):
            rows, valid = self._task(cells, "kernel")
            rows["name"] = self._fields.names(cells[name])
            rows["kind"] = r.KERNEL
            rows["kind"][self._parts.are_communication(rows["name"])] = r.COMMUNICATION
            rows["registers"] = cells["registersPerThread"]
            static, dynamic = cells["staticSharedMemory"], cells["dynamicSharedMemory"]
            rows["shared_memory"] = np.where(dynamic == MISSING, MISSING, static + dynamic)
            rows["graph"] = cells["graphId"]
            rows["geometry"] = self._geometry_numbers(cells)
            self._parts.add_gpu_tasks(rows[valid])

    def _geometry_numbers(self, cells: Cells) -> Ints:

        def number(*sizes: int) -> int:
            if MISSING in sizes:
                return MISSING
            grid, block = (b"[%d,%d,%d]" % part for part in (sizes[:3], sizes[3:]))
            return self._parts.geometries[grid, block]

        return mapped(number, *(cells[name] for name in _GEOMETRY))

    def _copies(self) -> None:
        more = {"bytes": MISSING, "copyKind": 0, "srcKind": MISSING, "dstKind": MISSING}
        for cells in self._slices(COPIES, more):
            rows, valid = self._task(cells, "copy")
            kinds = (cells["copyKind"], cells["srcKind"], cells["dstKind"])
            rows["name"] = mapped(self._copy_name, *kinds)
            rows["kind"] = r.COPY
            rows["size"] = cells["bytes"]
            self._parts.add_gpu_tasks(rows[valid])

    def _copy_name(self, kind: int, source: int, target: int) -> int:
        key = (kind, source, target)
        if key not in self._copy_names:
            text = f"Memcpy {_DIRECTIONS.get(kind, 'Unknown')}"
            if kind in _UNIFIED:
                text += " (Unified)"
            elif source in _MEMORIES and target in _MEMORIES:
                text += f" ({_MEMORIES[source]} -> {_MEMORIES[target]})"
            self._copy_names[key] = self._parts.names[text]
        return self._copy_names[key]

    def _sets(self) -> None:
        for cells in self._slices(SETS, {"bytes": MISSING, "memKind": MISSING}):
            rows, valid = self._task(cells, "memory_set")
            kinds = cells["memKind"]
            for kind in np.unique(kinds).tolist():
                text = f"Memset ({_MEMORIES[kind]})" if kind in _MEMORIES else "Memset"
                rows["name"][kinds == kind] = self._parts.names[text]
            rows["kind"] = r.SET
            rows["size"] = cells["bytes"]
            self._parts.add_gpu_tasks(rows[valid])

    def _graphs(self) -> None:
        """Read graph replays that were traced as one task."""
        replays = 0
        for cells in self._slices(GRAPHS, {"graphId": MISSING, "graphExecId": MISSING}):
            rows, valid = self._task(cells, "graph_replay")
            graphs = np.where(cells["graphId"] != MISSING, cells["graphId"], cells["graphExecId"])
            rows["kind"] = r.GRAPH
            rows["graph"] = graphs
            for graph in np.unique(graphs).tolist():
                text = "CUDA graph" if graph == MISSING else f"CUDA graph {graph}"
                rows["name"][graphs == graph] = self._parts.names[text]
            self._parts.add_gpu_tasks(rows[valid])
            replays += int(np.count_nonzero(valid))
        if replays:
            detail = (
                "graph replays were traced as one task, without their kernels; "
                "record with --cuda-graph-trace=node"
            )
            self._parts.sink.anomaly("graph_without_kernels", replays, detail)

    def _slices(self, table: str, more: dict[str, int]) -> Any:
        return self._fields.tables.slices(table, _PLACE | more)

    def _task(self, cells: Cells, what: str) -> tuple[Rows, Bools]:
        fields = self._fields
        rows, valid = fields.timed(cells, r.GPU_TASK, what)
        packed = cells["globalPid"]
        rows["device"] = fields.devices(packed, cells["deviceId"])
        rows["stream"] = cells["streamId"]
        rows["context"] = cells["contextId"]
        fields.note_contexts(packed, cells["contextId"], rows["device"])
        rows["correlation"] = fields.correlations(fields.processes(packed), cells["correlationId"])
        rows["process"] = fields.process_ids(packed)
        rows["graph_node"] = cells["graphNodeId"]
        return rows, valid
