"""Skyline run time and memory reports of any maker, and trees of time and memory for an icicle.

Tables that uprof adds (iterations, modules, provenance) are used if they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import starmap
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from unified_prof.arrays.grouping import AnyInts
from unified_prof.errors import UsageError
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording import annotations as tracked_regions
from unified_prof.recording import breakdowns, skyline_tables
from unified_prof.recording.breakdowns import NO_LINE, NO_MODULE, module_parts
from unified_prof.recording.calls import (
    OPERATION,
    SIZES,
    UNKNOWN,
    AnyCalls,
    Calls,
    concatenate,
    sums_by,
)
from unified_prof.recording.model import (
    Advice,
    Breakdown,
    By,
    Gaps,
    NotMeasured,
    Place,
    Row,
    Samples,
    Step,
    Summary,
    Totals,
    typical_steps,
)
from unified_prof.recording.source import Findings, Source, recorded_anomalies, recorded_facts

RUN_TIME = "skyline-run-time"
MEMORY = "skyline-memory"


class SkylineAnalysis(Analysis):
    """One run's Skyline reports: run times, memory, or both side by side."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._findings = Findings()
        self._run_time = next((source for source in sources if source.family == RUN_TIME), None)
        self._memory = next((source for source in sources if source.family == MEMORY), None)
        self._sources = tuple(one for one in (self._run_time, self._memory) if one is not None)

    @property
    def path(self) -> str:
        """Path of the report, or of both reports."""
        return ", ".join(str(source.path) for source in self._sources)

    @property
    def _has(self) -> str:
        return "have" if len(self._sources) > 1 else "has"

    @property
    def family(self) -> str:
        """Families of the reports' schemas."""
        return " + ".join(source.family for source in self._sources)

    @cached_property
    def calls(self) -> Calls:
        """One row per operation call, weight and activation."""
        parts = []
        if self._run_time is not None:
            parts.append(skyline_tables.run_time_calls(self._run_time, self._findings))
        if self._memory is not None:
            parts.append(skyline_tables.weights(self._memory, self._findings))
            parts.append(skyline_tables.activations(self._memory, self._findings))
        return concatenate(parts)

    @cached_property
    def summary(self) -> Summary:
        """Headline figures of the run."""
        totals = self._totals()
        # Both files of a run contain its anomalies.
        anomalies = dict.fromkeys(
            anomaly for source in self._sources for anomaly in recorded_anomalies(source)
        )
        facts = dict(fact for source in self._sources for fact in recorded_facts(source))
        steps = bool(self.steps())
        return Summary(
            path=self.path,
            family=self.family,
            revision=", ".join(dict.fromkeys(source.revision or "?" for source in self._sources)),
            clock="none" if self._run_time is None else "operation",
            facts=tuple(facts.items()),
            totals=totals,
            devices=(),
            anomalies=(*anomalies, *self._findings.anomalies()),
            not_measured=tuple(self._not_measured(totals)),
            available=breakdowns.available(
                self.calls, steps=steps, regions=bool(self._regions.counts)
            ),
        )

    def breakdown(self, by: By) -> Breakdown:
        """Divide the run by `by`."""
        if by == "step" and self.steps():
            return breakdowns.finish("step", map(_step_row, self.steps()))
        if by not in self.summary.available:
            why = _WHY_NOT.get(by, _NO_DEVICE)
            raise UsageError(
                f"{self.summary.path} {self._has} no breakdown by {by}: {why}",
                hint=f"available: {', '.join(self.summary.available) or 'none'}",
                slug="no-breakdown",
            )
        if by == "annotation":
            averaged = [number for number, step in enumerate(self.steps()) if step.matched]
            return tracked_regions.breakdown_tracked_regions(self.calls, self._regions, averaged)
        found = breakdowns.by_label(self.calls, by)
        totals = self.summary.totals
        iteration_ns = (totals.iteration_ns or 0) - (totals.iteration_waited_ns or 0)
        return replace(found, whole_ns=max(iteration_ns, found.total_ns or 0) or None)

    @cached_property
    def _regions(self) -> skyline_tables.Regions:
        """Regions, the same in both reports of a run."""
        for source in self._sources:
            result = skyline_tables.read(source, self._findings)
            if result.counts:
                return result
        return skyline_tables.Regions({})

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Weights of `stacks`."""
        result = (one for one in ("time", "forward", "backward", "memory"))
        return tuple(one for one in result if breakdowns.measured(self.calls, one))

    def stacks(self, measure: str, by: Place | None = None) -> breakdowns.Stacks:
        """Return operations or allocations below their modules or lines."""
        return breakdowns.stacks_of_calls(
            self.calls, measure, breakdowns.place_of(self.calls, by, self.path)
        )

    def samples(self) -> Samples | None:
        """Return each operation's time in each iteration, if recorded."""
        return None if self._run_time is None else skyline_tables.operation_samples(self._run_time)

    def gaps(self) -> Gaps | None:
        """Return the time between operations in each iteration, if recorded."""
        return None if self._run_time is None else skyline_tables.operation_gaps(self._run_time)

    def advice(self, *, quick: bool = False) -> Advice:
        """Return the findings, most expensive first."""
        from unified_prof.explain.advice.tracked import Tracked
        from unified_prof.explain.advice.tracked_operations import advise

        return advise(
            Tracked(
                steps=self.steps(),
                calls=self.calls,
                gaps=self.gaps(),
                facts=dict(self.summary.facts),
                parts_ns=self.summary.totals.iteration_parts_ns,
            )
        )

    def steps(self) -> tuple[Step, ...]:
        """Return the measured iterations."""
        return self._steps

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        """Measured iterations, the same in both reports of a run."""
        for source in self._sources:
            result = skyline_tables.iterations(source, self._findings)
            if result is not None:
                return result
        return ()

    def _totals(self) -> Totals:
        sums = self.calls.sums()
        typical = typical_steps(self._steps)
        whole = _median_iteration(typical)
        timed = self.calls.kind == OPERATION
        if self.calls.total_ns is not None:
            timed = self.calls.total_ns != UNKNOWN
        facts = {} if self._memory is None else dict(recorded_facts(self._memory))
        noted = {
            name: int(text)
            for name in ("optimizer_state_bytes", "most_saved_bytes_at_once")
            if (text := facts.get(name) or "").isascii() and text.isdecimal()
        }
        return Totals(
            total_ns=sums["total_ns"],
            forward_ns=sums["forward_ns"],
            backward_ns=sums["backward_ns"],
            recomputed_ns=sums["recomputed_ns"],
            count=int(timed.sum()),
            weight_bytes=sums["weight_bytes"],
            gradient_bytes=sums["gradient_bytes"],
            activation_bytes=sums["activation_bytes"],
            peak_bytes=None
            if self._memory is None
            else skyline_tables.peak(self._memory, self._findings),
            iterations=len(typical) or len(self._steps) or None,
            optimizer_state_bytes=noted.get("optimizer_state_bytes"),
            most_activation_bytes=noted.get("most_saved_bytes_at_once"),
            **whole,
        )

    def _not_measured(self, totals: Totals) -> list[NotMeasured]:
        missing: dict[str, str] = {}
        if self._run_time is None:
            missing["times"] = "the run time report is missing; `uprof run` writes both"
        elif totals.total_ns is None:
            missing["times"] = "the report has no operations"
        elif totals.backward_ns is None:
            missing["backward times"] = "no operation has a backward pass"
        if self._memory is None:
            missing["memory"] = "the memory report is missing; `uprof run` writes both"
        elif totals.peak_bytes is None:
            missing["peak memory"] = "the report does not contain it"
        known = breakdowns.available(self.calls, steps=bool(self._steps))
        for by in ("module", "line", "kernel", "step"):
            if by not in known:
                missing[f"time by {by}"] = _WHY_NOT.get(by, _NO_DEVICE)
        return list(starmap(NotMeasured, missing.items()))


