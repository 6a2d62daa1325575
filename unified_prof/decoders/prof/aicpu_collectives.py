"""Decodes collectives that run in AI CPU kernels: COMMUNICATION_OP, COMMUNICATION_TASK_INFO.

The host launches only the kernel. The tasks that the kernel launches on the streams of its group
are in the device's log and in records of the AI CPUs. A task belongs to the operator of its group
that was running when the task ended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, FirstSeen, Floats, Ints, occurrence
from unified_prof.base.columns import (
    NO_CONTEXT,
    NO_RANK,
    NOT_AVAILABLE,
    TYPE_NOT_AVAILABLE,
    Sink,
    count_marked,
)
from unified_prof.decoders.prof.clocks import LinearClock
from unified_prof.decoders.prof.collectives import (
    FINE_ORIGIN_NS,
    FINE_PARTS,
    CommunicationTimes,
    CommunicationWriter,
    bandwidth,
    closing_tasks,
    extents,
)
from unified_prof.decoders.prof.directory import DeviceDirectory, Dictionaries
from unified_prof.decoders.prof.host_events import CollectiveStreams
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.task_log import C_CORE, Flips, TaskStreams, pack_keys, type_name
from unified_prof.decoders.spool import Rows, row_type, stacked

_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13  # Kinds of records of AI CPUs.
_HEAD_BYTES, _TASKS_OF_A_RECORD = 24, 2  # Head of a record of tasks, which follow it.


class AicpuRecords(Struct, frozen=True):
    """AI CPU records of one device."""

    # Tasks launched by AI CPU kernels, sorted by stream (in order of first occurrence) and time.
    tasks: Rows
    operators: Rows  # Operators that ran in kernels, sorted by time.
    bounds: Rows  # First and last tasks of operators, sorted by time.
    flips: Flips  # Wrap-arounds of the task ids of kernels.

    def __len__(self) -> int:
        return len(self.tasks) + len(self.operators) + len(self.bounds)


def read_aicpu(device: DeviceDirectory, sink: Sink) -> AicpuRecords:
    """Read the records of collectives on the AI CPUs of a device."""
    parts: dict[int, list[Rows]] = {_OPERATOR: [], _FLIP: [], _BOUND: [], _TASKS: []}
    is_read = device.runs_collectives_on_cpus
    for piece in device.data.get("aicpu").pieces("aicpu", magic=HOST_MAGIC) if is_read else ():
        good = piece["magic"] == HOST_MAGIC
        count_marked(sink, "bad_magic_aicpu", ~good, "aicpu records")
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
    return stacked(parts).view(record_type(kind)) if parts else np.zeros(0, record_type(kind))


def _by_time(records: Rows) -> Rows:
    return records[np.argsort(records["timestamp"], kind="stable")]


def _unpacked(parts: list[Rows]) -> Rows:
    """Return the sorted tasks of records (two each); entries without a group are unused."""
    layout = record_type("aicpu_task")
    if not parts:
        return np.zeros(0, layout)
    raw: NDArray[Any] = stacked(parts).view(np.uint8).reshape(-1, parts[0].dtype.itemsize)
    payload = raw[:, _HEAD_BYTES : _HEAD_BYTES + _TASKS_OF_A_RECORD * layout.itemsize]
    tasks: Rows = np.ascontiguousarray(payload).reshape(-1).view(layout)
    tasks = tasks[tasks["group"] != 0]
    _, first, inverse = np.unique(tasks["stream_id"], return_index=True, return_inverse=True)
    return tasks[np.lexsort((tasks["timestamp"], first[inverse]))]


# A task of an operator (`operator` is its index); sorted by end within each group. `row` is its
# row in the log, `record` that in `AicpuRecords.tasks`, or NOWHERE if the tasks have no records.
MEMBER = row_type("operator i8, row i8, record i8, master ?, plane i8")


def members_of(
    context: AicpuContext, operators: list[Operator], record_row: Ints, bounds: Bounds
) -> Rows:
    """Assign the tasks of each group to its operators."""
    rows = context.rows
    record = np.flatnonzero(record_row != NOWHERE)
    row = record_row[record]
    of_tasks = context.streams.of_tasks
    if not len(record_row):  # lowest trace level: all tasks of the streams
        row = np.flatnonzero(np.isin(rows["stream_id"], list(of_tasks)))
        record = np.full(len(row), NOWHERE, np.int64)
    order = np.argsort(rows["end"][row], kind="stable")
    record, row = record[order], row[order]
    streams_of_group: dict[int, list[int]] = defaultdict(list)
    for stream, groups in of_tasks.items():
        for group in groups:
            streams_of_group[group].append(stream)
    of_host = np.array([item.of_host for item in operators], bool)
    parts = [np.zeros(0, MEMBER)]
    for group, streams in streams_of_group.items():
        chosen = np.flatnonzero(np.isin(rows["stream_id"][row], streams))
        in_group = [index for index, item in enumerate(operators) if item.group == group]
        operator, place = assign_to_operators(
            [operators[index] for index in in_group], rows["end"][row[chosen]]
        )
        members = np.zeros(len(place), MEMBER)
        members["operator"] = np.array(in_group, np.int64)[operator]
        members["row"], members["record"] = row[chosen[place]], record[chosen[place]]
        _set_planes(members, context, of_host[members["operator"]], bounds)
        parts.append(members)
    return np.concatenate(parts)


def assign_to_operators(operators: list[Operator], ends: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Match tasks with operators; return the operators and the matched tasks.

    The operators of a group are sorted by start, and `ends` of its tasks are ascending.
    """
    times = ends.tolist()
    of_task: list[Ints] = [np.zeros(0, np.int64)]
    place: list[Ints] = [np.zeros(0, np.int64)]
    following = 0
    for index, operator in enumerate(operators):
        begin = max(following, bisect_left(times, operator.start))
        following = max(begin, bisect_right(times, operator.end))
        of_task.append(np.full(following - begin, index, np.int64))
        place.append(np.arange(begin, following))
    return np.concatenate(of_task), np.concatenate(place)


