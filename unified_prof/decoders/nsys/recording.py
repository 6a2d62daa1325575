"""Decodes one Nsight Systems export: reads and joins its tables, and writes those of the report.

Also writes the recording metadata: times, devices, processes, versions, and the tables that were
not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unified_prof.base.columns import MISSING, Sink, Tables
from unified_prof.base.coverage import CountedTables, Coverage
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu import task_tables as gpu_tables
from unified_prof.decoders.gpu.rows import GpuRecording, Parts
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.nsys import calls, other_events, ranges
from unified_prof.decoders.nsys.columns import NO_ID, NO_TIME, Fields, Texts
from unified_prof.decoders.nsys.ranges import NcclCalls, Payloads
from unified_prof.errors import RawFormatError

# Times beyond this are damaged.
_MAX_NS = 2**62
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


@dataclass(frozen=True, slots=True)
class SessionTimes:
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
        "events": dict(sorted(parts.counts.items())),
        "rank": rank,
    }


def _facts(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in allowed:
            found.setdefault(name, []).append(value)
    return {name: ", ".join(values) for name, values in found.items()}


def _gpus(tables: Tables) -> dict[int, dict[str, Any]]:
    """Return GPU number -> properties."""
    found: dict[int, dict[str, Any]] = {}
    wanted = {"id": NO_ID, **dict.fromkeys(_GPU_COLUMNS, NO_ID)}
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
    wanted = {"globalTid": NO_ID, "nameId": MISSING}
    for cells in fields.tables.slices("ThreadNames", wanted):
        for packed, number in zip(*(cells[name].tolist() for name in wanted), strict=True):
            if fields.has_thread(packed) and (text := fields.texts[number]):
                fields.name_thread(packed, text)


NAME = "nsys"
_ONE_OF = (calls.KERNELS, calls.COPIES, calls.GRAPHS, ranges.RANGES, calls.CALLS)


def decode(
    path: object,
    tables: Tables,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> GpuRecording:
    """Decode the tables of an export in bounded memory.

    `path` is used in messages; `has_column` and `data_types` are explained in `task_tables`.
    `progress` is called with the current step.

    Raises:
        RawFormatError: the export contains no events.
        UprofError: the file is damaged.
    """
    if not any(tables.columns(table) for table in _ONE_OF):
        raise RawFormatError(
            f"{path}: the Nsight Systems export has no CUDA or NVTX events",
            hint="record them: nsys profile --trace=cuda,nvtx (expected one of the tables "
            f"{', '.join(_ONE_OF)})",
            slug="empty-recording",
        )
    tables = counted = CountedTables(tables)
    session = times(tables)
    texts = Texts(tables)
    try:
        with Parts(sink) as parts:
            fields = Fields(parts, tables, texts)
            progress("reading events")
            payloads = Payloads(tables)
            calls.read_calls(fields, NcclCalls(fields, payloads))
            calls.Tasks(fields).read()
            calls.read_waits(fields)
            others = other_events.OtherEvents(fields)
            others.read()
            last = session.window[1] if session.window is not None else session.duration_ns
            if last is None:
                last = parts.span[1] if parts.span is not None else 0
            nvtx = ranges.Ranges(fields, others, payloads, last, session.base_ns)
            nvtx.read()
            others.write_metrics(session.base_ns)
            if parts.span is None:
                message = f"{path}: has no events, its tables are empty"
                raise RawFormatError(message, slug="empty-recording")
            name_threads(fields)
            joined = gpu_tables.write(
                parts,
                session.base_ns,
                has_column=has_column,
                data_types=data_types,
                progress=progress,
            )
            facts = _write_metadata(fields, session, nvtx.categories)
            coverage = Coverage()
            coverage.add_events(parts.counts, parts.skipped)
            counted.write_coverage(coverage, sink, _DESCRIPTIVE)
            coverage.write(sink)
            return GpuRecording(
                events=sum(parts.counts.values()),
                counts=dict(parts.counts),
                tasks=parts.gpu.rows,
                tasks_joined=joined,
                operations=nvtx.operations,
                rank=facts["rank"],
                facts=facts,
            )
    finally:
        texts.close()
