"""Collectives that AI CPU kernels run on the device: which task belongs to which of them.

The host launches only the kernel. What the kernel then puts on the streams of its group is in the
device's log, and what it was for in the records of the AI CPUs. A task belongs to the operator of
its group that was running when the task ended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.aicpu_records import AicpuRecords
from unified_prof.decoders.prof.device.logged_tasks import TaskRows
from unified_prof.decoders.prof.device.task_log import C_CORE, type_name
from unified_prof.decoders.prof.host.call_tree import NOWHERE
from unified_prof.decoders.prof.host.compute_info import HostKnowledge, Schedulers
from unified_prof.decoders.prof.host.launches import MISSING, Launches
from unified_prof.decoders.prof.identity.task_keys import pack_keys, streams_of
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.vocabulary import NO_CONTEXT, NOT_AVAILABLE

_KERNEL = "AicpuKernel"
_NO_COLLECTIVES = ("hcomAicpuInit",)
_ITERATION = 1
_FIRST, _LAST = 0, 1


@dataclass(slots=True)
class Operator:
    """One collective: what its AI CPU kernel ran."""

    row: int
    """Of the kernel's task in `TaskRows`."""
    name: str
    op_type: int
    """Id of the text in the string pool."""
    group: int | None
    """Hash of the name of the group, None when nothing tells it."""
    connection_id: int
    start: int
    """Ticks of the device counter; from the first to the last task where records name these."""
    end: int
    of_host: bool = False
    """The kernel serves a collective that the host has a row for (source HCCL)."""
    relay: int = -1
    retry: int = -1


@dataclass(slots=True)
class Members:
    """Tasks of operators; columns of one length, in the order of their ends for each group."""

    operator: NDArray[np.int64]
    row: NDArray[np.int64]
    """In `TaskRows`."""
    record: NDArray[np.int64]
    """In `AicpuRecords.tasks`, MISSING where no task at all is described."""
    master: NDArray[np.bool_]
    plane: NDArray[np.int64]


@dataclass(slots=True)
class Collectives:
    """The collectives of one device that AI CPU kernels ran."""

    operators: list[Operator]
    members: Members
    record_row: NDArray[np.int64]
    """Of every record of a task: its row in `TaskRows`, MISSING where the log has no such task."""

    def flags(self) -> dict[str, tuple[int, int]]:
        """Return relay and retry by the full name of operators that the host may have too."""
        return {item.name: (item.relay, item.retry) for item in self.operators if item.of_host}


@dataclass(frozen=True, slots=True)
class Ground:
    """What the operators of one device are told from."""

    device: DeviceDirectory
    rows: TaskRows
    launches: Launches
    schedulers: Schedulers
    knowledge: HostKnowledge
    records: AicpuRecords
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    """As in `DeviceTasks`; empty but with 32-bit task ids."""

    @property
    def wide(self) -> bool:
        """Whether task ids have 32 bits."""
        return self.device.platform in V6_PLATFORMS


def find_collectives(ground: Ground, sink: Sink) -> Collectives | None:
    """Tell the collectives of a device and their tasks; None without any sign of one."""
    streams = ground.knowledge.collective_streams
    if not streams.of_kernels:
        if len(ground.records):
            sink.anomaly(
                "collective_without_streams",
                len(ground.records),
                "records of AI CPUs, of a group that no mc2_comm_info names",
            )
        return None
    record_row = _rows_of(ground, ground.records.tasks, sink)
    bounds = _Bounds(ground, record_row)
    operators = _operators(ground, bounds)
    members = _members(ground, operators, record_row, bounds)
    placed = np.unique(members.record[members.record != MISSING])
    if outside := int((record_row != MISSING).sum()) - len(placed):
        sink.anomaly("task_outside_collectives", outside, "tasks that AI CPUs launched")
    return Collectives(operators, members, record_row)


