"""Report files as comparable runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.calls import KINDS, OPERATION, UNKNOWN, WEIGHT, Calls, Ints
from unified_prof.analysis.comparable import (
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
from unified_prof.errors import UsageError

# A recording of device work has one call for each execution; so many are compared one by one,
# beyond that all of one module, line and name together.
_MAX_CALLS = 20_000


def load(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Return the run that the files are of; several files give the samples that one lacks.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: a folder holds several runs; the files are of different kinds.
    """
    runs = [_load(Path(path)) for path in paths]
    if len({run.clock for run in runs}) > 1:
        kinds = ", ".join(f"{run.label} has {run.clock} time" for run in runs)
        raise UsageError(f"one side of a comparison mixes reports of different kinds: {kinds}")
    return pool(runs)


def _load(path: Path) -> Run:
    with open_analyses(path) as analyses:
        if len(analyses) > 1:
            found = "; ".join(analysis.summary.path for analysis in analyses)
            raise UsageError(f"{path} holds {len(analyses)} runs", hint=f"name one of: {found}")
        return _run(str(path), analyses[0])


def _run(label: str, analysis: Analysis) -> Run:
    calls, summary = analysis.calls, analysis.summary
    return Run(
        label=label,
        families=frozenset(summary.family.split(" + ")),
        clock=summary.clock,
        facts=dict(summary.facts),
        operations=_operations(analysis, calls),
        sizes=_sizes(calls),
        totals=_totals(analysis),
        kernels=_kernels(analysis),
    )


def _kernels(analysis: Analysis) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for operation, row in analysis.kernels_of_operations():
        if row.total_ns is not None:
            found.setdefault(operation, {})[row.name] = float(row.total_ns)
    return found


def _operations(analysis: Analysis, calls: Calls) -> Operations:
    if calls.total_ns is None:
        return Operations.none()
    timed = np.flatnonzero(calls.total_ns != UNKNOWN)
    samples = analysis.samples()
    if samples is not None and len(samples.forward_ns) == len(timed):
        return Operations(_places(calls, timed), samples.forward_ns, samples.backward_ns)
    forward, backward = _column(calls.forward_ns, timed), _column(calls.backward_ns, timed)
    # Where passes are not told apart, all of the time stands as forward time.
    unknown = np.isnan(forward) & np.isnan(backward)
    forward[unknown] = calls.total_ns[timed][unknown].astype(np.float64)
    if len(timed) <= _MAX_CALLS:
        return Operations(_places(calls, timed), forward[:, None], backward[:, None])
    first, group = _grouped(calls, timed)
    return Operations(
        _places(calls, timed[first]),
        _sum(forward, group, len(first))[:, None],
        _sum(backward, group, len(first))[:, None],
    )


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
    text = calls.labels.text
    unknown = [UNKNOWN] * len(rows)
    module = unknown if calls.module is None else calls.module[rows].tolist()
    line = unknown if calls.line is None else calls.line[rows].tolist()
    return tuple(
        Place(text(name) or "", text(where), text(at), KINDS[kind])
        for name, where, at, kind in zip(
            calls.name[rows].tolist(), module, line, calls.kind[rows].tolist(), strict=True
        )
    )


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


def _totals(analysis: Analysis) -> dict[str, Floats]:
    """Return whole iterations where the report has them, else the report's totals, one sample."""
    totals = analysis.summary.totals
    samples: dict[str, list[float | None]] = {
        TOTAL: [totals.total_ns],
        FORWARD: [totals.forward_ns],
        BACKWARD: [totals.backward_ns],
    }
    if "step" in analysis.summary.available:
        # In the order of measurement: `9` before `10`. A step with a remark is not like the others.
        steps = sorted(analysis.breakdown("step").rows, key=lambda row: (len(row.name), row.name))
        steps = [step for step in steps if step.detail is None]
        samples = {
            TOTAL: [row.total_ns for row in steps],
            FORWARD: [row.forward_ns for row in steps],
            BACKWARD: [row.backward_ns for row in steps],
        }
        samples[PEAK] = [step.extra.get("peak_bytes") for step in steps]
    if not any(samples.get(PEAK, ())):
        samples[PEAK] = [totals.peak_bytes]
    known = {name: [one for one in values if one is not None] for name, values in samples.items()}
    return {name: np.array(values, np.float64) for name, values in known.items() if values}
