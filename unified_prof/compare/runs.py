"""Conversion of reports to comparable runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import AnyInts, FirstSeen, Floats, Ints
from unified_prof.base.run_spec import COUNTED
from unified_prof.base.text import some_of
from unified_prof.compare.comparable import (
    AT_PEAK,
    BACKWARD,
    EXACT,
    FORWARD,
    PEAK,
    TOTAL,
    Operations,
    Place,
    Run,
    Sized,
    pool,
)
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.calls import (
    KINDS,
    OPERATION,
    UNKNOWN,
    WEIGHT,
    AnyCalls,
    Calls,
    region_names,
)
from unified_prof.recording.framework import NOT_ATTRIBUTED
from unified_prof.recording.model import Gaps, Step, typical_steps

BETWEEN = "(between operations)"  # Name of the time that is not part of any operation.

# Device recordings have one call per execution. Up to this number, calls are compared one by one;
# above it, calls with the same module, line and name are compared together.
_MAX_CALLS = 20_000
_HALF = 32  # Number of bits of each half of a combined 64-bit key.
_MAX_NAMED_RUNS = 4  # Number of runs that an error message names.


def load(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Return the run read from one or several reports; samples of several reports are pooled.

    Raises StoreError if a file is not a report or is unreadable, and UsageError if a directory has
    several runs, or the files were timed by different clocks.
    """
    runs = [_load(Path(path)) for path in paths]
    if len({run.clock for run in runs}) > 1:
        kinds = ", ".join(f"{run.label} has {run.clock} time" for run in runs)
        raise UsageError(
            f"one side of a comparison has reports timed by different clocks: {kinds}",
            slug="not-comparable",
        )
    return pool(runs)


def _load(path: Path) -> Run:
    with open_analyses(path) as analyses:
        if len(analyses) > 1:
            found = some_of((one.path for one in analyses), _MAX_NAMED_RUNS, separator="; ")
            raise UsageError(
                f"{path} has {len(analyses)} runs",
                hint=f"name one of: {found}; for ranks of one run, summarize each side with "
                f"`uprof cluster build`, then use `uprof cluster diff` or `gate`",
                slug="several-runs",
            )
        return _run(str(path), analyses[0])


def _run(label: str, analysis: Analysis) -> Run:
    few = analysis.summed_calls(above=_MAX_CALLS)
    calls: AnyCalls = few or analysis.packed_calls
    summary = analysis.summary
    stepped, summed = _per_step(analysis, calls)
    steps = None if stepped is None else stepped.forward_ns.shape[1]
    sizes, (kernels, launched) = _sizes(analysis, calls), _kernels(analysis, steps or 1)
    if stepped is None:
        operations, summed = _operations(analysis, calls)
    else:
        operations = stepped
    return Run(
        label=label,
        families=frozenset(summary.family.split(" + ")),
        clock=summary.clock,
        facts=dict(summary.facts),
        operations=operations,
        sizes=sizes,
        totals=_totals(analysis),
        waited=_within(analysis, "waited_ns"),
        cpu=_within(analysis, "cpu_ns"),
        counts=_counts(dict(summary.facts), operations, sizes, launched),
        parts_ns=summary.totals.iteration_parts_ns,
        summed=summed or calls is few,
        types=analysis.input_types(),
        kernels=kernels,
        steps=steps,
        outside_steps_ns=0.0
        if stepped is None
        else float((calls.sums()["total_ns"] or 0) - np.nansum(stepped.total_ns)),
    )


def _counts(
    facts: Mapping[str, str], operations: Operations, sizes: Sequence[Sized], launched: float
) -> dict[str, float]:
    """Return the exact counts of an iteration, or of a step of a device recording."""
    found = {
        name: float(facts[f"{COUNTED}{name}"])
        for name in EXACT
        if facts.get(f"{COUNTED}{name}", "").isdecimal()
    }
    calls = sum(place.kind == "operation" for place in operations.places)
    activations = [one.size_bytes for one in sizes if one.place.kind == "activation"]
    if launched:
        found["kernels"] = launched
    if calls:
        found["operation-calls"] = float(calls)
    if activations:
        found["activation-bytes"] = float(sum(activations))
    return found


