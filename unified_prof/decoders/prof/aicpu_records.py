"""Reads what AI CPUs record of the collectives that they run: aicpu.data.

The operators of collectives that AI CPU kernels ran: names, groups, first and last tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Runs
from unified_prof.base.columns import Sink
from unified_prof.base.vocabulary import NO_CONTEXT, NOT_AVAILABLE
from unified_prof.decoders.prof.directory import DeviceDirectory, Dictionaries
from unified_prof.decoders.prof.host_events import CollectiveStreams
from unified_prof.decoders.prof.host_records import join
from unified_prof.decoders.prof.launches import MISSING
from unified_prof.decoders.prof.layouts import (
    DEVICE_COLLECTIVE_PLATFORMS,
    HOST_MAGIC,
    V6_PLATFORMS,
    record_type,
)
from unified_prof.decoders.prof.slices import Records
from unified_prof.decoders.prof.task_identity import Flips, pack_keys, streams_of
from unified_prof.decoders.prof.task_join import TaskRows
from unified_prof.decoders.spool import Rows

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


_KERNEL = "AicpuKernel"
_NO_COLLECTIVES = ("hcomAicpuInit",)
_ITERATION = 1
_FIRST, _LAST = 0, 1


@dataclass(slots=True)
class Operator:
    """One collective: what its AI CPU kernel ran."""

    row: int
    """Of the kernel's task in `TaskRows`."""
    name: str
    op_type: int
    """Id of the text in the string pool."""
    group: int | None
    """Hash of the name of the group, None when nothing tells it."""
    connection_id: int
    start: int
    """Ticks of the device counter; from the first to the last task where records name these."""
    end: int
    of_host: bool = False
    """The kernel serves a collective that the host has a row for (source HCCL)."""
    relay: int = -1
    retry: int = -1


@dataclass(frozen=True, slots=True)
class Ground:
    """What the operators of one device are told from."""

    device: DeviceDirectory
    rows: TaskRows
    kernels: Rows
    """Kernels that schedule communication, of `launched.KERNEL`."""
    streams: CollectiveStreams
    dictionaries: Dictionaries
    records: AicpuRecords
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    """As in `DeviceTasks`; empty but with 32-bit task ids."""

    @property
    def wide(self) -> bool:
        """Whether task ids have 32 bits."""
        return self.device.platform in V6_PLATFORMS