def _set_planes(members: Rows, context: AicpuContext, of_host: Bools, bounds: Bounds) -> None:
    """Find the master tasks of one group, and number its streams in the order of their use.

    The master stream of a task is that of the last preceding task that is a control core task or
    the first task of an operator. These two kinds of tasks may have started to wait before the
    operator, so they are not its masters if the host recorded the operator (`of_host`).

    The master stream is plane 0, the others are numbered from 1. In collectives launched by the
    host, plane 0 contains the launches of the host, and all numbers are one higher.
    """
    stream, type_code = (context.rows[name][members["row"]] for name in ("stream_id", "type_code"))
    first = np.isin(members["row"], bounds.first_rows)
    control_core = -1  # no such core
    if type_name(C_CORE, context.device.platform) == "C_CORE_SQE":
        control_core = C_CORE
    shows = first | (type_code == control_core)
    place = np.maximum.accumulate(np.where(shows, np.arange(len(members)), -1))
    on_master = (place >= 0) & (stream == stream[place])
    members["master"] = np.where(shows, ~of_host, on_master)
    others = np.flatnonzero(~(members["master"] | first))
    members["plane"] = of_host
    members["plane"][others] += FirstSeen().numbers(stream[others].astype(np.int64)) + 1
    members["plane"][members["record"] == NOWHERE] = -1


class Collectives(Struct):
    """Collectives that ran in AI CPU kernels of one device."""

    operators: list[Operator]
    members: Rows  # `MEMBER` rows.
    # Row in the log for each task record; NOWHERE if the task is not in the log.
    record_row: Ints

    def flags(self) -> dict[str, tuple[int, int]]:
        """Return full name -> (relay, retry) for operators that the host also recorded."""
        return {item.name: (item.relay, item.retry) for item in self.operators if item.of_host}


def find_collectives(context: AicpuContext, sink: Sink) -> Collectives | None:
    """Find the collectives of a device and their tasks; return None if there are none."""
    streams = context.streams
    if not streams.of_kernels:
        if len(context.records):
            sink.anomaly(
                "collective_without_streams",
                len(context.records),
                "records of AI CPUs for a group without mc2_comm_info",
            )
        return None
    tasks = context.records.tasks
    batch = context.records.flips.batch_of(
        tasks["stream_id"], tasks["task_id"] & 0xFFFF, tasks["timestamp"], at_flip=True
    )
    record_row = find_rows(context, tasks["stream_id"], tasks["task_id"], batch)
    count_marked(sink, "aicpu_task_not_in_log", record_row == NOWHERE, "recorded by AI CPUs")
    bounds = Bounds(context, record_row)
    operators = operators_of(context, bounds)
    members = members_of(context, operators, record_row, bounds)
    assigned = np.unique(members["record"][members["record"] != NOWHERE])
    sink.anomaly(
        "task_outside_collectives",
        int((record_row != NOWHERE).sum()) - len(assigned),
        "tasks that AI CPUs launched",
    )
    return Collectives(operators, members, record_row)


_PAYLOAD = 1
_DEVICE_ONLY_SUFFIX = " Aicpu"  # Suffix of the group name of operators that the host does not have.


