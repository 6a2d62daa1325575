"""Reads events that are not joined: overhead, library calls, allocations, metrics, diagnostics."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Cells
from unified_prof.base.redaction import redact
from unified_prof.base.text import NS_PER_MS
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.rows import NO_TIME
from unified_prof.decoders.nsys.columns import NO_ID, Fields
from unified_prof.decoders.spool import Rows

DIAGNOSTICS = "DIAGNOSTIC_EVENT"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
METRICS = "GPU_METRICS"
METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
# Tables of calls without a table of their own -> category of UPROF_TRACE_EVENTS.
LIBRARIES = {
    "OSRT_API": "osrt",
    "CUDNN_EVENTS": "cudnn",
    "CUBLAS_EVENTS": "cublas",
    "MPI_COLLECTIVES_EVENTS": "mpi",
    "MPI_P2P_EVENTS": "mpi",
    "MPI_OTHER_EVENTS": "mpi",
    "MPI_START_WAIT_EVENTS": "mpi",
    "UCP_EVENTS": "ucx",
}
_OVERHEAD_TYPES = {
    2: "JIT compilation",
    3: "buffer flush",
    4: "instrumentation",
    5: "resource creation",
    6: "module loading",
    7: "lazy function loading",
    8: "command buffer full",
}
_QUEUE_FULL = 8
_SEVERITIES = {2: "diagnostic_warning", 3: "diagnostic_error"}
# Messages that are listed in the detail of an anomaly.
_MAX_SHOWN_DIAGNOSTICS = 5
_PAGEABLE, _PINNED = 0, 1
_DEALLOCATION = 1
_GPU_OF_TYPE = 0xFF
_COMPONENT = "CUDA"


def read_others(fields: Fields) -> None:
    """Read events that are not joined with others: overhead, libraries, memory, diagnostics."""
    for table in OVERHEADS:
        _overheads(fields, table)
    for table, category in LIBRARIES.items():
        _calls(fields, table, category)
    _allocations(fields)
    _diagnostics(fields)


def _overheads(fields: Fields, table: str) -> None:
    count = duration = 0
    wanted = r.null_values("start end globalTid", "nameId")
    for cells in fields.tables.slices(table, wanted | {"overheadType": MISSING}):
        rows = _events(fields, cells, "overhead", cells["overheadType"].tolist())
        full = (cells["overheadType"] == _QUEUE_FULL) & (rows["end"] >= rows["start"])
        count += int(np.count_nonzero(full))
        duration += int((rows["end"] - rows["start"])[full].sum())
    detail = f"launches waited {duration / NS_PER_MS:.0f} ms in total for queue space"
    fields.parts.sink.anomaly("launch_queue_full", count, detail)


def _calls(fields: Fields, table: str, category: str) -> None:
    name = "nameId" if "nameId" in fields.tables.columns(table) else "textId"
    wanted = r.null_values("start end globalTid", name)
    for cells in fields.tables.slices(table, wanted):
        _events(fields, {**cells, "nameId": cells[name]}, category, None)


def _events(fields: Fields, cells: Cells, category: str, types: list[int] | None) -> Rows:
    """Add the valid events to `Parts.other`; return all rows, including invalid ones."""
    parts = fields.parts
    rows, valid = parts.new_rows(cells, r.OTHER, category)
    rows["category"] = parts.names[category]
    rows["name"] = fields.names(cells["nameId"])
    rows["place"] = _places(fields, cells)
    rows["args_at"] = rows["args_size"] = 0
    if types is not None:
        for kind in set(types):
            text = json.dumps({"type": _OVERHEAD_TYPES.get(kind, kind)}).encode()
            chosen = np.array(types) == kind
            rows["args_at"][chosen] = parts.texts.append(text)
            rows["args_size"][chosen] = len(text)
    parts.other.append(rows[valid])
    return rows


def _places(fields: Fields, cells: Cells) -> Any:
    """Return the numbers of (process, thread) pairs, written to UPROF_TRACE_EVENTS."""
    places = fields.parts.places
    distinct, inverse = np.unique(cells["globalTid"], return_inverse=True)
    numbers = []
    for packed in distinct.tolist():
        key: tuple[Any, Any] = (NOT_AVAILABLE, NOT_AVAILABLE)
        if packed != NO_ID:
            key = (fields.process_id(packed), packed & 0xFFFFFF)
        numbers.append(places.setdefault(key, len(places)))
    return np.array(numbers, np.int64)[inverse]


def write_payloads(fields: Fields, cells: Cells, names: list[str], values: list[Any]) -> None:
    """Add the payloads of NVTX events as separate events."""
    parts = fields.parts
    start = cells["start"]
    end = np.where(cells["end"] == NO_TIME, start, cells["end"])
    rows, valid = parts.new_rows({"start": start, "end": end}, r.OTHER, "nvtx_payload")
    rows["category"] = parts.names["nvtx payload"]
    rows["name"] = [parts.names[name] for name in names]
    rows["place"] = _places(fields, cells)
    texts = [json.dumps({"payload": value}).encode() for value in values]
    rows["args_at"] = [parts.texts.append(text) for text in texts]
    rows["args_size"] = [len(text) for text in texts]
    parts.other.append(rows[valid])


def _allocations(fields: Fields) -> None:
    """Read CUDA allocations; the memory in use is computed from them."""
    parts = fields.parts
    ids = "deviceId address memKind memoryOperationType"
    wanted = r.null_values("start globalPid", ids, bytes=0)
    for cells in fields.tables.slices(MEMORY, wanted):
        timed = {"start": cells["start"], "end": cells["start"]}
        times, valid = parts.new_rows(timed, r.INTERVAL, "allocation")
        rows = np.empty(len(times), r.ALLOCATION)
        rows["start"] = times["start"]
        rows["thread"] = MISSING
        on_host = (cells["memKind"] == _PAGEABLE) | (cells["memKind"] == _PINNED)
        device = fields.devices(cells["globalPid"], cells["deviceId"])
        rows["device"] = np.where(on_host, MISSING, device)
        rows["address"] = cells["address"]
        rows["owner"] = fields.processes(cells["globalPid"])
        freed = cells["memoryOperationType"] == _DEALLOCATION
        size = np.abs(cells["bytes"])
        rows["size"] = np.where(freed, -size, size)
        rows["total_allocated"] = rows["total_reserved"] = MISSING
        parts.memory_component, parts.adds_up_allocations = _COMPONENT, True
        parts.devices.update(np.unique(rows["device"][rows["device"] >= 0]).tolist())
        parts.allocations.append(rows[valid & (size > 0)])


def _diagnostics(fields: Fields) -> None:
    """Count warnings and errors of the profiler as anomalies; only they mention lost events."""
    found: Counter[tuple[int, str]] = Counter()
    wanted = {"severity": MISSING}
    for cells in fields.tables.slices(DIAGNOSTICS, wanted, texts=["text"]):
        for severity, text in zip(cells["severity"].tolist(), cells["text"], strict=True):
            if severity in _SEVERITIES and len(found) < 10_000:
                found[severity, redact(text or "")] += 1
    for severity, name in _SEVERITIES.items():
        messages = [(text, count) for (kind, text), count in found.items() if kind == severity]
        if messages:
            detail = "; ".join(text for text, _ in messages[:_MAX_SHOWN_DIAGNOSTICS])
            fields.parts.sink.anomaly(name, sum(n for _, n in messages), detail[:2000])


def write_metrics(fields: Fields) -> None:
    """Write UPROF_GPU_METRICS: device counters sampled at regular intervals."""
    sink = fields.parts.sink
    names: dict[tuple[int, int], int] = {}
    wanted = r.null_values("typeId metricId")
    for cells in fields.tables.slices(METRIC_NAMES, wanted, texts=["metricName"]):
        ids = (cells[name].tolist() for name in wanted)
        for kind, metric, text in zip(*ids, cells["metricName"], strict=True):
            names[kind, metric] = sink.strings.intern(text or NOT_AVAILABLE)
    wanted = r.null_values("timestamp typeId metricId")
    for cells in fields.tables.slices(METRICS, wanted, reals=["value"]):
        timed = {"start": cells["timestamp"], "end": cells["timestamp"]}
        times, valid = fields.parts.new_rows(timed, r.INTERVAL, "gpu_metric")
        keys = list(zip(cells["typeId"].tolist(), cells["metricId"].tolist(), strict=True))
        for key in set(keys) - names.keys():
            names[key] = sink.strings.intern(f"metric {key[1]}")
        sink.write(
            "UPROF_GPU_METRICS",
            {
                "timestampNs": (times["start"] + fields.parts.base_ns)[valid],
                "deviceId": (cells["typeId"] & _GPU_OF_TYPE)[valid],
                "name": np.array([names[key] for key in keys], np.int64)[valid],
                "value": cells["value"][valid],
            },
        )
