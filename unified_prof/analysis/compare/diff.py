"""What changed from one run to another, operation by operation, and how much it explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.compare.alignment import Ints, Pairs
from unified_prof.analysis.compare.between import Between, Noise, spreads
from unified_prof.analysis.compare.comparable import PEAK, Operations, Place, Run, Sized, pair
from unified_prof.analysis.compare.doubts import (
    doubts,
    left_out,
    of_different_clocks,
    of_different_families,
    on_different_clocks,
    step_doubt,
)
from unified_prof.analysis.compare.kernels import KernelChange, kernel_changes
from unified_prof.analysis.compare.many import correct_for_many, medians
from unified_prof.analysis.compare.statistics import MIN_SAMPLES, Comparison, compare
from unified_prof.analysis.compare.waiting import Waiting, alike
from unified_prof.displayed import Displayed
from unified_prof.errors import UsageError

Floats = NDArray[np.float64]
Status = Literal["new", "gone", "slower", "faster", "same", "unclear", "inconclusive"]
SizeStatus = Literal["new", "gone", "bigger", "smaller"]
By = Literal["operation", "line", "module", "annotation"]
NO_REGION = "(outside any region)"


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
    """Statistics; None for a new or gone one, and where there are too few samples."""
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
class Difference(Displayed):
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
    identical: bool = False
    """Whether both sides hold the same figures throughout: one measurement, given twice."""
    parts: tuple[Change, ...] = ()
    """The single operations, where `changes` overlap: regions are part of those around them."""

    @property
    def _parts(self) -> tuple[Change, ...]:
        return self.parts or self.changes

    @property
    def base_ns(self) -> float:
        """All operations of the base run together."""
        return sum(change.base_ns or 0.0 for change in self._parts)

    @property
    def new_ns(self) -> float:
        """All operations of the new run together."""
        return sum(change.new_ns or 0.0 for change in self._parts)

    @property
    def slower_ns(self) -> float:
        """Sum of all that became slower or is new."""
        return sum(max(0.0, change.delta_ns) for change in self._parts)

    @property
    def faster_ns(self) -> float:
        """Sum of all that became faster or is gone, as a positive number."""
        return sum(max(0.0, -change.delta_ns) for change in self._parts)


def diff(base: Run, new: Run, *, by: By = "operation", noise: Noise | None = None) -> Difference:
    """Compare two runs.

    The operations are aligned one by one, whatever `by` is; the others then sum them up. By
    annotation an operation counts for every region around it, as in the new run.
    `noise` is how much runs of such a workload differ on this machine, where it was learned.
    What only one side has measured at all (a memory report beside a run time report) is left out.

    Raises:
        UsageError: the runs are of different families of reports, or have nothing in common; one
            is of a device and the other of the host alone; neither knows of a region.
    """
    common = base.families & new.families
    if not common:
        raise of_different_families(base, new)
    base, new = _only(base, common), _only(new, common)
    if on_different_clocks(base, new):
        raise of_different_clocks(base, new)
    identical = _identical(base, new)
    pairs = pair(base.operations.places, new.operations.places)
    unmatched = []
    paired = any(base.operations.places[i].kind != "between" for i in pairs[0].tolist())
    if len(base.operations) and len(new.operations) and not paired:
        unmatched.append(f"no operation of {new.label} has a counterpart in {base.label}")
    if step_doubt(base, new) is not None:
        base, new = replace(base, totals={}), replace(new, totals={})
    between = Between.of(new.clock, noise)
    single = _one_by_one(base.operations, new.operations, pairs)
    if by == "annotation" and not (base.operations.regions or new.operations.regions):
        raise UsageError(
            f"neither {base.label} nor {new.label} has an operation in a region",
            hint="mark some in the program, with torch.profiler.record_function",
            slug="no-breakdown",
        )
    parts: list[Change] = []
    if by == "annotation":
        parts = _changes(base, new, single, between)
        regions = _Regions(single, base.operations, new.operations)
        changes = _changes(base, new, regions.groups, between, regions.explained_ns)
    else:
        changes = _changes(base, new, _summed_up(single, by), between)
    if identical:
        changes = [replace(change, status="same") for change in changes]
    base, new, waiting = alike(base, new)
    return Difference(
        base=base,
        new=new,
        warnings=(*doubts(base, new), *unmatched),
        left_out=tuple(left_out(base, new)),
        totals={
            metric: compare(before, after, between)
            for metric in base.totals
            if len(before := base.sample(metric)) and len(after := new.sample(metric))
        },
        waiting=waiting,
        changes=tuple(changes),
        size_changes=tuple(_size_changes(base.sizes, new.sizes)),
        kernel_changes=tuple(kernel_changes(base.kernels, new.kernels)),
        identical=identical,
        parts=tuple(parts),
    )


def _identical(base: Run, new: Run) -> bool:
    """Tell whether two runs hold the same figures, each sample of every operation among them.

    No two measurements of more than an operation or two do: it is one, given twice.
    """
    mine, theirs = base.operations, new.operations
    return (
        mine.places == theirs.places
        and np.array_equal(mine.forward_ns, theirs.forward_ns, equal_nan=True)
        and np.array_equal(mine.backward_ns, theirs.backward_ns, equal_nan=True)
        and base.sizes == new.sizes
        and base.kernels == new.kernels
        and base.totals.keys() == new.totals.keys()
        and all(np.array_equal(base.totals[name], new.totals[name]) for name in base.totals)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """What is compared as one: a pair of operations, one alone, or those of a line or module."""

    places: Sequence[Place]
    """As in the new run, or as in the base run where it is gone."""
    base_places: Sequence[Place | None]
    moved: Sequence[bool]
    base: tuple[Ints, Ints]
    """Rows of the base run's operations and the group of each."""
    new: tuple[Ints, Ints]