_NO_DEVICE = "Skyline reports measure operations, not device activity"
_WHY_NOT: dict[By, str] = {
    "operation": "it lists no operation",
    "module": "module names not recorded (table UPROF_MODULES)",
    "line": "the report has no stack frames",
    "kernel": "Skyline reports measure operations, not their kernels",
    "group": "Skyline reports contain no collectives",
    "annotation": "the program marks no region (torch.profiler.record_function), or another "
    "profiler wrote the report (table UPROF_REGIONS)",
    "step": "single iterations not recorded (table UPROF_ITERATIONS)",
}


def _step_row(step: Step) -> Row:
    return Row(
        name=step.name,
        kind="step",
        count=1,
        total_ns=step.total_ns,
        forward_ns=step.forward_ns,
        backward_ns=step.backward_ns,
        detail=None if step.matched else "another sequence of operations: not averaged",
        extra={
            "peak_bytes": step.peak_bytes,
            "waited_ns": step.waited_ns,
            "cpu_ns": step.cpu_ns,
            **{f"{part}_ns": value for part, value in step.parts_ns.items()},
        },
    )


# Parts of an iteration in the order of a training loop.
PARTS = (
    "data_loading",
    "forward",
    "backward",
    "forward_without_gradients",
    "compilation",
    "recomputation",
    "gradient_clipping",
    "optimizer",
    "zero_grad",
    "synchronizing_reads",
    "saving",
    "other",
    "waiting_for_cpu",
)


