"""Decodes DPU_TASK: kernels (dpu_track) and collectives (dpu_hccl_info) of DPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.base.columns import NOT_AVAILABLE, Sink
from unified_prof.decoders.prof.collectives import array_text
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.host_records import host_records
from unified_prof.decoders.prof.layouts import (
    DATA_TYPES,
    DPU_REDUCTIONS,
    LINKS,
    RDMA_KINDS,
    TRANSPORTS,
    V6_PLATFORMS,
    name_of,
)
from unified_prof.decoders.prof.slices import Records
from unified_prof.decoders.prof.task_identity import IdCounter

# Class of device in the high four bits of a device field.
_DPU = 1
_NUMBER_BITS = 0x0FFF
_RANK_BITS = 0xFFFF
_PIECE = 1 << 14


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of DPU_TASK; times in ticks of the host counter."""

    device_id: int
    thread_id: int
    start: int
    end: int
    stream_id: int
    task_id: int
    name: str
    more: tuple[object, ...]
    """Additional names and values for the column `args`."""


def decode_dpu(host: HostDirectory, ids: IdCounter, sink: Sink) -> None:
    """Write DPU_TASK. Its tasks get new ids, because they are not in TASK."""
    for make in (_kernels, _collectives):
        rows: list[_Row] = []
        for row in make(host, sink):
            rows.append(row)
            if len(rows) == _PIECE:
                _write(rows, host, ids, sink)
                rows.clear()
        _write(rows, host, ids, sink)


def _kernels(host: HostDirectory, sink: Sink) -> Iterator[_Row]:
    """Yield the kernels, named after the last launch with the same device and task."""
    launched: dict[tuple[int, int], int] | None = None
    for records in host_records(host, "compact", "dpu_track", sink):
        if launched is None:
            launched = _launched_names(host, sink)
        for record in _on_dpu(records, "device"):
            device, task = int(record["device"]) & _NUMBER_BITS, int(record["task_id"])
            name = launched.get((device, task), 0)
            yield _Row(
                device,
                int(record["thread_id"]),
                int(record["start"]),
                int(record["timestamp"]),
                int(record["stream_id"]),
                task,
                host.dictionaries.text(name) if name else NOT_AVAILABLE,
                ("Task Type", "AI_CPU"),
            )


def _launched_names(host: HostDirectory, sink: Sink) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for records in host_records(host, "compact", "task_track", sink):
        for record in _on_dpu(records, "device_id"):
            device = int(record["device_id"]) & _NUMBER_BITS
            found[device, int(record["task_id"])] = int(record["kernel_name"])
    return found


def _on_dpu(records: Records, field: str) -> Iterator[Any]:
    yield from records[records[field] >> 12 == _DPU]


def _collectives(host: HostDirectory, sink: Sink) -> Iterator[_Row]:
    """Yield the collective tasks (platforms 15 and 16)."""
    if host.platform not in V6_PLATFORMS:
        return
    for records in host_records(host, "additional", "dpu_hccl_info", sink):
        for record in records:
            yield _Row(
                int(record["dpu"]) & _NUMBER_BITS,
                int(record["thread_id"]),
                int(record["start"]),
                int(record["timestamp"]),
                int(record["stream_id"]),
                int(record["task_id"]),
                host.dictionaries.text(int(record["item"])),
                _collective_args(record, host),
            )


def _collective_args(record: Any, host: HostDirectory) -> tuple[object, ...]:
    group = int(record["group"])
    known = host.dictionaries.knows(group)
    duration_us = (
        host.clocks.host.duration().to_ns(
            np.array([max(int(record["timestamp"]) - int(record["start"]), 0)])
        )[0]
        / 1000.0
    )
    size = int(record["size_bytes"])
    return (
        "OP Type",
        name_of(DPU_REDUCTIONS, int(record["op_type"])),
        "AI CPU Device Id",
        int(record["npu"]),
        "AI CPU Task Id",
        int(record["ai_cpu_task"]),
        "Group Name",
        f"{host.dictionaries.text(group) if known else NOT_AVAILABLE}({group})",
        "Plane Id",
        int(record["plane_id"]),
        "Notify Id",
        str(int(record["notify_id"])),
        "Duration Estimated(us)",
        float(record["estimated_us"]),
        "Rank Size",
        int(record["rank_size"]),
        "Src Rank",
        int(record["local_rank"]) & _RANK_BITS,
        "Dst Rank",
        int(record["remote_rank"]) & _RANK_BITS,
        "Transport Type",
        name_of(TRANSPORTS, int(record["transport_type"])),
        "Size(Byte)",
        size,
        "Bandwidth(B/s)",
        size / (duration_us / 1e6) if duration_us > 0 else 0.0,
        "Data Type",
        name_of(DATA_TYPES, int(record["data_type"])),
        "Link Type",
        name_of(LINKS, int(record["link_type"])),
        "Rdma Type",
        name_of(RDMA_KINDS, int(record["rdma_type"])),
    )


def _write(rows: list[_Row], host: HostDirectory, ids: IdCounter, sink: Sink) -> None:
    """Write the rows; rows that started before the session are dropped and counted."""
    if not rows:
        return
    start_ns = host.clocks.host.to_ns(np.array([row.start for row in rows], np.uint64))
    end_ns = host.clocks.host.to_ns(np.array([row.end for row in rows], np.uint64))
    kept = np.flatnonzero(start_ns >= host.session.start_ns)
    if early := len(rows) - len(kept):
        sink.anomaly("before_session_start", early, "rows of DPU_TASK")
    if not len(kept):
        return
    chosen = [rows[index] for index in kept.tolist()]
    sink.write(
        "DPU_TASK",
        {
            "dpuDeviceId": [row.device_id for row in chosen],
            "globalTid": [row.thread_id for row in chosen],
            "startNs": start_ns[kept],
            "endNs": end_ns[kept],
            "globalTaskId": ids.take(len(chosen)),
            "streamId": [row.stream_id for row in chosen],
            "taskId": [row.task_id for row in chosen],
            "opName": sink.strings.intern_all(row.name for row in chosen),
            "args": sink.strings.intern_all(_args(row) for row in chosen),
        },
    )


def _args(row: _Row) -> str:
    head = ("Thread Id", row.thread_id, "Physic Stream Id", row.stream_id, "Task Id", row.task_id)
    return array_text((*head, *row.more))
