"""The device's work, piece by piece, and the calls it sums up to.

A piece of work is a kernel, a copy, or a collective as a whole. Waiting tasks are no work, and the
many small tasks of a collective are part of it, not beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import (
    COMMUNICATION,
    COPY,
    KERNEL,
    KINDS,
    OPERATION,
    UNKNOWN,
    Calls,
    Labels,
    group,
)
from unified_prof.analysis.model import Row
from unified_prof.analysis.read.collectives import Collectives
from unified_prof.analysis.read.counters import Allocations
from unified_prof.analysis.read.framework import (
    BACKWARD,
    FORWARD,
    NONE,
    NOT_ATTRIBUTED,
    Framework,
    module_class,
)
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.analysis.views.communication import CollectiveNames

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[np.integer]]


Steps = Sequence[tuple[str, int, int]]
"""Name, start and end in nanoseconds, in order of time."""


def step_of(start_ns: Ints, steps: Steps) -> Ints:
    """Return the index of the step that each moment lies in, UNKNOWN where in none."""
    starts = np.array([start for _, start, _ in steps], np.int64)
    ends = np.array([end for _, _, end in steps], np.int64)
    step = np.searchsorted(starts, start_ns, side="right") - 1
    result: Ints = np.where((step >= 0) & (start_ns < ends[step]), step, UNKNOWN)
    return result


class Work:
    """Columns over all pieces of work: the tasks among them first, then the collectives."""

    def __init__(
        self,
        tasks: Tasks,
        comms: Collectives,
        framework: Framework | None,
        collectives: CollectiveNames,
        allocations: Allocations,
    ) -> None:
        mask = (tasks.kind == KERNEL) | (tasks.kind == COPY)
        for device in np.unique(tasks.device).tolist():
            if comms.in_parts(device):
                mask |= (tasks.kind == COMMUNICATION) & (tasks.device == device)
        self._task = np.flatnonzero(mask).astype(np.int32)
        self._tasks, self._comms, self._collectives = tasks, comms, collectives
        self._framework, self._allocations = framework, allocations
        self.labels = Labels()
        self.duration_ns = self._with_comms(tasks.duration_ns[self._task], comms.duration_ns)
        self.kind = self._with_comms(
            tasks.kind[self._task], np.full(len(comms), COMMUNICATION, np.int8)
        )

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def task(self) -> NDArray[np.int32]:
        """The task that each piece is, UNKNOWN of collectives as a whole."""
        return self._with_comms(self._task, np.full(len(self._comms), UNKNOWN, np.int32))

    @property
    def start_ns(self) -> Ints:
        """Start of each piece."""
        return self._with_comms(self._tasks.start_ns[self._task], self._comms.start_ns)

    @property
    def device(self) -> Ints:
        """Device of each piece."""
        tasks = self._tasks.device[self._task].astype(np.int64)
        return self._with_comms(tasks, self._comms.device)

    @property
    def stream(self) -> Ints:
        """Stream of each piece, UNKNOWN of collectives as a whole."""
        tasks = self._tasks.stream[self._task].astype(np.int64)
        return self._with_comms(tasks, np.full(len(self._comms), UNKNOWN))

    @property
    def connection(self) -> Ints:
        """What ties each piece to the host call that launched it."""
        tasks = self._tasks.connection[self._task].astype(np.int64)
        return self._with_comms(tasks, self._comms.connection)

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each piece, as numbers in `labels`."""
        tasks = self._tasks.operator_labels(self.labels, self._task)
        comms = self._collectives.types(self.labels)
        return self._with_comms(tasks, comms)

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Kernel, collective or kind of copy that each piece is, as numbers in `labels`."""
        tasks = self._tasks.kernel_labels(self.labels, self._task)
        comms = self._collectives.names(self.labels)
        return self._with_comms(tasks, comms)

    @cached_property
    def calls(self) -> Calls:
        """One row per framework operation that used the device, and per piece of other work.

        A row's time is device time. Kernels and copies belong to the operation that launched
        them; those of no operation, and all collectives, are rows of their own. Only the
        framework's ranges tell which pass work belongs to.
        """
        parts = []
        alone: NDArray[np.intp] | slice = slice(None)
        if self._framework is not None:
            owned = self._owned
            parts.append(self._operations(self._framework, owned))
            alone = np.flatnonzero(~owned)
        rest: Columns = {
            "when": self.start_ns[alone],
            "name": self.operator[alone],
            "kind": self.kind[alone],
            "total_ns": self.duration_ns[alone],
        }
        if self._framework is not None:
            call, passes = self.launches
            rest |= {
                "forward_ns": np.where(passes == FORWARD, self.duration_ns, UNKNOWN)[alone],
                "backward_ns": np.where(passes == BACKWARD, self.duration_ns, UNKNOWN)[alone],
                **_origin(self._framework, self.labels, call[alone]),
            }
        parts.append(rest)
        if self._framework is not None and len(self._allocations.at_ns):
            parts.append(_allocated(self._framework, self.labels, self._allocations))
        return _joined(self.labels, parts)

    def kernel_rows(self) -> list[Row]:
        """Return one row per kernel, collective and kind of copy."""
        calls = self.by_kernel()
        # Of kernels that share a name, the first one's operator type stands for all.
        kernel, operators = self.kernel, self.operator
        operator = np.full(len(self.labels.texts), UNKNOWN, np.int64)
        operator[kernel[::-1]] = operators[::-1]
        names = self.labels.texts
        details = {
            own: names[number]
            for own, number in enumerate(operator.tolist())
            if number not in (own, UNKNOWN)
        }
        return group(calls, self.kernel, names, details)

    def kernels_of_operations(self, steps: Steps = ()) -> list[tuple[str, Row]]:
        """Return one row for each pair of operation and kernel under it, as (operation, row).

        Where there are steps, only what the calls that began in one of them launched counts.
        """
        kernel, owner, start = self.kernel, self.operator.astype(np.int64), self.start_ns
        if self._framework is not None:
            owned = self._owned
            call, _ = self.launches
            distinct, number = np.unique(call[owned], return_inverse=True)
            names = _names(self._framework, self.labels, distinct)
            owner[owned] = names[number]
            start = np.where(owned, self._framework.start_ns[call], start)
        texts = self.labels.texts
        pairs, key = np.unique(owner * len(texts) + kernel, return_inverse=True)
        if steps:
            key = np.where(step_of(start, steps) == UNKNOWN, UNKNOWN, key)
        calls = self.by_kernel()
        operations = [texts[pair // len(texts)] for pair in pairs.tolist()]
        kernels = [texts[pair % len(texts)] for pair in pairs.tolist()]
        rows = group(calls, key, kernels, dict(enumerate(operations)))
        return [(row.detail or "", row) for row in rows]

    def launches_of_operations(self) -> dict[tuple[str, str], int]:
        """Return how many pieces of work each operation launched, by its name and kind."""
        owner, kind = self.operator.astype(np.int64), self.kind.astype(np.int64)
        if self._framework is not None:
            owned = self._owned
            distinct, number = np.unique(self.launches[0][owned], return_inverse=True)
            owner[owned] = _names(self._framework, self.labels, distinct)[number]
            kind[owned] = OPERATION
        keys, count = np.unique(owner * len(KINDS) + kind, return_counts=True)
        texts = self.labels.texts
        return {
            (texts[key // len(KINDS)], KINDS[key % len(KINDS)]): number
            for key, number in zip(keys.tolist(), count.tolist(), strict=True)
        }

    def place(self, piece: int) -> tuple[str, str | None]:
        """Return the operation that a piece belongs to, and the line that called it."""
        name = self.labels.texts[int(self.operator[piece])]
        if self._framework is None:
            return name, None
        call = self.launches[0][piece : piece + 1]
        if call[0] == NONE:
            return name, None
        (chosen,) = _names(self._framework, self.labels, call).tolist()
        stacks, number = self._framework.stacks(call)
        stack = stacks[int(number[0])]
        return self.labels.texts[chosen], None if stack is None else stack.rpartition("\n")[2]

    def other_pass_ns(self) -> int | None:
        """Return the time of work launched in neither pass (by an optimizer), if that is known."""
        if self._framework is None:
            return None
        _, passes = self.launches
        other = (passes != FORWARD) & (passes != BACKWARD) & (passes >= 0)
        return int(self.duration_ns[other].sum()) if other.any() else None

    def over(self, tasks: NDArray[Any], comms: NDArray[Any]) -> NDArray[Any]:
        """Return columns over all tasks and over all collectives as one over the pieces."""
        return self._with_comms(tasks[self._task], comms)

    @cached_property
    def launches(self) -> tuple[Ints, NDArray[np.int8]]:
        """Host range and pass of each piece."""
        assert self._framework is not None
        launches = self._framework.launches(self.connection)
        return launches.call, launches.passes

    @property
    def _owned(self) -> NDArray[np.bool_]:
        """Which pieces are part of a framework operation's row."""
        call, _ = self.launches
        owned: NDArray[np.bool_] = (call != NONE) & (self.kind != COMMUNICATION)
        return owned

    def by_kernel(self) -> Calls:
        """Return one row per piece, under its kernel's name."""
        forward, backward = self._passes()
        return Calls(
            labels=self.labels,
            name=self.kernel,
            kind=self.kind,
            total_ns=self.duration_ns,
            forward_ns=forward,
            backward_ns=backward,
        )

    def _passes(self) -> tuple[Ints | None, Ints | None]:
        if self._framework is None:
            return None, None
        _, passes = self.launches
        return (
            np.where(passes == FORWARD, self.duration_ns, UNKNOWN),
            np.where(passes == BACKWARD, self.duration_ns, UNKNOWN),
        )

    def _operations(self, framework: Framework, owned: NDArray[np.bool_]) -> Columns:
        """Sum the work of each framework operation, by pass."""
        call, passes = self.launches
        chosen, key = np.unique(call[owned], return_inverse=True)
        duration, passes = self.duration_ns[owned], passes[owned]

        def total(mask: NDArray[np.bool_]) -> Ints:
            some = np.bincount(key[mask], minlength=len(chosen))
            time = np.bincount(key[mask], weights=duration[mask], minlength=len(chosen))
            return np.where(some > 0, time.astype(np.int64), UNKNOWN)

        return {
            "when": framework.start_ns[chosen],
            "name": _names(framework, self.labels, chosen),
            "kind": np.full(len(chosen), OPERATION, np.int8),
            "total_ns": total(np.ones(len(key), bool)),
            "forward_ns": total(passes == FORWARD),
            "backward_ns": total(passes == BACKWARD),
            **_origin(framework, self.labels, chosen),
        }

    def _with_comms(self, tasks: NDArray[Any], comms: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((tasks, comms)) if len(comms) else tasks


def _allocated(framework: Framework, labels: Labels, allocations: Allocations) -> Columns:
    """Return one row per allocation, under the operation that asked for it."""
    call = framework.calls_at(allocations.names, allocations.at_ns)
    owners = np.where(
        call != NONE, _names(framework, labels, call), labels.numbers(allocations.names)
    )
    return {
        "when": allocations.at_ns,
        "name": owners,
        "kind": np.full(len(call), OPERATION, np.int8),
        "allocated_bytes": allocations.size_bytes,
        **_origin(framework, labels, call),
    }


def host_calls(framework: Framework) -> Calls:
    """Return one row per framework operation, timed on the host: there is no device work."""
    labels = Labels()
    chosen = framework.calls
    part: Columns = {
        "when": framework.start_ns[chosen],
        "name": _names(framework, labels, chosen),
        "kind": np.full(len(chosen), OPERATION, np.int8),
        "total_ns": framework.end_ns[chosen] - framework.start_ns[chosen],
        **_origin(framework, labels, chosen),
    }
    return _joined(labels, [part])


def _names(framework: Framework, labels: Labels, chosen: Ints) -> NDArray[np.int32]:
    names, number = framework.names(chosen)
    return labels.numbers(names)[number]


def _origin(framework: Framework, labels: Labels, ranges: Ints) -> Columns:
    """Return module, line and stack of host ranges; -1 is a range that is not known."""
    columns: Columns = {}
    modules, number = framework.modules(ranges)
    columns["module"] = labels.numbers(modules)[number]
    stacks, number = framework.stacks(ranges)
    innermost = [None if stack is None else stack.rpartition("\n")[2] for stack in stacks]
    columns["line"] = labels.numbers(innermost)[number]
    columns["stack"] = labels.numbers(stacks)[number]
    return columns


def _joined(labels: Labels, parts: list[Columns]) -> Calls:
    """Join parts that have different columns, in the order of time."""
    filled = [part for part in parts if len(part["name"])] or parts[:1]
    columns = dict(filled[0])
    if len(filled) > 1:
        columns = {
            name: np.concatenate(
                [part.get(name, np.full(len(part["name"]), UNKNOWN, np.int64)) for part in filled]
            )
            for name in dict.fromkeys(name for part in filled for name in part)
        }
    when = columns["start_ns"] = columns.pop("when")
    if np.any(when[1:] < when[:-1]):
        order = np.argsort(when, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    if "module" in columns:
        # Where no module is known at all, there is nothing to tell what is not recorded from.
        in_none = (UNKNOWN, labels.number(NOT_ATTRIBUTED))
        if np.isin(columns["module"], in_none).all():
            del columns["module"]
    for name in ("total_ns", "forward_ns", "backward_ns", "line", "stack"):
        if name in columns and not (columns[name] != UNKNOWN).any():
            del columns[name]
    classes = {}
    if "module" in columns:
        used = np.unique(columns["module"])
        paths = {labels.texts[number] for number in used.tolist() if number != UNKNOWN}
        classes = {path: module_class(path) for path in paths - {NOT_ATTRIBUTED}}
    kind = columns.pop("kind").astype(np.int8)
    return Calls(labels=labels, kind=kind, module_class=classes, **columns)
