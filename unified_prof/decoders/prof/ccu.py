"""Decodes CCU: waits and transfers of collective communication units (platforms 15 and 16).

Each unit (die) logs missions with the 32-bit id of their task (ccu*.instr) and channel delays
(ccu*.stat). The host has records of each instruction. All dies are decoded together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unified_prof.base.columns import NO_RANK, NO_STREAM, Sink
from unified_prof.decoders.prof import collectives, sampling
from unified_prof.decoders.prof.clocks import MAX_NS
from unified_prof.decoders.prof.collectives import array_text
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_records import host_records
from unified_prof.decoders.prof.layouts import CCU_REDUCTIONS, DATA_TYPES, name_of
from unified_prof.decoders.prof.task_join import DeviceTasks

_DIES = (0, 1)
_NO_CHANNEL = 0xFFFF
_NO_REDUCTION = 255
_WAIT_KIND = "ccu_wait_signal_info"
_PEERS = 16
_TICKS_PER_SPAN = 4

# Number of words of each of the 128 channels in a statistics record; the first five are read.
_CHANNEL_WORDS = (([5] * 11 + [9]) * 10) + [11, 5, 5, 11, 11, 5, 5, 11]
# Channels whose five words begin six words later.
_LATE_CHANNELS = (120, 124)

# Stream, task, instruction.
_Key = tuple[int, int, int]


@dataclass(slots=True)
class _Mission:
    """One row of CCU; times in ticks."""

    key: _Key
    start: int
    end: int
    peer: int | None = None
    """Rank that the instruction waited for; None for a loop group."""


@dataclass(slots=True)
class _HostRecords:
    """First host record of each instruction."""

    groups: dict[_Key, Any] = field(default_factory=dict)
    waits: dict[_Key, Any] = field(default_factory=dict)
    channels: dict[_Key, list[int]] = field(default_factory=dict)
    """Channels of all records of a wait, because devices share task numbers."""


def decode_ccu(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None:
    """Write CCU: one row per instruction, a wait or a loop group.

    Raises:
        RawFormatError: the clock of the device is unknown.
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
        _args(mission, duration, recorded, delays)
        for mission, duration in zip(missions, durations_ns, strict=True)
    ]
    sampling.write_samples(
        sink,
        device,
        "CCU",
        start_ns,
        time_column="startNs",
        globalTaskId=tasks.ids.take(len(missions)),
        name=np.asarray(
            sink.strings.intern_all(
                "LoopGroup" if mission.peer is None else "Wait" for mission in missions
            )
        ),
        # The end of a damaged record may be beyond int64.
        endNs=start_ns + np.minimum(durations_ns, MAX_NS - start_ns).astype(np.int64),
        args=np.asarray(sink.strings.intern_all(args)),
    )


def _missions(device: DeviceDirectory, tasks: DeviceTasks) -> Iterator[_Mission]:
    """Yield the last loop group and the longest wait of each instruction."""
    loops: dict[_Key, _Mission] = {}
    waits: dict[_Key, _Mission] = {}
    for die in _DIES:
        for records in sampling.pieces(device, f"ccu{die}.instr", "ccu_instr"):
            streams = tasks.streams_of(records["task_id"])
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
    for kind, found in (
        ("ccu_group_info", result.groups),
        (_WAIT_KIND, result.waits),
    ):
        for records in host_records(host, "additional", kind, sink):
            used = (records["channels"] != _NO_CHANNEL) & (records["remote_ranks"] != NO_RANK)
            for record in records[used.any(axis=1)]:
                key = (int(record["stream_id"]), int(record["task_id"]), int(record["instruction"]))
                found.setdefault(key, record.copy())
                if kind == _WAIT_KIND:
                    result.channels.setdefault(key, []).extend(_used_channels(record))
    return result


def _channel_delays(device: DeviceDirectory) -> dict[int, list[tuple[int, int]]]:
    """Return (ticks, average delay) of the samples of each channel."""
    begin = np.cumsum([0, *_CHANNEL_WORDS[:-1]])
    begin[list(_LATE_CHANNELS)] += 6
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for die in _DIES:
        for records in sampling.pieces(device, f"ccu{die}.stat", "ccu_stat"):
            words = records["words"].astype(np.uint64)
            ticks = words[:, begin] | words[:, begin + 1] << np.uint64(32)
            average = words[:, begin + 2]
            for row, channel in np.argwhere(ticks > 0).tolist():
                found[channel].append((int(ticks[row, channel]), int(average[row, channel])))
    return found


def _args(
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


def _used_channels(record: Any) -> list[int]:
    used = (record["channels"] != _NO_CHANNEL) & (record["remote_ranks"] != NO_RANK)
    channels: list[int] = record["channels"][used].tolist()
    return channels
