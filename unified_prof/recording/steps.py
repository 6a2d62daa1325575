"""Steps that programs number, times of steps, and torch_npu's figures (StepTraceTime).

Reports include these figures because users of the vendor's viewers expect them. They differ from
uprof's figures: a step is everything that starts on a device while its launched tasks run, and only
compute kernels and collectives count, so copies are `free` time. `docs/figures.md` has the
definitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Frame, Ints, Lookup
from unified_prof.arrays.intervals import IntervalSet, holding, merge, subtract, union
from unified_prof.base.columns import API_OPERATION
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.source import Source

Steps = Sequence[tuple[str, int, int]]  # Name, start and end in nanoseconds, in order of time.


def step_of(start_ns: Ints, steps: Steps) -> Ints:
    """Return the index of the step at each time, UNKNOWN outside steps."""
    starts = np.array([start for _, start, _ in steps], np.int64)
    ends = np.array([end for _, _, end in steps], np.int64)
    return holding(IntervalSet(starts, ends), start_ns)


# Words before the running number of an iteration: `step 3`, `train_step_12`, `Iteration 7`.
STEP_WORDS = ("step", "steps", "iteration", "iterations", "iter", "iters", "batch", "minibatch")
# Words of ranges that are parts of an iteration: `grad_accum_step 2`, `micro batch 1`.
_PARTS = re.compile(r"micro|accum|(?<![a-z])ga(?![a-z])", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:" + "|".join(STEP_WORDS) + r")"
    r"[\s_#:=.\[(-]*(?P<number>\d{1,18})(?!\w)"
)
MIN_NUMBERED = 3  # Minimum ranges: two may be numbered by chance.
_MOST_WORK = 0.5  # Share of the work that the ranges must contain.
# Share of the work of a process that the thread itself launches, so that ranges of loader threads,
# open all the time, do not count. Another thread launches most of a backward pass.
_OWN_WORK = 0.1
_PROCESS_SHIFT = 32  # Thread ids contain the process.


@dataclass(frozen=True, slots=True, eq=False)
class HostRanges(Frame):
    """Ranges of host threads, with the index of the name of each."""

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints


class LaunchedWork(Struct, frozen=True, eq=False):
    """Work by the time and thread at which the program launched it; thread -1 is unknown."""

    at_ns: Ints
    thread: Ints
    length_ns: Ints

    def within(self, start_ns: Ints, end_ns: Ints, thread: int) -> tuple[float, bool]:
        """Return the share of the work in intervals, and True if the thread launches some of it."""
        inside = holding(IntervalSet(start_ns, end_ns), self.at_ns) >= 0
        work = int(self.length_ns[inside].sum())
        of_process = inside & (self.thread >> _PROCESS_SHIFT == thread >> _PROCESS_SHIFT)
        own = int(self.length_ns[inside & (self.thread == thread)].sum())
        launches = own > 0 and own >= _OWN_WORK * int(self.length_ns[of_process].sum())
        is_unknown = not (inside & (self.thread >= 0)).any()
        total = int(self.length_ns.sum())
        return work / total if total else 0.0, launches or is_unknown


def is_numbered(text: str) -> bool:
    """Return True for the name of a range that may be a step, such as `train_step 12`."""
    found = _NUMBERED.search(text)
    return found is not None and not _PARTS.search(text[: found.end()])


def numbered_steps(
    ranges: HostRanges, names: Sequence[str], work: LaunchedWork
) -> list[tuple[str, int, int, str]]:
    """Return number, start, end and name of the steps that a program numbers in its range names.

    They are the ranges of one thread and one name whose numbers increase, that do not overlap, and
    that contain most of the work; of several such families, the outermost. Ranges such as those of
    a data loader, of layers or of micro-batches are not steps.
    """
    families: dict[tuple[int, str], list[tuple[int, int, int, int]]] = {}
    columns = (ranges.thread, ranges.start_ns, ranges.end_ns, ranges.name)
    for thread, start, end, name in zip(*(one.tolist() for one in columns), strict=True):
        if (found := _NUMBERED.search(names[name])) is not None:
            family = (thread, names[name][: found.start("number")])
            families.setdefault(family, []).append((start, end, int(found["number"]), name))
    # Nested families contain about the same work; the outer one is open for longer.
    longest_ns = 0
    result: list[tuple[int, int, int, int]] = []
    for (thread, _), rows in families.items():
        start, end, number, _ = np.array(sorted(rows), np.int64).T
        if len(rows) < MIN_NUMBERED or (number[1:] <= number[:-1]).any():
            continue
        if (start[1:] < end[:-1]).any():
            continue
        share, launches = work.within(start, end, thread)
        if share > _MOST_WORK and launches and (length_ns := int((end - start).sum())) > longest_ns:
            longest_ns, result = length_ns, sorted(rows)
    return [(str(number), start, end, names[name]) for start, end, number, name in result]


_NODE = 10_000  # `node` in ENUM_API_TYPE, the level of launch calls.
# End of ranges without an end.
FOREVER = 2**63 - 1
_RECEIVE = "hcom_receive"
_OF_GPUS = "UPROF_GPU_TASKS"


class Range(Struct, frozen=True):
    """Time range of a step on devices: tasks that start in it belong to the step."""

    name: str | None  # Number of the step; None: the whole recording, without steps.
    begun_ns: int | None  # Start on the host.
    start_ns: int
    end_ns: int


class StepTrace(Struct, frozen=True):
    """One step on one device, by torch_npu's definitions."""

    device_id: int
    step: str | None  # Number of the step; None: the whole recording, without steps.
    computing_ns: int  # Union of the compute kernels.
    communication_not_overlapped_ns: int
    overlapped_ns: int
    communication_ns: int  # Union of the collectives, each from its first task to its last.
    # Time from the first to the last kernel or collective without either; copies are free.
    free_ns: int
    # From the first kernel or collective to the end of the last, without `bubble_ns`.
    stage_ns: int
    bubble_ns: int  # Time in receives of pipeline parallelism: waits for the previous stage.
    communication_not_overlapped_and_exclude_receive_ns: int
    # From the step's start on the host to the first kernel or collective; 0 without a kernel.
    preparing_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class TaskTimes(Frame):
    """All tasks, as columns."""

    device: NDArray[np.integer]
    connection: NDArray[np.integer]
    start_ns: Ints
    end_ns: Ints
    identity: NDArray[np.integer]  # globalTaskId.


