"""Builders of rocprofv3 recordings: the tables of the public rocpd schema, and JSON.

Tables and keys follow the sources of rocprofiler-sdk; no recording of a real device was available.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.decoders.kineto.builders import RowSink
from unified_prof.decoders import rocm
from unified_prof.decoders.rocm.json_tables import JsonTables
from unified_prof.sqlite.external_tables import foreign_tables

RocpdTables = dict[str, Sequence[Mapping[str, Any]]]
UUID = "_00006e7b_0ab1_7000_8000_00155d012345"
GUID = "00006e7b-0ab1-7000-8000-00155d012345"


def region(number: int, start: int, end: int, name: int, event: int, **more: Any) -> Any:
    place = {"id": number, "guid": GUID, "nid": 1, "pid": 1, "tid": 1, "extdata": "{}"}
    return {**place, "start": start, "end": end, "name_id": name, "event_id": event, **more}


def event(number: int, category: int, stack: int, **more: Any) -> Any:
    ids = {"id": number, "guid": GUID, "category_id": category, "stack_id": stack}
    return {**ids, "parent_stack_id": 0, "correlation_id": 0, "extdata": "{}", **more}


def _sizes(prefix: str, x: int, y: int) -> dict[str, int]:
    return {f"{prefix}_x": x, f"{prefix}_y": y, f"{prefix}_z": 1}


def small() -> RocpdTables:
    """Return a marked operation that launches a kernel, a copy, and a released allocation."""
    common = {"guid": GUID, "nid": 1, "pid": 1, "tid": 1, "queue_id": 1, "stream_id": 4}
    memory = {**common, "agent_id": 2, "level": "REAL", "address": 0x7F00}
    cpu = {"id": 1, "type": "CPU", "name": "EPYC", "product_name": "AMD EPYC"}
    gpu = {"id": 2, "type": "GPU", "name": "gfx942", "product_name": "AMD Instinct MI300X"}
    registers = {"sgpr_count": 32, "arch_vgpr_count": 40, "accum_vgpr_count": 8}
    dispatch = {"id": 1, "agent_id": 2, "kernel_id": 9, "dispatch_id": 1, "event_id": 3}
    copy = {"id": 1, "start": 2_150, "end": 2_400, "name_id": 7, "event_id": 5}
    times = {"start": 1_500, "end": 3_500, "group_segment_size": 1024, "region_name_id": None}
    texts = (
        *("HIP_RUNTIME_API", "hipLaunchKernel", "MARKER_CORE_API", "roctxRangePushA"),
        *("KERNEL_DISPATCH", "MEMORY_COPY", "MEMORY_COPY_HOST_TO_DEVICE", "OMPT"),
        *("hipMemcpyAsync", "parallel"),
    )
    return {
        "metadata": [
            {"id": 1, "tag": "schema_version", "value": "3"},
            {"id": 2, "tag": "uuid", "value": UUID},
        ],
        "string": [{"id": i, "guid": GUID, "string": text} for i, text in enumerate(texts, 1)],
        "info_process": [{"id": 1, "guid": GUID, "nid": 1, "pid": 4242, "command": "secret"}],
        "info_thread": [{"id": 1, "guid": GUID, "nid": 1, "pid": 1, "tid": 4243, "name": "python"}],
        "info_agent": [{"guid": GUID, "type_index": 0, **agent} for agent in (cpu, gpu)],
        "info_kernel_symbol": [
            {
                "id": 9,
                "guid": GUID,
                "kernel_name": "_Z4gemmv.kd",
                "display_name": "gemm()",
                **registers,
            }
        ],
        "event": [
            event(1, 3, 50, extdata='{"message": "aten::mm, op_id = 3"}'),
            event(2, 1, 51),
            event(3, 5, 51),
            event(4, 1, 52),
            event(5, 6, 52),
            event(6, 8, 60),
            event(7, 3, 61, extdata='{"message": "step"}'),
        ],
        "region": [
            region(1, 1_000, 1_900, 4, 1),
            region(2, 1_100, 1_200, 2, 2),
            region(3, 2_000, 2_100, 9, 4),
            region(4, 2_200, 2_300, 10, 6),
            region(5, 2_400, 2_500, 4, 7),
        ],
        "kernel_dispatch": [
            {
                **common,
                **dispatch,
                **times,
                **_sizes("grid_size", 1000, 4),
                **_sizes("workgroup_size", 256, 1),
            }
        ],
        "memory_copy": [{**common, **copy, "src_agent_id": 1, "dst_agent_id": 2, "size": 4096}],
        "memory_allocate": [
            {**memory, "id": 1, "type": "ALLOC", "start": 500, "end": 600, "size": 64},
            {**memory, "id": 2, "type": "FREE", "start": 4_000, "end": 4_100, "size": 0},
        ],
    }


def write(path: Path, *sessions: RocpdTables, uuids: Sequence[str] = (UUID, "_0002")) -> Path:
    """Write tables with the suffixes of their sessions, and the views over them."""
    with closing(sqlite3.connect(path)) as db, db:
        for uuid, tables in zip(uuids, sessions, strict=False):
            for table, rows in tables.items():
                names = list(dict.fromkeys(name for row in rows for name in row)) or ["id"]
                columns = ", ".join(f'"{name}"' for name in names)
                db.execute(f'CREATE TABLE "rocpd_{table}{uuid}" ({columns})')
                db.executemany(
                    f'INSERT INTO "rocpd_{table}{uuid}" VALUES ({", ".join("?" * len(names))})',
                    [[row.get(name) for name in names] for row in rows],
                )
                if uuid:
                    db.execute(
                        f'CREATE VIEW IF NOT EXISTS "rocpd_{table}" AS'
                        f' SELECT * FROM "rocpd_{table}{uuid}"'
                    )
    return path


def as_json() -> dict[str, Any]:
    """Return the content of `small` as rocprofv3 writes it in JSON."""

    def record(kind: int, operation: int, start: int, end: int, stack: int, **more: Any) -> Any:
        ids = {"kind": kind, "operation": operation, "thread_id": 4243, "size": 1}
        times = {"start_timestamp": start, "end_timestamp": end}
        return {**ids, **times, "correlation_id": {"internal": stack, "external": 0}, **more}

    kinds = [
        {"kind": "NONE", "operations": []},
        {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
        {"kind": "KERNEL_DISPATCH", "operations": []},
        {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_HOST_TO_DEVICE"]},
        {
            "kind": "MEMORY_ALLOCATION",
            "operations": ["MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"],
        },
    ]
    agents = [
        {"id": {"handle": 77}, "type": 1, "name": "EPYC", "product_name": "AMD EPYC"},
        {"id": {"handle": 88}, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X"},
    ]
    dispatch = {
        "agent_id": {"handle": 88},
        "queue_id": {"handle": 1},
        "kernel_id": 9,
        "group_segment_size": 1024,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 4, "z": 1},
    }
    stream = {"stream_id": {"handle": 4}}
    ends = {"src_agent_id": {"handle": 77}, "dst_agent_id": {"handle": 88}, "bytes": 4096}
    memory = {"agent_id": {"handle": 88}, "address": "0x7f00"}
    symbol = {"kernel_id": 9, "kernel_name": "_Z4gemmv.kd", "formatted_kernel_name": "gemm()"}
    registers = {"sgpr_count": 32, "arch_vgpr_count": 40, "accum_vgpr_count": 8}
    marks = [{"key": 50, "value": "aten::mm, op_id = 3"}, {"key": 61, "value": "step"}]
    session = {
        "metadata": {"pid": 4242, "command": ["secret"]},
        "agents": agents,
        "strings": {"buffer_records": kinds, "marker_api": marks},
        "kernel_symbols": [{**symbol, **registers}],
        "buffer_records": {
            "hip_api": [record(1, 0, 1_100, 1_200, 51), record(1, 1, 2_000, 2_100, 52)],
            "marker_api": [record(2, 0, 1_000, 1_900, 50), record(2, 0, 2_400, 2_500, 61)],
            "kernel_dispatch": [record(3, 0, 1_500, 3_500, 51, dispatch_info=dispatch, **stream)],
            "memory_copy": [record(4, 0, 2_150, 2_400, 52, **ends, **stream)],
            "memory_allocation": [
                record(5, 0, 500, 600, 70, allocation_size=64, **memory),
                record(5, 1, 4_000, 4_100, 71, allocation_size=0, **memory),
            ],
        },
    }
    return {"rocprofiler-sdk-tool": [session]}


def decode(path: Path) -> RowSink:
    sink = RowSink()
    if path.suffix == ".json":
        rocm.decode(path, JsonTables(path), sink)
    else:
        with foreign_tables(path) as tables:
            rocm.decode(path, tables, sink)
    return sink


def write_json(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path
