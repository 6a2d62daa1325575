"""What the host recorded about collective operators and their tasks, launch by launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import find
from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.api_events import COMMUNICATION
from unified_prof.decoders.prof.host.call_tree import NOWHERE, CallTree, Intervals
from unified_prof.decoders.prof.host.compute_info import HostKnowledge
from unified_prof.decoders.prof.host.launches import MISSING, Launches
from unified_prof.decoders.prof.raw.dictionaries import Dictionaries
from unified_prof.decoders.prof.raw.layouts import record_type
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.decoders.prof.raw.timeline import Timeline
from unified_prof.decoders.rows import Rows

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