def find_rows(
    ground: Ground,
    stream: NDArray[np.generic],
    task: NDArray[np.generic],
    batch: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the rows of tasks in the log; those named several times are met in their order."""
    context = np.full(len(task), NO_CONTEXT, np.uint32)
    key = pack_keys(stream, task, batch, context, wide_task_ids=ground.wide)
    order = np.argsort(ground.rows.key, kind="stable")
    known = ground.rows.key[order]
    low = np.searchsorted(known, key, side="left")
    high = np.searchsorted(known, key, side="right")
    asked = np.argsort(key, kind="stable")
    rank = np.empty(len(key), np.int64)
    rank[asked] = Runs(key[asked]).rank()
    place = np.minimum(low + rank, high - 1)
    return np.where(high > low, np.r_[order, MISSING][place], MISSING)


class Bounds:
    """Which task was the first and which the last of what a kernel ran, by the kernel's stream."""

    def __init__(self, ground: Ground, record_row: NDArray[np.int64]) -> None:
        records = ground.records.bounds
        records = records[np.isin(records["kind"], (_FIRST, _LAST))]
        stream, kernel_stream, task = self._identities(ground, records)
        batch = ground.records.flips.batch_of(
            stream, task & 0xFFFF, records["timestamp"], at_flip=True
        )
        row = find_rows(ground, stream, task, batch)
        row[~np.isin(row, record_row)] = MISSING  # a task that nothing describes bounds nothing
        self.first_rows: NDArray[np.int64] = row[(records["kind"] == _FIRST) & (row != MISSING)]
        self._by_stream: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for bound in zip(
            kernel_stream.tolist(),
            records["timestamp"].tolist(),
            records["kind"].tolist(),
            row.tolist(),
            strict=True,
        ):
            if bound[3] != MISSING:
                self._by_stream[bound[0]].append(bound[1:])

    @staticmethod
    def _identities(
        ground: Ground, records: Records
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the stream of each task, that of its kernel, and the task's id."""
        words = (
            records[name].astype(np.int64)
            for name in ("stream_id", "kernel_stream", "task_id", "kernel_task")
        )
        stream, kernel_stream, task, kernel_task = words
        if not ground.wide:
            return stream, kernel_stream, task
        task, kernel_task = task << 16 | stream, kernel_task << 16 | kernel_stream
        return (
            streams_of(ground.stream_by_task, task),
            streams_of(ground.stream_by_task, kernel_task),
            task,
        )

    def narrow(self, operator: Operator, stream: int, rows: TaskRows) -> None:
        """Let an operator last from its first task to its last one, where records name these."""
        bounds = self._by_stream.get(stream, [])
        low = bisect_left(bounds, (operator.start,))
        high = bisect_left(bounds, (operator.end + 1,))
        for _, kind, row in bounds[low:high]:
            if kind == _FIRST:
                operator.start = int(rows.start[row])
            operator.end = int(rows.end[row])


def operators_of(ground: Ground, bounds: Bounds) -> list[Operator]:
    """Return what the kernels of the device ran, by kernel, named and in the order of starts."""
    recorded = ground.records.operators
    by_stream: dict[int, list[Operator]] = defaultdict(list)
    for operator in _kernels(ground):
        by_stream[int(ground.rows.stream_id[operator.row])].append(operator)
    result: list[Operator] = []
    for stream, operators in by_stream.items():
        told = recorded[recorded["stream_id"] == stream]
        _describe(operators, told, ground)
        for operator in operators:
            bounds.narrow(operator, stream, ground.rows)
        _number(operators, ground)
        result += operators
    return sorted(result, key=lambda operator: operator.start)


def _kernels(ground: Ground) -> Iterator[Operator]:
    """Yield the AI CPU kernels that ran, in the order of their starts."""
    rows, kernels = ground.rows, ground.kernels
    for row in np.flatnonzero(rows.kernel != MISSING).tolist():
        kernel = kernels[rows.kernel[row]]
        name = ground.dictionaries.text(int(kernel["name"]))
        if name in _NO_COLLECTIVES:
            continue
        yield Operator(
            row,
            name,
            int(kernel["op_type"]),
            ground.streams.of_kernels.get(int(rows.stream_id[row])),
            int(rows.connection_id[row]),
            int(rows.start[row]),
            int(rows.end[row]),
        )


def _describe(operators: list[Operator], told: Records, ground: Ground) -> None:
    """Give the operators of one stream what the device recorded of them.

    A record is of the first operator that was running when it was made. A stream with any record
    has operators of the host's collectives only, also where one of theirs is missing.
    """
    if not len(told):
        return
    times = told["timestamp"].tolist()
    groups = set(ground.streams.of_kernels.values())
    next_record = 0
    for operator in operators:
        operator.of_host = True
        kernel = ground.kernels[ground.rows.kernel[operator.row]]
        if kernel["in_collective"]:
            operator.name = ground.dictionaries.text(int(kernel["outer"]))
        next_record = max(next_record, bisect_left(times, operator.start))
        if next_record < len(times) and times[next_record] <= operator.end:
            record = told[next_record]
            group = int(record["group"])
            operator.group = group if group in groups else None
            operator.relay = int(record["flags"]) & 1
            operator.retry = int(record["flags"]) >> 1 & 1
            next_record += 1


def _number(operators: list[Operator], ground: Ground) -> None:
    """Complete the names of one stream's operators: the group, and which of its operators it is."""
    counted: dict[tuple[int | None, bool], int] = defaultdict(lambda: -1)
    session_start_ns = ground.device.session.start_ns
    for operator in operators:
        key = operator.group, _KERNEL in operator.name
        counted[key] += ground.rows.clock.one(operator.start) > session_start_ns
        suffix = NOT_AVAILABLE if operator.group is None else str(operator.group)[-3:]
        operator.name = f"{operator.name}_{suffix}_{counted[key]}_{_ITERATION}"
