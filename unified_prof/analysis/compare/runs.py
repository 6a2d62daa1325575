"""Report files as comparable runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.calls import (
    KINDS,
    OPERATION,
    UNKNOWN,
    WEIGHT,
    Calls,
    Ints,
    known_sum,
    region_names,
)
from unified_prof.analysis.compare.comparable import (
    BACKWARD,
    FORWARD,
    PEAK,
    TOTAL,
    Floats,
    Operations,
    Place,
    Run,
    Sized,
    pool,
)
from unified_prof.analysis.load import open_analyses
from unified_prof.analysis.model import Gaps, Step
from unified_prof.analysis.read.framework import NOT_ATTRIBUTED
from unified_prof.errors import UsageError

BETWEEN = "(between operations)"
"""What the time that belongs to no operation is called."""

# A recording of device work has one call for each execution; so many are compared one by one,
# beyond that all of one module, line and name together.
_MAX_CALLS = 20_000
_NAMED = 4
"""Of several runs in one folder."""


def load(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Return the run that the files are of; several files give the samples that one lacks.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: a folder holds several runs; the files are of different kinds.
    """
    runs = [_load(Path(path)) for path in paths]
    if len({run.clock for run in runs}) > 1:
        kinds = ", ".join(f"{run.label} has {run.clock} time" for run in runs)
        raise UsageError(
            f"one side of a comparison mixes reports of different kinds: {kinds}",
            slug="not-comparable",
        )
    return pool(runs)


def _load(path: Path) -> Run:
    with open_analyses(path) as analyses:
        if len(analyses) > 1:
            found = "; ".join(analysis.path for analysis in analyses[:_NAMED])
            more = f" and {len(analyses) - _NAMED} more" if len(analyses) > _NAMED else ""
            raise UsageError(
                f"{path} holds {len(analyses)} runs",
                hint=f"name one of: {found}{more}; if they are ranks of one run, make a summary of "
                f"each side with `uprof cluster build`, then `uprof cluster diff` or `gate`",
                slug="several-runs",
            )
        return _run(str(path), analyses[0])


def _run(label: str, analysis: Analysis) -> Run:
    calls, summary = analysis.summed_calls(above=_MAX_CALLS) or analysis.calls, analysis.summary
    stepped = _per_step(analysis, calls)
    steps = None if stepped is None else stepped.forward_ns.shape[1]
    return Run(
        label=label,
        families=frozenset(summary.family.split(" + ")),
        clock=summary.clock,
        facts=dict(summary.facts),
        operations=_operations(analysis, calls) if stepped is None else stepped,
        sizes=_sizes(calls),
        totals=_totals(analysis),
        waited=_waited(analysis),
        kernels=_kernels(analysis, steps or 1),
        steps=steps,
        outside_steps_ns=0.0 if stepped is None else _left_out(calls, stepped),
    )


def _left_out(calls: Calls, stepped: Operations) -> float:
    """Return the time of the calls that belong to no step."""
    return float((known_sum(calls.total_ns) or 0) - np.nansum(stepped.total_ns))


