"""What the host recorded about collective operators and their tasks, launch by launch.

How fast the tasks of collective operators moved their data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Runs, find, positions
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof.clocks import Timeline
from unified_prof.decoders.prof.compute_info import HostKnowledge
from unified_prof.decoders.prof.directory import Dictionaries
from unified_prof.decoders.prof.host_calls import COMMUNICATION, NOWHERE, CallTree, Intervals
from unified_prof.decoders.prof.launches import MISSING, Launches
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.slices import Records
from unified_prof.decoders.spool import Rows

TASKS = np.dtype([("key", "u8"), ("record", record_type("hccl_info"))])
OPERATORS = np.dtype([("key", "u8"), ("record", record_type("hccl_op_info"))])
"""Records of the host and their place on the timeline."""

_TOLD = (
    "item_id group_name size_bytes plane_id notify_id rdma_type local_rank remote_rank"
    " transport_type data_type link_type rank_size"
).split()
_OPERATOR = "group_name alg_type flags data_type count".split()

_MASTER = "master"


def _fields(layout: np.dtype[Any], names: list[str]) -> np.dtype[Any]:
    return np.dtype([(name, layout[name]) for name in names])


STEP = np.dtype(
    [
        ("node", "i8"),
        ("begin", "u8"),
        ("item", "u8"),
        ("op_type", "u8"),
        ("launched", "u8"),
        ("described", "?"),
        ("master", "?"),
        ("has_told", "?"),
        ("told", _fields(record_type("hccl_info"), _TOLD)),
        ("has_operator", "?"),
        ("operator", _fields(record_type("hccl_op_info"), _OPERATOR)),
    ]
)
"""One launch of a collective, in one context. Of the NODE call around it: its connection id, its
begin, the hashes of its item and its operator type, and whether it is described; of the launch: its
key, whether a call of the master kind made it, and the fields of the hccl_info and hccl_op_info
records that tell of it."""


@dataclass(frozen=True, slots=True)
class CommunicationRecords:
    """What the host recorded about collectives, placed in calls."""

    tasks: Records
    """hccl_info records that count, sorted by (communication call, context)."""
    task_key: NDArray[np.uint64]
    """Communication call << 32 | context."""
    operators: Records
    """hccl_op_info records that count, sorted by NODE call."""
    operator_node: NDArray[np.int64]


def place_records(tasks: Rows, operators: Rows, tree: CallTree, sink: Sink) -> CommunicationRecords:
    """Place descriptions of collectives in calls; of several for one call the last counts."""
    row, told = _placed(tree.communication, tasks, "hccl_info", sink)
    task_key = row.astype(np.uint64) << np.uint64(32) | told["context_id"]
    order = np.argsort(task_key, kind="stable")
    last = order[Runs(task_key[order]).last]
    node, found = _placed(tree.node, operators, "hccl_op_info", sink)
    order = np.argsort(node, kind="stable")
    newest = order[Runs(node[order]).last]
    return CommunicationRecords(told[last], task_key[last], found[newest], node[newest])


def _placed(
    calls: Intervals, rows: Rows, kind: str, sink: Sink
) -> tuple[NDArray[np.int64], Records]:
    row = calls.find(rows["key"])
    inside = row != NOWHERE
    if not inside.all():
        sink.anomaly(f"unplaced_{kind}", int((~inside).sum()), f"{kind} records outside calls")
    return row[inside], rows["record"][inside]


def master_types(types: list[tuple[int, int]], dictionaries: Dictionaries) -> NDArray[np.bool_]:
    """Tell of the (level, type) of every type index whether its calls are of the master kind."""
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
    knowledge: HostKnowledge,
    masters: NDArray[np.bool_],
    timeline: Timeline,
) -> tuple[NDArray[np.int64], Rows]:
    """Return which launches are steps of collectives, and what is known of each."""
    tasks, tree = launches.tasks, knowledge.tree
    small, node = tasks.communication[launches.task], tasks.node[launches.task]
    chosen = np.flatnonzero((small != NOWHERE) & (node != NOWHERE) & ~launches.placeholder)
    small, node = small[chosen].astype(np.int64), node[chosen].astype(np.int64)
    steps = np.zeros(len(chosen), STEP)
    if not len(chosen):
        return chosen, steps
    steps["node"] = tree.node.connection_id[node]
    steps["begin"] = timeline.ticks(tree.node.begin[node])
    steps["item"] = knowledge.calls_items[tree.node.item[node]]
    about = knowledge.descriptions
    steps["described"] = about.described[node] & ~np.bool_(knowledge.level0)
    steps["op_type"] = about.hashes[about.op_type[node]]
    steps["launched"] = tasks.key[launches.task[chosen]]
    steps["master"] = masters[tree.communication.type_index[small]]
    key = small.astype(np.uint64) << np.uint64(32) | launches.context_id[chosen]
    _copy(steps, "told", records.tasks, find(records.task_key, key))
    _copy(steps, "operator", records.operators, find(records.operator_node, node))
    return chosen, steps


def _copy(steps: Rows, what: str, records: Records, row: NDArray[np.int64]) -> None:
    """Copy the fields of records to the steps that have one."""
    has = np.flatnonzero(row != MISSING)
    steps[f"has_{what}"][has] = True
    for name in steps[what].dtype.names or ():
        steps[what][name][has] = records[name][row[has]]


FINE_PARTS = 1024
"""Bandwidths come from times with this resolution below a nanosecond, as the exporter's do."""

