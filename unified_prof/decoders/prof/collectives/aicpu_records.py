"""Reads what AI CPUs record of the collectives that they run: aicpu.data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.identity.flips import Flips
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.host_records import join
from unified_prof.decoders.prof.raw.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.raw.platforms import DEVICE_COLLECTIVE_PLATFORMS
from unified_prof.decoders.prof.raw.slices import Records

_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13
_HEAD_BYTES = 24
_TASKS_OF_A_RECORD = 2


@dataclass(frozen=True, slots=True)
class AicpuRecords:
    """The records of one device."""

    tasks: Records
    """Tasks that AI CPU kernels launched, by time, one stream after another: in the order in which
    the streams occur first."""
    operators: Records
    """What kernels ran, by time."""
    bounds: Records
    """The first and the last task of an operator, by time."""
    flips: Flips
    """Wraps of the task ids that kernels hand out."""

    @classmethod
    def none(cls) -> AicpuRecords:
        """Return the records of a device that has none."""
        tasks, operators, bounds = (
            np.zeros(0, record_type(kind))
            for kind in ("aicpu_task", "aicpu_operator", "aicpu_bound")
        )
        return cls(tasks, operators, bounds, Flips.none())

    def __len__(self) -> int:
        return len(self.tasks) + len(self.operators) + len(self.bounds)


def read_aicpu(device: DeviceDirectory, sink: Sink) -> AicpuRecords:
    """Read what the AI CPUs of a device recorded of collectives.

    Raises:
        RawFormatError: the file cannot be read.
    """
    file = device.data.get("aicpu")
    if file is None or device.platform not in DEVICE_COLLECTIVE_PLATFORMS:
        return AicpuRecords.none()
    parts: dict[int, list[Records]] = {_OPERATOR: [], _FLIP: [], _BOUND: [], _TASKS: []}
    for piece in file.pieces(record_type("aicpu"), magic=HOST_MAGIC):
        good = piece["magic"] == HOST_MAGIC
        if not good.all():
            sink.anomaly("bad_magic_aicpu", int((~good).sum()), "aicpu records")
        whole = piece.view(f"V{piece.dtype.itemsize}")  # or bytes without a field get lost
        for kind, found in parts.items():
            chosen = good & (piece["type"] == kind)
            if chosen.any():
                found.append(whole[chosen].view(piece.dtype))
    flips = _as(parts[_FLIP], "aicpu_flip")
    return AicpuRecords(
        _unpacked(parts[_TASKS]),
        _by_time(_as(parts[_OPERATOR], "aicpu_operator")),
        _by_time(_as(parts[_BOUND], "aicpu_bound")),
        Flips(
            flips["stream_id"].astype(np.uint32),
            flips["task_id"].astype(np.uint32),
            flips["timestamp"].copy(),
        ),
    )


def _as(parts: list[Records], kind: str) -> Records:
    return join(parts).view(record_type(kind)) if parts else np.zeros(0, record_type(kind))


def _by_time(records: Records) -> Records:
    return records[np.argsort(records["timestamp"], kind="stable")]


def _unpacked(parts: list[Records]) -> Records:
    """Return the tasks that records hold two of, ordered; one without a group is no task."""
    layout = record_type("aicpu_task")
    if not parts:
        return np.zeros(0, layout)
    raw: NDArray[Any] = join(parts).view(np.uint8).reshape(-1, parts[0].dtype.itemsize)
    payload = raw[:, _HEAD_BYTES : _HEAD_BYTES + _TASKS_OF_A_RECORD * layout.itemsize]
    tasks: Records = np.ascontiguousarray(payload).reshape(-1).view(layout)
    tasks = tasks[tasks["group"] != 0]
    _, first, inverse = np.unique(tasks["stream_id"], return_index=True, return_inverse=True)
    return tasks[np.lexsort((tasks["timestamp"], first[inverse]))]
