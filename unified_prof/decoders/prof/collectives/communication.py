"""COMMUNICATION_OP and COMMUNICATION_TASK_INFO: collective operators and their device tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import find
from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.communication_records import CommunicationRecords
from unified_prof.decoders.prof.collectives.transfers import FINE_PARTS, bandwidth, closing_tasks
from unified_prof.decoders.prof.host.api_events import COMMUNICATION
from unified_prof.decoders.prof.host.call_tree import NOWHERE
from unified_prof.decoders.prof.host.compute_info import HostKnowledge
from unified_prof.decoders.prof.host.launches import MISSING, Launches
from unified_prof.decoders.prof.raw.clocks import LinearClock
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.timeline import Timeline
from unified_prof.vocabulary import NO_RANK, NOT_AVAILABLE, TYPE_INVALID, TYPE_NOT_AVAILABLE

_MASTER = "master"
_SCHEDULE_SUFFIX = "AicpuKernel"
FINE_ORIGIN_NS = 10**15
_ITERATION = 1
"""Nothing in a recording with several iterations changes what the exporter writes here."""
_RDMA, _PAYLOAD = 1, 1
# The exporter evaluates this platform by another program, which closes transfers differently.
_NATIVE_PLATFORM = 5


@dataclass(frozen=True, slots=True)
class CommunicationTimes:
    """Intervals of collective operators on one device, ns."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    id_by_name: Mapping[str, int] = field(default_factory=dict)
    """opId of the operators that were asked for by name and have a row."""

    @classmethod
    def none(cls) -> CommunicationTimes:
        """Return no intervals."""
        none = np.zeros(0, np.int64)
        return cls(none, none)


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Device tasks that may belong to collectives; columns of one length."""

    launch: NDArray[np.int64]
    """Row in `Launches`, MISSING for tasks unknown to the host."""
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    global_task_id: NDArray[np.int64]
    start: NDArray[np.uint64]
    """Device counter."""
    end: NDArray[np.uint64]
    clock: LinearClock
    """Of the device counter."""


class CommunicationWriter:
    """Writes the collectives of a recording, one device after another."""

    def __init__(
        self,
        host: HostDirectory,
        records: CommunicationRecords,
        knowledge: HostKnowledge,
        call_types: list[tuple[int, int]],
        timeline: Timeline,
        sink: Sink,
    ) -> None:
        self._host, self._records, self._knowledge = host, records, knowledge
        self._timeline, self._sink = timeline, sink
        self._next_operator_id = 0
        self._master_types = np.array(
            [
                level == COMMUNICATION and knowledge.dictionaries.type_name(level, kind) == _MASTER
                for level, kind in call_types
            ],
            bool,
        )

    def write(
        self,
        device_id: int,
        launches: Launches,
        rows: DeviceRows,
        flags: Mapping[str, tuple[int, int]] | None = None,
    ) -> CommunicationTimes:
        """Write the operators and tasks of one device; returns when operators were running.

        Args:
            device_id: the device.
            launches: what was launched for it.
            rows: its tasks.
            flags: relay and retry, by full name, of operators that the device describes.
        """
        tasks = self._tasks(launches, rows)
        if not len(tasks.node):
            return CommunicationTimes.none()
        operators = self._operators(tasks)
        self._write_tasks(tasks, operators)
        return self._write_operators(device_id, tasks, operators, flags or {})

    def take_ids(self, count: int) -> NDArray[np.int64]:
        """Return opIds that no operator of the host has."""
        ids = np.arange(self._next_operator_id, self._next_operator_id + count)
        self._next_operator_id += count
        return ids

    def _tasks(self, launches: Launches, rows: DeviceRows) -> _Tasks:
        origin_ns = self._host.session.start_ns - FINE_ORIGIN_NS
        clock = rows.clock.finer(FINE_PARTS, origin_ns)
        known = np.flatnonzero(rows.launch != MISSING)
        launch = rows.launch[known]
        host_task = launches.task[launch]
        small = launches.tasks.communication[host_task]
        node = launches.tasks.node[host_task]
        inside = (small != NOWHERE) & (node != NOWHERE) & ~launches.placeholder[launch]
        known, launch, host_task = known[inside], launch[inside], host_task[inside]
        small, node = small[inside].astype(np.int64), node[inside].astype(np.int64)
        key = small.astype(np.uint64) << np.uint64(32) | launches.context_id[launch]
        info = find(self._records.task_key, key)
        operator = find(self._records.operator_node, node)
        launched = launches.tasks.key[host_task]
        return _Tasks(
            node,
            small,
            info,
            operator,
            launched,
            rows.start_ns[known],
            rows.end_ns[known],
            rows.global_task_id[known],
            clock.to_ns(rows.start[known]),
            clock.to_ns(rows.end[known]),
        )

    def _operators(self, tasks: _Tasks) -> _Operators:
        """Tell the operators apart: the tasks of one NODE call and one group are one operator."""
        group = np.zeros(len(tasks.node), np.uint64)
        has_operator = tasks.operator != MISSING
        group[has_operator] = self._records.operators["group_name"][tasks.operator[has_operator]]
        has_info = tasks.info != MISSING
        group[has_info] = self._records.tasks["group_name"][tasks.info[has_info]]
        grouped = has_info | has_operator
        order = np.lexsort((group, grouped, tasks.node))
        runs = Runs(tasks.node[order], group[order], grouped[order])
        of_task = np.empty(len(order), np.int64)
        of_task[order] = runs.number()
        first = order[runs.starts]
        return self._named(_Operators(of_task, tasks.node[first], group[first], grouped[first]))

    def _named(self, operators: _Operators) -> _Operators:
        knowledge, dictionaries = self._knowledge, self._knowledge.dictionaries
        nodes = knowledge.tree.node
        items = knowledge.calls_items[nodes.item[operators.node]].tolist()
        texts = [dictionaries.text(item) for item in items]
        suffixes = [
            str(group)[-3:] if grouped else NOT_AVAILABLE[-3:]
            for group, grouped in zip(
                operators.group.tolist(), operators.grouped.tolist(), strict=True
            )
        ]
        scheduled = np.array([text.endswith(_SCHEDULE_SUFFIX) for text in texts], bool)
        begin = self._timeline.ticks(nodes.begin[operators.node])
        early = self._host.clocks.host.to_ns(begin) < self._host.session.start_ns
        order = np.lexsort((begin, operators.group, operators.grouped, scheduled))
        counters = Runs(scheduled[order], operators.group[order], operators.grouped[order])
        counted: NDArray[np.int64] = np.cumsum(~early[order]) - ~early[order]
        number = np.empty(len(order), np.int64)
        number[order] = counted - counters.spread(counted[counters.starts])
        operators.names = [
            f"{text}_{suffix}_{index}_{_ITERATION}"
            for text, suffix, index in zip(texts, suffixes, number.tolist(), strict=True)
        ]
        operators.name_id = self._sink.strings.intern_all(operators.names)
        operators.id = self.take_ids(len(order))
        return operators

    def _write_tasks(self, tasks: _Tasks, operators: _Operators) -> None:
        sink, dictionaries = self._sink, self._knowledge.dictionaries
        records = self._records.tasks
        has_info = tasks.info != MISSING
        info = records[tasks.info[has_info]]
        none = sink.strings.intern(NOT_AVAILABLE)
        count = len(tasks.node)

        def column(field: str, missing: int, *, enum: bool = False) -> NDArray[np.int64]:
            values = np.full(count, missing, np.int64)
            found = info[field].astype(np.int64)
            values[has_info] = np.minimum(found, TYPE_INVALID) if enum else found
            return values

        task_type = np.full(count, none, np.int64)
        task_type[has_info] = dictionaries.string_ids(sink.strings, info["item_id"])
        group_name = self._group_names(operators, none)[operators.of_task]
        size = column("size_bytes", -1)
        plane = column("plane_id", NO_RANK)
        columns: dict[str, Any] = {
            "name": operators.name_id[operators.of_task],
            "globalTaskId": tasks.global_task_id,
            "taskType": task_type,
            "planeId": plane,
            "groupName": group_name,
            "notifyId": column("notify_id", -1),
            "rdmaType": column("rdma_type", TYPE_NOT_AVAILABLE, enum=True),
            "srcRank": column("local_rank", NO_RANK),
            "dstRank": column("remote_rank", NO_RANK),
            "transportType": column("transport_type", TYPE_NOT_AVAILABLE, enum=True),
            "size": size,
            "dataType": column("data_type", TYPE_NOT_AVAILABLE, enum=True),
            "linkType": column("link_type", TYPE_NOT_AVAILABLE, enum=True),
            "opId": operators.id[operators.of_task],
            "isMaster": self._is_master(tasks).astype(np.int64),
        }
        payload = (columns["transportType"] == _RDMA) & (columns["rdmaType"] == _PAYLOAD)
        columns["bandwidth"] = bandwidth(
            operators.of_task,
            plane,
            tasks.start,
            tasks.end,
            size,
            payload,
            closing_tasks(operators.names)[operators.of_task],
            one_by_one=self._host.platform != _NATIVE_PLATFORM,
        )
        sink.write("COMMUNICATION_TASK_INFO", columns)

    def _group_names(self, operators: _Operators, none: int) -> NDArray[np.int64]:
        ids = np.full(len(operators.node), none, np.int64)
        ids[operators.grouped] = self._knowledge.dictionaries.string_ids(
            self._sink.strings, operators.group[operators.grouped]
        )
        return ids

    def _is_master(self, tasks: _Tasks) -> NDArray[np.bool_]:
        """Tell which tasks were launched by a call of the master kind."""
        small = self._knowledge.tree.communication
        return self._master_types[small.type_index[tasks.small]]

    def _write_operators(
        self,
        device_id: int,
        tasks: _Tasks,
        operators: _Operators,
        flags: Mapping[str, tuple[int, int]],
    ) -> CommunicationTimes:
        """Write operators that have a master task: they last from its first to its last one."""
        sink, dictionaries, knowledge = self._sink, self._knowledge.dictionaries, self._knowledge
        count = len(operators.node)
        master = self._is_master(tasks)
        start = np.full(count, np.iinfo(np.int64).max)
        end = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(start, operators.of_task[master], tasks.start_ns[master])
        np.maximum.at(end, operators.of_task[master], tasks.end_ns[master])
        record = find(self._records.operator_node, operators.node)
        has_record = record != MISSING
        found = self._records.operators[record[has_record]]
        none = sink.strings.intern(NOT_AVAILABLE)

        def column(values: NDArray[Any], missing: int) -> NDArray[np.int64]:
            result = np.full(count, missing, np.int64)
            result[has_record] = values
            return result

        def names(field: str) -> NDArray[np.int64]:
            return column(dictionaries.string_ids(sink.strings, found[field]), none)

        algorithm = names("alg_type")
        unnamed = np.flatnonzero(has_record)[found["alg_type"] == 0]
        algorithm[unnamed] = sink.strings.intern("NA")
        described = knowledge.descriptions.described[operators.node] & ~np.bool_(knowledge.level0)
        op_type = np.full(count, none, np.int64)
        hashes = knowledge.descriptions.hashes
        op_type[described] = dictionaries.string_ids(
            sink.strings, hashes[knowledge.descriptions.op_type[operators.node[described]]]
        )
        columns: dict[str, NDArray[Any]] = {
            "opName": operators.name_id,
            "startNs": start,
            "endNs": end,
            "connectionId": knowledge.tree.node.connection_id[operators.node],
            "groupName": names("group_name"),
            "opId": operators.id,
            "relay": column(found["flags"] & 1, -1),
            "retry": column(found["flags"] >> 1 & 1, -1),
            "dataType": column(found["data_type"], TYPE_NOT_AVAILABLE),
            "algType": algorithm,
            "count": column(found["count"].astype(np.int64), -1),
            "opType": op_type,
            "deviceId": np.full(count, device_id),
            "rankSize": self._rank_sizes(tasks, operators),
        }
        has_master = np.zeros(count, bool)
        has_master[operators.of_task[master]] = True
        kept = np.flatnonzero(has_master)
        ids: dict[str, int] = {}
        for index in kept.tolist() if flags else ():
            name = operators.names[index]
            if name in flags:
                ids[name] = int(operators.id[index])
                columns["relay"][index], columns["retry"][index] = flags[name]
        if len(kept):
            sink.write("COMMUNICATION_OP", {name: values[kept] for name, values in columns.items()})
        return CommunicationTimes(start[kept], end[kept], ids)

    def _rank_sizes(self, tasks: _Tasks, operators: _Operators) -> NDArray[np.int64]:
        """Return the rank size that the last launched task of each call tells, else 0."""
        sizes = np.zeros(len(tasks.node), np.int64)
        has_info = tasks.info != MISSING
        sizes[has_info] = self._records.tasks["rank_size"][tasks.info[has_info]]
        order = np.lexsort((tasks.launched, tasks.node))
        last = order[Runs(tasks.node[order]).last]
        return sizes[last][np.searchsorted(tasks.node[last], operators.node)]


@dataclass(slots=True)
class _Tasks:
    """Device tasks of collectives; columns of one length."""

    node: NDArray[np.int64]
    small: NDArray[np.int64]
    """Row of the communication call."""
    info: NDArray[np.int64]
    """Row of the hccl_info record, or MISSING."""
    operator: NDArray[np.int64]
    """Row of the hccl_op_info record, or MISSING."""
    launched: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    global_task_id: NDArray[np.int64]
    start: NDArray[np.int64]
    """In the resolution that bandwidths are computed from."""
    end: NDArray[np.int64]


@dataclass(slots=True)
class _Operators:
    """Collective operators of one device; all columns but the first have one length."""

    of_task: NDArray[np.int64]
    node: NDArray[np.int64]
    group: NDArray[np.uint64]
    grouped: NDArray[np.bool_]
    """False: neither the operator nor its tasks name a group."""
    names: list[str] = field(default_factory=list)
    name_id: Any = None
    id: Any = None
