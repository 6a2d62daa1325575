"""Decodes the tables CCU and DPU_TASK, which only platforms 15 and 16 have.

CCU contains the waits and transfers of collective communication units. Each unit (die) logs
missions with the 32-bit id of their task (ccu*.instr) and channel delays (ccu*.stat); the host has
records of each instruction. DPU_TASK contains kernels (dpu_track) and collectives (dpu_hccl_info)
of DPUs, which only the host records.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from unified_prof.base.columns import NO_RANK, NO_STREAM, NOT_AVAILABLE, Sink
from unified_prof.decoders.prof import collectives, sampling
from unified_prof.decoders.prof.clocks import MAX_NS
from unified_prof.decoders.prof.collectives import array_text
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_records import host_records
from unified_prof.decoders.prof.layouts import (
    CCU_REDUCTIONS,
    DATA_TYPES,
    DPU_REDUCTIONS,
    LINKS,
    RDMA_KINDS,
    TRANSPORTS,
    name_of,
)
from unified_prof.decoders.prof.task_join import DeviceTasks
from unified_prof.decoders.prof.task_log import IdCounter
from unified_prof.decoders.spool import Rows

_DIES = (0, 1)
_NO_CHANNEL = 0xFFFF
_NO_REDUCTION = 255
_WAIT_KIND = "ccu_wait_signal_info"
_PEERS = 16
_TICKS_PER_SPAN = 4

# Number of words of each of the 128 channels in a statistics record; the first five are read.
_CHANNEL_WORDS = (([5] * 11 + [9]) * 10) + [11, 5, 5, 11, 11, 5, 5, 11]
_LATE_CHANNELS = (120, 124)  # Channels whose five words begin six words later.

_Key = tuple[int, int, int]  # Stream, task, instruction.


class _Mission(Struct):
    """One row of CCU; times in ticks."""

    key: _Key
    start: int
    end: int
    peer: int | None = None  # Rank that the instruction waited for; None for a loop group.


class _HostRecords(Struct):
    """First host record of each instruction."""

    groups: dict[_Key, Any] = field(default_factory=dict)
    waits: dict[_Key, Any] = field(default_factory=dict)
    # Channels of all records of a wait, because devices share task numbers.
    channels: dict[_Key, list[int]] = field(default_factory=dict)


def decode_ccu(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None:
    """Write CCU: one row per instruction, a wait or a loop group.

    Raises RawFormatError if the clock of the device is unknown.
    """
    missions = list(_missions(device, tasks))
    if not missions:
        return
    clock = sampling.device_clock(device, "ccu.instr")
    recorded = _HostRecords() if tasks.host is None else _read_host_records(tasks.host, sink)
    delays = _channel_delays(device)
    start_ns = clock.to_ns(np.array([mission.start for mission in missions], np.uint64))
    durations_ns = [
        collectives.duration_ns(mission.end - mission.start, clock.rate) for mission in missions
    ]
    args = [
        _mission_args(mission, duration, recorded, delays)
        for mission, duration in zip(missions, durations_ns, strict=True)
    ]
    names = ("LoopGroup" if mission.peer is None else "Wait" for mission in missions)
    sampling.write_samples(
        sink,
        device,
        "CCU",
        start_ns,
        time_column="startNs",
        globalTaskId=tasks.ids.take(len(missions)),
        name=np.asarray(sink.strings.intern_all(names)),
        # The end of a damaged record may be beyond int64.
        endNs=start_ns + np.minimum(durations_ns, MAX_NS - start_ns).astype(np.int64),
        args=np.asarray(sink.strings.intern_all(args)),
    )


def _missions(device: DeviceDirectory, tasks: DeviceTasks) -> Iterator[_Mission]:
    """Yield the last loop group and the longest wait of each instruction."""
    loops: dict[_Key, _Mission] = {}
    waits: dict[_Key, _Mission] = {}
    for die in _DIES:
        for records in device.data.get(f"ccu{die}.instr").pieces("ccu_instr"):
            streams = tasks.streams.find(records["task_id"])
            streams = np.where(streams < 0, NO_STREAM, streams)
            for record, stream in zip(records, streams.tolist(), strict=True):
                task, start = int(record["task_id"]), int(record["wait_start"])
                if start:
                    wait = _wait((stream, task, int(record["wait_instruction"])), record)
                    known = waits.get(wait.key)
                    if known is None or wait.end > known.end:
                        waits[wait.key] = wait
                elif begin := int(record["loop_start"]):
                    key = (stream, task, int(record["loop_instruction"]))
                    loops[key] = _Mission(key, begin, int(record["loop_end"]))
    yield from loops.values()
    yield from waits.values()


def _wait(key: _Key, record: Any) -> _Mission:
    """Return the wait for the last peer; if several are equal, the one with the highest number."""
    spans = record["wait_spans"].tolist()
    longest = max(range(_PEERS), key=lambda index: spans[index])
    start = int(record["wait_start"])
    return _Mission(key, start, start + _TICKS_PER_SPAN * spans[longest], _PEERS - 1 - longest)


def _read_host_records(host: HostDirectory, sink: Sink) -> _HostRecords:
    result = _HostRecords()
    for kind, found in (("ccu_group_info", result.groups), (_WAIT_KIND, result.waits)):
        for records in host_records(host, "additional", kind, sink):
            used = (records["channels"] != _NO_CHANNEL) & (records["remote_ranks"] != NO_RANK)
            rows = used.any(axis=1)
            for record, used_here in zip(records[rows], used[rows], strict=True):
                key = (int(record["stream_id"]), int(record["task_id"]), int(record["instruction"]))
                found.setdefault(key, record.copy())
                if kind == _WAIT_KIND:
                    channels = record["channels"][used_here].tolist()
                    result.channels.setdefault(key, []).extend(channels)
    return result


def _channel_delays(device: DeviceDirectory) -> dict[int, list[tuple[int, int]]]:
    """Return (ticks, average delay) of the samples of each channel."""
    begin = np.cumsum([0, *_CHANNEL_WORDS[:-1]])
    begin[list(_LATE_CHANNELS)] += 6
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for die in _DIES:
        for records in device.data.get(f"ccu{die}.stat").pieces("ccu_stat"):
            words = records["words"].astype(np.uint64)
            ticks = words[:, begin] | words[:, begin + 1] << np.uint64(32)
            average = words[:, begin + 2]
            for row, channel in np.argwhere(ticks > 0).tolist():
                found[channel].append((int(ticks[row, channel]), int(average[row, channel])))
    return found


def _mission_args(
    mission: _Mission,
    duration_ns: float,
    recorded: _HostRecords,
    delays: dict[int, list[tuple[int, int]]],
) -> str:
    stream, task, instruction = mission.key
    head = ["Physic Stream Id", stream, "Task Id", task]
    if mission.peer is None:
        head += ["Instruction ID", instruction]
        group = recorded.groups.get(mission.key)
        return array_text(head + ([] if group is None else _group_args(group, duration_ns)))
    head += ["Notify Instruction ID", instruction, "Notify Rank ID", mission.peer]
    wait = recorded.waits.get(mission.key)
    if wait is None:
        return array_text(head)
    channels = recorded.channels[mission.key]
    return array_text(head + _wait_args(wait, channels, mission.end, delays))


def _group_args(group: Any, duration_ns: float) -> list[Any]:
    size = int(group["size_bytes"])
    result: list[Any] = ["Die Id", int(group["die"]), "Data Size", size]
    if duration_ns > 0:
        result += ["Bandwidth (B/s)", size / (duration_ns / 1000) * 1e6]
    if (reduction := int(group["reduction"])) != _NO_REDUCTION:
        result += [
            "Reduce Op Type",
            name_of(CCU_REDUCTIONS, reduction),
            "Input Data Type",
            name_of(DATA_TYPES, int(group["input_type"])),
            "Output Data Type",
            name_of(DATA_TYPES, int(group["output_type"])),
        ]
    return result


def _wait_args(
    wait: Any, channels: list[int], end: int, delays: dict[int, list[tuple[int, int]]]
) -> list[Any]:
    """Return the arguments of a wait, with the most delayed channel at its end."""
    result: list[Any] = ["Die Id", int(wait["die"]), "Mask", int(wait["mask"])]
    largest, slowest = 0, None
    for channel in channels:
        for ticks, average in delays.get(channel, ()):
            if ticks < end and average > largest:
                largest, slowest = average, channel
    if slowest is not None:
        result += ["Maximum Delay Channel", slowest, "Maximum Channel Delay", largest]
    return result


# Class of device in the high four bits of a device field.
_DPU = 1
_NUMBER_BITS = 0x0FFF
_RANK_BITS = 0xFFFF
_DPU_BATCH_ROWS = 1 << 14


class _DpuTask(Struct, frozen=True):
    """One row of DPU_TASK; times in ticks of the host counter."""

    record: Any  # Record of the host with thread, stream, task, and times.
    device_id: int
    name: str
    more: tuple[object, ...]  # Additional names and values for the column `args`.


def decode_dpu(host: HostDirectory, ids: IdCounter, sink: Sink) -> None:
    """Write DPU_TASK. Its tasks get new ids, because they are not in TASK."""
    for read in (_dpu_kernels, _dpu_collectives):
        rows: list[_DpuTask] = []
        for row in read(host, sink):
            rows.append(row)
            if len(rows) == _DPU_BATCH_ROWS:
                _write_dpu_tasks(rows, host, ids, sink)
                rows.clear()
        _write_dpu_tasks(rows, host, ids, sink)


def _dpu_kernels(host: HostDirectory, sink: Sink) -> Iterator[_DpuTask]:
    """Yield the kernels, named after the last launch with the same device and task."""
    launched: dict[tuple[int, int], int] | None = None
    for records in host_records(host, "compact", "dpu_track", sink):
        if launched is None:
            launched = {
                (int(record["device_id"]) & _NUMBER_BITS, int(record["task_id"])): int(
                    record["kernel_name"]
                )
                for launches in host_records(host, "compact", "task_track", sink)
                for record in _on_dpu(launches, "device_id")
            }
        for record in _on_dpu(records, "device"):
            device, task = int(record["device"]) & _NUMBER_BITS, int(record["task_id"])
            name = launched.get((device, task), 0)
            text = host.dictionaries.text(name) if name else NOT_AVAILABLE
            yield _DpuTask(record, device, text, ("Task Type", "AI_CPU"))


def _on_dpu(records: Rows, field: str) -> Rows:
    return np.asarray(records[records[field] >> 12 == _DPU])


def _dpu_collectives(host: HostDirectory, sink: Sink) -> Iterator[_DpuTask]:
    """Yield the collective tasks (platforms 15 and 16)."""
    if not host.has_wide_task_ids:
        return
    for records in host_records(host, "additional", "dpu_hccl_info", sink):
        for record in records:
            device, name = int(record["dpu"]) & _NUMBER_BITS, int(record["item"])
            text = host.dictionaries.text(name)
            yield _DpuTask(record, device, text, _collective_args(record, host))


def _collective_args(record: Any, host: HostDirectory) -> tuple[object, ...]:
    group = int(record["group"])
    known = host.dictionaries.knows(group)
    ticks = max(int(record["timestamp"]) - int(record["start"]), 0)
    duration_us = host.clocks.host.duration().to_ns(np.array([ticks]))[0] / 1000.0
    size = int(record["size_bytes"])
    values = {
        "OP Type": name_of(DPU_REDUCTIONS, int(record["op_type"])),
        "AI CPU Device Id": int(record["npu"]),
        "AI CPU Task Id": int(record["ai_cpu_task"]),
        "Group Name": f"{host.dictionaries.text(group) if known else NOT_AVAILABLE}({group})",
        "Plane Id": int(record["plane_id"]),
        "Notify Id": str(int(record["notify_id"])),
        "Duration Estimated(us)": float(record["estimated_us"]),
        "Rank Size": int(record["rank_size"]),
        "Src Rank": int(record["local_rank"]) & _RANK_BITS,
        "Dst Rank": int(record["remote_rank"]) & _RANK_BITS,
        "Transport Type": name_of(TRANSPORTS, int(record["transport_type"])),
        "Size(Byte)": size,
        "Bandwidth(B/s)": size / (duration_us / 1e6) if duration_us > 0 else 0.0,
        "Data Type": name_of(DATA_TYPES, int(record["data_type"])),
        "Link Type": name_of(LINKS, int(record["link_type"])),
        "Rdma Type": name_of(RDMA_KINDS, int(record["rdma_type"])),
    }
    return tuple(itertools.chain.from_iterable(values.items()))


def _write_dpu_tasks(rows: list[_DpuTask], host: HostDirectory, ids: IdCounter, sink: Sink) -> None:
    """Write the rows; rows that started before the session are dropped and counted."""
    if not rows:
        return
    times = np.array([(row.record["start"], row.record["timestamp"]) for row in rows], np.uint64)
    start_ns, end_ns = host.clocks.host.to_ns(times).T
    kept = np.flatnonzero(start_ns >= host.session.start_ns)
    sink.anomaly("before_session_start", len(rows) - len(kept), "rows of DPU_TASK")
    if not len(kept):
        return
    chosen = [rows[index] for index in kept.tolist()]
    threads, streams, tasks = (
        [int(row.record[name]) for row in chosen] for name in ("thread_id", "stream_id", "task_id")
    )
    args = [
        array_text(["Thread Id", thread, "Physic Stream Id", stream, "Task Id", task, *row.more])
        for thread, stream, task, row in zip(threads, streams, tasks, chosen, strict=True)
    ]
    sink.write(
        "DPU_TASK",
        {
            "dpuDeviceId": [row.device_id for row in chosen],
            "globalTid": threads,
            "startNs": start_ns[kept],
            "endNs": end_ns[kept],
            "globalTaskId": ids.take(len(chosen)),
            "streamId": streams,
            "taskId": tasks,
            "opName": sink.strings.intern_all(row.name for row in chosen),
            "args": sink.strings.intern_all(args),
        },
    )