_CLOSING_TASKS = 4
_CLOSING_TASKS_ONE_WAY = 2
_ONE_WAY = ("send", "receive")

_PASSED_OVER = -1e9
"""The exporter's bandwidth, -1 GB/s, of payloads that it never came to."""


def closing_tasks(operator_names: list[str]) -> NDArray[np.int64]:
    """Return how many tasks close an RDMA transfer of each operator.

    A notify and its acknowledgement; twice, but for operators that go one way.
    """
    return np.array(
        [
            _CLOSING_TASKS_ONE_WAY if any(word in name for word in _ONE_WAY) else _CLOSING_TASKS
            for name in operator_names
        ],
        np.int64,
    )


def bandwidth(
    operator: NDArray[np.int64],
    plane: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    payload: NDArray[np.bool_],
    closing: NDArray[np.int64],
    *,
    one_by_one: bool = False,
) -> NDArray[np.float64]:
    """Return bytes per second of every task; the payloads of one RDMA transfer share theirs.

    A transfer is a run of payloads, in time order on one plane of one operator, and the tasks
    that close it. Where it is not closed, each payload is a transfer of its own.

    Args:
        operator: number of each task's operator.
        plane: its plane.
        start: when it started, in 1 / FINE_PARTS ns.
        end: when it ended.
        size: bytes, -1 when unknown.
        payload: whether it is an RDMA payload.
        closing: of `closing_tasks`, for its operator.
        one_by_one: whether the exporter goes from transfer to transfer, so that payloads among
            the tasks that close one have no bandwidth (`_PASSED_OVER`). Else each run of payloads
            is closed by what follows it, whatever else that closes.
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
        first, last, passed_over = _one_by_one(first, last, closing[order], lane_end)
        moved[order[passed_over]] = _PASSED_OVER
    end_of_transfer = last + closing[order][first]
    whole = end_of_transfer <= lane_end[first]
    first, last, end_of_transfer = first[whole], last[whole], end_of_transfer[whole]
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
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    payload: NDArray[np.bool_],
    closing: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return bytes per second of tasks that transfers take in the order of the rows.

    Transfers are as in `bandwidth`, one by one, but payloads among the tasks that close one have
    0. Rows need not be in the order of time, and where they are not a bandwidth is negative: that
    of the exporter, which does not sort what AI CPUs record.

    Args:
        lane: columns whose equal rows share a lane.
        start: when each task started, in 1 / FINE_PARTS ns.
        end: when it ended.
        size: bytes, -1 when unknown.
        payload: whether it is an RDMA payload.
        closing: how many tasks close a transfer, of the lane of each row.
    """
    duration_ns = (end - start) / FINE_PARTS
    moved = size / np.where(duration_ns != 0, duration_ns, np.inf) * 1e9
    order = np.lexsort(lane)
    lanes = Runs(*(column[order] for column in lane))
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    chosen = payload[order][runs.starts]
    first, last, passed_over = _one_by_one(
        runs.starts[chosen], runs.last[chosen], closing[order], lane_end
    )
    moved[order[passed_over]] = 0.0
    closed = last + closing[order][first]
    whole = closed <= lane_end[first]
    for begin, until, closer in zip(
        first[whole].tolist(), last[whole].tolist(), closed[whole].tolist(), strict=True
    ):
        members = order[begin : until + 1]
        time_ns = (int(end[order[closer]]) - int(start[members[0]])) / FINE_PARTS
        moved[members] = int(size[members].sum()) / time_ns * 1e9 if time_ns else 0.0
    return np.asarray(moved, np.float64)


def _one_by_one(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    closing: NDArray[np.int64],
    lane_end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Take runs of payloads in their order, each beyond the tasks that close the one before.

    Returns:
        First and last task of what is left of the runs, and the payloads passed over.
    """
    runs: list[tuple[int, int]] = []
    passed_over: list[int] = []
    covered = -1
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        passed_over += range(begin, min(covered, end) + 1)
        begin = max(begin, covered + 1)
        if begin > end:
            continue
        runs.append((begin, end))
        closed = end + int(closing[begin])
        if closed <= lane_end[begin]:
            covered = closed
    left = np.array(runs, np.int64).reshape(-1, 2)
    return left[:, 0], left[:, 1], np.array(passed_over, np.int64)
