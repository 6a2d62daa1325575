"""Reads host and AI CPU records of collectives, joins them with launches, computes bandwidths."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Floats, Ints, Runs, find, positions
from unified_prof.base.columns import NO_CONTEXT, NOT_AVAILABLE, Sink
from unified_prof.decoders.prof.compute_info import HostData
from unified_prof.decoders.prof.directory import DeviceDirectory, Dictionaries
from unified_prof.decoders.prof.host_events import CollectiveStreams, Launches
from unified_prof.decoders.prof.host_records import (
    COMMUNICATION,
    CallTree,
    Intervals,
    Timeline,
    concatenate,
)
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.task_join import TaskRows
from unified_prof.decoders.prof.task_log import Flips, TaskStreams, pack_keys
from unified_prof.decoders.spool import Rows, row_type

# Records of the host with their keys (`Timeline.pack`).
TASKS = row_type("key u8, record hccl_info", hccl_info=record_type("hccl_info"))
OPERATORS = row_type("key u8, record hccl_op_info", hccl_op_info=record_type("hccl_op_info"))

_TASK_FIELDS = (
    "item_id group_name size_bytes plane_id notify_id rdma_type local_rank remote_rank"
    " transport_type data_type link_type rank_size"
).split()
_OPERATOR_FIELDS = "group_name alg_type flags data_type count".split()
_MASTER = "master"


def _fields(layout: np.dtype[Any], names: list[str]) -> np.dtype[Any]:
    return np.dtype([(name, layout[name]) for name in names])


# A launched task of a collective, in one context. `node`, `begin`, `item`, `op_type`, `described`
# belong to the NODE call around the launch: connection id, begin, hashes of item and operator type,
# True if it has a description. `launched` is the key of the launch; `master` is True if a master
# call made it; `task` and `operator` are fields of its hccl_info and hccl_op_info records.
STEP = row_type(
    "node i8, begin u8, item u8, op_type u8, launched u8, described ?, master ?, has_task ?,"
    " task TASK, has_operator ?, operator OPERATOR",
    TASK=_fields(record_type("hccl_info"), _TASK_FIELDS),
    OPERATOR=_fields(record_type("hccl_op_info"), _OPERATOR_FIELDS),
)


@dataclass(frozen=True, slots=True)
class CommunicationRecords:
    """Host records of collectives with the calls they belong to."""

    tasks: Rows  # Last hccl_info record of each (communication call, context), sorted by this key.
    task_key: NDArray[np.uint64]  # Communication call << 32 | context.
    operators: Rows  # Last hccl_op_info record of each NODE call, sorted by call.
    operator_node: Ints


# data_len of hccl_op_info_v1, and the names of the algorithm stages in it.
_OLD_OPERATOR_BYTES = 20
_STAGES = ("NONE", "MESH", "RING", "NB", "HD", "NHR", "PIPELINE", "PAIRWISE", "STAR")


def current_operators(records: Rows, dictionaries: Dictionaries) -> Rows:
    """Return hccl_op_info records in the current layout; names of algorithms get a hash."""
    is_old = records["data_len"] == _OLD_OPERATOR_BYTES
    if not is_old.any():
        return records
    old = records.view(record_type("hccl_op_info_v1"))[is_old]
    records = records.copy()
    for field in ("alg_type", "count", "group_name"):
        records[field][is_old] = old[field]
    stages = filter(None, np.unique(old["alg_type"]).tolist())
    dictionaries.hashes = {one: _algorithm(one) for one in stages} | dict(dictionaries.hashes)
    return records


def _algorithm(stages: int) -> str:
    numbers = []
    while stages & 0xF:
        numbers.append(stages & 0xF)
        stages >>= 4
    return "-".join(_STAGES[one] if one < len(_STAGES) else str(one) for one in numbers)


def place_records(tasks: Rows, operators: Rows, tree: CallTree, sink: Sink) -> CommunicationRecords:
    """Find the call of each collective record; the last record of a call is used."""
    row, records = _in_calls(tree.communication, tasks, "hccl_info", sink)
    task_key = row.astype(np.uint64) << np.uint64(32) | records["context_id"]
    order = np.argsort(task_key, kind="stable")
    last = order[Runs(task_key[order]).last]
    node, found = _in_calls(tree.node, operators, "hccl_op_info", sink)
    order = np.argsort(node, kind="stable")
    newest = order[Runs(node[order]).last]
    return CommunicationRecords(records[last], task_key[last], found[newest], node[newest])


def _in_calls(calls: Intervals, rows: Rows, kind: str, sink: Sink) -> tuple[Ints, Rows]:
    row = calls.find(rows["key"])
    inside = row != NOWHERE
    if not inside.all():
        sink.anomaly(f"unplaced_{kind}", int((~inside).sum()), f"{kind} records outside calls")
    return row[inside], rows["record"][inside]


def master_types(types: list[tuple[int, int]], dictionaries: Dictionaries) -> Bools:
    """Return a mask of the (level, type) pairs whose calls launch master tasks."""
    return np.array(
        [
            level == COMMUNICATION and dictionaries.type_name(level, kind) == _MASTER
            for level, kind in types
        ],
        bool,
    )


def steps_of(
    launches: Launches,
    records: CommunicationRecords,
    host_data: HostData,
    masters: Bools,
    timeline: Timeline,
) -> tuple[Ints, Rows]:
    """Return the launches that are tasks of collectives, and a `STEP` row for each launch."""
    tasks, tree = launches.tasks, host_data.tree
    call, node = tasks.communication[launches.task], tasks.node[launches.task]
    chosen = np.flatnonzero((call != NOWHERE) & (node != NOWHERE) & ~launches.placeholder)
    call, node = call[chosen].astype(np.int64), node[chosen].astype(np.int64)
    steps = np.zeros(len(chosen), STEP)
    if not len(chosen):
        return chosen, steps
    steps["node"] = tree.node.connection_id[node]
    steps["begin"] = timeline.ticks(tree.node.begin[node])
    steps["item"] = host_data.calls_items[tree.node.item[node]]
    about = host_data.descriptions
    steps["described"] = about.described[node] & ~np.bool_(host_data.level0)
    steps["op_type"] = about.hashes[about.op_type[node]]
    steps["launched"] = tasks.key[launches.task[chosen]]
    steps["master"] = masters[tree.communication.type_index[call]]
    key = call.astype(np.uint64) << np.uint64(32) | launches.context_id[chosen]
    _copy(steps, "task", records.tasks, find(records.task_key, key))
    _copy(steps, "operator", records.operators, find(records.operator_node, node))
    return chosen, steps


def _copy(steps: Rows, field: str, records: Rows, row: Ints) -> None:
    """Copy fields of records to the steps that have a record."""
    has = np.flatnonzero(row != NOWHERE)
    steps[f"has_{field}"][has] = True
    for name in steps[field].dtype.names or ():
        steps[field][name][has] = records[name][row[has]]


# Parts of a nanosecond: resolution of the times that bandwidths are computed from.
FINE_PARTS = 1024
_CLOSING_TASKS = 4
_CLOSING_TASKS_ONE_WAY = 2
_ONE_WAY = ("send", "receive")

# The exporter's bandwidth, -1 GB/s, of payloads that it skips.
_SKIPPED = -1e9


def closing_tasks(operator_names: list[str]) -> Ints:
    """Return the number of tasks that end an RDMA transfer, for each operator.

    These tasks are a notify and its acknowledgement, in both directions unless the operator is
    one-way.
    """
    closing = (
        _CLOSING_TASKS_ONE_WAY if any(word in name for word in _ONE_WAY) else _CLOSING_TASKS
        for name in operator_names
    )
    return np.fromiter(closing, np.int64)


def bandwidth(
    operator: Ints,
    plane: Ints,
    start: Ints,
    end: Ints,
    size: Ints,
    payload: Bools,
    closing: Ints,
    *,
    one_by_one: bool = False,
) -> Floats:
    """Return the bytes per second of each task; payloads get the bandwidth of their transfer.

    An RDMA transfer consists of consecutive payloads on one plane of one operator and the tasks
    that end it, in time order. If the ending tasks are missing, each payload is a separate
    transfer. Times are in 1 / FINE_PARTS ns, sizes in bytes (-1: unknown); `payload` marks RDMA
    payloads, `closing` has the `closing_tasks` of each task's operator. The exporter uses two
    rules. If `one_by_one`, transfers do not overlap, and payloads among the ending tasks of a
    transfer have no bandwidth (`_SKIPPED`). Otherwise, each sequence of payloads is ended by the
    next tasks, even if they also end another transfer.
    """
    duration_ns = (end - start) / FINE_PARTS
    moved = size / np.where(duration_ns > 0, duration_ns, np.inf) * 1e9
    order = np.lexsort((start, plane, operator))
    lanes = Runs(operator[order], plane[order])
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    first, last = runs.starts, runs.last
    chosen = payload[order][first]
    first, last = first[chosen], last[chosen]
    if one_by_one:
        first, last, skipped = _one_by_one(first, last, closing[order], lane_end)
        moved[order[skipped]] = _SKIPPED
    end_of_transfer = last + closing[order][first]
    complete = end_of_transfer <= lane_end[first]
    first, last, end_of_transfer = first[complete], last[complete], end_of_transfer[complete]
    sent = np.cumsum(size[order])
    sent_in_run = sent[last] - sent[first] + size[order][first]
    time_ns = (end[order[end_of_transfer]] - start[order[first]]) / FINE_PARTS
    shared = sent_in_run / np.where(time_ns > 0, time_ns, np.inf) * 1e9
    length = last - first + 1
    members = order[np.repeat(first, length) + positions(length)]
    moved[members] = np.repeat(shared, length)
    return np.asarray(moved, np.float64)


def bandwidth_in_order(
    lane: tuple[NDArray[Any], ...],
    start: Ints,
    end: Ints,
    size: Ints,
    payload: Bools,
    closing: Ints,
) -> Floats:
    """Return the bytes per second of each task; transfers are formed in the order of the rows.

    Like `bandwidth` with `one_by_one`, but rows with equal values in all columns of `lane` share a
    lane, and skipped payloads have bandwidth 0. The exporter does not sort the records of AI CPUs,
    so bandwidths of rows that are not in time order are negative.
    """
    duration_ns = (end - start) / FINE_PARTS
    moved = size / np.where(duration_ns != 0, duration_ns, np.inf) * 1e9
    order = np.lexsort(lane)
    lanes = Runs(*(column[order] for column in lane))
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    chosen = payload[order][runs.starts]
    first, last, skipped = _one_by_one(
        runs.starts[chosen], runs.last[chosen], closing[order], lane_end
    )
    moved[order[skipped]] = 0.0
    closed = last + closing[order][first]
    complete = closed <= lane_end[first]
    for begin, until, closer in zip(
        first[complete].tolist(), last[complete].tolist(), closed[complete].tolist(), strict=True
    ):
        members = order[begin : until + 1]
        time_ns = (int(end[order[closer]]) - int(start[members[0]])) / FINE_PARTS
        moved[members] = int(size[members].sum()) / time_ns * 1e9 if time_ns else 0.0
    return np.asarray(moved, np.float64)


def _one_by_one(first: Ints, last: Ints, closing: Ints, lane_end: Ints) -> tuple[Ints, Ints, Ints]:
    """Shorten sequences of payloads so that each starts after the tasks that end the previous one.

    Returns:
        First and last task of the remaining sequences, and the skipped payloads.
    """
    runs: list[tuple[int, int]] = []
    skipped: list[int] = []
    covered = -1
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        skipped += range(begin, min(covered, end) + 1)
        begin = max(begin, covered + 1)
        if begin > end:
            continue
        runs.append((begin, end))
        closed = end + int(closing[begin])
        if closed <= lane_end[begin]:
            covered = closed
    left = np.array(runs, np.int64).reshape(-1, 2)
    return left[:, 0], left[:, 1], np.array(skipped, np.int64)


_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13
_HEAD_BYTES = 24
_TASKS_OF_A_RECORD = 2


@dataclass(frozen=True, slots=True)
class AicpuRecords:
    """AI CPU records of one device."""

    # Tasks launched by AI CPU kernels, sorted by stream (in order of first occurrence) and time.
    tasks: Rows
    operators: Rows  # Operators that ran in kernels, sorted by time.
    bounds: Rows  # First and last tasks of operators, sorted by time.
    flips: Flips  # Wrap-arounds of the task ids of kernels.

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

    row: int  # Row of the kernel task in `TaskRows`.
    name: str
    op_type: int  # String id.
    group: int | None  # Hash of the group name, None if unknown.
    connection_id: int
    start: int  # Start in ticks of the device counter; that of the first task if it is recorded.
    end: int
    of_host: bool = False  # True if the host recorded the collective (source HCCL).
    relay: int = -1
    retry: int = -1


@dataclass(frozen=True, slots=True)
class AicpuContext:
    """Records from which the operators of one device are built."""

    device: DeviceDirectory
    rows: TaskRows
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
