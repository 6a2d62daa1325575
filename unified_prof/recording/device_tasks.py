"""Kernels, copies and whole collectives of a recording, and the calls that launched them.

Together these are called work: waits do not count, and the tasks of a collective are part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Pool
from unified_prof.arrays.packed import Packed, Packing
from unified_prof.recording import calls as packed_calls
from unified_prof.recording.breakdowns import TimeSums, allocated, merge_calls, names_of, origin_of
from unified_prof.recording.calls import (
    COMMUNICATION,
    COPY,
    KERNEL,
    KINDS,
    OPERATION,
    UNKNOWN,
    Calls,
    Columns,
    Labels,
    PackedCalls,
    Sums,
)
from unified_prof.recording.collectives import CollectiveNames, Collectives
from unified_prof.recording.counters import Allocations
from unified_prof.recording.framework import BACKWARD, FORWARD, NONE, OTHER_PASS, Framework
from unified_prof.recording.model import Row
from unified_prof.recording.steps import Steps, step_of
from unified_prof.recording.task_order import (
    Captured,
    ComputedColumn,
    OrderedTasks,
    TaskWindow,
    WorkColumn,
)
from unified_prof.recording.tasks import TaskNames, TaskRows, Tasks


class WorkLaunches(NamedTuple):
    """Framework ranges and passes over all work, as in `framework.Launches`."""

    call: Packed
    passes: Packed


class Work:
    """Kernels and copies in the order of TASK, followed by whole collectives, as columns.

    Columns are computed from those of the tasks on access; `windows` yields them in parts.
    """

    start_ns, duration_ns, kind, device, stream, connection = (WorkColumn() for _ in range(6))

    def __init__(
        self,
        tasks: Tasks,
        comms: Collectives,
        framework: Framework | None,
        collectives: CollectiveNames,
        allocations: Allocations,
    ) -> None:
        self._tasks, self._comms, self._collectives = tasks, comms, collectives
        self._framework, self._allocations = framework, allocations
        self._in_parts = [device for device in tasks.devices if comms.in_parts(device)]
        # Operations of the tasks of replayed graphs, if the recording of the capture is given.
        self.captured: Captured | None = None
        self.labels = Labels()

    def __len__(self) -> int:
        return self._task_count + len(self._comms)

    def windows(self) -> Iterator[TaskWindow]:
        """Yield all work in windows of a few hundred thousand tasks."""
        first = 0
        for rows in self._tasks.windows():
            window = TaskWindow(self, first, rows.where(self._is_work(rows)), self._comms)
            yield window
            first += len(window)
        if len(self._comms):
            yield TaskWindow(self, first, None, self._comms)

    def in_time(self, device: int | None) -> Iterator[OrderedTasks]:
        """Yield the work of a device (None: all devices) in order of start, in windows.

        Tasks with equal starts keep the order of the file; collectives follow them.
        """
        comms = self._begun_comms(device)
        first = 0
        for rows in self._tasks.in_time():
            own = rows.where(self._is_work(rows))
            if self._tasks.is_in_order:
                task = np.arange(first, first + len(own), dtype=np.int32)
                first += len(own)
            else:
                task = np.searchsorted(self.of_tasks, own.rows).astype(np.int32)
            found = OrderedTasks(
                task,
                own.start_ns,
                own.kind,
                own.stream.astype(np.int64),
                own.connection.astype(np.int64),
            )
            if device is not None:
                found = found.take(np.flatnonzero(own.device == device))
            among = int(np.searchsorted(comms.start_ns, rows.until_ns))
            if among:
                found, comms = (
                    found.merge(comms.take(slice(among))),
                    comms.take(slice(among, None)),
                )
            yield found
        if len(comms.task):
            yield comms

    def _begun_comms(self, device: int | None) -> OrderedTasks:
        """Return the whole collectives in order of start."""
        comms = self._comms
        result = OrderedTasks(
            np.arange(self._task_count, len(self), dtype=np.int32),
            comms.start_ns,
            np.full(len(comms), COMMUNICATION, np.int8),
            np.full(len(comms), UNKNOWN, np.int64),
            comms.connection,
        )
        order = np.argsort(result.start_ns, kind="stable")
        return result.take(order if device is None else order[comms.device[order] == device])

    @property
    def task(self) -> NDArray[np.int32]:
        """Index in TASK, UNKNOWN for whole collectives."""
        return self._with_comms(self.of_tasks, np.full(len(self._comms), UNKNOWN, np.int32))

    @property
    def operator(self) -> ComputedColumn:
        """Operator type of each task, as numbers in `labels`."""
        _ = self.operator_numbers
        return ComputedColumn(self, lambda some: some.operator)

    @property
    def kernel(self) -> ComputedColumn:
        """Name of the kernel, collective or kind of copy, as numbers in `labels`."""
        _ = self.kernel_numbers
        return ComputedColumn(self, lambda some: some.kernel)

    @cached_property
    def operator_numbers(self) -> tuple[TaskNames, NDArray[np.int32]]:
        """Operator types: a lookup for tasks, and the number of each collective's type."""
        names = self._tasks.operator_names(self.labels, self._is_work)
        return names, self._collectives.types(self.labels)

    @cached_property
    def kernel_numbers(self) -> tuple[TaskNames, NDArray[np.int32]]:
        """Kernel names of tasks, and the name of each collective."""
        names = self._tasks.kernel_names(self.labels, self._is_work)
        return names, self._collectives.kernels(self.labels)

    def at_tasks(self, rows: NDArray[np.integer]) -> TaskWindow:
        """Return work by index; the indexes must not be those of whole collectives."""
        return TaskWindow(self, UNKNOWN, self._tasks.rows_at(self.of_tasks[rows]), self._comms)

    def whole_comms(self) -> TaskWindow:
        """Return the whole collectives."""
        return TaskWindow(self, len(self.of_tasks), None, self._comms)

    @cached_property
    def total_ns(self) -> int:
        """Sum of all durations."""
        return sum(int(window.duration_ns.sum(dtype=np.int64)) for window in self.windows())

    def operation_rows(self) -> list[Row]:
        """Return one row per operator type and kind, for recordings without a framework."""
        assert self._framework is None
        _ = self.operator_numbers
        names = [text for text in self.labels.texts for _ in KINDS]
        sums = Sums(len(names))
        for window in self.windows():
            calls = Calls(self.labels, window.operator, window.kind, total_ns=window.duration_ns)
            sums.add(calls, window.operator.astype(np.int64) * len(KINDS) + window.kind)
        return sums.rows(names)

    def summed(self) -> Calls:
        """Return one call for each operator type and kind with its total time, by first start.

        For recordings without a framework.
        """
        assert self._framework is None
        _ = self.operator_numbers
        size = len(self.labels.texts) * len(KINDS)
        never = np.iinfo(np.int64).max
        first_ns, first, total = np.full(size, never), np.full(size, never), np.zeros(size)
        for window in self.windows():
            key = window.operator.astype(np.int64) * len(KINDS) + window.kind
            start_ns = window.start_ns
            # In reverse order, so that the first entry of each key remains.
            order = np.argsort(start_ns, kind="stable")[::-1]
            own_ns, own = np.full(size, never), np.full(size, never)
            own_ns[key[order]] = start_ns[order]
            own[key[order]] = order + window.first
            earlier = own_ns < first_ns
            first_ns[earlier], first[earlier] = own_ns[earlier], own[earlier]
            total += np.bincount(key, weights=window.duration_ns, minlength=size)
        there = np.flatnonzero(first < never)
        keys = there[np.lexsort((first[there], first_ns[there]))]
        return Calls(
            self.labels,
            keys // len(KINDS),
            (keys % len(KINDS)).astype(np.int8),
            total_ns=total[keys].astype(np.int64),
            start_ns=first_ns[keys],
        )

    @cached_property
    def calls(self) -> PackedCalls:
        """One row per framework operation that used the device, and per other device task.

        Times are device times. Kernels and copies count for the operation that launched them;
        those without an operation, and collectives, are separate rows. The pass is known only from
        ranges of the framework.
        """
        parts = []
        if self._framework is not None:
            parts.append(self._operations(self._framework))
        parts.append(self._unowned_rows())
        if self.captured is not None:
            parts.append(self._captured_operations(self.captured))
        if self._framework is not None and len(self._allocations.at_ns):
            parts.append(allocated(self._framework, self.labels, self._allocations))
        return merge_calls(self.labels, parts)

    def _unowned_rows(self) -> Columns:
        """Return one row for each task that no operation launched."""
        _ = self.operator_numbers
        names: tuple[str, ...] = ("when", "name", "kind", "total_ns")
        if self._framework is not None:
            names = (*names, "forward_ns", "backward_ns", "call")
        found = {name: packed_calls.empty_column(name) for name in names}
        for window in self.windows():
            left = np.flatnonzero(~(self._owned(window) | self._replayed(window)))
            duration = window.duration_ns[left]
            found["when"].add(window.start_ns[left])
            found["name"].add(window.operator[left])
            found["kind"].add(window.kind[left])
            found["total_ns"].add(duration)
            if self._framework is not None:
                call, passes = (column[window.rows][left] for column in self.launches)
                found["forward_ns"].add(np.where(passes == FORWARD, duration, UNKNOWN))
                found["backward_ns"].add(np.where(passes == BACKWARD, duration, UNKNOWN))
                found["call"].add(call)
        columns = {name: packing.done() for name, packing in found.items()}
        if self._framework is not None:
            columns |= origin_of(self._framework, self.labels, columns.pop("call"))
        return columns

    def kernel_rows(self) -> list[Row]:
        """Return one row per kernel, collective and kind of copy."""
        _ = self.kernel_numbers, self.operator_numbers
        names = self.labels.texts
        sums = Sums(len(names))
        # Kernels with the same name get the operator type of the first one.
        operator = np.full(len(names), UNKNOWN, np.int64)
        for window in self.windows():
            kernel = window.kernel
            sums.add(self._by_kernel(window), kernel)
            own = np.full(len(names), UNKNOWN, np.int64)
            own[kernel[::-1]] = window.operator[::-1]
            operator = np.where(operator == UNKNOWN, own, operator)
        details = {
            own: names[number]
            for own, number in enumerate(operator.tolist())
            if number not in (own, UNKNOWN)
        }
        return sums.rows(names, details)

    def kernels_of_operations(self, steps: Steps = ()) -> list[tuple[str, Row]]:
        """Return one row for each pair of operation and kernel, as (operation, row).

        If `steps` is given, only tasks launched in a step count.
        """
        _ = self.kernel_numbers, self.operator_numbers
        if self._framework is not None:
            names = names_of(self._framework, self.labels, self._owners)
        captured = self._captured_names()
        texts = self.labels.texts
        pairs, sums = Pool(), Sums(0)
        for window in self.windows():
            owner, start = window.operator.astype(np.int64), window.start_ns
            if self._framework is not None:
                call, own = self.launches.call[window.rows], self._owned(window)
                owner[own] = names[np.searchsorted(self._owners, call[own])]
                if steps:
                    start = np.where(own, self._framework.start_ns[call], start)
            if captured is not None:
                captured_name = captured[window.rows]
                owner = np.where(captured_name != UNKNOWN, captured_name, owner)
            key = pairs.index_of(owner * len(texts) + window.kernel).astype(np.int64)
            if steps:
                key = np.where(step_of(start, steps) == UNKNOWN, UNKNOWN, key)
            sums.grow(len(pairs))
            sums.add(self._by_kernel(window), key)
        found = pairs.values.tolist()
        operations = [texts[pair // len(texts)] for pair in found]
        kernels = [texts[pair % len(texts)] for pair in found]
        order = sorted(range(len(found)), key=found.__getitem__)
        rows = sums.rows(kernels, dict(enumerate(operations)), order)
        return [(row.detail or "", row) for row in rows]

    def launches_of_operations(self) -> dict[tuple[str, str], int]:
        """Return the number of tasks that each operation launched, by its name and kind."""
        _ = self.operator_numbers
        if self._framework is not None:
            names = names_of(self._framework, self.labels, self._owners)
        captured = self._captured_names()
        launches: dict[int, int] = {}
        for window in self.windows():
            owner, kind = window.operator.astype(np.int64), window.kind.astype(np.int64)
            if self._framework is not None:
                owned = self._owned(window)
                call = self.launches.call[window.rows][owned]
                owner[owned] = names[np.searchsorted(self._owners, call)]
                kind[owned] = OPERATION
            if captured is not None:
                replayed = self._replayed(window)
                owner[replayed], kind[replayed] = captured[window.rows][replayed], OPERATION
            keys, count = np.unique(owner * len(KINDS) + kind, return_counts=True)
            for key, number in zip(keys.tolist(), count.tolist(), strict=True):
                launches[key] = launches.get(key, 0) + number
        texts = self.labels.texts
        return {
            (texts[key // len(KINDS)], KINDS[key % len(KINDS)]): launches[key]
            for key in sorted(launches)
        }

    def place(self, task: int) -> tuple[str, str | None]:
        """Return the operation that launched a task, and its source line."""
        name = self.labels.texts[int(self.operator[task])]
        framework, call = self._framework, np.array([NONE])
        if self.captured is not None and self.captured.call[task] != NONE:
            framework, call = self.captured.framework, self.captured.call[task : task + 1]
        elif framework is not None:
            call = self.launches.call[task : task + 1]
        if framework is None or call[0] == NONE:
            return name, None
        (chosen,) = names_of(framework, self.labels, call).tolist()
        stacks, number = framework.stacks(call)
        stack = stacks[int(number[0])]
        return self.labels.texts[chosen], None if stack is None else stack.rpartition("\n")[2]

    def other_pass_ns(self) -> int | None:
        """Return the time of tasks launched in neither pass (optimizer); None if unknown."""
        if self._framework is None:
            return None
        times = []
        for window in self.windows():
            passes = self.launches.passes[window.rows]
            other = (passes != FORWARD) & (passes != BACKWARD) & (passes >= 0)
            if other.any():
                times.append(int(window.duration_ns[other].sum(dtype=np.int64)))
        return sum(times) if times else None

    def over(self, tasks: NDArray[Any], comms: NDArray[Any]) -> NDArray[Any]:
        """Return a column over all work from a column of TASK and one of the collectives."""
        return self._with_comms(tasks[self.of_tasks], comms)

    @cached_property
    def launches(self) -> WorkLaunches:
        """Host range and pass of each task."""
        assert self._framework is not None
        call, passes = Packing(np.int32, hole=NONE), Packing(np.int8)
        for window in self.windows():
            found = self._framework.launches(window.connection)
            call.add(found.call)
            passes.add(found.passes)
        return WorkLaunches(call.done(), passes.done())

    def called(self, some: TaskWindow) -> Ints:
        """Return the name of each task's framework operation, as numbers in `labels`."""
        result = np.full(len(some), UNKNOWN, np.int64)
        if self._framework is not None:
            own = self._owned(some)
            result[own] = self._owner_names[
                np.searchsorted(self._owners, self.launches.call[some.rows][own])
            ]
        captured = self._captured_names()
        if captured is not None:
            captured_name = captured[some.rows]
            result = np.where(captured_name != UNKNOWN, captured_name, result)
        return result

    @cached_property
    def _owner_names(self) -> NDArray[np.int32]:
        """Names of the operations in `_owners`, as numbers in `labels`."""
        assert self._framework is not None
        return names_of(self._framework, self.labels, self._owners)

    def _owned(self, some: TaskWindow) -> Bools:
        """Return a mask of the tasks that count for a framework operation."""
        if self._framework is None:
            return np.zeros(len(some), bool)
        call = self.launches.call[some.rows]
        owned: Bools = (call != NONE) & (some.kind != COMMUNICATION)
        return owned & ~self._replayed(some)

    def _replayed(self, some: TaskWindow) -> Bools:
        """Return a mask of the tasks that count for an operation of a graph capture."""
        if self.captured is None:
            return np.zeros(len(some), bool)
        result: Bools = self.captured.call[some.rows] != NONE
        return result

    @cached_property
    def _owners(self) -> NDArray[np.int32]:
        """The framework operations that launched tasks, in ascending order."""
        there = np.zeros(len(self._framework or ()), bool)
        for window in self.windows():
            there[self.launches.call[window.rows][self._owned(window)]] = True
        return np.flatnonzero(there).astype(np.int32)

    def _captured_names(self) -> NDArray[np.int32] | None:
        """Return the captured operation of each task as a number in `labels`, or UNKNOWN."""
        if self.captured is None:
            return None
        call = self.captured.call
        names = names_of(self.captured.framework, self.labels, call)
        return np.where(call != NONE, names, UNKNOWN).astype(np.int32)

    def by_kernel(self) -> Calls:
        """Return one row per task with the name of its kernel."""
        _ = self.kernel_numbers
        parts = [self._by_kernel(window) for window in self.windows()]
        names = ("name", "kind", "total_ns", "forward_ns", "backward_ns")
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in names
            if parts and getattr(parts[0], name) is not None
        }
        nothing = np.zeros(0, np.int64)
        name, kind = columns.pop("name", nothing), columns.pop("kind", nothing.astype(np.int8))
        return Calls(self.labels, name, kind, **columns)

    def _by_kernel(self, some: TaskWindow) -> Calls:
        """Return one row for each of the given tasks, with the name of its kernel."""
        duration_ns, forward, backward = some.duration_ns, None, None
        if self._framework is not None:
            passes = self.launches.passes[some.rows]
            forward = np.where(passes == FORWARD, duration_ns, UNKNOWN)
            backward = np.where(passes == BACKWARD, duration_ns, UNKNOWN)
        return Calls(
            labels=self.labels,
            name=some.kernel,
            kind=some.kind,
            total_ns=duration_ns,
            forward_ns=forward,
            backward_ns=backward,
        )

    @cached_property
    def _task_count(self) -> int:
        if not self._in_parts:
            return int(self._tasks.counts[[KERNEL, COPY]].sum())
        if len(self._in_parts) == len(self._tasks.devices):
            return int(self._tasks.counts[[KERNEL, COPY, COMMUNICATION]].sum())
        return sum(int(self._is_work(rows).sum()) for rows in self._tasks.windows())

    @cached_property
    def of_tasks(self) -> NDArray[np.int32]:
        """Rows of TASK that count as work."""
        parts = [rows.where(self._is_work(rows)).rows for rows in self._tasks.windows()]
        return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)

    def _is_work(self, rows: TaskRows) -> Bools:
        """Return a mask of the tasks that count as work."""
        kind = rows.kind
        result: Bools = (kind == KERNEL) | (kind == COPY)
        if len(self._in_parts) == len(self._tasks.devices):
            result |= kind == COMMUNICATION
        elif self._in_parts:
            result |= (kind == COMMUNICATION) & np.isin(rows.device, self._in_parts)
        return result

    def _operations(self, framework: Framework) -> Columns:
        """Sum the device time of each framework operation by pass."""
        chosen = self._owners
        times = {which: TimeSums(len(chosen)) for which in (FORWARD, BACKWARD, OTHER_PASS)}
        for window in self.windows():
            owned = self._owned(window)
            call, passes = (column[window.rows][owned] for column in self.launches)
            key, duration = np.searchsorted(chosen, call), window.duration_ns[owned]
            for which, added in times.items():
                in_pass = passes == which
                added.add(key[in_pass], duration[in_pass])
        columns = ("when", "name", "kind", "total_ns", "forward_ns", "backward_ns")
        found = {name: packed_calls.empty_column(name) for name in columns}
        for low in range(0, len(chosen), packed_calls.WINDOW):
            rows = slice(low, low + packed_calls.WINDOW)
            found["when"].add(framework.start_ns[chosen[rows]])
            found["name"].add(names_of(framework, self.labels, chosen[rows]))
            found["kind"].add(np.full(len(chosen[rows]), OPERATION, np.int8))
            total = [added.total_ns(rows) for added in times.values()]
            found["total_ns"].add(np.sum(total, axis=0))
            found["forward_ns"].add(times[FORWARD].known_ns(rows))
            found["backward_ns"].add(times[BACKWARD].known_ns(rows))
        del times
        done = {name: packing.done() for name, packing in found.items()}
        return done | origin_of(framework, self.labels, chosen)

    def _captured_operations(self, captured: Captured) -> Columns:
        """Sum the device time of each captured operation by replay."""
        own: Ints = np.flatnonzero(captured.call != NONE)
        size = len(captured.framework)
        pairs = captured.replay[own] * size + captured.call[own]
        distinct, first, key = np.unique(pairs, return_index=True, return_inverse=True)
        duration, passes = self.duration_ns[own], captured.passes[own]

        def total(mask: Bools) -> Ints:
            some = np.bincount(key[mask], minlength=len(distinct))
            time = np.bincount(key[mask], weights=duration[mask], minlength=len(distinct))
            return np.where(some > 0, time.astype(np.int64), UNKNOWN)

        chosen = distinct % size
        columns = {
            "when": captured.launched_ns[own[first]],
            "name": names_of(captured.framework, self.labels, chosen),
            "kind": np.full(len(distinct), OPERATION, np.int8),
            "total_ns": total(np.ones(len(key), bool)),
            "forward_ns": total(passes == FORWARD),
            "backward_ns": total(passes == BACKWARD),
        }
        return packed_calls.packed(columns) | origin_of(captured.framework, self.labels, chosen)

    def _with_comms(self, tasks: NDArray[Any], comms: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((tasks, comms)) if len(comms) else tasks
