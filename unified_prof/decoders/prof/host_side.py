"""Decodes the host side of a recording: calls, launches by device, and lost records.

Several kinds of records describe a call. If a call has one kind and lacks another one that always
comes with it, a record was lost. Launches outside NODE calls have one kind of record only, so their
loss cannot be distinguished from a recording in which nothing was launched.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Runs, find
from unified_prof.base.columns import Sink, Stage
from unified_prof.decoders.prof import host_events, operators
from unified_prof.decoders.prof.collectives import CommunicationWriter
from unified_prof.decoders.prof.compute_info import (
    KERNEL,
    LAUNCHED,
    HostData,
    Launched,
    operators_of,
)
from unified_prof.decoders.prof.directory import Dictionaries, HostDirectory
from unified_prof.decoders.prof.host_events import (
    LAUNCH,
    HostTasks,
    Launches,
    launches_of,
    locate_calls,
    read_collective_streams,
    read_host_tasks,
    streams,
    without_lost_calls,
    without_repeats,
)
from unified_prof.decoders.prof.host_records import (
    CALL,
    COMMUNICATION,
    CallTree,
    CallWriter,
    HostWindow,
    Keys,
    Timeline,
    host_records,
    host_windows,
    in_calls,
    last_in_calls,
    read_calls,
    spool_records,
)
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.operators import (
    Descriptions,
    HashTexts,
    ListTexts,
    read_captured,
    read_captures,
)
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.spool import Rows, put, row_type, windows

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


class CommunicationRecords(Struct, frozen=True):
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


_MIX = np.uint64(0x9E3779B97F4A7C15)
_MANY = 1 << 32
# Minimum operators of a type with the same number of tensors: fewer may be equal by chance.
_MIN_EQUAL = 4


class LostRecords:
    """Counts lost records window by window."""

    def __init__(self, elsewhere: Keys) -> None:
        """`elsewhere` are the launches on other processors than NPUs."""
        self._elsewhere = elsewhere
        self._launches = self._launched = self._descriptions = 0
        # By operator type: calls without and with tensors, smallest and largest number of tensors.
        self._types = _empty_types(0)
        # By place in collectives with the same tasks: key, calls, calls with a record.
        self._places: list[tuple[NDArray[np.uint64], Ints, Ints]] = []

    def add(
        self, tasks: HostTasks, tree: CallTree, about: Descriptions, records: CommunicationRecords
    ) -> None:
        """Add the calls of one window with their records."""
        has_details = (about.tensors > 0) | (about.attribute > 0)
        has_details |= _mask(len(tree.node), records.operator_node)
        self._descriptions += int((has_details & ~about.described).sum())
        in_node = tree.node.find(tree.communication.end)
        has_record = _mask(len(tree.communication), (records.task_key >> np.uint64(32)))
        launching = np.concatenate([tasks.node, tree.node.find(self._elsewhere)])
        launches = _mask(len(tree.node), launching)
        is_operator = has_details | about.described
        self._launches += int((is_operator & ~launches).sum())
        self._launched += int((is_operator & launches).sum())
        launches = _mask(len(tree.communication), tasks.communication)
        self._launches += int((has_record & ~launches & (in_node != NOWHERE)).sum())
        self._add_operators(about)
        self._add_collectives(tree, in_node, has_record)

    def report(self, sink: Sink) -> None:
        """Count all lost records as anomalies."""
        without, with_tensors, least, largest = self._types
        lost = (least == largest) & (with_tensors >= np.maximum(without, _MIN_EQUAL))
        # If most operators launch nothing, they may run in graphs.
        launches = self._launches * (self._launches <= self._launched)
        found = {
            "task_track": (launches, "calls with a description but without a launch"),
            "node_basic_info": (
                self._descriptions,
                "calls with tensors, attributes or a collective, but without an operator",
            ),
            "tensor_info": (
                int(without[lost].sum()),
                "operators without tensors, although the others of their type have some",
            ),
            "hccl_info": (self._lost_places(), "tasks that equal collectives describe"),
        }
        for kind, (count, detail) in found.items():
            sink.anomaly(f"lost_{kind}", count, detail)

    def _add_operators(self, about: Descriptions) -> None:
        size = len(about.hashes)
        if size > self._types.shape[1]:
            more = _empty_types(size - self._types.shape[1])
            self._types = np.concatenate([self._types, more], axis=1)
        kind, lists = about.op_type[about.described], about.tensors[about.described]
        distinct, row = np.unique(lists, return_inverse=True)
        number = about.tensor_texts.numbers(distinct)[row]
        has = number > 0
        without, with_tensors, least, largest = self._types
        without += np.bincount(kind[~has], minlength=len(without))
        with_tensors += np.bincount(kind[has], minlength=len(without))
        np.minimum.at(least, kind[has], number[has])
        np.maximum.at(largest, kind[has], number[has])

    def _add_collectives(self, tree: CallTree, in_node: Ints, has_record: Bools) -> None:
        inside = np.flatnonzero(in_node != NOWHERE)
        if not len(inside):
            return
        inside = inside[np.argsort(in_node[inside], kind="stable")]
        calls = tree.communication.take(inside)
        steps = Runs(in_node[inside])
        place = (steps.rank().astype(np.uint64) + np.uint64(1)) * _MIX
        # The names and kinds of all tasks of the collective, in order.
        step = (calls.item.astype(np.uint64) << np.uint64(16) | calls.type_index) + np.uint64(1)
        step = (step * _MIX ^ place) * _MIX
        key = steps.spread(np.add.reduceat(step ^ step >> np.uint64(29), steps.starts)) ^ place
        self._places.append(_summed(key, np.ones(len(key), np.int64), has_record[inside] * 1))

    def _lost_places(self) -> int:
        if not self._places:
            return 0
        columns = map(np.concatenate, zip(*self._places, strict=True))
        _, calls, described = _summed(*columns)
        lost = calls - described
        return int(lost[described > lost].sum())


def _empty_types(count: int) -> Ints:
    result = np.zeros((4, count), np.int64)
    result[2] = _MANY
    return result


def _mask(count: int, rows: NDArray[np.integer]) -> Bools:
    result = np.zeros(count + 1, bool)  # the last is NOWHERE
    result[rows.astype(np.int64)] = True
    return result[:-1]


def _summed(
    key: NDArray[np.uint64], calls: Ints, described: Ints
) -> tuple[NDArray[np.uint64], Ints, Ints]:
    """Return the distinct keys and the sums of the other columns."""
    keys = np.unique(key)
    row = find(keys, key)
    return (
        keys,
        np.bincount(row, calls, len(keys)).astype(np.int64),
        np.bincount(row, described, len(keys)).astype(np.int64),
    )


_LEVEL0 = ("l0", "level0")


class HostSide:
    """Reads host records of device work, and writes CANN_API in the same pass.

    Use as a context manager; temporary files are removed on exit.
    """

    def __init__(self, host: HostDirectory, sink: Sink, stage: Stage, workspace: Workspace) -> None:
        self.host, self._sink, self._workspace = host, sink, workspace
        self._stack = ExitStack()
        self._timeline = Timeline(host.clocks.host_origin_ticks)
        self.launched_on: dict[int, Launched] = {}  # Launches by device.
        try:
            self._read(stage)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> HostSide:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def launched(self, device_id: int) -> Launched:
        """Return the launches for one device."""
        if device_id not in self.launched_on:
            self.launched_on[device_id] = self._stack.enter_context(
                Launched(self.types, STEP, self._workspace)
            )
        return self.launched_on[device_id]

    def _read(self, stage: Stage) -> None:
        host, timeline, sink = self.host, self._timeline, self._sink
        with ExitStack() as reading:
            calls, *others = (
                reading.enter_context(self._workspace.spool(dtype))
                for dtype in (
                    *(CALL, LAUNCH, operators.CONTEXTS, host_events.SIZES, operators.DESCRIBED),
                    *(operators.ATTRIBUTES, operators.TENSORS),
                    *(TASKS, OPERATORS),
                )
            )
            tasks, contexts, sizes, described, attributes, tensors, steps, collected = others
            with stage("calls"):
                self.names = read_calls(host, timeline, calls, sink)
            with stage("launches"):
                self.types, self._rounds, elsewhere = read_host_tasks(host, timeline, tasks, sink)
                spool_records(host, "additional", "context_id_info", timeline, contexts, sink)
                self.captures = read_captures(host, timeline, sink)
                spool_records(host, "compact", "memcpy_info", timeline, sizes, sink)
                if self._rounds.looks_back:  # batches depend on later tasks
                    first_row = 0
                    for (rows,) in windows(tasks, window_rows=self._workspace.window_rows):
                        self._rounds.observe(*self._identity_columns(rows, first_row))
                        first_row += len(rows)
            with stage("operator descriptions"):
                self._hashes, self._texts = operators.read_descriptions(
                    host, timeline, described, attributes, tensors, sink
                )
                self.captured = read_captured(host, self._texts, sink)
                self.collective_streams = read_collective_streams(host, sink)
                spool_records(host, "additional", "hccl_info", timeline, steps, sink)
                spool_records(
                    *(host, "compact", "hccl_op_info", timeline, collected, sink),
                    current=lambda rows: current_operators(rows, host.dictionaries),
                )
            self.communication = CommunicationWriter(host, sink)
            self.expanded_streams = any(
                bool((records["expand_status"] == 1).any())
                for records in host_records(host, "compact", "expand_stream_spec", sink)
            )
            level = host.sample.text("profLevel") or host.sample.text("prof_level")
            self._level0 = level.lower() in _LEVEL0
            self._masters = master_types(self.names.type_pairs(), host.dictionaries)
            self._has_sizes = sizes.rows > 0
            strings = sink.strings
            self._names = HashTexts(host.dictionaries, strings)
            self._lists, self._captured_lists = (
                ListTexts(self._texts, strings, captured=captured) for captured in (False, True)
            )
            self._lost = LostRecords(elsewhere)
            with stage("host"):
                writer = CallWriter(self.names, host, timeline, sink)
                first_row = 0
                for window in host_windows(calls, others, self.names, self._workspace.window_rows):
                    writer.write(window.calls)
                    self._write_window(window, first_row)
                    first_row += len(window.others[0])
            self._lost.report(sink)

    def _identity_columns(self, rows: Rows, first: int) -> tuple[NDArray[Any], ...]:
        ticks = self._timeline.ticks(rows["key"])
        return streams(rows), rows["task_id"], ticks, np.arange(first, first + len(rows))

    def _write_window(self, window: HostWindow, first: int) -> None:
        """Decode the launches of a window and append them to the spools of their devices."""
        rows, contexts, sizes, described, attributes, tensors, steps, collected = window.others
        tree, sink = window.tree, self._sink
        tasks = HostTasks.from_rows(
            rows, self._rounds.batch_of(*self._identity_columns(rows, first))
        )
        tasks = without_repeats(tasks, sink)
        locate_calls(tasks, tree, self.names.items)
        tasks = without_lost_calls(tasks, tree, sink)
        node_contexts, communication_contexts = operators.contexts_of(
            contexts, tree.node, tree.communication, sink
        )
        host_data = HostData(
            self.names.items,
            tree,
            self.types,
            operators.describe(
                tree.node, described, attributes, tensors, self._hashes, self._texts, sink
            ),
            self._names,
            self._lists,
            self._captured_lists,
            self.collective_streams,
            self.captured,
            self._level0,
        )
        records = place_records(steps, collected, tree, sink)
        self._lost.add(tasks, tree, host_data.descriptions, records)
        for device_id in np.unique(tasks.device_id).tolist():
            launches = launches_of(
                tasks,
                device_id,
                self.types,
                node_contexts,
                communication_contexts,
                wide_task_ids=self.host.has_wide_task_ids,
            )
            launched = self.launched(device_id)
            self._append_launches(launches, host_data, records, launched)
            if self._has_sizes:
                launched.copies.append(
                    host_events.copies_of(
                        tasks,
                        device_id,
                        self.types,
                        sizes,
                        wide_task_ids=self.host.has_wide_task_ids,
                    )
                )

    def _append_launches(
        self,
        launches: Launches,
        host_data: HostData,
        records: CommunicationRecords,
        launched: Launched,
    ) -> None:
        tasks = launches.tasks
        rows = np.zeros(len(launches.key), LAUNCHED)
        rows["key"] = launches.key
        rows["launched"] = tasks.key[launches.task]
        rows["connection_id"] = tasks.connection_id[launches.task]
        rows["model_id"] = tasks.model_id[launches.task]
        rows["type_index"] = tasks.type_index[launches.task]
        rows["step"] = rows["kernel"] = NOWHERE
        chosen, steps = steps_of(launches, records, host_data, self._masters, self._timeline)
        rows["step"][chosen] = launched.add_steps(steps)
        chosen, found, hashes = operators_of(launches, host_data, self._sink)
        rows["is_operator"][chosen] = True
        put(rows, "operator", chosen, found)
        if self.host.has_one_core_kind:
            # There are no tasks of contexts: the whole task has the blocks of its operator.
            on_vector_cores = self.types.is_one_of("KERNEL_MIX_AIV")[tasks.type_index]
            row = launches.task[chosen]
            blocks = np.zeros(len(tasks), np.uint32)
            blocks[row] = np.where(on_vector_cores[row], found["mixBlockNum"], found["blockNum"])
            complete = np.flatnonzero(launches.placeholder)
            rows["operator"]["blockNum"][complete] = blocks[launches.task[complete]]
        scheduling = np.flatnonzero(found["scheduler"])
        if len(scheduling):
            kernels = np.zeros(len(scheduling), KERNEL)
            kernels["name"] = hashes[scheduling]
            kernels["op_type"] = found["opType"][scheduling]
            kernels["in_collective"], kernels["outer"] = _outer_collectives(
                launches, chosen[scheduling], host_data
            )
            rows["kernel"][chosen[scheduling]] = launched.add_kernels(kernels)
        if self.host.has_wide_task_ids:
            launched.add_streams(tasks.task_id, tasks.stream_id)
        launched.rows.append(rows)


def _outer_collectives(
    launches: Launches, chosen: Ints, host_data: HostData
) -> tuple[Bools, NDArray[np.uint64]]:
    """Return a mask of the launches inside a collective, and the hash of the collective's name.

    The collective is the call that encloses the NODE call, if it also launches collective tasks
    itself.
    """
    tasks, node = launches.tasks, host_data.tree.node
    collective = np.zeros(len(node) + 1, bool)  # the last is NOWHERE
    collective[tasks.node[tasks.communication != NOWHERE]] = True
    collective[-1] = False
    nodes = tasks.node[launches.task[chosen]]
    outer = np.full(len(nodes), NOWHERE, np.int64)
    placed = nodes != NOWHERE
    outer[placed] = node.find(node.begin[nodes[placed]])
    inside = collective[outer]
    result = np.zeros(len(nodes), np.uint64)
    result[inside] = host_data.calls_items[node.item[outer[inside]]]
    return inside, result