def _kernels(analysis: Analysis, steps: int) -> tuple[dict[str, dict[str, float]], float]:
    """Return the times of kernels by operation, and the number of kernels, of one step."""
    found: dict[str, dict[str, float]] = {}
    launched = 0
    for operation, row in analysis.kernels_of_operations():
        launched += row.count or 0
        if row.total_ns is not None:
            found.setdefault(operation, {})[row.name] = row.total_ns / steps
    return found, launched / steps


def _operations(analysis: Analysis, calls: AnyCalls) -> tuple[Operations, bool]:
    """Return the operations, and whether calls with the same place are summed."""
    if not calls.has("total_ns"):
        return Operations.none(), False
    count, samples = calls.count_measured("total_ns"), analysis.samples()
    measured = samples is not None and len(samples.forward_ns) == count
    if not measured and count > _MAX_CALLS:
        return _summed(calls, 1, lambda some: np.zeros(len(some), np.int64), split=False), True
    whole = calls.to_calls()
    assert whole.total_ns is not None
    timed = np.flatnonzero(whole.total_ns != UNKNOWN)
    places = _places(whole, timed)
    if samples is not None and measured:
        found = Operations(places, samples.forward_ns, samples.backward_ns, _regions(whole, timed))
        return _with_gaps(found, analysis.gaps()), False
    forward, backward = _passes(whole, timed)
    regions = _regions(whole, timed)
    return Operations(places, forward[:, None], backward[:, None], regions), False


def _with_gaps(operations: Operations, gaps: Gaps | None) -> Operations:
    """Return the operations, with the gaps between them as additional entries, in program order."""
    if gaps is None or not len(gaps.before):
        return operations
    order = np.argsort(
        np.concatenate((np.arange(len(operations)) * 2 + 1, gaps.before * 2)), kind="stable"
    )
    places = [
        *operations.places,
        *(
            Place(BETWEEN, operations.places[index].module, line, "between")
            for index, line in zip(gaps.before.tolist(), gaps.lines, strict=True)
        ),
    ]
    no_backward = np.full(gaps.gap_ns.shape, np.nan)
    regions = operations.regions
    if regions:
        regions += tuple(
            _common_regions(regions[max(index - 1, 0)], regions[index])
            for index in gaps.before.tolist()
        )
    return Operations(
        tuple(places[index] for index in order.tolist()),
        np.concatenate((operations.forward_ns, gaps.gap_ns))[order],
        np.concatenate((operations.backward_ns, no_backward))[order],
        tuple(regions[index] for index in order.tolist()) if regions else (),
    )