def _kernels(analysis: Analysis, steps: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for operation, row in analysis.kernels_of_operations():
        if row.total_ns is not None:
            found.setdefault(operation, {})[row.name] = row.total_ns / steps
    return found


def _operations(analysis: Analysis, calls: Calls) -> Operations:
    if calls.total_ns is None:
        return Operations.none()
    timed = np.flatnonzero(calls.total_ns != UNKNOWN)
    samples = analysis.samples()
    if samples is not None and len(samples.forward_ns) == len(timed):
        measured = Operations(
            _places(calls, timed), samples.forward_ns, samples.backward_ns, _regions(calls, timed)
        )
        return _with_gaps(measured, analysis.gaps())
    forward, backward = _passes(calls, timed)
    if len(timed) <= _MAX_CALLS:
        return Operations(
            _places(calls, timed), forward[:, None], backward[:, None], _regions(calls, timed)
        )
    first, group = _grouped(calls, timed)
    return Operations(
        _places(calls, timed[first]),
        _sum(forward, group, len(first))[:, None],
        _sum(backward, group, len(first))[:, None],
    )


def _with_gaps(operations: Operations, gaps: Gaps | None) -> Operations:
    """Put the time between operations where it stands in the program, as entries of its own."""
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
    nothing = np.full(gaps.gap_ns.shape, np.nan)
    regions = operations.regions
    if regions:
        regions += tuple(
            _around_both(regions[max(index - 1, 0)], regions[index])
            for index in gaps.before.tolist()
        )
    return Operations(
        tuple(places[index] for index in order.tolist()),
        np.concatenate((operations.forward_ns, gaps.gap_ns))[order],
        np.concatenate((operations.backward_ns, nothing))[order],
        tuple(regions[index] for index in order.tolist()) if regions else (),
    )


def _around_both(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the regions that were open between two operations."""
    pairs = zip(before, after, strict=False)
    return tuple(one for one, other in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _per_step(analysis: Analysis, calls: Calls) -> Operations | None:
    """Return the operations with a sample for each step, None where calls belong to no steps.

    Steps are alike, but for a few calls: those that come after one another with the same module,
    line and name, in the same number, are one operation. Calls in no step are left out, so that
    recordings with another number of steps, or another start, can be compared.
    """
    found = analysis.steps_of_calls()
    if found is None or calls.total_ns is None:
        return None
    count, step = found
    rows = np.flatnonzero((calls.total_ns != UNKNOWN) & (step != UNKNOWN))
    if not len(rows):
        return None
    forward, backward = _passes(calls, rows)
    first, group = _grouped(calls, rows)
    if len(rows) <= _MAX_CALLS * count:
        first, group = _by_occurrence(group, step[rows])
    cell = group * count + step[rows]
    shape = (len(first), count)
    return Operations(
        _places(calls, rows[first]),
        _sum(forward, cell, len(first) * count).reshape(shape),
        _sum(backward, cell, len(first) * count).reshape(shape),
    )


def _by_occurrence(group: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Split groups by the number of the call among those of its group in its step.

    Returns the first row of each of the new groups, in program order, and the group of each row.
    """
    order = np.lexsort((np.arange(len(group)), step, group))
    new = np.ones(len(group), bool)
    new[1:] = (np.diff(group[order]) != 0) | (np.diff(step[order]) != 0)
    start = np.maximum.accumulate(np.where(new, np.arange(len(group)), 0))
    occurrence = np.empty(len(group), np.int64)
    occurrence[order] = np.arange(len(group)) - start
    key = group * (int(occurrence.max()) + 1) + occurrence
    return _in_order(key)


def _passes(calls: Calls, rows: Ints) -> tuple[Floats, Floats]:
    """Return forward and backward times; where passes are not told apart, all is forward time."""
    assert calls.total_ns is not None
    forward, backward = _column(calls.forward_ns, rows), _column(calls.backward_ns, rows)
    unknown = np.isnan(forward) & np.isnan(backward)
    forward[unknown] = calls.total_ns[rows][unknown].astype(np.float64)
    return forward, backward


def _column(values: Ints | None, rows: Ints) -> Floats:
    if values is None:
        return np.full(len(rows), np.nan)
    column: Floats = np.array(values[rows], np.float64)
    column[column == UNKNOWN] = np.nan
    return column


def _grouped(calls: Calls, rows: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each group, in program order, and the group of each row."""
    key = np.zeros(len(rows), np.int64)
    for labels in (calls.kind, calls.name, calls.module, calls.line):
        if labels is not None:
            values = np.unique(labels[rows], return_inverse=True)[1]
            # Renumbered after each column, so that the product never overflows.
            key = np.unique(key * (int(values.max()) + 1) + values, return_inverse=True)[1]
    return _in_order(key)


def _in_order(key: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each distinct key, in rising order, and the key's number by row."""
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[group]


def _sum(values: Floats, group: Ints, groups: int) -> Floats:
    known = ~np.isnan(values)
    total = np.bincount(group[known], weights=values[known], minlength=groups).astype(np.float64)
    total[np.bincount(group[known], minlength=groups) == 0] = np.nan
    return total


def _places(calls: Calls, rows: Ints) -> tuple[Place, ...]:
    texts = [*calls.labels.texts, None]  # UNKNOWN is -1, and so the last
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


def _regions(calls: Calls, rows: Ints) -> tuple[tuple[str, ...], ...]:
    """Return the regions around each call; none where the report knows of no region."""
    if calls.region is None:
        return ()
    names = [*map(region_names, calls.labels.texts), ()]  # UNKNOWN is -1, and so the last
    return tuple(names[number] for number in calls.region[rows].tolist())


def _sizes(calls: Calls) -> tuple[Sized, ...]:
    found: list[Sized] = []
    for kind, column, called in (
        (WEIGHT, calls.weight_bytes, "weight"),
        (OPERATION, calls.activation_bytes, "activation"),
    ):
        if column is None:
            continue
        rows = np.flatnonzero((calls.kind == kind) & (column != UNKNOWN))
        found += [
            Sized(Place(place.name, place.module, place.line, called), size)
            for place, size in zip(_places(calls, rows), column[rows].tolist(), strict=True)
        ]
    return tuple(found)


def _iterations(analysis: Analysis) -> tuple[Step, ...]:
    """Return the iterations to compare by: those that are like the others, in order."""
    return tuple(step for step in analysis.steps() if step.matched)


def _totals(analysis: Analysis) -> dict[str, Floats]:
    """Return whole iterations where the report has them, else the report's totals, one sample."""
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
    known = {name: [one for one in values if one is not None] for name, values in samples.items()}
    return {name: np.array(values, np.float64) for name, values in known.items() if values}


def _waited(analysis: Analysis) -> dict[str, Floats]:
    """Return what of each of those times the thread waited; NaN where that is not known."""
    steps = _iterations(analysis)
    found: dict[str, list[tuple[int | None, int | None]]] = {
        TOTAL: [(step.total_ns, step.waited_ns) for step in steps],
        FORWARD: [(step.forward_ns, step.forward_waited_ns) for step in steps],
        BACKWARD: [(step.backward_ns, step.backward_waited_ns) for step in steps],
    }
    waited = {
        name: np.array([one for time_ns, one in values if time_ns is not None], np.float64)
        for name, values in found.items()
    }
    return {name: values for name, values in waited.items() if not np.isnan(values).all()}
