"""Joins host records of collectives with launches; computes the bandwidths of their tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Floats, Ints, Runs, find, positions
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof.compute_info import HostData
from unified_prof.decoders.prof.directory import Dictionaries
from unified_prof.decoders.prof.host_calls import COMMUNICATION, CallTree, Intervals
from unified_prof.decoders.prof.host_records import Timeline
from unified_prof.decoders.prof.launches import Launches
from unified_prof.decoders.prof.layouts import record_type
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

    tasks: Rows
    """Last hccl_info record of each (communication call, context), sorted by this key."""
    task_key: NDArray[np.uint64]
    """Communication call << 32 | context."""
    operators: Rows
    """Last hccl_op_info record of each NODE call, sorted by call."""
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
    transfer.

    Args:
        operator: number of each task's operator.
        plane: plane of each task.
        start: start of each task, in 1 / FINE_PARTS ns.
        end: end of each task.
        size: bytes, -1 if unknown.
        payload: True for RDMA payloads.
        closing: `closing_tasks` of each task's operator.
        one_by_one: If True, transfers do not overlap, and payloads among the ending tasks of a
            transfer have no bandwidth (`_SKIPPED`). If False, each sequence of payloads is ended by
            the next tasks, even if they also end another transfer. The exporter uses both rules.
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


def _one_by_one(
    first: Ints,
    last: Ints,
    closing: Ints,
    lane_end: Ints,
) -> tuple[Ints, Ints, Ints]:
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
