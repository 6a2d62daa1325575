"""Builders of Nsight Systems exports from tables of rows."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.decoders.kineto.builders import RowSink
from unified_prof.decoders import nsys
from unified_prof.sqlite.external_tables import foreign_tables

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

PID, TID = 100, 101
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RANGES = "NVTX_EVENTS"

_TEXT_COLUMNS = frozenset({"text", "name", "chipName", "metricName", "jsonText"})


def packed(pid: int = PID, tid: int = 0) -> int:
    """Return a process or thread id as nsys writes it, of virtual machine 1."""
    return 1 << 48 | pid << 24 | tid


def strings(*texts: str) -> list[Row]:
    """Return StringIds rows: the texts have the ids 1, 2, 3 and so on."""
    return [{"id": number, "value": text} for number, text in enumerate(texts, 1)]


_PLACE = {"deviceId": 0, "contextId": 1, "streamId": 7}
_GRID = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
_SIZES = {"registersPerThread": 32, "staticSharedMemory": 16, "dynamicSharedMemory": 100}


def _task(start: object, end: object, correlation: object) -> dict[str, Any]:
    times = {"start": start, "end": end, "correlationId": correlation}
    return {**times, **_PLACE, "globalPid": packed()}


def kernel(start: object, end: object, correlation: object, name: object = 1, **more: Any) -> Row:
    graph = {"graphId": None, "graphNodeId": None}
    return {
        **_task(start, end, correlation),
        "demangledName": name,
        **_SIZES,
        **_GRID,
        **graph,
        **more,
    }


def copy(start: int, end: int, correlation: int, **more: Any) -> Row:
    kinds = {"bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    return {**_task(start, end, correlation), **kinds, **more}


def memory_event(
    start: int, operation: int, size: int, *, kind: int = 2, address: int = 1, pid: int = PID
) -> Row:
    """Return an allocation (operation 0) or release (1) of device memory, or of kind 1: host."""
    place = {"start": start, "globalPid": packed(pid), "deviceId": 0, "address": address}
    return {**place, "bytes": size, "memKind": kind, "memoryOperationType": operation}


def call(start: object, end: object, correlation: object, name: object = 2, **more: Any) -> Row:
    thread = {"start": start, "end": end, "eventClass": 0, "globalTid": packed(PID, TID)}
    return {**thread, "correlationId": correlation, "nameId": name, "returnValue": 0, **more}


def pushed(start: object, end: object, text: object, **more: Any) -> Row:
    """Return a range that one thread pushed and popped."""
    times = {"start": start, "end": end, "eventType": 59, "globalTid": packed(PID, TID)}
    unset = dict.fromkeys(("textId", "endGlobalTid", "rangeId", "category"))
    return {**times, "text": text, "domainId": 0, **unset, **more}


def small(**more: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """Return one operation that launches one kernel; `more` adds or replaces tables."""
    return {
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"},
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2026.1.1"},
        ],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}],
        "StringIds": strings("void gemm<float>()", "cudaLaunchKernel_v7000"),
        KERNELS: [kernel(2_000, 5_000, 7)],
        CALLS: [call(1_100, 1_200, 7)],
        RANGES: [pushed(1_000, 1_500, "aten::mm, op_id = 3")],
        **more,
    }


def write(path: Path, tables: Tables) -> Path:
    """Write the tables; one without rows has the column `start` only."""
    with closing(sqlite3.connect(path)) as db, db:
        for table, rows in tables.items():
            names = list(dict.fromkeys(name for row in rows for name in row)) or ["start"]
            columns = ", ".join(f'"{name}" {_type_of(name)}' for name in names)
            db.execute(f'CREATE TABLE "{table}" ({columns})')
            db.executemany(
                f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(names))})',
                [[row.get(name) for name in names] for row in rows],
            )
    return path


def _type_of(column: str) -> str:
    if column == "value":  # a text or a number, by the table
        return ""
    return "TEXT" if column in _TEXT_COLUMNS else "INTEGER"


def decode(path: Path) -> RowSink:
    sink = RowSink()
    with foreign_tables(path) as tables:
        nsys.decode(path, tables, sink)
    return sink


def decode_tables(tmp_path: Path, tables: Tables) -> RowSink:
    path = tmp_path / "run.sqlite"
    path.unlink(missing_ok=True)
    return decode(write(path, tables))