def _rows_of(ground: Ground, tasks: Records, sink: Sink) -> NDArray[np.int64]:
    """Return the row of the device's log of every record of a task."""
    batch = ground.records.flips.batch_of(
        tasks["stream_id"], tasks["task_id"] & 0xFFFF, tasks["timestamp"], at_flip=True
    )
    found = _find(ground, tasks["stream_id"], tasks["task_id"], batch)
    if lost := int((found == MISSING).sum()):
        sink.anomaly("aicpu_task_not_in_log", lost, "tasks that AI CPUs say they launched")
    return found


def _find(
    ground: Ground,
    stream: NDArray[np.generic],
    task: NDArray[np.generic],
    batch: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the rows of tasks in the log; those named several times are met in their order."""
    context = np.full(len(task), NO_CONTEXT, np.uint32)
    key = pack_keys(stream, task, batch, context, wide_task_ids=ground.wide)
    order = np.argsort(ground.rows.key, kind="stable")
    known = ground.rows.key[order]
    low = np.searchsorted(known, key, side="left")
    high = np.searchsorted(known, key, side="right")
    asked = np.argsort(key, kind="stable")
    rank = np.empty(len(key), np.int64)
    rank[asked] = Runs(key[asked]).rank()
    place = np.minimum(low + rank, high - 1)
    return np.where(high > low, np.r_[order, MISSING][place], MISSING)


class _Bounds:
    """Which task was the first and which the last of what a kernel ran, by the kernel's stream."""

    def __init__(self, ground: Ground, record_row: NDArray[np.int64]) -> None:
        records = ground.records.bounds
        records = records[np.isin(records["kind"], (_FIRST, _LAST))]
        stream, kernel_stream, task = self._identities(ground, records)
        batch = ground.records.flips.batch_of(
            stream, task & 0xFFFF, records["timestamp"], at_flip=True
        )
        row = _find(ground, stream, task, batch)
        row[~np.isin(row, record_row)] = MISSING  # a task that nothing describes bounds nothing
        self.first_rows: NDArray[np.int64] = row[(records["kind"] == _FIRST) & (row != MISSING)]
        self._by_stream: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for bound in zip(
            kernel_stream.tolist(),
            records["timestamp"].tolist(),
            records["kind"].tolist(),
            row.tolist(),
            strict=True,
        ):
            if bound[3] != MISSING:
                self._by_stream[bound[0]].append(bound[1:])

    @staticmethod
    def _identities(
        ground: Ground, records: Records
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the stream of each task, that of its kernel, and the task's id."""
        words = (
            records[name].astype(np.int64)
            for name in ("stream_id", "kernel_stream", "task_id", "kernel_task")
        )
        stream, kernel_stream, task, kernel_task = words
        if not ground.wide:
            return stream, kernel_stream, task
        task, kernel_task = task << 16 | stream, kernel_task << 16 | kernel_stream
        return (
            streams_of(ground.stream_by_task, task),
            streams_of(ground.stream_by_task, kernel_task),
            task,
        )

    def narrow(self, operator: Operator, stream: int, rows: TaskRows) -> None:
        """Let an operator last from its first task to its last one, where records name these."""
        bounds = self._by_stream.get(stream, [])
        low = bisect_left(bounds, (operator.start,))
        high = bisect_left(bounds, (operator.end + 1,))
        for _, kind, row in bounds[low:high]:
            if kind == _FIRST:
                operator.start = int(rows.start[row])
            operator.end = int(rows.end[row])


def _operators(ground: Ground, bounds: _Bounds) -> list[Operator]:
    """Return what the kernels of the device ran, by kernel, named and in the order of starts."""
    recorded = ground.records.operators
    by_stream: dict[int, list[Operator]] = defaultdict(list)
    for operator in _kernels(ground):
        by_stream[int(ground.rows.stream_id[operator.row])].append(operator)
    tasks = ground.launches.tasks
    outer_nodes = set(np.unique(tasks.node[tasks.communication != NOWHERE]).tolist())
    result: list[Operator] = []
    for stream, operators in by_stream.items():
        told = recorded[recorded["stream_id"] == stream]
        _describe(operators, told, outer_nodes, ground)
        for operator in operators:
            bounds.narrow(operator, stream, ground.rows)
        _number(operators, ground)
        result += operators
    return sorted(result, key=lambda operator: operator.start)


def _kernels(ground: Ground) -> Iterator[Operator]:
    """Yield the AI CPU kernels that ran, in the order of their starts."""
    rows, launches, schedulers = ground.rows, ground.launches, ground.schedulers
    place = np.full(len(launches.key) + 1, MISSING, np.int64)
    place[schedulers.launch] = np.arange(len(schedulers.launch))
    kernel = place[rows.launch]  # MISSING is the last
    text = ground.knowledge.dictionaries.text
    groups = ground.knowledge.collective_streams.of_kernels
    for row in np.flatnonzero(kernel != MISSING).tolist():
        name = text(int(schedulers.name[kernel[row]]))
        if name in _NO_COLLECTIVES:
            continue
        task = launches.task[rows.launch[row]]
        yield Operator(
            row,
            name,
            int(schedulers.op_type[kernel[row]]),
            groups.get(int(rows.stream_id[row])),
            int(launches.tasks.connection_id[task]),
            int(rows.start[row]),
            int(rows.end[row]),
        )


def _describe(
    operators: list[Operator], told: Records, outer_nodes: set[int], ground: Ground
) -> None:
    """Give the operators of one stream what the device recorded of them.

    A record is of the first operator that was running when it was made. A stream with any record
    has operators of the host's collectives only, also where one of theirs is missing.
    """
    if not len(told):
        return
    times = told["timestamp"].tolist()
    groups = set(ground.knowledge.collective_streams.of_kernels.values())
    next_record = 0
    for operator in operators:
        operator.of_host = True
        outer = _host_collective(operator, outer_nodes, ground)
        if outer is not None:
            operator.name = outer
        next_record = max(next_record, bisect_left(times, operator.start))
        if next_record < len(times) and times[next_record] <= operator.end:
            record = told[next_record]
            group = int(record["group"])
            operator.group = group if group in groups else None
            operator.relay = int(record["flags"]) & 1
            operator.retry = int(record["flags"]) >> 1 & 1
            next_record += 1


def _host_collective(operator: Operator, outer_nodes: set[int], ground: Ground) -> str | None:
    """Return the name of the host's collective whose call the kernel was launched in.

    Args:
        operator: the kernel's.
        outer_nodes: NODE calls that launch tasks of collectives themselves.
        ground: the device.
    """
    tasks, tree = ground.launches.tasks, ground.knowledge.tree
    node = int(tasks.node[ground.launches.task[ground.rows.launch[operator.row]]])
    if node == NOWHERE:
        return None
    outer = int(tree.node.find(tree.node.begin[node : node + 1])[0])
    if outer not in outer_nodes:
        return None
    item = int(ground.knowledge.calls_items[tree.node.item[outer]])
    return ground.knowledge.dictionaries.text(item)


def _number(operators: list[Operator], ground: Ground) -> None:
    """Complete the names of one stream's operators: the group, and which of its operators it is."""
    counted: dict[tuple[int | None, bool], int] = defaultdict(lambda: -1)
    session_start_ns = ground.device.session.start_ns
    for operator in operators:
        key = operator.group, _KERNEL in operator.name
        counted[key] += ground.rows.clock.one(operator.start) > session_start_ns
        suffix = NOT_AVAILABLE if operator.group is None else str(operator.group)[-3:]
        operator.name = f"{operator.name}_{suffix}_{counted[key]}_{_ITERATION}"


def _members(
    ground: Ground, operators: list[Operator], record_row: NDArray[np.int64], bounds: _Bounds
) -> Members:
    """Place the tasks of each group in its operators."""
    rows = ground.rows
    record = np.flatnonzero(record_row != MISSING)
    row = record_row[record]
    of_tasks = ground.knowledge.collective_streams.of_tasks
    if not len(record_row):  # the lowest trace level: every task of the streams is one
        row = np.flatnonzero(np.isin(rows.stream_id, list(of_tasks)))
        record = np.full(len(row), MISSING, np.int64)
    order = np.argsort(rows.end[row], kind="stable")
    record, row = record[order], row[order]
    streams_of_group: dict[int, list[int]] = defaultdict(list)
    for stream, groups in of_tasks.items():
        for group in groups:
            streams_of_group[group].append(stream)
    parts = []
    for group, streams in streams_of_group.items():
        chosen = np.flatnonzero(np.isin(rows.stream_id[row], streams))
        mine = [index for index, item in enumerate(operators) if item.group == group]
        operator, place = _placed([operators[index] for index in mine], rows.end[row[chosen]])
        parts.append(
            _Group(ground, operators, bounds).members(
                np.array(mine, np.int64)[operator], row[chosen[place]], record[chosen[place]]
            )
        )
    none = np.zeros(0, np.int64)
    return Members(
        *(
            np.concatenate([none.astype(kind), *(getattr(part, name) for part in parts)])
            for name, kind in (
                ("operator", np.int64),
                ("row", np.int64),
                ("record", np.int64),
                ("master", np.bool_),
                ("plane", np.int64),
            )
        )
    )


def _placed(
    operators: list[Operator], ends: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operator of each task that has one, and the task.

    Args:
        operators: of one group, by start.
        ends: when the tasks of the group ended, ascending.
    """
    times = ends.tolist()
    of_task: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    place: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    following = 0
    for index, operator in enumerate(operators):
        begin = max(following, bisect_left(times, operator.start))
        following = max(begin, bisect_right(times, operator.end))
        of_task.append(np.full(following - begin, index, np.int64))
        place.append(np.arange(begin, following))
    return np.concatenate(of_task), np.concatenate(place)


@dataclass(slots=True)
class _Group:
    """Tells which tasks of one group are on its master stream, and numbers its streams."""

    ground: Ground
    operators: list[Operator]
    bounds: _Bounds
    of_host: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.of_host = np.array([item.of_host for item in self.operators], bool)

    def members(
        self, operator: NDArray[np.int64], row: NDArray[np.int64], record: NDArray[np.int64]
    ) -> Members:
        """Return the tasks of the group, given in the order of their ends."""
        of_host = self.of_host[operator] if len(operator) else np.zeros(0, bool)
        first = np.isin(row, self.bounds.first_rows)
        master = self._masters(row, first, of_host)
        plane = self._planes(row, master | first, of_host)
        plane[record == MISSING] = -1
        return Members(operator, row, record, master, plane)

    def _masters(
        self, row: NDArray[np.int64], first: NDArray[np.bool_], of_host: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Tell which tasks are on the master stream.

        That is the stream of the last task before them that shows it: one of the control core, or
        the first of an operator. These two may have waited since before the operator, so they do
        not count as its own where the host has the operator.
        """
        rows = self.ground.rows
        shows = first | (rows.type_code[row] == self._control_core())
        place = np.maximum.accumulate(np.where(shows, np.arange(len(row)), -1))
        stream = rows.stream_id[row]
        on_master = (place >= 0) & (stream == stream[place])
        return np.where(shows, ~of_host, on_master)

    def _planes(
        self, row: NDArray[np.int64], main: NDArray[np.bool_], of_host: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Number the streams in the order in which the group used them, from 1.

        The master stream has 0. The host's collectives have that for what the host launched, so
        that there all numbers are one higher.
        """
        result = of_host.astype(np.int64)
        streams = self.ground.rows.stream_id[row[~main]]
        distinct, first, inverse = np.unique(streams, return_index=True, return_inverse=True)
        number = np.empty(len(distinct), np.int64)
        number[np.argsort(first)] = np.arange(1, len(distinct) + 1)
        result[~main] += number[inverse]
        return result

    def _control_core(self) -> int:
        """Return the code of the control core's tasks; none where the chip names no such task."""
        return C_CORE if type_name(C_CORE, self.ground.device.platform) == "C_CORE_SQE" else -1
