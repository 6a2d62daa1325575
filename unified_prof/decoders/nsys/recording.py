"""Decodes one Nsight Systems export: reads and joins its tables, and writes those of the report.

Calls are runtime calls and device-side synchronizations. Device tasks are kernels, copies, memory
sets, and graph replays that were traced as one task. Also writes the recording metadata: times,
devices, processes, versions, and the tables that were not read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, distinct, find, mapped
from unified_prof.base.columns import MISSING, Cells, Sink, Tables
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu import task_tables as gpu_tables
from unified_prof.decoders.gpu.rows import NO_TIME, GpuRecording, Parts
from unified_prof.decoders.gpu.task_tables import NO_OPTIONS, Options
from unified_prof.decoders.nsys import other_events, ranges
from unified_prof.decoders.nsys.columns import NO_ID, Fields, Texts
from unified_prof.decoders.nsys.ranges import NcclCalls, Payloads
from unified_prof.decoders.spool import Rows
from unified_prof.errors import RawFormatError

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_VERSION = re.compile(r"_v[0-9]+$")
_SUCCESS = 0
_MAX_NAMED_FAILURES = 5  # Failures that are listed in the detail of an anomaly.

# Names as in Kineto.
_WAIT_NAMES = {
    1: "Event Synchronize",
    2: "Stream Wait Event",
    3: "Stream Synchronize",
    4: "Context Synchronize",
}
_RECORD = "Event Record"
_PLACE_IDS = "deviceId streamId contextId correlationId"
_NONE_32 = 2**32 - 1  # CUPTI's number for an event or a stream that does not apply.


def read_calls(fields: Fields, nccl: NcclCalls) -> None:
    """Read runtime and driver calls into `Parts.calls`, with their enclosing collectives."""
    parts = fields.parts
    wanted = r.null_values("start end globalTid", "correlationId nameId", returnValue=_SUCCESS)
    plain_names: dict[int, int] = {}
    failures: Counter[tuple[int, int]] = Counter()
    for cells in fields.tables.slices(CALLS, wanted):
        rows, valid = fields.parts.new_rows(cells, r.CALL, "runtime_call")
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
    wanted = r.null_values("start end globalPid", f"{_PLACE_IDS} syncType eventId eventSyncId")
    for cells in fields.tables.slices(WAITS, wanted):
        rows, valid = fields.parts.new_rows(cells, r.SYNC, "synchronization")
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
    """Table CUDA_EVENT: maps the event ids in synchronizations to the recording stream and call.

    Records with a time are also added to `Parts.syncs`.
    """

    def __init__(self, fields: Fields) -> None:
        self._keys = self._streams = self._calls = np.empty(0, np.int64)
        wanted = r.null_values("timestamp globalPid", f"{_PLACE_IDS} eventId eventSyncId")
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
            rows, valid = fields.parts.new_rows(timed, r.SYNC, "event_record")
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

_PLACE = r.null_values("start end globalPid", f"{_PLACE_IDS} graphNodeId")
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


def read_tasks(fields: Fields) -> None:
    """Read all tables of device tasks; must be called after `read_calls`."""
    _kernels(fields)
    _copies(fields)
    _sets(fields)
    _graphs(fields)


def _kernels(fields: Fields) -> None:
    existing = fields.tables.columns(KERNELS)
    name = next((name for name in _NAMES if name in existing), _NAMES[0])
    more = r.null_values("", f"{name} registersPerThread graphId {' '.join(_GEOMETRY)}")
    more |= {
        "staticSharedMemory": 0,
        "dynamicSharedMemory": MISSING if "dynamicSharedMemory" not in existing else 0,
    }
    for cells in _slices(fields, KERNELS, more):
        rows, valid = _task(fields, cells, "kernel")
        rows["name"] = fields.names(cells[name])
        rows["kind"] = r.KERNEL
        rows["kind"][fields.parts.are_communication(rows["name"])] = r.COMMUNICATION
        rows["registers"] = cells["registersPerThread"]
        static, dynamic = cells["staticSharedMemory"], cells["dynamicSharedMemory"]
        rows["shared_memory"] = np.where(dynamic == MISSING, MISSING, static + dynamic)
        rows["graph"] = cells["graphId"]
        rows["geometry"] = _geometry_numbers(fields, cells)
        fields.parts.add_gpu_tasks(rows[valid])


def _geometry_numbers(fields: Fields, cells: Cells) -> Ints:

    def number(*sizes: int) -> int:
        if MISSING in sizes:
            return MISSING
        grid, block = (b"[%d,%d,%d]" % part for part in (sizes[:3], sizes[3:]))
        return fields.parts.geometries[grid, block]

    return mapped(number, *(cells[name] for name in _GEOMETRY))


def _copies(fields: Fields) -> None:
    more = r.null_values("", "bytes srcKind dstKind", copyKind=0)
    for cells in _slices(fields, COPIES, more):
        rows, valid = _task(fields, cells, "copy")
        kinds = (cells["copyKind"], cells["srcKind"], cells["dstKind"])
        rows["name"] = mapped(partial(_copy_name, fields), *kinds)
        rows["kind"] = r.COPY
        rows["size"] = cells["bytes"]
        fields.parts.add_gpu_tasks(rows[valid])


def _copy_name(fields: Fields, kind: int, source: int, target: int) -> int:
    text = f"Memcpy {_DIRECTIONS.get(kind, 'Unknown')}"
    if kind in _UNIFIED:
        text += " (Unified)"
    elif source in _MEMORIES and target in _MEMORIES:
        text += f" ({_MEMORIES[source]} -> {_MEMORIES[target]})"
    return fields.parts.names[text]


def _sets(fields: Fields) -> None:
    for cells in _slices(fields, SETS, r.null_values("", "bytes memKind")):
        rows, valid = _task(fields, cells, "memory_set")
        kinds = cells["memKind"]
        for kind in np.unique(kinds).tolist():
            text = f"Memset ({_MEMORIES[kind]})" if kind in _MEMORIES else "Memset"
            rows["name"][kinds == kind] = fields.parts.names[text]
        rows["kind"] = r.SET
        rows["size"] = cells["bytes"]
        fields.parts.add_gpu_tasks(rows[valid])


def _graphs(fields: Fields) -> None:
    """Read graph replays that were traced as one task."""
    replays = 0
    for cells in _slices(fields, GRAPHS, r.null_values("", "graphId graphExecId")):
        rows, valid = _task(fields, cells, "graph_replay")
        graphs = np.where(cells["graphId"] != MISSING, cells["graphId"], cells["graphExecId"])
        rows["kind"] = r.GRAPH
        rows["graph"] = graphs
        for graph in np.unique(graphs).tolist():
            text = "CUDA graph" if graph == MISSING else f"CUDA graph {graph}"
            rows["name"][graphs == graph] = fields.parts.names[text]
        fields.parts.add_gpu_tasks(rows[valid])
        replays += int(np.count_nonzero(valid))
    detail = (
        "graph replays were traced as one task, without their kernels; "
        "record with --cuda-graph-trace=node"
    )
    fields.parts.sink.anomaly("graph_without_kernels", replays, detail)


def _slices(fields: Fields, table: str, more: dict[str, int]) -> Any:
    return fields.tables.slices(table, _PLACE | more)


def _task(fields: Fields, cells: Cells, what: str) -> tuple[Rows, Bools]:
    rows, valid = fields.parts.new_rows(cells, r.GPU_TASK, what)
    packed = cells["globalPid"]
    rows["device"] = fields.devices(packed, cells["deviceId"])
    rows["stream"] = cells["streamId"]
    rows["context"] = cells["contextId"]
    fields.note_contexts(packed, cells["contextId"], rows["device"])
    rows["correlation"] = fields.correlations(fields.processes(packed), cells["correlationId"])
    rows["process"] = fields.process_ids(packed)
    rows["graph_node"] = cells["graphNodeId"]
    return rows, valid


_MAX_NS = 2**62  # Times beyond this are damaged.
# Maximum rows that are read of a table of facts.
_MAX_FACT_ROWS = 100_000
_WINDOW = re.compile(r"(\d{1,18})-(\d{1,18})")

# Facts without secrets. The export has the complete environment of the program with tokens, hosts
# and users; only the rank is taken from it.
_SYSTEM_FACTS = frozenset(
    "NvDriverVersion CudaDriverVersion OsDescription SoftwareReleaseVersion CpuArchitecture "
    "CpuDescription CpuCores".split()
)
_CAPTURE_FACTS = frozenset(
    "CAPTURE_EVENT_TYPE CUDA_GRAPH_TRACE_OPTIONS:MODE COLLECT_GPU_MEMORY_USAGE RATE_HZ".split()
)
_RANK = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|NODE_RANK|GROUP_RANK)=(\d{1,9})")
_ENVIRONMENT = "PROCESS_0:ENVIRONMENT_VARIABLE"
_GPU_COLUMNS = (
    *("smCount", "totalMemory", "memoryBandwidth", "clockRate", "l2CacheSize"),
    *("computeMajor", "computeMinor"),
)
# Tables of names, constants and settings, which no event table would hold.
_DESCRIPTIVE = (
    *("ENUM_", "TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_", "StringIds"),
    *("NVTX_PAYLOAD_", "NVTX_SCOPES", "ProcessStreams", "sqlite_"),
)


class SessionTimes(Struct, frozen=True):
    """Time range of a recording session."""

    base_ns: int  # Added to times of the session to get Unix times; 0 if unknown.
    is_absolute: bool
    duration_ns: int | None
    window: tuple[int, int] | None  # Start and end of the part selected by a tool.


def times(tables: Tables) -> SessionTimes:
    """Return the times of the session."""
    base = _first(tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    duration = _first(tables, "ANALYSIS_DETAILS", "duration")
    match = _WINDOW.fullmatch(dict(_pairs(tables, "META_DATA_EXPORT")).get("DERIVED_WINDOW_NS", ""))
    return SessionTimes(
        base_ns=base or 0,
        is_absolute=base is not None,
        duration_ns=duration if duration is not None and duration > 0 else None,
        window=(int(match[1]), int(match[2])) if match else None,
    )


def _first(tables: Tables, table: str, column: str) -> int | None:
    for cells in tables.slices(table, {column: NO_TIME}):
        for value in cells[column].tolist():
            if abs(value) < _MAX_NS:
                return int(value)
    return None


def _pairs(tables: Tables, table: str) -> Iterable[tuple[str, str]]:
    count = 0
    for cells in tables.slices(table, {}, texts=["name", "value"]):
        for name, value in zip(cells["name"], cells["value"], strict=True):
            if name is not None and value is not None:
                yield name, value
        count += len(cells["name"])
        if count > _MAX_FACT_ROWS:
            return


def _write_metadata(
    fields: Fields, session: SessionTimes, categories: Mapping[str, str]
) -> dict[str, Any]:
    """Write the recording metadata; return rows of UPROF_RUN."""
    parts, tables = fields.parts, fields.tables
    assert parts.span is not None
    start, end = parts.span
    if session.window is not None:
        start, end = min(start, session.window[0]), max(end, session.window[1])
    elif session.duration_ns is not None:
        start, end = min(start, 0), max(end, session.duration_ns)
    if not session.is_absolute:
        parts.sink.anomaly("relative_times", 1, "the export has no start time of the session")
    properties = _gpus(tables)
    capture = list(_pairs(tables, "META_DATA_CAPTURE"))
    ranks = {
        match[1]: match[2]
        for name, value in capture
        if name == _ENVIRONMENT and (match := _RANK.fullmatch(value))
    }
    one_process = len(set(parts.threads.process_ids)) <= 1
    rank = int(ranks["RANK"]) if one_process and "RANK" in ranks else None
    host_tables.write_metadata(
        parts.sink,
        start_ns=start + session.base_ns,
        end_ns=end + session.base_ns,
        host_name=None,
        device_names={device: properties.get(device, {}).get("name") for device in parts.devices},
        rank=rank,
    )
    host_tables.write_device_properties(parts.sink, properties)
    exported = dict(_pairs(tables, "META_DATA_EXPORT"))
    return {
        "decoder": "nsys",
        "device_kind": "gpu" if parts.devices or properties else "cpu",
        "device_vendor": "NVIDIA",
        "base_time_ns": session.base_ns,
        "nsys_version": exported.get("EXPORT_PRODUCT_VERSION"),
        "nsys_schema": exported.get("EXPORT_SCHEMA_VERSION"),
        "nsys_window_ns": exported.get("DERIVED_WINDOW_NS"),
        "nsys_system": _facts(_pairs(tables, "TARGET_INFO_SYSTEM_ENV"), _SYSTEM_FACTS),
        "nsys_capture": _facts(capture, _CAPTURE_FACTS) | ranks,
        "nsys_categories": dict(categories) or None,
        "rank": rank,
    }


def _facts(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in allowed:
            found.setdefault(name, []).append(value)
    return {name: ", ".join(values) for name, values in found.items()}


def _gpus(tables: Tables) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    wanted = dict.fromkeys(("id", *_GPU_COLUMNS), NO_ID)
    for cells in tables.slices("TARGET_INFO_GPU", wanted, texts=["name", "chipName"]):
        for at, number in enumerate(cells["id"].tolist()):
            if not 0 <= number < 2**31:
                continue
            known = {name: int(cells[name][at]) for name in _GPU_COLUMNS}
            found[number] = {
                **{name: cells[name][at] for name in ("name", "chipName") if cells[name][at]},
                **{name: value for name, value in known.items() if value != NO_ID},
            }
    if not found:
        for name, value in _pairs(tables, "TARGET_INFO_SYSTEM_ENV"):
            if name == "GpuInfo":
                found = _gpus_of_text(value)
    return found


def _gpus_of_text(text: str) -> dict[int, dict[str, Any]]:
    try:
        listed = json.loads(text).get("Gpus", [])
        return {
            int(gpu["Id"]): {"name": str(gpu["Name"])}
            for gpu in listed
            if 0 <= int(gpu["Id"]) < 2**31
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def name_threads(fields: Fields) -> None:
    """Set the names of processes and threads that have events."""
    threads = fields.parts.threads
    for cells in fields.tables.slices("PROCESSES", {"globalPid": NO_ID}, texts=["name"]):
        for packed, name in zip(cells["globalPid"].tolist(), cells["name"], strict=True):
            if name and packed != NO_ID and fields.has_process(packed):
                threads.process_names[fields.process_id(packed)] = name
    wanted = r.null_values("globalTid", "nameId")
    for cells in fields.tables.slices("ThreadNames", wanted):
        for packed, number in zip(*(cells[name].tolist() for name in wanted), strict=True):
            if fields.has_thread(packed) and (text := fields.texts[number]):
                fields.name_thread(packed, text)


NAME = "nsys"
_ONE_OF = (KERNELS, COPIES, GRAPHS, ranges.RANGES, CALLS)


def decode(path: object, tables: Tables, sink: Sink, options: Options = NO_OPTIONS) -> GpuRecording:
    """Decode the tables of an export in bounded memory.

    `path` is used in messages. Raises RawFormatError if the export contains no events, and
    UprofError if the file is damaged.
    """
    if not any(tables.columns(table) for table in _ONE_OF):
        raise RawFormatError(
            f"{path}: the Nsight Systems export has no CUDA or NVTX events",
            hint="record them: nsys profile --trace=cuda,nvtx (expected one of the tables "
            f"{', '.join(_ONE_OF)})",
            slug="empty-recording",
        )
    session = times(tables)
    texts = Texts(tables)
    try:
        with Parts(sink) as parts:
            parts.base_ns = session.base_ns
            fields = Fields(parts, tables, texts)
            options.progress("reading events")
            payloads = Payloads(tables)
            read_calls(fields, NcclCalls(fields, payloads))
            read_tasks(fields)
            read_waits(fields)
            other_events.read_others(fields)
            last = session.window[1] if session.window is not None else session.duration_ns
            if last is None:
                last = parts.span[1] if parts.span is not None else 0
            nvtx = ranges.Ranges(fields, payloads, last)
            nvtx.read()
            other_events.write_metrics(fields)
            if parts.span is None:
                message = f"{path}: has no events, its tables are empty"
                raise RawFormatError(message, slug="empty-recording")
            name_threads(fields)
            joined = gpu_tables.write(parts, options)
            facts = _write_metadata(fields, session, nvtx.categories)
            gpu_tables.write_coverage(parts, tables, _DESCRIPTIVE)
            return parts.recording(joined, nvtx.operations, facts)
    finally:
        texts.close()
