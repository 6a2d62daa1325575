"""One device of a recording: its tasks joined with what launched them, to their tables."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.batches import Flips
from unified_prof.decoders.prof.clocks import LinearClock
from unified_prof.decoders.prof.communication import CommunicationTimes, DeviceRows
from unified_prof.decoders.prof.compute_info import ComputeTasks, write_compute_info
from unified_prof.decoders.prof.device_tasks import read_task_log, type_name
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_side import HostSide
from unified_prof.decoders.prof.host_tasks import NO_MODEL, WIDE_TASK_ID_PLATFORMS
from unified_prof.decoders.prof.launches import MISSING, Launches
from unified_prof.decoders.prof.marks import device_marks
from unified_prof.decoders.prof.memory_copies import write_copies
from unified_prof.decoders.prof.overlap import OverlapWriter
from unified_prof.decoders.prof.registry import TASK_DECODERS
from unified_prof.decoders.prof.stages import Stage
from unified_prof.decoders.prof.task_ids import NO_CONTEXT, IdCounter, TaskIds, pack_keys
from unified_prof.decoders.prof.tasks import DeviceTasks
from unified_prof.decoders.prof.ts_track import Track, read_track
from unified_prof.errors import RawFormatError

_LARGEST_NARROW_ID = 0xFFFF
_UNKNOWN_STREAM = 0xFFFFFFFF
_GRAPH = "FFTS_PLUS"
_OTHER = "Other"
_WRITE_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class File:
    """What all devices of one database share."""

    sink: Sink
    stage: Stage
    ids: IdCounter
    overlap: OverlapWriter


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Tasks of a device log that ended in the session, by start; columns of one length."""

    key: NDArray[np.uint64]
    """Identity, of `task_ids.pack_keys`."""
    stream_id: NDArray[np.uint32]
    task_id: NDArray[np.uint32]
    batch_id: NDArray[np.uint32]
    context_id: NDArray[np.uint32]
    type_code: NDArray[np.uint8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    launch: NDArray[np.int64]
    """Row in `Launches`, MISSING for tasks that the host does not know."""
    start: NDArray[np.uint64]
    """Device counter."""
    end: NDArray[np.uint64]
    clock: LinearClock
    """Of the device counter."""


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
    wide = platform in WIDE_TASK_ID_PLATFORMS
    expanded = host_side is not None and host_side.expanded_streams
    launches = Launches.none() if host_side is None else host_side.launches(device_id)
    track, rows, logged = Track.none(), _no_rows(), _no_rows().key
    if device is not None:
        with file.stage("task log"):
            track = read_track(device, expanded=expanded)
            rows, logged = _read_rows(
                device, launches, track, file.sink, wide=wide, expanded=expanded
            )
    ids = TaskIds(file.ids)
    resolved = ids.resolve(np.concatenate([launches.key, rows.key]))
    launch_ids, row_ids = resolved[: len(launches.key)], resolved[len(launches.key) :]
    with file.stage("tasks"):
        _write_tasks(device_id, rows, row_ids, launches, host_side, platform, file.sink)
        if device is not None and not wide:  # ts_track of those platforms has another layout
            device_marks(device, track.marks, ids, file.sink)
    compute = ComputeTasks.none()
    spans = _no_spans()
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
            )
    if device is not None and len(rows.key):
        with file.stage("overlap"):
            _write_overlap(device_id, rows, launches, compute, spans, file.overlap)
    if device is not None:
        described = _described(
            logged, launches, compute, ids, track.flips, wide=wide, expanded=expanded
        )
        del launches, rows, compute
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
            with file.stage(module):
                try:
                    decoder = import_module(f"unified_prof.decoders.prof.{module}")
                    decoder.decode(part, *more, file.sink)
                except RawFormatError as err:
                    file.sink.anomaly("undecoded_part", 1, f"{module}: {err}")


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


def _read_rows(
    device: DeviceDirectory,
    launches: Launches,
    track: Track,
    sink: Sink,
    *,
    wide: bool,
    expanded: bool,
) -> tuple[TaskRows, NDArray[np.uint64]]:
    """Return the tasks of the session, and the keys of all tasks of the log, ascending."""
    clock = device.clocks.device
    if clock is None:
        raise RawFormatError(
            f"{device.path} does not say how its counter runs"
            " (hwts_frequency of info.json, dev_start.log)"
        )
    log = read_task_log(device, sink, expanded=expanded)
    if wide:
        streams = launches.streams_of(log.task_id)
        log.stream_id = np.where(streams < 0, _UNKNOWN_STREAM, streams).astype(np.uint32)
    order = np.argsort(log.start, kind="stable")
    log = log.take(order)
    batch = track.flips.batch_of(log.stream_id, log.task_id, log.start, at_flip=True)
    key = pack_keys(log.stream_id, log.task_id, batch, log.context_id, wide_task_ids=wide)
    logged = np.unique(key)
    end_ns = clock.to_ns(log.end)
    early = end_ns < device.session.start_ns
    if early.any():
        sink.anomaly("task_before_session", int(early.sum()), "tasks that ended before the start")
        log, end_ns, batch, key = log.take(~early), end_ns[~early], batch[~early], key[~early]
    rows = TaskRows(
        key,
        log.stream_id,
        log.task_id,
        batch,
        log.context_id,
        log.type_code,
        clock.to_ns(log.start),
        end_ns,
        launches.match(key),
        log.start,
        log.end,
        clock,
    )
    return rows, logged


