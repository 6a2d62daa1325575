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


def all_kinds() -> dict[str, Sequence[Row]]:
    """Return rows of every kind."""
    thread = {"globalTid": packed(PID, TID)}
    metric = 0x1_0000_0002
    sync = {**copy(6_200, 6_210, 11), "syncType": 2, "eventId": 5, "eventSyncId": 6}
    none = {"syncType": 3, "eventId": 2**32 - 1, "eventSyncId": 2**32 - 1}
    record = {"timestamp": 5, "streamId": 21, "eventId": 5, "eventSyncId": 6}
    unset: dict[str, Any] = {"uint64Value": None, "jsonText": None}
    ranges = [
        {**pushed(0, None, "NCCL"), "eventType": 75, "domainId": 3},
        {**pushed(0, None, "main loop"), "eventType": 39},
        *(pushed(10, 20, "ncclAllReduce", domainId=3, eventType=kind) for kind in (59, 70)),
        pushed(10, 30, "ProfilerStep#12"),
        {**pushed(40, 50, None), "text": None, "textId": 1},
        *(
            pushed(60, 90, "async", rangeId=44, endGlobalTid=packed(PID, 102), eventType=kind)
            for kind in (60, 71)
        ),
        *(pushed(70, None, "mark", eventType=kind) for kind in (34, 65)),
        pushed(95, None, "open"),
        pushed(1_000, 1_500, "aten::mm, seq = 4, op_id = 1, sizes = [[2, 3], [3, 4]]"),
        pushed(1_600, 1_700, "MmBackward0, seq = 4, op_id = 2"),
        pushed(10, 20, "number", **{**unset, "uint64Value": 5}),
        pushed(30, 40, "json", **{**unset, "jsonText": '{"Message size [bytes]": 64}'}),
    ]
    kinds = (
        *((1, 0, 2), (2, 2, 1), (3, 1, 3), (4, 3, 1), (8, 2, 2), (9, 0, 0), (10, 2, 2)),
        *((11, 4, 4), (13, 4, 4), (99, 99, None)),
    )
    diagnostics = (
        *((1, "fine"), (4, "verbose"), (2, "12 events lost")),
        (3, "token=ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    )
    tables: dict[str, Sequence[Row]] = {
        KERNELS: [
            kernel(2_000, 5_000, 7),
            *(kernel(5_100 + i, 5_101 + i, 8, graphId=5, graphNodeId=i) for i in range(3)),
            kernel(10, 20, 30, deviceId=1, contextId=2, streamId=15),
        ],
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{**kernel(5_200, 5_900, 8), "graphId": 3}],
        CALLS: [
            *(call(1_100, 1_200, 7), call(1_210, 1_220, 8)),
            call(1_300, 1_400, 99, returnValue=700),
        ],
        COPIES: [
            copy(7_000 + 10 * i, 7_005 + 10 * i, 7, copyKind=kind, srcKind=source, dstKind=to)
            for i, (kind, source, to) in enumerate(kinds)
        ],
        SETS: [{**copy(6_000, 6_100, 9), "memKind": 2, "bytes": 64}],
        WAITS: [
            *(sync, {**copy(6_300, 6_310, 12), **none}),
            # Nsight Systems writes device 0 for the synchronizations of all devices.
            {**copy(6_400, 6_410, 13), **none, "contextId": 2, "streamId": 15},
        ],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [{**copy(0, 0, 10), **record}],
        RANGES: ranges,
        "CUPTI_ACTIVITY_KIND_OVERHEAD": [
            {"start": 10, "end": 2_000_010, "nameId": 1, "overheadType": 8, **thread}
        ],
        "TARGET_INFO_GPU": [{"id": 0, "name": "H100", "smCount": 132}, {"id": 1, "name": "H200"}],
        "CUDA_GPU_MEMORY_USAGE_EVENTS": [
            *(memory_event(5, 0, 100), memory_event(6, 0, 50, address=2)),
            *(memory_event(7, 1, 100), memory_event(8, 0, 9, kind=1)),
            memory_event(9, 0, 70, pid=200),
        ],
        "DIAGNOSTIC_EVENT": [{"severity": kind, "text": text} for kind, text in diagnostics],
        "OSRT_API": [{"start": 5, "end": 6, "nameId": 2, **thread}],
        "SCHED_EVENTS": [{"start": 1}],
        "TARGET_INFO_GPU_METRICS": [
            {"typeId": metric, "metricId": 9, "metricName": "SM Active [%]"}
        ],
        "GPU_METRICS": [
            {"timestamp": 10, "typeId": metric, "metricId": 9, "value": 55},
            {"timestamp": 20, "typeId": metric, "metricId": 10, "value": None},
        ],
        "PROCESSES": [
            {"globalPid": packed(), "pid": PID, "name": "python"},
            {"globalPid": packed(300), "pid": 300, "name": "sshd"},
        ],
        "ThreadNames": [
            {"globalTid": packed(PID, TID), "nameId": 1},
            {"globalTid": packed(300, 300), "nameId": 1},
        ],
    }
    return small(**tables)


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