def is_of_ascend(source: Source) -> bool:
    """Return True if a report has CANN launches."""
    if _OF_GPUS in source.tables or "CANN_API" not in source.tables:
        return False
    return bool(source.rows("SELECT 1 FROM CANN_API WHERE type = ? LIMIT 1", (_NODE,)))


def read_tasks(source: Source) -> TaskTimes:
    """Return all tasks of a report."""
    columns = {
        "device": "deviceId",
        "connection": "connectionId",
        "start_ns": "startNs",
        "end_ns": "endNs",
        "identity": "globalTaskId",
    }
    return TaskTimes(**source.integers("TASK", columns))


def ranges(source: Source, tasks: TaskTimes, calls: HostCalls | None = None) -> list[Range]:
    """Return the time range of every step, from its launches and its length."""
    steps = sorted(
        (row for row in source.rows("SELECT startNs, endNs, id FROM STEP_TIME") if None not in row),
        key=lambda row: int(row[0]),
    )
    calls = HostCalls(source) if calls is None else calls
    launching = np.flatnonzero(calls.type == _NODE)
    start, end, connection = (
        calls.start_ns[launching],
        calls.end_ns[launching],
        calls.connection[launching],
    )
    launched = _TasksByLaunch(_last_of_each(tasks))
    if not steps:
        first, _ = launched.span(connection)
        return [Range(None, None, first or 0, FOREVER)]
    result = []
    for begin, until, number in steps:
        inside = (start >= begin) & (end <= until)
        first, last = launched.span(connection[inside])
        result.append(
            Range(
                str(number),
                begin,
                begin if first is None else first,
                until if last is None else max(last, until),
            )
        )
    return result


class Work:
    """Kernels and collectives, sorted by the time that decides their step."""

    def __init__(
        self,
        device: NDArray[np.integer],
        start_ns: Ints,
        end_ns: Ints,
        *,
        at_ns: Ints | None = None,
        receives: Bools | None = None,
    ) -> None:
        """Store the columns.

        `at_ns` is the time that decides the step of each task, by default the start; `receives`
        masks the waits for the previous pipeline stage.
        """
        at_ns = start_ns if at_ns is None else at_ns
        order = np.argsort(at_ns, kind="stable")
        self.device, self.start_ns, self.end_ns = device[order], start_ns[order], end_ns[order]
        self.at_ns = at_ns[order]
        self.receives = np.zeros(len(order), bool) if receives is None else receives[order]

    def on(self, device: int) -> Work:
        """Return the tasks on one device."""
        return self._part(self.device == device)

    def within(self, one: Range) -> Work:
        """Return the tasks that count for a step."""
        low, high = np.searchsorted(self.at_ns, (one.start_ns, one.end_ns)).tolist()
        return self._part(slice(low, max(low, high)))

    def _part(self, rows: Any) -> Work:
        return Work(
            self.device[rows],
            self.start_ns[rows],
            self.end_ns[rows],
            at_ns=self.at_ns[rows],
            receives=self.receives[rows],
        )


def read_work(source: Source, tasks: TaskTimes) -> tuple[Work, Work]:
    """Return the operators, and the collectives with a known device."""
    operators = source.integers("COMPUTE_TASK_INFO", {"identity": "globalTaskId"})["identity"]
    computes = Lookup(operators).rows(tasks.identity) >= 0
    compute = Work(tasks.device[computes], tasks.start_ns[computes], tasks.end_ns[computes])
    return compute, _communication(source, tasks)


