"""TASK: the tasks of a device log, matched with what launched them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.device.task_log import OTHER, read_task_log, type_name
from unified_prof.decoders.prof.device.ts_track import Track
from unified_prof.decoders.prof.host.captured_streams import Captures
from unified_prof.decoders.prof.host.launches import MISSING, Launches
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.identity.task_keys import pack_keys, streams_of
from unified_prof.decoders.prof.raw.clocks import LinearClock
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.errors import RawFormatError
from unified_prof.vocabulary import NO_CONNECTION, NO_MODEL, NO_STREAM

_NAMED_BY_DEVICE = ("FFTS_PLUS", "UNKNOWN")
_WRITE_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Tasks of a device log that ended in the session, by start; columns of one length."""

    key: NDArray[np.uint64]
    """Identity, of `task_keys.pack_keys`."""
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


def read_rows(
    device: DeviceDirectory,
    launches: Launches,
    track: Track,
    sink: Sink,
    *,
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]] | None,
    expanded: bool,
) -> tuple[TaskRows, NDArray[np.uint64]]:
    """Return the tasks of the session, and the keys of all tasks of the log, ascending.

    Args:
        device: whose log it is.
        launches: what was launched for it.
        track: the notes of its scheduler.
        sink: takes counts of what is left out.
        stream_by_task: where task ids have 32 bits, of `task_keys.streams_of`: the log has no
            streams there.
        expanded: whether streams and tasks are in the expanded notation.
    """
    clock = device.clocks.device
    if clock is None:
        raise RawFormatError(
            f"{device.path} does not say how its counter runs"
            " (hwts_frequency of info.json, dev_start.log)"
        )
    log = read_task_log(device, sink, expanded=expanded)
    wide = stream_by_task is not None
    if stream_by_task is not None:
        streams = streams_of(stream_by_task, log.task_id)
        log.stream_id = np.where(streams < 0, NO_STREAM, streams).astype(np.uint32)
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


def write_tasks(
    device_id: int,
    rows: TaskRows,
    row_ids: NDArray[np.int64],
    launches: Launches,
    types: TaskTypes | None,
    captures: Captures | None,
    platform: int,
    process_id: int,
    sink: Sink,
) -> None:
    """Write the tasks of one device.

    Args:
        device_id: the device.
        rows: its tasks.
        row_ids: their globalTaskIds.
        launches: what `rows.launch` refers to.
        types: the host's task types, if it recorded any.
        captures: which streams were captured, likewise.
        platform: kind of chip.
        process_id: the process that was recorded.
        sink: takes the rows.
    """
    if not len(rows.key):
        return
    names = _TypeNames(rows, launches, types, platform, sink)
    for low in range(0, len(rows.key), _WRITE_ROWS):
        piece = slice(low, low + _WRITE_ROWS)
        launch = rows.launch[piece]
        known = launch != MISSING
        task = launches.task[launch[known]]
        connection = np.full(len(launch), NO_CONNECTION, np.int64)
        connection[known] = launches.tasks.connection_id[task]
        model = np.full(len(launch), NO_MODEL, np.uint32)
        model[known] = launches.tasks.model_id[task]
        if captures is not None:
            free = np.flatnonzero(known)[model[known] == NO_MODEL]
            model[free] = captures.models(
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
                "globalPid": process_id,
                "taskType": names.ids(piece),
                "contextId": rows.context_id[piece],
                "streamId": rows.stream_id[piece],
                "taskId": rows.task_id[piece],
                "modelId": model,
            },
        )


class _TypeNames:
    """TASK.taskType: the host's type, the device's for graphs and where the host has none."""

    def __init__(
        self,
        rows: TaskRows,
        launches: Launches,
        types: TaskTypes | None,
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
            self._by_code[code] = sink.strings.intern(type_name(code, platform) or OTHER)
        names = () if types is None else types.names
        used = np.unique(launches.tasks.type_index[launches.task]).tolist()
        self._by_type = np.full(len(names) + 1, -1, np.int64)
        for index in used:
            if names[index] not in _NAMED_BY_DEVICE:
                self._by_type[index] = sink.strings.intern(names[index])

    def ids(self, piece: slice) -> NDArray[np.int64]:
        """Return the string ids of some rows."""
        result = self._by_code[self._rows.type_code[piece]]
        launch = self._rows.launch[piece]
        known = np.flatnonzero(launch != MISSING)
        kind = self._launches.tasks.type_index[self._launches.task[launch[known]]]
        host_ids = self._by_type[kind]
        result[known] = np.where(host_ids < 0, result[known], host_ids)
        return result


def no_rows() -> TaskRows:
    """Return the rows of a device without a log."""
    none = np.zeros(0, np.int64)
    return TaskRows(
        none.astype(np.uint64),
        none.astype(np.uint32),
        none.astype(np.uint32),
        none.astype(np.uint32),
        none.astype(np.uint32),
        none.astype(np.uint8),
        none,
        none,
        none,
        none.astype(np.uint64),
        none.astype(np.uint64),
        LinearClock(Fraction(1), Fraction(0)),
    )
