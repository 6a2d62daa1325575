"""TASK: the tasks of a device log, with what launched them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import NOWHERE
from unified_prof.columns import Sink
from unified_prof.decoders.prof.device.task_log import OTHER, type_name
from unified_prof.decoders.prof.host.captured_streams import Captures
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.raw.clocks import LinearClock
from unified_prof.decoders.rows import Rows
from unified_prof.vocabulary import NO_MODEL

_NAMED_BY_DEVICE = ("FFTS_PLUS", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Tasks of a device log that ended in the session, by start; columns of one length."""

    key: NDArray[np.uint64]
    """Identity, of `task_keys.pack_keys`."""
    stream_id: NDArray[np.uint32]
    type_code: NDArray[np.uint8]
    connection_id: NDArray[np.int64]
    kernel: NDArray[np.int32]
    """Row in `Launched.kernels`, -1 for what schedules no communication."""
    global_task_id: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    start: NDArray[np.uint64]
    """Device counter."""
    end: NDArray[np.uint64]
    clock: LinearClock
    """Of the device counter."""

    @classmethod
    def of(cls, rows: Rows, clock: LinearClock) -> TaskRows:
        """Take the columns out of rows of `JOINED`."""
        return cls(
            rows["key"].copy(),
            rows["stream_id"].copy(),
            rows["type_code"].copy(),
            rows["connection_id"].copy(),
            rows["kernel"].copy(),
            rows["global_task_id"].copy(),
            clock.to_ns(rows["start"]),
            clock.to_ns(rows["end"]),
            rows["start"].copy(),
            rows["end"].copy(),
            clock,
        )


class TaskWriter:
    """Writes the tasks of one device, by start."""

    def __init__(
        self,
        device_id: int,
        clock: LinearClock,
        types: TaskTypes,
        captures: Captures | None,
        platform: int,
        process_id: int,
        sink: Sink,
    ) -> None:
        """Start with no task written.

        Args:
            device_id: the device.
            clock: of its counter.
            types: the host's task types.
            captures: which streams were captured, if the host recorded anything.
            platform: kind of chip.
            process_id: the process that was recorded.
            sink: takes the rows.
        """
        self._device_id, self._clock, self._captures = device_id, clock, captures
        self._process_id, self._sink = process_id, sink
        self._names = _TypeNames(types, platform, sink)

    def write(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Write rows of `JOINED`; returns when they started and ended, ns."""
        start_ns, end_ns = self._clock.to_ns(rows["start"]), self._clock.to_ns(rows["end"])
        model = rows["model_id"].copy()
        if self._captures is not None:
            free = np.flatnonzero((rows["type_index"] != NOWHERE) & (model == NO_MODEL))
            model[free] = self._captures.models(
                self._device_id,
                rows["stream_id"][free],
                rows["batch_id"][free],
                rows["launched"][free],
            )
        self._sink.write(
            "TASK",
            {
                "startNs": start_ns,
                "endNs": end_ns,
                "deviceId": self._device_id,
                "connectionId": rows["connection_id"].copy(),
                "globalTaskId": rows["global_task_id"].copy(),
                "globalPid": self._process_id,
                "taskType": self._names.ids(rows),
                "contextId": rows["context_id"],
                "streamId": rows["stream_id"],
                "taskId": rows["task_id"],
                "modelId": model,
            },
        )
        return start_ns, end_ns

    def finish(self) -> None:
        """Count what was odd."""
        self._names.report()


class _TypeNames:
    """TASK.taskType: the host's type, the device's for graphs and where the host has none."""

    def __init__(self, types: TaskTypes, platform: int, sink: Sink) -> None:
        self._types, self._platform, self._sink = types, platform, sink
        self._by_code = np.full(256, -1, np.int64)
        self._by_type = np.full(len(types.names), -1, np.int64)
        self._by_device = types.named(*_NAMED_BY_DEVICE)
        self._unknown: Counter[int] = Counter()

    def ids(self, rows: Rows) -> NDArray[np.int64]:
        """Return the string ids of some rows."""
        self._learn(rows)
        code, kind = rows["type_code"], rows["type_index"]
        result: NDArray[np.int64] = self._by_code[code]
        named = np.flatnonzero(kind != NOWHERE)
        named = named[~self._by_device[kind[named]]]
        result[named] = self._by_type[kind[named]]
        return result

    def report(self) -> None:
        """Count the tasks whose type the device has no name for."""
        if self._unknown:
            first = min(self._unknown)
            count = self._unknown.total()
            self._sink.anomaly("unknown_device_task_type", count, f"first: type code {first}")

    def _learn(self, rows: Rows) -> None:
        """Intern the names of types that were not seen before; count those without."""
        intern = self._sink.strings.intern
        counts = np.bincount(rows["type_code"], minlength=len(self._by_code))
        for code in np.flatnonzero(counts).tolist():
            name = type_name(code, self._platform)
            if name is None:
                self._unknown[code] += int(counts[code])
            self._by_code[code] = intern(name or OTHER)
        known = np.bincount(rows["type_index"] - NOWHERE)[-NOWHERE:]
        for kind in np.flatnonzero(known).tolist():
            if not self._by_device[kind]:
                self._by_type[kind] = intern(self._types.names[kind])
