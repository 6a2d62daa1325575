"""Device tasks in order of start, by launch, and in windows, and operations of replayed graphs.

`GapEnds` finds the tasks that end idle gaps, `join_launches` joins tasks with their launch calls,
and `TaskWindow` is a window of `device_tasks.Work`. A call that launches several tasks, such as a
graph replay, counts once per stream, with its first task.

A replay is one host call that launches hundreds of kernels; their operations are only known from
the recording of the capture. The nth launch of a capture is the nth node of its graph. CUDA records
the node of each replayed task. If nodes are missing, tasks on a single stream are matched in order,
as they start in the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import (
    MISSING,
    NOWHERE,
    Bools,
    Frame,
    Ints,
    Lookup,
    Runs,
    by_key,
    find,
    value_by_key,
)
from unified_prof.arrays.intervals import NONE, IntervalSet
from unified_prof.arrays.packed import Column
from unified_prof.base.columns import NO_CONNECTION
from unified_prof.recording import idle
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, UNKNOWN
from unified_prof.recording.collectives import Collectives
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.names import (
    BEGINS_CAPTURE,
    CAPTURED_LAUNCH,
    COPIES_MEMORY,
    ENDS_CAPTURE,
    LAUNCHES_GRAPH,
    Words,
)
from unified_prof.recording.source import Findings, Source, Strings
from unified_prof.recording.tasks import TaskRows, Tasks

if TYPE_CHECKING:
    from unified_prof.recording.device_tasks import Work


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class OrderedTasks(Frame):
    """Device tasks in order of start."""

    task: NDArray[np.int32]  # Index of each task in all work.
    start_ns: Ints
    kind: NDArray[np.int8]
    stream: Ints  # UNKNOWN for whole collectives.
    connection: Ints

    def merge(self, other: OrderedTasks) -> OrderedTasks:
        """Merge with other tasks in order of start; of equal starts, `self` comes first."""
        both = OrderedTasks.concatenate([self, other])
        return both.take(np.argsort(both.start_ns, kind="stable"))


class GapEnds:
    """Finds the tasks of one device that end its gaps, which must be visited in order of time."""

    def __init__(
        self,
        work: Iterator[OrderedTasks],
        launched: Callable[[Ints], Ints],
        waits: IntervalSet,
        awaits: NDArray[np.int32],
    ) -> None:
        """Start before all tasks.

        `work` has all tasks in order of start; `launched` returns the launch time for connection
        ids (-1: unknown). In `waits`, streams of the device waited for others; `awaits` are the
        tasks that were launched after a wait, in ascending order.
        """
        self._coming, self._launched = work, launched
        self._waits, self._awaits = waits, awaits
        nothing = np.zeros(0, np.int64)
        self._task, self._kind = nothing.astype(np.int32), nothing.astype(np.int8)
        self._start_ns = self._launched_ns = nothing

    def at(self, gaps: IntervalSet) -> tuple[idle.DeviceTasks, NDArray[np.int32]]:
        """Return the tasks that may end the gaps, and the index of each task in all work.

        Calls must be in order of time.
        """
        high = 0
        if len(gaps):
            first, last = int(gaps.end_ns[0]), int(gaps.end_ns[-1])
            self._leave(first)
            while not len(self._start_ns) or self._start_ns[-1] < last:
                read = next(self._coming, None)
                if read is None:
                    break
                self._take(read)
                self._leave(first)
            high = int(np.searchsorted(self._start_ns, last)) + 1
        task = self._task[:high]
        awaits = find(self._awaits, task) != NOWHERE
        tasks = idle.DeviceTasks(
            self._start_ns[:high], self._launched_ns[:high], self._kind[:high], self._waits, awaits
        )
        return tasks, task

    def _leave(self, before_ns: int) -> None:
        """Drop tasks that start before a time."""
        low = int(np.searchsorted(self._start_ns, before_ns))
        if low:
            self._task, self._kind = self._task[low:], self._kind[low:]
            self._start_ns, self._launched_ns = self._start_ns[low:], self._launched_ns[low:]

    def _take(self, read: OrderedTasks) -> None:
        self._task = np.concatenate((self._task, read.task))
        self._kind = np.concatenate((self._kind, read.kind))
        self._start_ns = np.concatenate((self._start_ns, read.start_ns))
        launched = self._launched(read.connection)
        self._launched_ns = np.concatenate((self._launched_ns, launched))


def tasks_after_waits(
    work: Iterable[OrderedTasks], launched: Callable[[Ints], Ints], stream: Ints, at_ns: Ints
) -> NDArray[np.int32]:
    """Return the tasks launched after a wait of their stream, in ascending order.

    The wait was enqueued between the launches of the previous task on the stream and of the task.
    `work` has all tasks of a device, `launched` returns the launch time for connection ids (-1:
    unknown); `stream` and `at_ns` are those of each wait.
    """
    streams = [_FirstLaunches(one, np.sort(at_ns[rows])) for one, rows in by_key(stream)]
    for some in work:
        times = launched(some.connection)
        for one in streams:
            one.update(some, times)
    return np.unique(np.concatenate([np.zeros(0, np.int32), *(stream.tasks for stream in streams)]))


class _FirstLaunches:
    """The first task seen so far that was launched on a stream after each time."""

    def __init__(self, stream: int, moments: Ints) -> None:
        self._stream, self._moments = stream, moments
        self._launched_ns = np.full(len(moments), _NEVER)
        self._task = np.full(len(moments), NOWHERE, np.int32)

    @property
    def tasks(self) -> NDArray[np.int32]:
        result: NDArray[np.int32] = self._task[self._task != NOWHERE]
        return result

    def update(self, some: OrderedTasks, launched_ns: Ints) -> None:
        own = np.flatnonzero((some.stream == self._stream) & (launched_ns >= 0))
        own = own[np.argsort(launched_ns[own], kind="stable")]
        times = launched_ns[own]
        if not len(own):
            return
        # Both times and first launches ascend, so few entries can change.
        low = int(np.searchsorted(self._launched_ns, times[0], side="right"))
        high = int(np.searchsorted(self._moments, times[-1], side="right"))
        if low >= high:
            return
        at = np.searchsorted(times, self._moments[low:high])
        better = low + np.flatnonzero(times[at] < self._launched_ns[low:high])
        at = at[better - low]
        self._launched_ns[better], self._task[better] = times[at], some.task[own[at]]


class LaunchedTasks(Struct, frozen=True, eq=False):
    """One row for each call and each stream on which it launched tasks, sorted by call."""

    call: Ints  # Row of CANN_API.
    called_ns: Ints  # Start of the call.
    returned_ns: Ints  # End of the call.
    device: Ints
    stream: Ints
    started_ns: Ints  # Start of the first task.
    work_ns: Ints  # Sum of the tasks' durations.
    unknown: int  # Tasks without a known call.

    def __len__(self) -> int:
        return len(self.call)

    @property
    def one_per_call(self) -> LaunchedTasks:
        """Return one row for each call, with its tasks on all streams merged."""
        first = Runs(self.call).starts
        return self if len(first) == len(self) else self._grouped(first)

    def _grouped(self, first: Ints) -> LaunchedTasks:
        return LaunchedTasks(
            call=self.call[first],
            called_ns=self.called_ns[first],
            returned_ns=self.returned_ns[first],
            device=self.device[first],
            stream=self.stream[first],
            started_ns=np.minimum.reduceat(self.started_ns, first),
            work_ns=np.add.reduceat(self.work_ns, first),
            unknown=self.unknown,
        )


def join_launches(tasks: Tasks, calls: HostCalls) -> LaunchedTasks:
    """Join the tasks of all devices with their launch calls."""
    work = np.flatnonzero(
        (tasks.kind == KERNEL) | (tasks.kind == COPY) | (tasks.kind == COMMUNICATION)
    )
    call = calls.launching(tasks.connection[work]).astype(np.int64)
    good = (call >= 0) & np.append(calls.is_valid, False)[call]
    unknown = int(len(work) - good.sum())
    work, call = work[good], call[good]
    device = tasks.device[work].astype(np.int64)
    stream = tasks.stream[work].astype(np.int64)
    order = np.lexsort((stream, device, call))
    work, call, device, stream = work[order], call[order], device[order], stream[order]
    first = Runs(call, device, stream).starts
    started, lasted = tasks.start_ns[work], tasks.duration_ns[work].astype(np.int64)
    if len(first) < len(call):
        started, lasted = np.minimum.reduceat(started, first), np.add.reduceat(lasted, first)
        call, device, stream = call[first], device[first], stream[first]
    return LaunchedTasks(
        call=call,
        called_ns=calls.start_ns[call],
        returned_ns=calls.end_ns[call],
        device=device,
        stream=stream,
        started_ns=started,
        work_ns=lasted,
        unknown=unknown,
    )


class TaskWindow:
    """A window of device tasks; columns are computed on access."""

    def __init__(self, work: Work, first: int, tasks: TaskRows | None, comms: Collectives) -> None:
        self._work, self._comms = work, comms
        self.tasks = tasks  # The rows of TASK, None for whole collectives.
        self.first = first  # Index of the first task in all work; the others follow.

    def __len__(self) -> int:
        return len(self._comms if self.tasks is None else self.tasks)

    @property
    def rows(self) -> slice:
        """Indexes of the window in all work."""
        return slice(self.first, self.first + len(self))

    @property
    def start_ns(self) -> Ints:
        """Start of each task."""
        return self._comms.start_ns if self.tasks is None else self.tasks.start_ns

    @property
    def duration_ns(self) -> Ints:
        """Duration of each task."""
        return self._comms.duration_ns if self.tasks is None else self.tasks.duration_ns

    @property
    def kind(self) -> NDArray[np.int8]:
        """Kind of each task."""
        if self.tasks is None:
            return np.full(len(self), COMMUNICATION, np.int8)
        return self.tasks.kind

    @property
    def device(self) -> Ints:
        """Device of each task."""
        return self._comms.device if self.tasks is None else self.tasks.device.astype(np.int64)

    @property
    def stream(self) -> Ints:
        """Stream of each task, UNKNOWN for whole collectives."""
        if self.tasks is None:
            return np.full(len(self), UNKNOWN)
        return self.tasks.stream.astype(np.int64)

    @property
    def connection(self) -> Ints:
        """Connection id of each task, which it shares with its launch call."""
        if self.tasks is None:
            return self._comms.connection
        return self.tasks.connection.astype(np.int64)

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each task, as numbers in the labels of all work."""
        names, comms = self._work.operator_numbers
        return comms if self.tasks is None else names.find(self.tasks)

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Name of the kernel, collective or kind of copy, as numbers in the labels of all work."""
        names, comms = self._work.kernel_numbers
        return comms if self.tasks is None else names.find(self.tasks)


class ComputedColumn(Column):
    """A column over all work, computed from the columns of tasks on access."""

    def __init__(self, work: Work, of: Callable[[TaskWindow], NDArray[Any]]) -> None:
        self._work, self._of = work, of

    def __len__(self) -> int:
        return len(self._work)

    def at(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return values by index in all work."""
        of_tasks = rows < len(self._work.of_tasks)
        if of_tasks.all():
            return self._of(self._work.at_tasks(rows))
        whole = self._of(self._work.whole_comms())
        selected = self._of(self._work.at_tasks(rows[of_tasks]))
        result = np.empty(len(rows), np.result_type(whole, selected))
        result[of_tasks] = selected
        result[~of_tasks] = whole[rows[~of_tasks] - len(self._work.of_tasks)]
        return result

    def _between(self, low: int, high: int) -> NDArray[Any]:
        if (low, high) != (0, len(self)):
            return self.at(np.arange(low, high))
        parts = [self._of(some) for some in self._work.windows()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class WorkColumn:
    """A column of `device_tasks.Work`: that of the same name in `TaskWindow`, for all work."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._of = attrgetter(name)

    def __get__(self, work: Work, owner: type) -> ComputedColumn:
        return ComputedColumn(work, self._of)


class Captured(Struct, frozen=True, eq=False):
    """The captured operation of each device task."""

    framework: Framework  # The operations of the capture.
    # Host range of the operation; NONE: not part of a replay, or the capture is unknown.
    call: Ints
    connection: Ints  # Connection id of the launch in the capture; NO_CONNECTION for other tasks.
    passes: NDArray[np.int8]
    replay: Ints  # Row of the call that launched the replay, -1 for other tasks.
    launched_ns: Ints  # Start of that call.


class _Graph(Struct, frozen=True, eq=False):
    """The launches of one capture, in order."""

    call: Ints
    connection: Ints
    passes: NDArray[np.int8]
    copies: Bools
    names: tuple[str, ...]  # Names of the operations.


class Capture:
    """The captured graphs of a recording."""

    def __init__(
        self, tasks: Tasks, calls: HostCalls, framework: Framework, strings: Strings
    ) -> None:
        self._framework = framework
        names = strings.texts(calls.name.tolist())
        order = np.argsort(calls.start_ns, kind="stable")
        launched = Lookup(tasks.connection).rows(calls.connection.to_array()) >= 0

        def matches(wanted: Words) -> Bools:
            return calls.matching(strings, wanted)[order]

        waits = order[matches(CAPTURED_LAUNCH) & ~launched[order]]
        copies = np.array([COPIES_MEMORY(names[row]) for row in waits.tolist()], bool)
        connection = calls.connection[waits]
        owners = framework.launches(connection)
        texts, number = framework.names(owners.call)
        operations = [
            texts[name] if call != NONE else ""
            for name, call in zip(number.tolist(), owners.call.tolist(), strict=True)
        ]
        self._graphs = []
        at = calls.start_ns[waits]
        begins, ends = order[matches(BEGINS_CAPTURE)], order[matches(ENDS_CAPTURE)]
        for first, behind in _sections(calls, begins, ends, at):
            own = slice(first, behind)
            self._graphs.append(
                _Graph(
                    owners.call[own],
                    connection[own],
                    owners.passes[own],
                    copies[own],
                    tuple(operations[own]),
                )
            )

    def attribute(
        self,
        source: Source,
        strings: Strings,
        calls: HostCalls,
        tasks: Tasks,
        chosen: NDArray[np.integer],
        findings: Findings,
    ) -> Captured:
        """Attribute the device tasks of a recording's replays to the captured operations.

        `chosen` is the index in TASK of each device task, -1 for whole collectives; `findings`
        counts replays whose capture was not found.
        """
        row = calls.launching(tasks.connection)
        names = strings.texts(calls.name.tolist())
        replays = np.array([*map(LAUNCHES_GRAPH, names), False])
        is_work = np.isin(tasks.kind, (KERNEL, COPY, COMMUNICATION))
        replay = np.where(replays[row] & is_work, row, NONE).astype(np.int64)
        call = np.full(len(replay), NONE, np.int64)
        connection = np.full(len(replay), NO_CONNECTION, np.int64)
        passes = np.full(len(replay), -1, np.int8)
        node = _nodes(source, tasks.identity)
        for launch, own in by_key(replay):
            if launch == NONE:
                continue
            of_nodes = bool((node[own] >= 0).all()) and len(np.unique(node[own])) == len(own)
            if not of_nodes and len(np.unique(tasks.stream[own])) > 1:
                findings.add(
                    "replay_without_nodes",
                    "a graph ran on several streams, but graph nodes of kernels were not recorded",
                    1,
                )
                continue
            order = node if of_nodes else tasks.start_ns
            own = own[np.argsort(order[own], kind="stable")]
            graph = self._graph_of(tasks.kind[own], findings)
            if graph is not None:
                call[own], passes[own] = graph.call, graph.passes
                connection[own] = graph.connection
        # Collectives are always separate rows.
        call[tasks.kind == COMMUNICATION] = NONE
        connection[tasks.kind == COMMUNICATION] = NO_CONNECTION
        launched = np.append(calls.start_ns, 0)[replay]
        columns = (
            np.append(column, none)[chosen]
            for column, none in (
                (call, NONE),
                (connection, NO_CONNECTION),
                (passes, -1),
                (replay, NONE),
                (launched, 0),
            )
        )
        return Captured(self._framework, *columns)

    def _graph_of(self, kind: NDArray[np.int8], findings: Findings) -> _Graph | None:
        """Return the capture that has a replay's number of launches and positions of copies."""
        copies = kind == COPY
        result = [
            graph
            for graph in self._graphs
            if len(graph.call) == len(kind) and np.array_equal(graph.copies, copies)
        ]
        if not result:
            sizes = sorted({len(graph.call) for graph in self._graphs})
            most = ", ".join(f"{size:,}" for size in sizes[:8]) or "none"
            findings.add(
                "replay_without_capture",
                f"a graph with {len(kind):,} launches was replayed; "
                f"the captured graphs have {most}",
                1,
            )
            return None
        if len({one.names for one in result}) > 1:
            findings.add(
                "replay_of_several_captures",
                f"{len(result)} different captured graphs have {len(kind):,} launches",
                1,
            )
            return None
        return result[0]


def _sections(calls: HostCalls, begins: Ints, ends: Ints, at_ns: Ints) -> list[tuple[int, int]]:
    """Return the range of launches in each capture: from its begin call to its end call, else all.

    Other threads of the captured code, such as autograd's, launch into the same graph.
    """
    result = []
    for begin in begins.tolist():
        later = ends[
            (calls.thread[ends] == calls.thread[begin])
            & (calls.start_ns[ends] >= calls.end_ns[begin])
        ]
        if len(later):
            bounds = (calls.start_ns[begin], calls.end_ns[later[0]])
            first, behind = np.searchsorted(at_ns, np.array(bounds)).tolist()
            result.append((first, behind))
    return result or [(0, len(at_ns))]


def _nodes(source: Source, identity: Ints) -> Ints:
    """Return the graph node of each task, -1 if not recorded."""
    result = np.full(len(identity), -1, np.int64)
    if "UPROF_GPU_TASKS" in source.tables:
        columns = {"id": "globalTaskId", "node": "graphNodeId"}
        found = source.integers("UPROF_GPU_TASKS", columns)
        node = value_by_key(found["id"], found["node"], identity, MISSING)
        result[node > 0] = node[node > 0]
    return result