def write_collectives(
    context: AicpuContext,
    ran: Collectives,
    host: CommunicationWriter,
    host_ids: Mapping[str, int],
    sink: Sink,
) -> CommunicationTimes:
    """Write the operators that the host did not record, and the tasks of all operators.

    `host` assigns operator ids, and `host_ids` maps full names to the opIds of the host's
    operators. Returns the intervals of the operators with rows.
    """
    ids = host.take_ids(len(ran.operators))
    for index, operator in enumerate(ran.operators):
        if operator.of_host:
            ids[index] = host_ids.get(operator.name, ids[index])
    names = sink.strings.intern_all(operator.name for operator in ran.operators)
    groups = sink.strings.intern_all(_group_name(operator, context) for operator in ran.operators)
    if len(ran.members):
        _write_tasks(context, ran, names, groups, ids, sink)
    # Operators that the host did not record, from the first to the last master task.
    masters = ran.members[ran.members["master"]]
    start_ns, end_ns = (
        context.clock.to_ns(context.rows[name][masters["row"]]) for name in ("start", "end")
    )
    start, end, has_master = extents(masters["operator"], start_ns, end_ns, len(ran.operators))
    device_only = np.array([not operator.of_host for operator in ran.operators], bool)
    kept = np.flatnonzero(device_only & has_master)
    if not len(kept):
        return CommunicationTimes.none()
    none = sink.strings.intern(NOT_AVAILABLE)
    operators = [ran.operators[index] for index in kept.tolist()]
    columns: dict[str, Any] = {
        "opName": names[kept],
        "startNs": start[kept],
        "endNs": end[kept],
        "connectionId": [operator.connection_id for operator in operators],
        "groupName": groups[kept],
        "opId": ids[kept],
        "relay": -1,
        "retry": -1,
        "dataType": TYPE_NOT_AVAILABLE,
        "algType": none,
        "count": -1,
        "opType": [operator.op_type for operator in operators],
        "deviceId": context.device.device_id,
        "rankSize": NO_RANK,
    }
    sink.write("COMMUNICATION_OP", columns)
    return CommunicationTimes(start[kept], end[kept])


def _group_name(operator: Operator, context: AicpuContext) -> str:
    if operator.group is None:
        return NOT_AVAILABLE
    text = context.dictionaries.text(operator.group)
    return text if operator.of_host else text + _DEVICE_ONLY_SUFFIX


def _write_tasks(
    context: AicpuContext, ran: Collectives, names: Ints, groups: Ints, ids: Ints, sink: Sink
) -> None:
    members = ran.members
    described = members["record"] != NOWHERE
    records = context.records.tasks[members["record"][described]]
    count = len(members)

    def column(field: str, missing: int) -> Ints:
        values = np.full(count, missing, np.int64)
        values[described] = records[field].astype(np.int64)
        return values

    kind = np.full(count, sink.strings.intern(NOT_AVAILABLE), np.int64)
    kind[described] = context.dictionaries.string_ids(sink.strings, records["item"])
    moved = np.zeros(count)
    moved[described] = _bandwidth(context, ran)[members["record"][described]]
    sink.write(
        "COMMUNICATION_TASK_INFO",
        {
            "name": names[members["operator"]],
            "globalTaskId": context.rows["global_task_id"][members["row"]],
            "taskType": kind,
            "planeId": np.where(members["plane"] < 0, NO_RANK, members["plane"]),
            "groupName": groups[members["operator"]],
            "notifyId": column("notify_id", -1),
            "rdmaType": column("rdma_type", TYPE_NOT_AVAILABLE),
            "srcRank": column("local_rank", NO_RANK),
            "dstRank": column("remote_rank", NO_RANK),
            "transportType": column("transport_type", TYPE_NOT_AVAILABLE),
            "size": column("size_bytes", -1),
            "dataType": column("data_type", TYPE_NOT_AVAILABLE),
            "linkType": column("link_type", TYPE_NOT_AVAILABLE),
            "opId": ids[members["operator"]],
            "isMaster": members["master"].astype(np.int64),
            "bandwidth": moved,
        },
    )


def _bandwidth(context: AicpuContext, ran: Collectives) -> Floats:
    """Return the bandwidth of each task record; 0 for tasks that are not in the log.

    A transfer is formed from all records with the same name and plane, across operators, in record
    order.
    """
    tasks = context.records.tasks
    result = np.zeros(len(tasks))
    known = np.flatnonzero(ran.record_row != NOWHERE)
    row, tasks = ran.record_row[known], tasks[known]
    clock = context.clock.finer(FINE_PARTS, context.device.session.start_ns - FINE_ORIGIN_NS)
    items, item = np.unique(tasks["item"], return_inverse=True)
    texts = [context.dictionaries.text(value).lower() for value in items.tolist()]
    result[known] = bandwidth(
        (item, tasks["plane_id"]),
        clock.to_ns(context.rows["start"][row]),
        clock.to_ns(context.rows["end"][row]),
        tasks["size_bytes"].astype(np.int64),
        tasks["rdma_type"] == _PAYLOAD,
        closing_tasks(texts)[item],
        one_by_one=True,
        sort_by_time=False,
    )
    return result