def _common_regions(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the regions that are open between two operations."""
    pairs = zip(before, after, strict=False)
    return tuple(one for one, other in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _per_step(analysis: Analysis, calls: AnyCalls) -> tuple[Operations | None, bool]:
    """Return the operations with one sample per step, or None if there are no steps.

    The second value is True if calls with the same place are summed.

    The n-th calls with the same module, line and name in each step are one operation. Calls outside
    all steps are left out, so that recordings with different numbers of steps can be compared.
    """
    found = analysis.steps_of_calls()
    if found is None or not calls.has("total_ns"):
        return None, False
    count, step_of = found
    rows = sum(len(_timed(some, step_of)[0]) for some in calls.windows())
    if not rows:
        return None, False
    split = rows <= _MAX_CALLS * count
    return _summed(calls, count, step_of, split=split), not split


# Returns the step of each call, UNKNOWN if it is outside all steps.
StepOf = Callable[[Calls], AnyInts]


def _timed(calls: Calls, step_of: StepOf) -> tuple[NDArray[np.intp], AnyInts]:
    """Return the rows that have a time and a step, and their steps."""
    step = step_of(calls)
    assert calls.total_ns is not None
    rows = np.flatnonzero((calls.total_ns != UNKNOWN) & (step != UNKNOWN))
    return rows, step[rows]


def _summed(calls: AnyCalls, count: int, step_of: StepOf, *, split: bool) -> Operations:
    """Return the summed times of calls with the same kind, name, module and line, per step.

    Calls are in order of their steps. If `split`, the n-th call of each step is a separate
    operation.
    """
    groups, rows = _CallGroups(), FirstSeen()
    occurrences = _Occurrences()
    forward, backward = _StepSums(count), _StepSums(count)
    for some in calls.windows():
        timed, step = _timed(some, step_of)
        group = groups.numbers(some, timed)
        occurrence = occurrences.count(group, step) if split else np.zeros(len(group), np.int64)
        row = rows.numbers(group << _HALF | occurrence)
        for sums, values in zip((forward, backward), _passes(some, timed), strict=True):
            sums.add(row, step, values, len(rows))
    return Operations(
        tuple(groups.places[group] for group in (rows.values >> _HALF).tolist()),
        forward.sums(),
        backward.sums(),
    )


class _CallGroups:
    """Numbers groups of calls with the same kind, name, module and line, in first-seen order."""

    def __init__(self) -> None:
        self._numbered = [FirstSeen() for _ in range(3)]
        self.places: list[Place] = []

    def numbers(self, calls: Calls, rows: NDArray[np.intp]) -> Ints:
        """Return the group of each call in `rows`."""
        group = calls.name[rows].astype(np.int64) * len(KINDS) + calls.kind[rows]
        for numbered, labels in zip(self._numbered, (None, calls.module, calls.line), strict=True):
            if labels is not None:
                group = group << _HALF | (labels[rows].astype(np.int64) + 1)
            group = numbered.numbers(group)
        known = len(self.places)
        if len(self._numbered[-1]) > known:
            # New groups are numbered in the order of their first calls.
            fresh = np.flatnonzero(group >= known)
            first = fresh[np.unique(group[fresh], return_index=True)[1]]
            self.places += _places(calls, rows[first])
        return group


class _Occurrences:
    """Counts the calls of each group within their step."""

    def __init__(self) -> None:
        self._step = UNKNOWN
        # Calls of each group so far in `_step`, which may continue in the next window.
        self._counted = np.zeros(0, np.int64)

    def count(self, group: Ints, step: AnyInts) -> Ints:
        """Return the number of earlier calls in the same group and step; steps must ascend."""
        if not len(group):
            return group
        order = np.lexsort((np.arange(len(group)), step, group))
        new = np.ones(len(group), bool)
        new[1:] = (np.diff(group[order]) != 0) | (np.diff(step[order]) != 0)
        start = np.maximum.accumulate(np.where(new, np.arange(len(group)), 0))
        occurrence = np.empty(len(group), np.int64)
        occurrence[order] = np.arange(len(group)) - start
        size = max(int(group.max()) + 1, len(self._counted))
        self._counted = np.append(self._counted, np.zeros(size - len(self._counted), np.int64))
        continued = step == self._step
        occurrence[continued] += self._counted[group[continued]]
        last = int(step[-1])
        if last != self._step:
            self._step, self._counted = last, np.zeros(size, np.int64)
        self._counted += np.bincount(group[step == last], minlength=size)
        return occurrence


class _StepSums:
    """Sums of times by operation and step; NaN where nothing was added."""

    def __init__(self, steps: int) -> None:
        self._total = np.zeros((0, steps))
        self._known = np.zeros((0, steps), bool)

    def add(self, row: Ints, step: AnyInts, values: Floats, rows: int) -> None:
        """Add times; NaN is ignored. `rows` is the number of operations so far."""
        more = rows - len(self._total)
        if more:
            steps = self._total.shape[1]
            self._total = np.concatenate((self._total, np.zeros((more, steps))))
            self._known = np.concatenate((self._known, np.zeros((more, steps), bool)))
        known = ~np.isnan(values)
        if known.any():
            cell = row[known] * self._total.shape[1] + step[known]
            np.add.at(self._total.reshape(-1), cell, values[known])
            self._known.reshape(-1)[cell] = True

    def sums(self) -> Floats:
        """Return the sums, shape (operations, steps)."""
        self._total[~self._known] = np.nan
        return self._total


def _passes(calls: Calls, rows: AnyInts) -> tuple[Floats, Floats]:
    """Return forward and backward times; if passes were not recorded, all time is forward time."""
    assert calls.total_ns is not None
    forward, backward = _column(calls.forward_ns, rows), _column(calls.backward_ns, rows)
    unknown = np.isnan(forward) & np.isnan(backward)
    forward[unknown] = calls.total_ns[rows][unknown].astype(np.float64)
    return forward, backward


def _column(values: AnyInts | None, rows: AnyInts) -> Floats:
    if values is None:
        return np.full(len(rows), np.nan)
    column: Floats = np.array(values[rows], np.float64)
    column[column == UNKNOWN] = np.nan
    return column


def _places(calls: Calls, rows: AnyInts) -> tuple[Place, ...]:
    texts = [*calls.labels.texts, None]  # UNKNOWN is -1: the last one.
    unknown = [UNKNOWN] * len(rows)
    module = unknown if calls.module is None else calls.module[rows].tolist()
    line = unknown if calls.line is None else calls.line[rows].tolist()
    modules = [None if text == NOT_ATTRIBUTED else text for text in texts]
    return tuple(
        Place(texts[name] or "", modules[where], texts[at], KINDS[kind])
        for name, where, at, kind in zip(
            calls.name[rows].tolist(), module, line, calls.kind[rows].tolist(), strict=True
        )
    )


def _regions(calls: Calls, rows: AnyInts) -> tuple[tuple[str, ...], ...]:
    """Return the regions that enclose each call; empty if the report has no regions."""
    if calls.region is None:
        return ()
    names = [*map(region_names, calls.labels.texts), ()]  # UNKNOWN is -1: the last one.
    return tuple(names[number] for number in calls.region[rows].tolist())


def _sizes(analysis: Analysis, calls: AnyCalls) -> tuple[Sized, ...]:
    """Return weights and activations, or the memory at the peak of a snapshot by source line."""
    found: list[Sized] = []
    if analysis.summary.clock == "none" and "line" in analysis.summary.available:
        return tuple(
            Sized(Place(one.name, None, one.name, AT_PEAK), one.size_bytes or 0)
            for one in analysis.breakdown("line").rows
        )
    for kind, name, called in (
        (WEIGHT, "weight_bytes", "weight"),
        (OPERATION, "activation_bytes", "activation"),
    ):
        if not calls.has(name):
            continue
        whole = calls.to_calls()
        column: AnyInts = getattr(whole, name)
        rows = np.flatnonzero((whole.kind == kind) & (column != UNKNOWN))
        found += [
            Sized(Place(place.name, place.module, place.line, called), size)
            for place, size in zip(_places(whole, rows), column[rows].tolist(), strict=True)
        ]
    return tuple(found)


def _iterations(analysis: Analysis) -> tuple[Step, ...]:
    """Return the iterations to compare, in order."""
    return tuple(typical_steps(analysis.steps()))


def _totals(analysis: Analysis) -> dict[str, Floats]:
    """Return the times of whole iterations, or else the report's totals as one sample."""
    totals = analysis.summary.totals
    samples: dict[str, list[int | None]] = {
        TOTAL: [totals.total_ns],
        FORWARD: [totals.forward_ns],
        BACKWARD: [totals.backward_ns],
    }
    if analysis.steps():
        steps = _iterations(analysis)
        samples = {
            TOTAL: [step.total_ns for step in steps],
            FORWARD: [step.forward_ns for step in steps],
            BACKWARD: [step.backward_ns for step in steps],
            PEAK: [step.peak_bytes for step in steps],
        }
    if not any(samples.get(PEAK, ())):
        samples[PEAK] = [totals.peak_bytes]
    known = {
        name: [value for value in values if value is not None] for name, values in samples.items()
    }
    return {name: np.array(values, np.float64) for name, values in known.items() if values}


def _within(analysis: Analysis, part: str) -> dict[str, Floats]:
    """Return the part `waited_ns` or `cpu_ns` of the times of `_totals`, NaN if unknown."""
    found = {}
    for metric, prefix in ((TOTAL, ""), (FORWARD, "forward_"), (BACKWARD, "backward_")):
        values = [
            getattr(step, f"{prefix}{part}")
            for step in _iterations(analysis)
            if getattr(step, f"{prefix or 'total_'}ns") is not None
        ]
        array = np.array(values, np.float64)
        if not np.isnan(array).all():
            found[metric] = array
    return found
