"""COMMUNICATION_OP and COMMUNICATION_TASK_INFO: collective operators and their device tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.transfers import FINE_PARTS, bandwidth, closing_tasks
from unified_prof.decoders.prof.raw.clocks import LinearClock
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.rows import Rows
from unified_prof.vocabulary import NO_RANK, NOT_AVAILABLE, TYPE_INVALID, TYPE_NOT_AVAILABLE

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
class Steps:
    """Steps of collectives that ran on one device, by start; columns of one length."""

    told: Rows
    """Of `communication_records.STEP`."""
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    global_task_id: NDArray[np.int64]
    start: NDArray[np.uint64]
    """Device counter."""
    end: NDArray[np.uint64]


class CommunicationWriter:
    """Writes the collectives of a recording, one device after another."""

    def __init__(self, host: HostDirectory, sink: Sink) -> None:
        self._host, self._sink = host, sink
        self._next_operator_id = 0

    def write(
        self,
        device_id: int,
        steps: Steps,
        clock: LinearClock,
        flags: Mapping[str, tuple[int, int]] | None = None,
    ) -> CommunicationTimes:
        """Write the operators and tasks of one device; returns when operators were running.

        Args:
            device_id: the device.
            steps: what it ran of them.
            clock: of the device counter.
            flags: relay and retry, by full name, of operators that the device describes.
        """
        if not len(steps.told):
            return CommunicationTimes.none()
        operators = self._operators(steps.told)
        self._write_tasks(steps, operators, clock)
        return self._write_operators(device_id, steps, operators, flags or {})

    def take_ids(self, count: int) -> NDArray[np.int64]:
        """Return opIds that no operator of the host has."""
        ids = np.arange(self._next_operator_id, self._next_operator_id + count)
        self._next_operator_id += count
        return ids

    def _operators(self, told: Rows) -> _Operators:
        """Tell the operators apart: the tasks of one NODE call and one group are one operator."""
        group = np.zeros(len(told), np.uint64)
        for what in ("operator", "told"):
            has = told[f"has_{what}"]
            group[has] = told[what]["group_name"][has]
        grouped = told["has_told"] | told["has_operator"]
        order = np.lexsort((group, grouped, told["node"]))
        runs = Runs(told["node"][order], group[order], grouped[order])
        of_task = np.empty(len(order), np.int64)
        of_task[order] = runs.number()
        first = order[runs.starts]
        return self._named(_Operators(of_task, told[first], group[first], grouped[first]))

    def _named(self, operators: _Operators) -> _Operators:
        texts = [self._host.dictionaries.text(item) for item in operators.told["item"].tolist()]
        suffixes = [
            str(group)[-3:] if grouped else NOT_AVAILABLE[-3:]
            for group, grouped in zip(
                operators.group.tolist(), operators.grouped.tolist(), strict=True
            )
        ]
        scheduled = np.array([text.endswith(_SCHEDULE_SUFFIX) for text in texts], bool)
        begin = operators.told["begin"]
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

    def _write_tasks(self, tasks: Steps, operators: _Operators, clock: LinearClock) -> None:
        sink, dictionaries = self._sink, self._host.dictionaries
        has_info = tasks.told["has_told"]
        info = tasks.told["told"][has_info]
        none = sink.strings.intern(NOT_AVAILABLE)
        count = len(tasks.told)

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
            "isMaster": tasks.told["master"].astype(np.int64),
        }
        payload = (columns["transportType"] == _RDMA) & (columns["rdmaType"] == _PAYLOAD)
        fine = clock.finer(FINE_PARTS, self._host.session.start_ns - FINE_ORIGIN_NS)
        columns["bandwidth"] = bandwidth(
            operators.of_task,
            plane,
            fine.to_ns(tasks.start),
            fine.to_ns(tasks.end),
            size,
            payload,
            closing_tasks(operators.names)[operators.of_task],
            one_by_one=self._host.platform != _NATIVE_PLATFORM,
        )
        sink.write("COMMUNICATION_TASK_INFO", columns)

    def _group_names(self, operators: _Operators, none: int) -> NDArray[np.int64]:
        ids = np.full(len(operators.told), none, np.int64)
        ids[operators.grouped] = self._host.dictionaries.string_ids(
            self._sink.strings, operators.group[operators.grouped]
        )
        return ids

    def _write_operators(
        self,
        device_id: int,
        tasks: Steps,
        operators: _Operators,
        flags: Mapping[str, tuple[int, int]],
    ) -> CommunicationTimes:
        """Write operators that have a master task: they last from its first to its last one."""
        sink, dictionaries = self._sink, self._host.dictionaries
        count = len(operators.told)
        master = tasks.told["master"]
        start = np.full(count, np.iinfo(np.int64).max)
        end = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(start, operators.of_task[master], tasks.start_ns[master])
        np.maximum.at(end, operators.of_task[master], tasks.end_ns[master])
        has_record = operators.told["has_operator"]
        found = operators.told["operator"][has_record]
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
        described = operators.told["described"]
        op_type = np.full(count, none, np.int64)
        op_type[described] = dictionaries.string_ids(
            sink.strings, operators.told["op_type"][described]
        )
        columns: dict[str, NDArray[Any]] = {
            "opName": operators.name_id,
            "startNs": start,
            "endNs": end,
            "connectionId": operators.told["node"].copy(),
            "groupName": names("group_name"),
            "opId": operators.id,
            "relay": column(found["flags"] & 1, -1),
            "retry": column(found["flags"] >> 1 & 1, -1),
            "dataType": column(found["data_type"], TYPE_NOT_AVAILABLE),
            "algType": algorithm,
            "count": column(found["count"].astype(np.int64), -1),
            "opType": op_type,
            "deviceId": np.full(count, device_id),
            "rankSize": _rank_sizes(tasks.told, operators),
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


def _rank_sizes(told: Rows, operators: _Operators) -> NDArray[np.int64]:
    """Return the rank size that the last launched task of each call tells, else 0."""
    sizes = np.where(told["has_told"], told["told"]["rank_size"], 0).astype(np.int64)
    order = np.lexsort((told["launched"], told["node"]))
    last = order[Runs(told["node"][order]).last]
    return sizes[last][np.searchsorted(told["node"][last], operators.told["node"])]


@dataclass(slots=True)
class _Operators:
    """Collective operators of one device; all columns but the first have one length."""

    of_task: NDArray[np.int64]
    told: Rows
    """Of any task of each."""
    group: NDArray[np.uint64]
    grouped: NDArray[np.bool_]
    """False: neither the operator nor its tasks name a group."""
    names: list[str] = field(default_factory=list)
    name_id: Any = None
    id: Any = None
