"""One device of a recording: its tasks joined with what launched them, to their tables."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.aicpu_collectives import find_collectives
from unified_prof.decoders.prof.collectives.aicpu_operators import Ground
from unified_prof.decoders.prof.collectives.aicpu_records import AicpuRecords, read_aicpu
from unified_prof.decoders.prof.collectives.aicpu_rows import write_collectives
from unified_prof.decoders.prof.collectives.communication import CommunicationTimes, DeviceRows
from unified_prof.decoders.prof.device.joined_tasks import DeviceTasks
from unified_prof.decoders.prof.device.logged_tasks import TaskRows, no_rows, read_rows, write_tasks
from unified_prof.decoders.prof.device.overlap import OverlapWriter
from unified_prof.decoders.prof.device.ts_track import Track, read_track
from unified_prof.decoders.prof.host.compute_info import (
    ComputeTasks,
    Schedulers,
    write_compute_info,
)
from unified_prof.decoders.prof.host.launches import MISSING, Launches
from unified_prof.decoders.prof.host.marks import device_marks
from unified_prof.decoders.prof.host.memory_copies import write_copies
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.host_side import HostSide
from unified_prof.decoders.prof.identity.flips import Flips
from unified_prof.decoders.prof.identity.task_keys import IdCounter, TaskIds
from unified_prof.decoders.prof.raw.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS
from unified_prof.decoders.prof.registry import TASK_DECODERS
from unified_prof.decoders.prof.stages import Stage
from unified_prof.errors import RawFormatError

_LARGEST_NARROW_ID = 0xFFFF

# Types of launches that say nothing about when a device was in use.
_NO_EVIDENCE = (
    "KERNEL_AICORE",
    "KERNEL_AIVEC",
    "KERNEL_MIX_AIC",
    "KERNEL_MIX_AIV",
    "FFTS_PLUS",
    "PROFILING_ENABLE",
    "PROFILING_DISABLE",
)


@dataclass(frozen=True, slots=True)
class File:
    """What all devices of one database share."""

    sink: Sink
    stage: Stage
    process_id: int
    ids: IdCounter
    overlap: OverlapWriter


def decode_device(
    device_id: int, device: DeviceDirectory | None, host_side: HostSide | None, file: File
) -> None:
    """Write the tables about the tasks of one device: those it logged, those launched for it.

    Args:
        device_id: the device.
        device: its directory, None when only the host knows of it.
        host_side: what the host recorded, None without a host directory.
        file: where rows and ids go.

    Raises:
        RawFormatError: a file that all tables need cannot be read.
    """
    platform = _platform(device, host_side)
    wide = platform in V6_PLATFORMS
    expanded = host_side is not None and host_side.expanded_streams
    launches = Launches.none() if host_side is None else host_side.launches(device_id)
    track, rows, logged = Track.none(), no_rows(), no_rows().key
    aicpu = AicpuRecords.none()
    stream_by_task = _NO_IDS, _NO_IDS
    if device is not None:
        with file.stage("task log"):
            track = read_track(device, expanded=expanded)
            aicpu = read_aicpu(device, file.sink)
            if wide:
                stream_by_task = _streams(launches, aicpu)
            rows, logged = read_rows(
                device,
                launches,
                track,
                file.sink,
                stream_by_task=stream_by_task if wide else None,
                expanded=expanded,
            )
    ids = TaskIds(file.ids)
    resolved = ids.resolve(np.concatenate([launches.key, rows.key]))
    launch_ids, row_ids = resolved[: len(launches.key)], resolved[len(launches.key) :]
    with file.stage("tasks"):
        write_tasks(
            device_id,
            rows,
            row_ids,
            launches,
            None if host_side is None else host_side.knowledge.types,
            None if host_side is None else host_side.captures,
            platform,
            file.process_id,
            file.sink,
        )
        if device is not None and not wide:  # ts_track of those platforms has another layout
            device_marks(device, track.marks, file.process_id, ids, file.sink)
    compute = ComputeTasks.none()
    spans = CommunicationTimes.none()
    if host_side is not None:
        with file.stage("operators"):
            compute = write_compute_info(launches, launch_ids, host_side.knowledge, file.sink)
            write_copies(
                launches,
                _copy_ids(launches, launch_ids, ids) if wide else launch_ids,
                host_side.knowledge.types,
                host_side.copies,
                file.sink,
            )
        with file.stage("communication"):
            spans = _write_communication(
                device_id,
                device,
                host_side,
                launches,
                rows,
                row_ids,
                compute.schedulers,
                aicpu,
                stream_by_task,
                file.sink,
            )
    if device is not None and len(rows.key):
        with file.stage("overlap"):
            types = None if host_side is None else host_side.knowledge.types
            _write_overlap(device_id, rows, launches, types, compute, spans, file.overlap)
    if device is not None:
        described = _described(
            logged,
            launches,
            compute,
            ids,
            track.flips,
            host_side,
            stream_by_task,
            wide=wide,
            expanded=expanded,
        )
        del launches, rows, compute, aicpu
        decode_registered(TASK_DECODERS, device, file, described)


def decode_registered(
    decoders: tuple[tuple[str, tuple[str, ...]], ...],
    part: DeviceDirectory | HostDirectory,
    file: File,
    *more: Any,
) -> None:
    """Run the decoders whose files are there; one that fails costs its own tables."""
    for module, files in decoders:
        if not files or any(part.data.get(name) for name in files):
            name = module.rpartition(".")[2]
            with file.stage(name):
                try:
                    decoder = import_module(f"unified_prof.decoders.prof.{module}")
                    decoder.decode(part, *more, file.sink)
                except RawFormatError as err:
                    file.sink.anomaly("undecoded_part", 1, f"{name}: {err}")


def _streams(
    launches: Launches, aicpu: AicpuRecords
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the stream of every 32-bit task id that the host or an AI CPU launched.

    Returns:
        Ascending ids, and the streams; of equal ids the host's is the first.
    """
    task, stream = launches.stream_by_task()
    task = np.concatenate([task, aicpu.tasks["task_id"]])
    stream = np.concatenate([stream, aicpu.tasks["stream_id"].astype(np.uint32)])
    order = np.argsort(task, kind="stable")
    return task[order], stream[order]


