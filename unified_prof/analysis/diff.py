"""What changed from one run to another, operation by operation, and how much it explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.alignment import Pair, align
from unified_prof.analysis.comparable import PEAK, Operations, Place, Run, Sized
from unified_prof.analysis.doubts import doubts, left_out, step_doubt
from unified_prof.analysis.kernels import KernelChange, kernel_changes
from unified_prof.analysis.statistics import (
    ALPHA,
    MIN_SAMPLES,
    Comparison,
    compare,
    correct_for_many,
    is_same,
    mann_whitney_rows,
    medians,
)
from unified_prof.analysis.waiting import Waiting, alike
from unified_prof.errors import UsageError

Floats = NDArray[np.float64]
Status = Literal["new", "gone", "slower", "faster", "same", "unclear", "inconclusive"]
SizeStatus = Literal["new", "gone", "bigger", "smaller"]
By = Literal["operation", "line", "module"]

# Intervals are drawn for so many of the largest changes; the smaller ones are judged by their
# corrected p-value alone. Two thousand resamples of each of ten thousand rows take a minute.
_INTERVALS = 200


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one operation (or of all operations of one line or module)."""

    place: Place
    """As in the new run, or as in the base run where it is gone."""
    base_place: Place | None
    """As in the base run; None where it is new."""
    status: Status
    base_ns: float | None
    """Median over the samples; None where it is new."""
    new_ns: float | None
    """Median over the samples; None where it is gone."""
    forward_delta_ns: float | None
    """Change of the forward time; None where one side did not measure any."""
    backward_delta_ns: float | None
    explained_ns: float
    """Its part of the change of all operations together; never more than that change."""
    comparison: Comparison | None
    """Statistics; None for a new or gone one, and for small changes among very many."""
    moved: bool = False
    """Whether it stands in another order than in the base run."""
    count: int = 1
    """Operations it sums up."""

    @property
    def delta_ns(self) -> float:
        """New time less base time; a new operation counts whole, a gone one negative."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A weight or an activation whose size changed."""

    place: Place
    status: SizeStatus
    base_bytes: int | None
    new_bytes: int | None

    @property
    def delta_bytes(self) -> int:
        """New size less base size."""
        return (self.new_bytes or 0) - (self.base_bytes or 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs compared."""

    base: Run
    new: Run
    warnings: tuple[str, ...]
    """Why the two may not be comparable."""
    left_out: tuple[str, ...]
    """What was recorded but is not compared."""
    totals: dict[str, Comparison]
    """Whole iterations by metric, where both sides have it."""
    waiting: Waiting | None
    """Whether their times are without waiting for a processor; None: no side knows its waiting.
    The times of single operations always are as the clock measured."""
    changes: tuple[Change, ...]
    """All operations: those that surely changed first, then by the size of the change."""
    size_changes: tuple[SizeChange, ...]
    """By the size of the change."""
    kernel_changes: tuple[KernelChange, ...] = ()
    """Kernels under the operations that both runs have, where a recording shows them; together
    by operation, those with the largest change first."""

    @property
    def base_ns(self) -> float:
        """All operations of the base run together."""
        return sum(change.base_ns or 0.0 for change in self.changes)

    @property
    def new_ns(self) -> float:
        """All operations of the new run together."""
        return sum(change.new_ns or 0.0 for change in self.changes)

    @property
    def slower_ns(self) -> float:
        """Sum of all that became slower or is new."""
        return sum(max(0.0, change.delta_ns) for change in self.changes)

    @property
    def faster_ns(self) -> float:
        """Sum of all that became faster or is gone, as a positive number."""
        return sum(max(0.0, -change.delta_ns) for change in self.changes)


def diff(base: Run, new: Run, *, by: By = "operation") -> Difference:
    """Compare two runs.

    The operations are aligned one by one, whatever `by` is; `line` and `module` then sum them up.
    What only one side has measured at all (a memory report beside a run time report) is left out.

    Raises:
        UsageError: the runs are of different families of reports, or have nothing in common.
    """
    common = base.families & new.families
    if not common:
        families = [" + ".join(sorted(run.families)) for run in (base, new)]
        raise UsageError(
            f"{base.label} ({families[0]}) and {new.label} ({families[1]}) are reports of "
            "different families",
            hint="compare two run time reports, two memory reports or two msprof databases",
        )
    base, new = _only(base, common), _only(new, common)
    pairs = align(
        [place.keys for place in base.operations.places],
        [place.keys for place in new.operations.places],
    )
    unmatched = []
    paired = any(base.operations.places[i].kind != "between" for i, _ in pairs)
    if len(base.operations) and len(new.operations) and not paired:
        unmatched.append(f"no operation of {new.label} has a counterpart in {base.label}")
    if step_doubt(base, new) is not None:
        base, new = replace(base, totals={}), replace(new, totals={})
    changes = _changes(base.operations, new.operations, pairs, by)
    base, new, waiting = alike(base, new)
    return Difference(
        base=base,
        new=new,
        warnings=(*doubts(base, new), *unmatched),
        left_out=tuple(left_out(base, new)),
        totals={
            metric: compare(samples, new.totals[metric])
            for metric, samples in base.totals.items()
            if len(samples) and len(new.totals.get(metric, ()))
        },
        waiting=waiting,
        changes=tuple(_explain(changes)),
        size_changes=tuple(_size_changes(base.sizes, new.sizes)),
        kernel_changes=tuple(kernel_changes(base.kernels, new.kernels)),
    )


def _only(run: Run, families: frozenset[str]) -> Run:
    """Return what a run has of these families."""
    timed, sized = "skyline-run-time", "skyline-memory"
    if "msprof" in families:
        return run
    return replace(
        run,
        operations=run.operations if timed in families else Operations.none(),
        sizes=run.sizes if sized in families else (),
        totals={
            metric: samples
            for metric, samples in run.totals.items()
            if (sized if metric == PEAK else timed) in families
        },
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Operations of both sides that are compared as one."""

    place: Place
    base_place: Place | None
    base_rows: tuple[int, ...]
    new_rows: tuple[int, ...]
    moved: bool


def _groups(base: Operations, new: Operations, pairs: Sequence[Pair], by: By) -> list[_Group]:
    paired_base = {i for i, _ in pairs}
    paired_new = {j for _, j in pairs}
    out_of_order = _out_of_order(pairs)
    single = [
        _Group(new.places[j], base.places[i], (i,), (j,), (i, j) in out_of_order) for i, j in pairs
    ]
    single += [
        _Group(place, None, (), (j,), False)
        for j, place in enumerate(new.places)
        if j not in paired_new
    ]
    single += [
        _Group(place, place, (i,), (), False)
        for i, place in enumerate(base.places)
        if i not in paired_base
    ]
    if by == "operation":
        return single
    summed: dict[str | None, list[_Group]] = {}
    for group in single:
        summed.setdefault(group.place.line if by == "line" else group.place.module, []).append(
            group
        )
    return [_sum(key, members, by) for key, members in summed.items()]


def _sum(key: str | None, members: Sequence[_Group], by: By) -> _Group:
    names = list(dict.fromkeys(member.place.name for member in members))
    name = names[0] if len(names) == 1 else ", ".join(names[:3]) + (", ..." if names[3:] else "")
    module = key if by == "module" else members[0].place.module
    line = key if by == "line" else None
    place = Place(name=name, module=module, line=line, kind=by)
    base_places = [member.base_place for member in members if member.base_place is not None]
    base_line = base_places[0].line if by == "line" and base_places else None
    return _Group(
        place=place,
        base_place=replace(place, line=base_line) if base_places else None,
        base_rows=tuple(row for member in members for row in member.base_rows),
        new_rows=tuple(row for member in members for row in member.new_rows),
        moved=False,
    )


def _out_of_order(pairs: Sequence[Pair]) -> set[Pair]:
    """Return pairs that stand before one that precedes them on the other side."""
    late: set[Pair] = set()
    highest = -1
    for i, j in pairs:
        if j < highest:
            late.add((i, j))
        highest = max(highest, j)
    return late


def _changes(base: Operations, new: Operations, pairs: Sequence[Pair], by: By) -> list[Change]:
    groups = _groups(base, new, pairs, by)
    base_rows = [group.base_rows for group in groups]
    new_rows = [group.new_rows for group in groups]
    before, after = _summed(base.total_ns, base_rows), _summed(new.total_ns, new_rows)
    p_values = correct_for_many(_p_values(before, after))
    columns = zip(
        groups,
        _known(medians(before)),
        _known(medians(after)),
        _deltas(base.forward_ns, new.forward_ns, base_rows, new_rows),
        _deltas(base.backward_ns, new.backward_ns, base_rows, new_rows),
        strict=True,
    )
    changes = [
        Change(
            place=group.place,
            base_place=group.base_place,
            status="new" if not group.base_rows else "gone" if not group.new_rows else "same",
            base_ns=base_ns,
            new_ns=new_ns,
            forward_delta_ns=forward_delta_ns,
            backward_delta_ns=backward_delta_ns,
            explained_ns=0.0,
            comparison=None,
            moved=group.moved,
            count=max(len(group.base_rows), len(group.new_rows)),
        )
        for group, base_ns, new_ns, forward_delta_ns, backward_delta_ns in columns
    ]
    largest = sorted(range(len(changes)), key=lambda index: -abs(changes[index].delta_ns))
    for rank, index in enumerate(largest):
        if changes[index].status == "same":
            p_value = float(p_values[index])
            with_interval = rank < _INTERVALS
            changes[index] = _judged(
                changes[index], before[index], after[index], p_value, with_interval
            )
    certain = {"slower": 0, "faster": 0, "new": 0, "gone": 0}
    return sorted(
        changes, key=lambda change: (certain.get(change.status, 1), -abs(change.delta_ns))
    )


def _judged(
    change: Change, base_row: Floats, new_row: Floats, p_value: float, with_interval: bool
) -> Change:
    if np.isnan(p_value):
        return replace(change, status="inconclusive")
    if with_interval:
        comparison = compare(base_row[~np.isnan(base_row)], new_row[~np.isnan(new_row)])
        return replace(change, comparison=comparison, status=comparison.verdict(p_value))
    if p_value >= ALPHA or not change.delta_ns:
        ratio = (change.new_ns or 0.0) / change.base_ns if change.base_ns else math.inf
        same = not change.delta_ns or is_same(ratio, ratio)
        return change if same else replace(change, status="unclear")
    return replace(change, status="slower" if change.delta_ns > 0 else "faster")


def _summed(matrix: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """Return the samples of each group of rows together; NaN where none of them has one."""
    row = np.array([row for rows in groups for row in rows], np.intp)
    group = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    values = matrix[row]
    known = ~np.isnan(values)
    summed = np.zeros((len(groups), matrix.shape[1]))
    np.add.at(summed, group, np.where(known, values, 0.0))
    measured = np.zeros(summed.shape, bool)
    np.logical_or.at(measured, group, known)
    summed[~measured] = np.nan
    return summed


def _deltas(
    base: Floats,
    new: Floats,
    base_rows: Sequence[Sequence[int]],
    new_rows: Sequence[Sequence[int]],
) -> list[float | None]:
    return _known(medians(_summed(new, new_rows)) - medians(_summed(base, base_rows)))


def _known(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def _p_values(before: Floats, after: Floats) -> Floats:
    """Test each row of the one against that of the other; NaN where there are too few samples."""
    p_values = np.full(len(before), np.nan)
    shapes = np.stack([(~np.isnan(side)).sum(axis=1) for side in (before, after)], axis=1)
    for count_a, count_b in np.unique(shapes, axis=0).tolist():
        if min(count_a, count_b) >= MIN_SAMPLES:
            rows = np.flatnonzero((shapes == (count_a, count_b)).all(axis=1))
            a, b = before[rows], after[rows]
            p_values[rows] = mann_whitney_rows(
                a[~np.isnan(a)].reshape(len(rows), count_a),
                b[~np.isnan(b)].reshape(len(rows), count_b),
            )
    return p_values


def _explain(changes: Sequence[Change]) -> list[Change]:
    """Divide the net change among those that went its way, in proportion to their size.

    Where some became slower and some faster, single changes can be larger than the net change;
    their share of it cannot.
    """
    net = sum(change.delta_ns for change in changes)
    same_way = sum(abs(change.delta_ns) for change in changes if change.delta_ns * net > 0)
    return [
        replace(change, explained_ns=net * abs(change.delta_ns) / same_way)
        if change.delta_ns * net > 0
        else change
        for change in changes
    ]


def _size_changes(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    pairs = align([one.place.keys for one in base], [one.place.keys for one in new])
    paired_base, paired_new = {i for i, _ in pairs}, {j for _, j in pairs}
    changes = []
    for i, j in pairs:
        before, after = base[i].size_bytes, new[j].size_bytes
        if before != after:
            status: SizeStatus = "bigger" if after > before else "smaller"
            changes.append(SizeChange(new[j].place, status, before, after))
    changes += [
        SizeChange(one.place, "new", None, one.size_bytes)
        for j, one in enumerate(new)
        if j not in paired_new
    ]
    changes += [
        SizeChange(one.place, "gone", one.size_bytes, None)
        for i, one in enumerate(base)
        if i not in paired_base
    ]
    return sorted(changes, key=lambda change: -abs(change.delta_bytes))