def _write_tasks(
    device_id: int,
    rows: TaskRows,
    row_ids: NDArray[np.int64],
    launches: Launches,
    host_side: HostSide | None,
    platform: int,
    sink: Sink,
) -> None:
    if not len(rows.key):
        return
    process = 0 if host_side is None else host_side.host.info.integer("pid") or 0
    names = _TypeNames(rows, launches, host_side, platform, sink)
    for low in range(0, len(rows.key), _WRITE_ROWS):
        piece = slice(low, low + _WRITE_ROWS)
        launch = rows.launch[piece]
        known = launch != MISSING
        task = launches.task[launch[known]]
        connection = np.full(len(launch), -1, np.int64)
        connection[known] = launches.tasks.connection_id[task]
        model = np.full(len(launch), NO_MODEL, np.uint32)
        model[known] = launches.tasks.model_id[task]
        if host_side is not None:
            free = np.flatnonzero(known)[model[known] == NO_MODEL]
            model[free] = host_side.captured_models(
                device_id,
                rows.stream_id[piece][free],
                rows.batch_id[piece][free],
                launches.tasks.key[launches.task[launch[free]]],
            )
        sink.write(
            "TASK",
            {
                "startNs": rows.start_ns[piece],
                "endNs": rows.end_ns[piece],
                "deviceId": device_id,
                "connectionId": connection,
                "globalTaskId": row_ids[piece],
                "globalPid": process,
                "taskType": names.ids(piece),
                "contextId": rows.context_id[piece],
                "streamId": rows.stream_id[piece],
                "taskId": rows.task_id[piece],
                "modelId": model,
            },
        )


class _TypeNames:
    """TASK.taskType: the host's type, the device's for graphs and for tasks without a host."""

    def __init__(
        self,
        rows: TaskRows,
        launches: Launches,
        host_side: HostSide | None,
        platform: int,
        sink: Sink,
    ) -> None:
        self._rows, self._launches = rows, launches
        self._by_code = np.zeros(256, np.int64)
        codes = np.unique(rows.type_code).tolist()
        unknown = [code for code in codes if type_name(code, platform) is None]
        if unknown:
            count = int(np.isin(rows.type_code, unknown).sum())
            sink.anomaly("unknown_device_task_type", count, f"first: type code {unknown[0]}")
        for code in codes:
            self._by_code[code] = sink.strings.intern(type_name(code, platform) or _OTHER)
        types = () if host_side is None else host_side.knowledge.types.names
        used = np.unique(launches.tasks.type_index[launches.task]).tolist()
        self._by_type = np.full(len(types) + 1, -1, np.int64)
        for index in used:
            if types[index] != _GRAPH:
                self._by_type[index] = sink.strings.intern(types[index])

    def ids(self, piece: slice) -> NDArray[np.int64]:
        """Return the string ids of some rows."""
        result = self._by_code[self._rows.type_code[piece]]
        launch = self._rows.launch[piece]
        known = np.flatnonzero(launch != MISSING)
        kind = self._launches.tasks.type_index[self._launches.task[launch[known]]]
        host_ids = self._by_type[kind]
        result[known] = np.where(host_ids < 0, result[known], host_ids)
        return result


def _write_overlap(
    device_id: int,
    rows: TaskRows,
    launches: Launches,
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
    bounding = ~_consists_of_contexts(rows)
    overlap.write(
        device_id,
        (rows.start_ns[bounding], end_ns[bounding]),
        (rows.start_ns[computing], end_ns[computing]),
        (spans.start_ns, spans.end_ns),
    )


def _consists_of_contexts(rows: TaskRows) -> NDArray[np.bool_]:
    """Tell which rows are whole FFTS+ tasks whose contexts have rows of their own."""
    task = rows.stream_id.astype(np.uint64) << np.uint64(48)
    task |= rows.batch_id.astype(np.uint64) << np.uint64(32) | rows.task_id
    context = rows.context_id != NO_CONTEXT
    return np.asarray(~context & np.isin(task, np.unique(task[context])))


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
        stream_by_task=launches.stream_by_task() if wide else (_NO_IDS, _NO_IDS),
    )
    row = tasks.find(launches.key[compute.launch])
    ran = row >= 0
    tasks.block_num[row[ran]] = compute.block_num[ran]
    tasks.mix_block_num[row[ran]] = compute.mix_block_num[ran]
    return tasks


_NO_IDS = np.zeros(0, np.uint32)


def _no_rows() -> TaskRows:
    none = np.zeros(0, np.int64)
    return TaskRows(
        none.astype(np.uint64),
        _NO_IDS,
        _NO_IDS,
        _NO_IDS,
        _NO_IDS,
        none.astype(np.uint8),
        none,
        none,
        none,
        none.astype(np.uint64),
        none.astype(np.uint64),
        LinearClock(Fraction(1), Fraction(0)),
    )


def _no_spans() -> CommunicationTimes:
    none = np.zeros(0, np.int64)
    return CommunicationTimes(none, none)