def _one_by_one(base: Operations, new: Operations, pairs: Pairs) -> _Groups:
    """Return the pairs in program order of the base run, then what is new, then what is gone."""
    first, second = pairs
    only_new = np.delete(np.arange(len(new)), second)
    only_base = np.delete(np.arange(len(base)), first)
    paired, added, count = len(first), len(first) + len(only_new), len(base) + len(only_new)
    gone = [base.places[i] for i in only_base.tolist()]
    return _Groups(
        places=[new.places[j] for j in (*second.tolist(), *only_new.tolist())] + gone,
        base_places=[
            *(base.places[i] for i in first.tolist()),
            *[None] * len(only_new),
            *gone,
        ],
        moved=[*_out_of_order(second), *[False] * (count - paired)],
        base=(
            np.concatenate((first, only_base)),
            np.concatenate((np.arange(paired), np.arange(added, count))),
        ),
        new=(np.concatenate((second, only_new)), np.arange(added)),
    )


def _out_of_order(second: Ints) -> list[bool]:
    """Return which pairs stand before one that precedes them on the other side."""
    before = np.maximum.accumulate(np.append(-1, second))[:-1]
    late: list[bool] = (second < before).tolist()
    return late


def _summed_up(single: _Groups, by: By) -> _Groups:
    """Return the groups of all operations of one line or one module, in order of the first."""
    if by == "operation":
        return single
    keys = [place.line if by == "line" else place.module for place in single.places]
    numbers: dict[str | None, int] = {}
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    members: list[list[int]] = [[] for _ in numbers]
    for index, own in enumerate(group.tolist()):
        members[own].append(index)
    sums = [_sum(key, single, rows, by) for key, rows in zip(numbers, members, strict=True)]

    def regrouped(side: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        return side[0], group[side[1]]

    return _Groups(
        places=[place for place, _ in sums],
        base_places=[base_place for _, base_place in sums],
        moved=[False] * len(sums),
        base=regrouped(single.base),
        new=regrouped(single.new),
    )


def _sum(
    key: str | None, single: _Groups, members: Sequence[int], by: By
) -> tuple[Place, Place | None]:
    names = list(dict.fromkeys(single.places[index].name for index in members))
    name = names[0] if len(names) == 1 else ", ".join(names[:3]) + (", ..." if names[3:] else "")
    module = key if by == "module" else single.places[members[0]].module
    place = Place(name=name, module=module, line=key if by == "line" else None, kind=by)
    before = next(
        (one for index in members if (one := single.base_places[index]) is not None), None
    )
    if before is None:
        return place, None
    return place, replace(place, line=before.line if by == "line" else None)


class _Regions:
    """The groups of all operations of one region, each in every region around it."""

    def __init__(self, single: _Groups, base: Operations, new: Operations) -> None:
        around = _regions_around(single, base, new)
        numbers: dict[str, int] = {}
        pairs = [
            (index, numbers.setdefault(name, len(numbers)))
            for index, names in enumerate(around)
            for name in dict.fromkeys(names or (NO_REGION,))
        ]
        members: list[list[int]] = [[] for _ in numbers]
        for index, own in pairs:
            members[own].append(index)
        places = [Place(name, None, None, "annotation") for name in numbers]
        base_places = [
            place if any(single.base_places[index] is not None for index in rows) else None
            for place, rows in zip(places, members, strict=True)
        ]

        def regrouped(side: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
            found = [
                (row, number)
                for row, index in zip(*(one.tolist() for one in side), strict=True)
                for number in groups_of[index]
            ]
            rows, groups = np.array(found, np.int64).reshape(-1, 2).T
            return rows, groups

        groups_of: list[list[int]] = [[] for _ in around]
        for index, own in pairs:
            groups_of[index].append(own)
        self.groups = _Groups(
            places=places,
            base_places=base_places,
            moved=[False] * len(places),
            base=regrouped(single.base),
            new=regrouped(single.new),
        )
        delta_ns = _middle_delta(base, new, single)[2]
        explained_ns = np.array(_explained(delta_ns.tolist()))
        self.explained_ns: Floats = np.array([explained_ns[rows].sum() for rows in members])


def _regions_around(single: _Groups, base: Operations, new: Operations) -> list[tuple[str, ...]]:
    """Return the regions around each pair, or what is alone: as in the new run where it has any."""
    found: list[tuple[str, ...]] = [()] * len(single.places)
    for operations, (rows, groups) in ((base, single.base), (new, single.new)):
        if operations.regions:
            for row, index in zip(rows.tolist(), groups.tolist(), strict=True):
                found[index] = operations.regions[row]
    return found


def _middle_delta(
    base: Operations, new: Operations, groups: _Groups
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """Return the samples of each group, their medians, and how much these changed."""
    count = len(groups.places)
    before = _summed(base.total_ns, groups.base, count)
    after = _summed(new.total_ns, groups.new, count)
    base_ns, new_ns = medians(before), medians(after)
    return (before, after), (base_ns, new_ns), np.nan_to_num(new_ns) - np.nan_to_num(base_ns)


def _changes(
    base_run: Run,
    new_run: Run,
    groups: _Groups,
    between: Between,
    told_ns: Floats | None = None,
) -> list[Change]:
    """Return what became of each group, those that surely changed first.

    Args:
        base_run: The run before.
        new_run: The run after.
        groups: What is compared as one.
        between: How runs differ.
        told_ns: What each explains; None: they do not overlap, and share the change.
    """
    base, new = base_run.operations, new_run.operations
    count = len(groups.places)
    (before, after), (base_ns, new_ns), delta_ns = _middle_delta(base, new, groups)
    status, comparisons = _judged(
        _Side(before, base_run.columns_of_runs()),
        _Side(after, new_run.columns_of_runs()),
        groups,
        between,
    )
    certain = np.array([_CERTAIN.get(one, 1) for one in status], np.int64)
    order = np.lexsort((-np.abs(delta_ns), certain))
    explained_ns = _explained(delta_ns[order].tolist())
    if told_ns is not None:
        explained_ns = told_ns[order].tolist()
    counts = np.maximum(
        np.bincount(groups.base[1], minlength=count), np.bincount(groups.new[1], minlength=count)
    ).tolist()
    columns = zip(
        order.tolist(),
        _known(base_ns[order]),
        _known(new_ns[order]),
        _known(_delta(base.forward_ns, new.forward_ns, groups)[order]),
        _known(_delta(base.backward_ns, new.backward_ns, groups)[order]),
        explained_ns,
        strict=True,
    )
    return [
        Change(
            place=groups.places[index],
            base_place=groups.base_places[index],
            status=status[index],
            base_ns=base_median,
            new_ns=new_median,
            forward_delta_ns=forward_delta,
            backward_delta_ns=backward_delta,
            explained_ns=explained,
            comparison=comparisons.get(index),
            moved=groups.moved[index],
            count=counts[index],
        )
        for index, base_median, new_median, forward_delta, backward_delta, explained in columns
    ]


_CERTAIN: dict[Status, int] = {"slower": 0, "faster": 0, "new": 0, "gone": 0}


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Samples of what is compared, shape (groups, samples), and which of them are of each run."""

    samples: Floats
    runs: list[slice]

    @property
    def medians(self) -> Floats:
        """Logarithm of the median of each group in each run, NaN where it has none."""
        found = np.stack([medians(self.samples[:, run]) for run in self.runs], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms: Floats = np.log(found)
        logarithms[~np.isfinite(logarithms)] = np.nan
        return logarithms

    @property
    def scatter(self) -> Floats:
        """Variance of such a logarithm, as the samples of a run scatter around their median."""
        found = []
        for run in self.runs:
            samples = self.samples[:, run]
            middle = medians(samples)
            count = (~np.isnan(samples)).sum(axis=1)
            away = medians(np.abs(samples - middle[:, None]))
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(np.square(_MEDIAN_ERROR * away / middle) / count)
        variances = np.stack(found, axis=1)
        known = np.isfinite(variances)
        mean: Floats = np.where(known, variances, 0.0).sum(axis=1) / np.maximum(
            known.sum(axis=1), 1
        )
        return mean


_MEDIAN_ERROR = 1.4826 * math.sqrt(math.pi / 2) * math.sqrt(2)
"""From the median distance from the median to the standard error of the median of one sample; the
last factor, because neighbouring iterations are alike."""


def _judged(
    base: _Side, new: _Side, groups: _Groups, between: Between
) -> tuple[list[Status], dict[int, Comparison]]:
    """Return what became of each group, and the statistics of those that both sides have."""
    count = len(groups.places)
    only_new, gone = np.ones(count, bool), np.ones(count, bool)
    only_new[groups.base[1]] = False
    gone[groups.new[1]] = False
    before, after = base.medians, new.medians
    centre = _mean(after) - _mean(before)
    few = np.minimum(_counts(base.samples), _counts(new.samples)) < MIN_SAMPLES
    centre[few | only_new | gone] = np.nan
    within = np.maximum(base.scatter, new.scatter)
    half, p_values = spreads(centre, before, after, within, between)
    corrected = correct_for_many(p_values)
    status: list[Status] = np.select(
        [only_new, gone, few], ["new", "gone", "inconclusive"], "unclear"
    ).tolist()
    comparisons = {}
    columns = (_counts(base.samples), _counts(new.samples))
    base_ns, new_ns = medians(base.samples), medians(new.samples)
    for index in np.flatnonzero(~few & ~only_new & ~gone).tolist():
        found = _comparison(
            (float(base_ns[index]), float(new_ns[index])),
            (int(columns[0][index]), int(columns[1][index])),
            (len(base.runs), len(new.runs)),
            (float(centre[index]), float(half[index]), float(p_values[index])),
            between,
        )
        comparisons[index] = found
        p_value = float(corrected[index])
        status[index] = found.verdict(None if math.isnan(p_value) else p_value)
    return status, comparisons


def _comparison(
    medians_ns: tuple[float, float],
    counts: tuple[int, int],
    runs: tuple[int, int],
    found: tuple[float, float, float],
    between: Between,
) -> Comparison:
    """Return the statistics of one operation; those of one that took no time are its medians'."""
    centre, half, p_value = found
    if math.isnan(half):
        changed = medians_ns[0] != medians_ns[1]
        return Comparison(*medians_ns, None, None, None, 0.0 if changed else 1.0, *counts, *runs)
    low, ratio, high = (math.exp(one) for one in (centre - half, centre, centre + half))
    return Comparison(*medians_ns, ratio, low, high, p_value, *counts, *runs, noise=between.noise)


def _mean(rows: Floats) -> Floats:
    """Return each row's mean of what is known, NaN where nothing is."""
    known = ~np.isnan(rows)
    count = known.sum(axis=1)
    total = np.where(known, rows, 0.0).sum(axis=1)
    found: Floats = np.divide(total, count, out=np.full(len(rows), np.nan), where=count > 0)
    return found


def _counts(matrix: Floats) -> Ints:
    found: Ints = (~np.isnan(matrix)).sum(axis=1)
    return found


def _summed(matrix: Floats, rows: tuple[Ints, Ints], count: int) -> Floats:
    """Return the samples of each group of rows together; NaN where none of them has one."""
    row, group = rows
    values = matrix[row]
    known = ~np.isnan(values)
    summed = np.zeros((count, matrix.shape[1]))
    np.add.at(summed, group, np.where(known, values, 0.0))
    measured = np.zeros(summed.shape, bool)
    np.logical_or.at(measured, group, known)
    summed[~measured] = np.nan
    return summed


def _delta(base: Floats, new: Floats, groups: _Groups) -> Floats:
    """Return the change of the median; NaN where one side has none."""
    count = len(groups.places)
    delta: Floats = medians(_summed(new, groups.new, count)) - medians(
        _summed(base, groups.base, count)
    )
    return delta


def _known(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _explained(delta_ns: Sequence[float]) -> list[float]:
    """Divide the net change among those that went its way, in proportion to their size.

    Where some became slower and some faster, single changes can be larger than the net change;
    their share of it cannot.
    """
    net = sum(delta_ns)
    same_way = sum(abs(delta) for delta in delta_ns if delta * net > 0)
    return [net * abs(delta) / same_way if delta * net > 0 else 0.0 for delta in delta_ns]


def _size_changes(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    first, second = pair([one.place for one in base], [one.place for one in new])
    paired_base, paired_new = set(first.tolist()), set(second.tolist())
    changes = []
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
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