def _median_iteration(steps: list[Step]) -> dict[str, Any]:
    """Return the median iteration and its parts, as fields of `Totals`.

    Parts are those of the median iterations. Waiting for a CPU is a separate part and in no other,
    so that they add up.
    """
    known = sorted(
        (step for step in steps if step.total_ns is not None), key=lambda step: step.total_ns or 0
    )
    middle = known[(len(known) - 1) // 2 : len(known) // 2 + 1]

    def mean(values: list[int | None]) -> int | None:
        measured = [value for value in values if value is not None]
        is_complete = measured and len(measured) == len(values)
        return round(sum(measured) / len(measured)) if is_complete else None

    total_ns = mean([step.total_ns for step in middle])
    forward_ns = mean([step.forward_ns for step in middle])
    backward_ns = mean([step.backward_ns for step in middle])
    waited_ns = mean([step.waited_ns for step in middle])
    forward_waited_ns = mean([step.forward_waited_ns for step in middle])
    backward_waited_ns = mean([step.backward_waited_ns for step in middle])
    parts_ns: dict[str, int] = {}
    if total_ns is not None and forward_ns is not None:
        named = dict.fromkeys(part for step in middle for part in step.parts_ns)
        found = {part: mean([step.parts_ns.get(part, 0) for step in middle]) for part in named}
        found["forward"] = forward_ns - (forward_waited_ns or 0)
        if backward_ns is not None:
            found["backward"] = backward_ns - (backward_waited_ns or 0)
        found["waiting_for_cpu"] = waited_ns
        parts_ns = {part: value for part in PARTS if (value := found.get(part)) is not None}
        other_ns = total_ns - sum(parts_ns.values())
        # Rounding may make the parts longer than the iteration by a few nanoseconds.
        part = "other" if other_ns >= 0 else max(parts_ns, key=lambda name: parts_ns[name])
        parts_ns = {"other": 0, **parts_ns}
        parts_ns[part] += other_ns
        parts_ns = {part: parts_ns[part] for part in PARTS if part in parts_ns}
    return {
        "iteration_ns": total_ns,
        "iteration_p90_ns": int(
            np.percentile([step.total_ns or 0 for step in known], 90, method="higher")
        )
        if len(known) > 1
        else None,
        "iteration_forward_ns": forward_ns,
        "iteration_backward_ns": backward_ns,
        "iteration_waited_ns": waited_ns,
        "iteration_parts_ns": parts_ns,
    }


Kind = Literal["module", "line", "operation"]

MEASURES = ("total_ns", "forward_ns", "backward_ns", "size_bytes")  # Values of a node, in order.

_CALLS_PER_TEXT = 8  # Calls per distinct text in a window.


class Node(Struct, frozen=True):
    """A node with the values (MEASURES) of everything below it."""

    name: str
    # Index of the parent, which comes before it; -1 for the root.
    parent: int
    values: tuple[int, int, int, int]
    count: int


class Tree(Struct, frozen=True):
    """A tree, whose first node is the root, and the available MEASURES."""

    kind: Kind
    nodes: tuple[Node, ...]
    measures: tuple[str, ...]


def trees(analysis: Analysis) -> tuple[Tree, ...]:
    """Return the available trees: modules, source lines, operations with kernels."""
    builder = _Builder()
    pairs = analysis.kernels_of_operations(in_steps=False)
    if pairs and not analysis.has_places:
        return (_operation_tree(builder, pairs, ("total_ns",)),)
    calls = analysis.packed_calls
    if not len(calls):
        return ()
    sums = calls.sums()
    has_size = any(sums[column] is not None for column in SIZES)
    measures = tuple(
        measure
        for measure in MEASURES
        if (has_size if measure == "size_bytes" else sums[measure] is not None)
    )
    texts = calls.labels.texts
    result = []
    if calls.has("module"):
        result.append(
            _label_tree("module", calls, lambda some: some.module, _module_path, measures)
        )
    if calls.has("stack"):
        result.append(_label_tree("line", calls, lambda some: some.stack, _frames, measures))
    if not pairs:
        for number, values, count in _grouped(calls, lambda some: some.name):
            builder.add([texts[number]], values, count)
    result.append(_operation_tree(builder, pairs, measures))
    return tuple(result)


def _operation_tree(
    builder: _Builder, pairs: list[tuple[str, Row]], measures: tuple[str, ...]
) -> Tree:
    """Return the tree of operations and their kernels."""
    for operation, row in pairs:
        times = (row.total_ns or 0, row.forward_ns or 0, row.backward_ns or 0, 0)
        path = [operation] if operation == row.name else [operation, row.name]
        builder.add(path, times, row.count)
    return builder.tree("operation", measures)


class _Builder:
    """Builds a tree by adding values along paths."""

    def __init__(self) -> None:
        # Name, parent, and sums of the values and of the count of each node.
        self._nodes: list[tuple[str, int, list[int]]] = [("", -1, [0] * 5)]
        self._children: dict[tuple[int, str], int] = {}

    def add(self, path: list[str], values: tuple[int, ...], count: int) -> None:
        """Add values to every node on a path."""
        node = 0
        self._sum(node, values, count)
        for name in path:
            child = self._children.setdefault((node, name), len(self._nodes))
            if child == len(self._nodes):
                self._nodes.append((name, node, [0] * 5))
            node = child
            self._sum(node, values, count)

    def _sum(self, node: int, values: tuple[int, ...], count: int) -> None:
        _, _, sums = self._nodes[node]
        for index, value in enumerate((*values, count)):
            sums[index] += value

    def tree(self, kind: Kind, measures: tuple[str, ...]) -> Tree:
        nodes = tuple(
            Node(name, parent, (total, forward, backward, size), count)
            for name, parent, (total, forward, backward, size, count) in self._nodes
        )
        return Tree(kind, nodes, measures)


def _label_tree(
    kind: Kind,
    calls: AnyCalls,
    label_of: Callable[[Calls], AnyInts | None],
    path_of: Callable[[str | None], list[str]],
    measures: tuple[str, ...],
) -> Tree:
    """Return the tree of the paths of labels, with operations as leaves."""
    texts = calls.labels.texts
    builder = _Builder()

    def pairs(some: Calls) -> AnyInts:
        label = label_of(some)
        assert label is not None, "every call has this column"
        return (label.astype(np.int64) + 1) * len(texts) + some.name

    for pair, values, count in _grouped(calls, pairs):
        text = calls.labels.text(pair // len(texts) - 1)
        builder.add([*path_of(text), texts[pair % len(texts)]], values, count)
    return builder.tree(kind, measures)


def _grouped(
    calls: AnyCalls, key_of: Callable[[Calls], AnyInts]
) -> list[tuple[int, tuple[int, ...], int]]:
    """Return (key, values, calls) for each distinct key, in order of first occurrence."""
    result: dict[int, list[int]] = {}
    for some in calls.windows(least=_CALLS_PER_TEXT * len(calls.labels.texts)):
        distinct, first, number = np.unique(key_of(some), return_index=True, return_inverse=True)
        # If there are times, entries of a memory report are not further calls.
        timed = some.total_ns is None or some.total_ns != UNKNOWN
        count = np.bincount(number, weights=np.broadcast_to(timed, len(number)))
        columns = [
            [value or 0 for value in sums_by(number, len(distinct), getattr(some, measure))]
            for measure in MEASURES[:3]
        ]
        sizes = np.zeros(len(distinct), np.int64)
        for column in SIZES:
            known = [value or 0 for value in sums_by(number, len(distinct), getattr(some, column))]
            sizes += np.array(known, np.int64)
        columns += [sizes.tolist(), [int(one) for one in count]]
        for index in np.argsort(first).tolist():
            sums = result.setdefault(int(distinct[index]), [0] * len(columns))
            for place, values in enumerate(columns):
                sums[place] += values[index]
    return [(key, tuple(values), count) for key, (*values, count) in result.items()]


def _module_path(path: str | None) -> list[str]:
    return [NO_MODULE] if path is None else module_parts(path)


def _frames(stack: str | None) -> list[str]:
    return [NO_LINE] if stack is None else stack.split("\n")
