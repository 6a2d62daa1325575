"""Reads AI CPU records of collectives (aicpu.data), and builds the collective operators."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Ints, Runs
from unified_prof.base.columns import NO_CONTEXT, NOT_AVAILABLE, Sink
from unified_prof.decoders.prof.directory import DeviceDirectory, Dictionaries
from unified_prof.decoders.prof.host_events import CollectiveStreams
from unified_prof.decoders.prof.host_records import concatenate
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.task_identity import Flips, TaskStreams, pack_keys
from unified_prof.decoders.prof.task_join import TaskRows
from unified_prof.decoders.spool import Rows

_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13
_HEAD_BYTES = 24
_TASKS_OF_A_RECORD = 2


@dataclass(frozen=True, slots=True)
class AicpuRecords:
    """AI CPU records of one device."""

    tasks: Rows
    """Tasks launched by AI CPU kernels, sorted by stream (in order of first occurrence) and
    time."""
    operators: Rows
    """Operators that ran in kernels, sorted by time."""
    bounds: Rows
    """First and last tasks of operators, sorted by time."""
    flips: Flips
    """Wrap-arounds of the task ids of kernels."""

    @classmethod
    def none(cls) -> AicpuRecords:
        """Return an empty set of records."""
        tasks, operators, bounds = (
            np.zeros(0, record_type(kind))
            for kind in ("aicpu_task", "aicpu_operator", "aicpu_bound")
        )
        return cls(tasks, operators, bounds, Flips.none())

    def __len__(self) -> int:
        return len(self.tasks) + len(self.operators) + len(self.bounds)


def read_aicpu(device: DeviceDirectory, sink: Sink) -> AicpuRecords:
    """Read the records of collectives on the AI CPUs of a device.

    Raises:
        RawFormatError: the file cannot be read.
    """
    file = device.data.get("aicpu")
    if file is None or not device.runs_collectives_on_cpus:
        return AicpuRecords.none()
    parts: dict[int, list[Rows]] = {_OPERATOR: [], _FLIP: [], _BOUND: [], _TASKS: []}
    for piece in file.pieces("aicpu", magic=HOST_MAGIC):
        good = piece["magic"] == HOST_MAGIC
        if not good.all():
            sink.anomaly("bad_magic_aicpu", int((~good).sum()), "aicpu records")
        raw = piece.view(f"V{piece.dtype.itemsize}")  # keeps bytes that are in no field
        for kind, found in parts.items():
            chosen = good & (piece["type"] == kind)
            if chosen.any():
                found.append(raw[chosen].view(piece.dtype))
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


def _as(parts: list[Rows], kind: str) -> Rows:
    return concatenate(parts).view(record_type(kind)) if parts else np.zeros(0, record_type(kind))


def _by_time(records: Rows) -> Rows:
    return records[np.argsort(records["timestamp"], kind="stable")]


def _unpacked(parts: list[Rows]) -> Rows:
    """Return the sorted tasks of records (two each); entries without a group are unused."""
    layout = record_type("aicpu_task")
    if not parts:
        return np.zeros(0, layout)
    raw: NDArray[Any] = concatenate(parts).view(np.uint8).reshape(-1, parts[0].dtype.itemsize)
    payload = raw[:, _HEAD_BYTES : _HEAD_BYTES + _TASKS_OF_A_RECORD * layout.itemsize]
    tasks: Rows = np.ascontiguousarray(payload).reshape(-1).view(layout)
    tasks = tasks[tasks["group"] != 0]
    _, first, inverse = np.unique(tasks["stream_id"], return_index=True, return_inverse=True)
    return tasks[np.lexsort((tasks["timestamp"], first[inverse]))]


_KERNEL = "AicpuKernel"
_NO_COLLECTIVES = ("hcomAicpuInit",)
_ITERATION = 1
_FIRST, _LAST = 0, 1


@dataclass(slots=True)
class Operator:
    """One collective that ran in an AI CPU kernel."""

    row: int
    """Row of the kernel task in `TaskRows`."""
    name: str
    op_type: int
    """String id."""
    group: int | None
    """Hash of the group name, None if unknown."""
    connection_id: int
    start: int
    """Start in ticks of the device counter; that of the first task if it is recorded."""
    end: int
    of_host: bool = False
    """True if the host recorded the collective (source HCCL)."""
    relay: int = -1
    retry: int = -1


@dataclass(frozen=True, slots=True)
class AicpuContext:
    """Records from which the operators of one device are built."""

    device: DeviceDirectory
    rows: TaskRows
    kernels: Rows
    """Kernels that schedule communication (rows of `compute_info.KERNEL`)."""
    streams: CollectiveStreams
    dictionaries: Dictionaries
    records: AicpuRecords
    task_streams: TaskStreams


def find_rows(
    context: AicpuContext, stream: NDArray[Any], task: NDArray[Any], batch: NDArray[np.uint32]
) -> Ints:
    """Return the row in the log for each task; tasks with the same key are matched in order."""
    no_context = np.full(len(task), NO_CONTEXT, np.uint32)
    wide = context.device.has_wide_task_ids
    key = pack_keys(stream, task, batch, no_context, wide_task_ids=wide)
    order = np.argsort(context.rows.key, kind="stable")
    known = context.rows.key[order]
    low = np.searchsorted(known, key, side="left")
    high = np.searchsorted(known, key, side="right")
    by_key = np.argsort(key, kind="stable")
    rank = np.empty(len(key), np.int64)
    rank[by_key] = Runs(key[by_key]).rank()
    place = np.minimum(low + rank, high - 1)
    return np.where(high > low, np.r_[order, NOWHERE][place], NOWHERE)


class Bounds:
    """First and last tasks of operators, grouped by the stream of the kernel."""

    def __init__(self, context: AicpuContext, record_row: Ints) -> None:
        records = context.records.bounds
        records = records[np.isin(records["kind"], (_FIRST, _LAST))]
        stream, kernel_stream, task = self._identities(context, records)
        batch = context.records.flips.batch_of(
            stream, task & 0xFFFF, records["timestamp"], at_flip=True
        )
        row = find_rows(context, stream, task, batch)
        row[~np.isin(row, record_row)] = NOWHERE  # tasks without a description do not count
        self.first_rows: Ints = row[(records["kind"] == _FIRST) & (row != NOWHERE)]
        self._by_stream: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for bound in zip(
            kernel_stream.tolist(),
            records["timestamp"].tolist(),
            records["kind"].tolist(),
            row.tolist(),
            strict=True,
        ):
            if bound[3] != NOWHERE:
                self._by_stream[bound[0]].append(bound[1:])

    @staticmethod
    def _identities(context: AicpuContext, records: Rows) -> tuple[Ints, Ints, Ints]:
        """Return three columns: stream of the task, stream of its kernel, and id of the task."""
        words = (
            records[name].astype(np.int64)
            for name in ("stream_id", "kernel_stream", "task_id", "kernel_task")
        )
        stream, kernel_stream, task, kernel_task = words
        if not context.device.has_wide_task_ids:
            return stream, kernel_stream, task
        task, kernel_task = task << 16 | stream, kernel_task << 16 | kernel_stream
        return context.task_streams.find(task), context.task_streams.find(kernel_task), task

    def apply(self, operator: Operator, stream: int, rows: TaskRows) -> None:
        """Set start and end of an operator from its first and last task, if these are recorded."""
        bounds = self._by_stream.get(stream, [])
        low = bisect_left(bounds, (operator.start,))
        high = bisect_left(bounds, (operator.end + 1,))
        for _, kind, row in bounds[low:high]:
            if kind == _FIRST:
                operator.start = int(rows.start[row])
            operator.end = int(rows.end[row])


def operators_of(context: AicpuContext, bounds: Bounds) -> list[Operator]:
    """Return the named operators of all kernels on the device, sorted by start."""
    recorded = context.records.operators
    by_stream: dict[int, list[Operator]] = defaultdict(list)
    for operator in _kernels(context):
        by_stream[int(context.rows.stream_id[operator.row])].append(operator)
    result: list[Operator] = []
    for stream, operators in by_stream.items():
        records = recorded[recorded["stream_id"] == stream]
        _describe(operators, records, context)
        for operator in operators:
            bounds.apply(operator, stream, context.rows)
        _number(operators, context)
        result += operators
    return sorted(result, key=lambda operator: operator.start)


def _kernels(context: AicpuContext) -> Iterator[Operator]:
    """Yield one operator for each AI CPU kernel, sorted by start."""
    rows, kernels = context.rows, context.kernels
    for row in np.flatnonzero(rows.kernel != NOWHERE).tolist():
        kernel = kernels[rows.kernel[row]]
        name = context.dictionaries.text(int(kernel["name"]))
        if name in _NO_COLLECTIVES:
            continue
        yield Operator(
            row,
            name,
            int(kernel["op_type"]),
            context.streams.of_kernels.get(int(rows.stream_id[row])),
            int(rows.connection_id[row]),
            int(rows.start[row]),
            int(rows.end[row]),
        )


def _describe(operators: list[Operator], records: Rows, context: AicpuContext) -> None:
    """Set the recorded fields of the operators of one stream.

    A record belongs to the first operator that was running at its time. If a stream has records,
    all of its operators belong to collectives of the host, even if their own record is missing.
    """
    if not len(records):
        return
    times = records["timestamp"].tolist()
    groups = set(context.streams.of_kernels.values())
    next_record = 0
    for operator in operators:
        operator.of_host = True
        kernel = context.kernels[context.rows.kernel[operator.row]]
        if kernel["in_collective"]:
            operator.name = context.dictionaries.text(int(kernel["outer"]))
        next_record = max(next_record, bisect_left(times, operator.start))
        if next_record < len(times) and times[next_record] <= operator.end:
            record = records[next_record]
            group = int(record["group"])
            operator.group = group if group in groups else None
            operator.relay = int(record["flags"]) & 1
            operator.retry = int(record["flags"]) >> 1 & 1
            next_record += 1


def _number(operators: list[Operator], context: AicpuContext) -> None:
    """Append the group and a number within the group to the operator names of one stream."""
    counted: dict[tuple[int | None, bool], int] = defaultdict(lambda: -1)
    session_start_ns = context.device.session.start_ns
    for operator in operators:
        key = operator.group, _KERNEL in operator.name
        counted[key] += context.rows.clock.tick_to_ns(operator.start) > session_start_ns
        suffix = NOT_AVAILABLE if operator.group is None else str(operator.group)[-3:]
        operator.name = f"{operator.name}_{suffix}_{counted[key]}_{_ITERATION}"