def traces(
    source: Source, work: tuple[Work, Work], all_ranges: Sequence[Range]
) -> Iterator[StepTrace]:
    """Yield the figures of every step, for each device with tasks."""
    compute, communication = work
    first_operator = None
    if any(step_range.name is None for step_range in all_ranges):
        first_operator = _first_operator(source)
    devices = np.unique(np.concatenate([compute.device, communication.device]))
    for device in devices.tolist():
        computing, communicating = compute.on(device), communication.on(device)
        for one in all_ranges:
            begun = first_operator if one.name is None else one.begun_ns
            yield _trace(device, one, computing.within(one), communicating.within(one), begun)


class _TasksByLaunch:
    """Tasks by launch call."""

    def __init__(self, tasks: TaskTimes) -> None:
        order = np.argsort(tasks.connection, kind="stable")
        self._connection = tasks.connection[order]
        self._start_ns, self._end_ns = tasks.start_ns[order], tasks.end_ns[order]

    def span(self, connections: Ints) -> tuple[int | None, int | None]:
        """Return the start of the first task launched by these calls, and the end of the last."""
        place, _ = _places(self._connection, np.unique(connections))
        if not len(place):
            return None, None
        return int(self._start_ns[place].min()), int(self._end_ns[place].max())


def _places(keys: NDArray[np.integer], wanted: Ints) -> tuple[Ints, Ints]:
    """Return all positions of the wanted values in ascending keys, and each position's value."""
    low = np.searchsorted(keys, wanted, side="left")
    count = np.searchsorted(keys, wanted, side="right") - low
    which = np.repeat(np.arange(len(wanted)), count)
    begins = np.cumsum(count) - count
    return np.arange(len(which)) - begins[which] + low[which], which


def _last_of_each(tasks: TaskTimes) -> TaskTimes:
    """Return the last task of each globalTaskId."""
    if np.all(tasks.identity[1:] > tasks.identity[:-1]):
        return tasks
    _, from_end = np.unique(tasks.identity[::-1], return_index=True)
    rows = len(tasks.identity) - 1 - from_end
    return tasks.take(rows)


def _communication(source: Source, tasks: TaskTimes) -> Work:
    """Return collectives, each lasting from its first task to its last."""
    if "COMMUNICATION_OP" not in source.tables:
        nothing = np.zeros(0, np.int64)
        return Work(nothing, nothing, nothing)
    columns = {"start": "startNs", "end": "endNs", "connection": "connectionId", "name": "opName"}
    result = source.integers("COMMUNICATION_OP", columns)
    launched = result["connection"] != MISSING
    result = {name: values[launched] for name, values in result.items()}
    order = np.argsort(tasks.connection, kind="stable")
    place, which = _places(tasks.connection[order], result["connection"])
    device = tasks.device[order][place]
    least = np.full(len(result["start"]), FOREVER)
    most = np.full(len(result["start"]), -FOREVER)
    np.minimum.at(least, which, device)
    np.maximum.at(most, which, device)
    known = least == most
    ids = np.unique(result["name"]).tolist()
    receiving = [number for number in ids if _receives(source, number)]
    receives = np.isin(result["name"], receiving)
    return Work(
        least[known], result["start"][known], result["end"][known], receives=receives[known]
    )


def _receives(source: Source, name: int) -> bool:
    rows = source.rows("SELECT value FROM STRING_IDS WHERE id = ?", (name,))
    return any(str(text).lower().startswith(_RECEIVE) for (text,) in rows)


def _first_operator(source: Source) -> int | None:
    if "PYTORCH_API" not in source.tables:
        return None
    ((first,),) = source.rows(
        "SELECT min(CAST(startNs AS INTEGER)) FROM PYTORCH_API WHERE type = ?", (API_OPERATION,)
    )
    return None if first is None else int(first)


def _trace(
    device: int, one: Range, compute: Work, communication: Work, begun_ns: int | None
) -> StepTrace:
    computing = merge(compute.start_ns, compute.end_ns)
    communicating = merge(communication.start_ns, communication.end_ns)
    alone = subtract(communicating, computing).total_ns
    busy = union(computing, communicating)
    stage = int(busy.end_ns[-1] - busy.start_ns[0]) if len(busy) else 0
    received = communication.receives
    bubble = int((communication.end_ns - communication.start_ns)[received].sum())
    # torch_npu uses the start of a device that computes. Without such a device and without
    # operators, the preparing time is unknown.
    prepared = len(computing) and begun_ns is not None
    return StepTrace(
        device_id=device,
        step=one.name,
        computing_ns=computing.total_ns,
        communication_not_overlapped_ns=alone,
        overlapped_ns=communicating.total_ns - alone,
        communication_ns=communicating.total_ns,
        free_ns=stage - busy.total_ns,
        stage_ns=stage - bubble,
        bubble_ns=bubble,
        communication_not_overlapped_and_exclude_receive_ns=max(alone - bubble, 0),
        preparing_ns=int(busy.start_ns[0]) - begun_ns if prepared and begun_ns is not None else 0,
    )