_KERNEL = "AicpuKernel"  # Part of the names of operators that are numbered on their own.
_NO_COLLECTIVES = ("hcomAicpuInit",)  # Kernels that prepare AI CPUs for collectives.
_ITERATION = 1  # Last number in the name of an operator; the exporter knows no other.
_FIRST, _LAST = 0, 1  # Kinds of records: first and last task of an operator.


class Operator(Struct):
    """One collective that ran in an AI CPU kernel."""

    row: int  # Row of the kernel task in the log.
    name: str
    op_type: int  # String id.
    group: int | None  # Hash of the group name, None if unknown.
    connection_id: int
    start: int  # Start in ticks of the device counter; that of the first task if it is recorded.
    end: int
    of_host: bool = False  # True if the host recorded the collective (source HCCL).
    relay: int = -1
    retry: int = -1


class AicpuContext(Struct, frozen=True):
    """Records from which the operators of one device are built."""

    device: DeviceDirectory
    rows: Rows  # Tasks of the log that ended in the session, sorted by start (`JOINED_TASK`).
    clock: LinearClock  # Clock of the device counter.
    kernels: Rows  # Kernels that schedule communication (rows of `compute_info.KERNEL`).
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
    order = np.argsort(context.rows["key"], kind="stable")
    known = context.rows["key"][order]
    low = np.searchsorted(known, key, side="left")
    high = np.searchsorted(known, key, side="right")
    place = np.minimum(low + occurrence(key), high - 1)
    return np.where(high > low, np.r_[order, NOWHERE][place], NOWHERE)


class Bounds:
    """First and last tasks of operators, grouped by the stream of the kernel."""

    def __init__(self, context: AicpuContext, record_row: Ints) -> None:
        records = context.records.bounds
        records = records[np.isin(records["kind"], (_FIRST, _LAST))]
        words = ("stream_id", "kernel_stream", "task_id", "kernel_task")
        stream, kernel_stream, task, kernel_task = (records[n].astype(np.int64) for n in words)
        if context.device.has_wide_task_ids:
            task, kernel_task = task << 16 | stream, kernel_task << 16 | kernel_stream
            stream = context.task_streams.find(task)
            kernel_stream = context.task_streams.find(kernel_task)
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

    def apply(self, operator: Operator, stream: int, rows: Rows) -> None:
        """Set start and end of an operator from its first and last task, if these are recorded."""
        bounds = self._by_stream.get(stream, [])
        low = bisect_left(bounds, (operator.start,))
        high = bisect_left(bounds, (operator.end + 1,))
        for _, kind, row in bounds[low:high]:
            if kind == _FIRST:
                operator.start = int(rows["start"][row])
            operator.end = int(rows["end"][row])


def operators_of(context: AicpuContext, bounds: Bounds) -> list[Operator]:
    """Return the named operators of all kernels on the device, sorted by start."""
    recorded = context.records.operators
    by_stream: dict[int, list[Operator]] = defaultdict(list)
    rows, kernels = context.rows, context.kernels
    for row in np.flatnonzero(rows["kernel"] != NOWHERE).tolist():
        kernel, stream = kernels[rows["kernel"][row]], int(rows["stream_id"][row])
        name = context.dictionaries.text(int(kernel["name"]))
        if name not in _NO_COLLECTIVES:
            operator = Operator(
                row,
                name,
                int(kernel["op_type"]),
                context.streams.of_kernels.get(stream),
                int(rows["connection_id"][row]),
                int(rows["start"][row]),
                int(rows["end"][row]),
            )
            by_stream[stream].append(operator)
    result: list[Operator] = []
    for stream, operators in by_stream.items():
        records = recorded[recorded["stream_id"] == stream]
        _describe(operators, records, context)
        for operator in operators:
            bounds.apply(operator, stream, context.rows)
        _number(operators, context)
        result += operators
    return sorted(result, key=lambda operator: operator.start)


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
        kernel = context.kernels[context.rows["kernel"][operator.row]]
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
        counted[key] += context.clock.tick_to_ns(operator.start) > session_start_ns
        suffix = NOT_AVAILABLE if operator.group is None else str(operator.group)[-3:]
        operator.name = f"{operator.name}_{suffix}_{counted[key]}_{_ITERATION}"
