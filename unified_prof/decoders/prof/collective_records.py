"""Host and AI CPU records of collectives; host records are joined with launches of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Runs, find
from unified_prof.base.columns import Sink, count_marked
from unified_prof.decoders.prof.compute_info import HostData
from unified_prof.decoders.prof.directory import DeviceDirectory, Dictionaries
from unified_prof.decoders.prof.host_events import Launches
from unified_prof.decoders.prof.host_records import (
    COMMUNICATION,
    CallTree,
    Timeline,
    in_calls,
    last_in_calls,
)
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.task_log import Flips
from unified_prof.decoders.spool import Rows, row_type, stacked

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
    row, records = in_calls(tree.communication, tasks, "hccl_info", sink)
    records = records["record"]
    task_key = row.astype(np.uint64) << np.uint64(32) | records["context_id"]
    order = np.argsort(task_key, kind="stable")
    last = order[Runs(task_key[order]).last]
    node, found = last_in_calls(tree.node, operators, "hccl_op_info", sink)
    return CommunicationRecords(records[last], task_key[last], found["record"], node)


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


_OPERATOR, _FLIP, _BOUND, _TASKS = 10, 11, 12, 13  # Kinds of records of AI CPUs.
_HEAD_BYTES, _TASKS_OF_A_RECORD = 24, 2  # Head of a record of tasks, which follow it.


@dataclass(frozen=True, slots=True)
class AicpuRecords:
    """AI CPU records of one device."""

    # Tasks launched by AI CPU kernels, sorted by stream (in order of first occurrence) and time.
    tasks: Rows
    operators: Rows  # Operators that ran in kernels, sorted by time.
    bounds: Rows  # First and last tasks of operators, sorted by time.
    flips: Flips  # Wrap-arounds of the task ids of kernels.

    def __len__(self) -> int:
        return len(self.tasks) + len(self.operators) + len(self.bounds)


def read_aicpu(device: DeviceDirectory, sink: Sink) -> AicpuRecords:
    """Read the records of collectives on the AI CPUs of a device.

    Raises:
        RawFormatError: the file cannot be read.
    """
    file = device.data.get("aicpu")
    if not device.runs_collectives_on_cpus:
        file = None
    parts: dict[int, list[Rows]] = {_OPERATOR: [], _FLIP: [], _BOUND: [], _TASKS: []}
    for piece in file.pieces("aicpu", magic=HOST_MAGIC) if file is not None else ():
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