def _write_communication(
    device_id: int,
    device: DeviceDirectory | None,
    host_side: HostSide,
    launches: Launches,
    rows: TaskRows,
    row_ids: NDArray[np.int64],
    schedulers: Schedulers,
    aicpu: AicpuRecords,
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    sink: Sink,
) -> CommunicationTimes:
    """Write the collectives of the host, and those that AI CPUs ran by themselves."""
    ran = None
    if device is not None and len(rows.key):
        ground = Ground(
            device, rows, launches, schedulers, host_side.knowledge, aicpu, stream_by_task
        )
        ran = find_collectives(ground, sink)
    spans = host_side.communication.write(
        device_id,
        launches,
        DeviceRows(
            rows.launch,
            rows.start_ns,
            rows.end_ns,
            row_ids,
            rows.start,
            rows.end,
            rows.clock,
        ),
        None if ran is None else ran.flags(),
    )
    if ran is None or not ran.operators:
        return spans
    own = write_collectives(ground, ran, row_ids, host_side.communication, spans.id_by_name, sink)
    return CommunicationTimes(
        np.concatenate([spans.start_ns, own.start_ns]), np.concatenate([spans.end_ns, own.end_ns])
    )


def _copy_ids(launches: Launches, launch_ids: NDArray[np.int64], ids: TaskIds) -> NDArray[np.int64]:
    """Return the ids that copies have with 32-bit task ids.

    The exporter reads the upper half of the task id as a batch here, so that copies with large
    task ids are not the tasks of the same name.
    """
    result = launch_ids.copy()
    large = np.flatnonzero(launches.tasks.task_id[launches.task] > _LARGEST_NARROW_ID)
    result[large] = ids.fresh(len(large))
    return result


def _platform(device: DeviceDirectory | None, host_side: HostSide | None) -> int:
    if device is not None:
        return device.platform
    return -1 if host_side is None else host_side.host.platform


def _write_overlap(
    device_id: int,
    rows: TaskRows,
    launches: Launches,
    types: TaskTypes | None,
    compute: ComputeTasks,
    spans: CommunicationTimes,
    overlap: OverlapWriter,
) -> None:
    """Write when the device computed and communicated.

    An end is the whole nanoseconds of the start plus those of the duration, which may be one less
    than those of the end itself.
    """
    end_ns = rows.start_ns + rows.clock.duration().to_ns(rows.end - rows.start)
    computing = _computing(rows, launches, compute)
    bounding = _bounds_idle_time(rows, launches, types)
    overlap.write(
        device_id,
        (rows.start_ns[bounding], end_ns[bounding]),
        (rows.start_ns[computing], end_ns[computing]),
        (spans.start_ns, spans.end_ns),
    )


def _bounds_idle_time(
    rows: TaskRows, launches: Launches, types: TaskTypes | None
) -> NDArray[np.bool_]:
    """Tell which rows are evidence that the device was in use, whatever they ran.

    Kernels are so by being operators only: one without a COMPUTE_TASK_INFO row fills nothing and
    extends nothing.
    """
    bounds = np.ones(len(rows.launch), bool)
    if types is not None:
        known = rows.launch != MISSING
        of_launch = launches.tasks.type_index[launches.task[rows.launch[known]]]
        bounds[known] = ~types.named(*_NO_EVIDENCE)[of_launch]
    return bounds


def _computing(rows: TaskRows, launches: Launches, compute: ComputeTasks) -> NDArray[np.bool_]:
    """Tell which device tasks run an operator that counts as computing."""
    counts = np.zeros(len(launches.key) + 1, bool)
    counts[compute.launch[compute.counts_as_compute]] = True
    return counts[rows.launch]  # MISSING is the last, which never counts


def _described(
    logged: NDArray[np.uint64],
    launches: Launches,
    compute: ComputeTasks,
    ids: TaskIds,
    flips: Flips,
    host_side: HostSide | None,
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    *,
    wide: bool,
    expanded: bool,
) -> DeviceTasks:
    """Make the hand-over to decoders that add to tasks: one row for every identity logged."""
    tasks = DeviceTasks(
        ids=ids,
        flips=flips,
        wide_task_ids=wide,
        expanded_streams=expanded,
        key=logged,
        block_num=np.zeros(len(logged), np.uint32),
        mix_block_num=np.zeros(len(logged), np.uint32),
        host=None if host_side is None else host_side.host,
        stream_by_task=stream_by_task,
    )
    row = tasks.find(launches.key[compute.launch])
    ran = row >= 0
    tasks.block_num[row[ran]] = compute.block_num[ran]
    tasks.mix_block_num[row[ran]] = compute.mix_block_num[ran]
    return tasks


_NO_IDS = np.zeros(0, np.uint32)
