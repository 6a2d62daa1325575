"""What of two runs is compared as one: a pair of operations, or all those of a line or module.

What became of each of thousands of operations, by the samples of both sides at once.

How the time of each operation changed, and how much of the whole change it explains.

The operations of each region together: one counts for every region around it.

Weights and activations whose size changed.

What became of the kernels under each operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unified_prof.arrays.types import Floats, Ints
from unified_prof.compare.alignment import Pairs
from unified_prof.compare.comparable import Kernels, Operations, Place, Run, Sized, pair
from unified_prof.compare.confidence import Between, spreads
from unified_prof.compare.statistics import MIN_SAMPLES, Comparison, correct_for_many, medians

By = Literal["operation", "line", "module", "annotation"]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """What is compared as one: a pair of operations, one alone, or those of a line or module."""

    places: Sequence[Place]
    """As in the new run, or as in the base run where it is gone."""
    base_places: Sequence[Place | None]
    moved: Sequence[bool]
    base: tuple[Ints, Ints]
    """Rows of the base run's operations and the group of each."""
    new: tuple[Ints, Ints]


def one_by_one(base: Operations, new: Operations, pairs: Pairs) -> Groups:
    """Return the pairs in program order of the base run, then what is new, then what is gone."""
    first, second = pairs
    only_new = np.delete(np.arange(len(new)), second)
    only_base = np.delete(np.arange(len(base)), first)
    paired, added, count = len(first), len(first) + len(only_new), len(base) + len(only_new)
    gone = [base.places[i] for i in only_base.tolist()]
    return Groups(
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


def summed_up(single: Groups, by: By) -> Groups:
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

    return Groups(
        places=[place for place, _ in sums],
        base_places=[base_place for _, base_place in sums],
        moved=[False] * len(sums),
        base=regrouped(single.base),
        new=regrouped(single.new),
    )


def _sum(
    key: str | None, single: Groups, members: Sequence[int], by: By
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


Status = Literal["new", "gone", "slower", "faster", "same", "unclear", "inconclusive"]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
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


def judge(
    base: Samples, new: Samples, groups: Groups, between: Between
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


def middle_delta(
    base: Operations, new: Operations, groups: Groups
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """Return the samples of each group, their medians, and how much these changed."""
    count = len(groups.places)
    before = _summed(base.total_ns, groups.base, count)
    after = _summed(new.total_ns, groups.new, count)
    base_ns, new_ns = medians(before), medians(after)
    return (before, after), (base_ns, new_ns), np.nan_to_num(new_ns) - np.nan_to_num(base_ns)


def changes_of(
    base_run: Run,
    new_run: Run,
    groups: Groups,
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
    (before, after), (base_ns, new_ns), delta_ns = middle_delta(base, new, groups)
    status, comparisons = judge(
        Samples(before, base_run.columns_of_runs()),
        Samples(after, new_run.columns_of_runs()),
        groups,
        between,
    )
    certain = np.array([_CERTAIN.get(one, 1) for one in status], np.int64)
    order = np.lexsort((-np.abs(delta_ns), certain))
    explained_ns = explained_by(delta_ns[order].tolist())
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


def _delta(base: Floats, new: Floats, groups: Groups) -> Floats:
    """Return the change of the median; NaN where one side has none."""
    count = len(groups.places)
    delta: Floats = medians(_summed(new, groups.new, count)) - medians(
        _summed(base, groups.base, count)
    )
    return delta


def _known(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def explained_by(delta_ns: Sequence[float]) -> list[float]:
    """Divide the net change among those that went its way, in proportion to their size.

    Where some became slower and some faster, single changes can be larger than the net change;
    their share of it cannot.
    """
    net = sum(delta_ns)
    same_way = sum(abs(delta) for delta in delta_ns if delta * net > 0)
    return [net * abs(delta) / same_way if delta * net > 0 else 0.0 for delta in delta_ns]


NO_REGION = "(outside any region)"


class Regions:
    """The groups of all operations of one region, each in every region around it."""

    def __init__(self, single: Groups, base: Operations, new: Operations) -> None:
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
        self.groups = Groups(
            places=places,
            base_places=base_places,
            moved=[False] * len(places),
            base=regrouped(single.base),
            new=regrouped(single.new),
        )
        delta_ns = middle_delta(base, new, single)[2]
        explained_ns = np.array(explained_by(delta_ns.tolist()))
        self.explained_ns: Floats = np.array([explained_ns[rows].sum() for rows in members])


def _regions_around(single: Groups, base: Operations, new: Operations) -> list[tuple[str, ...]]:
    """Return the regions around each pair, or what is alone: as in the new run where it has any."""
    found: list[tuple[str, ...]] = [()] * len(single.places)
    for operations, (rows, groups) in ((base, single.base), (new, single.new)):
        if operations.regions:
            for row, index in zip(rows.tolist(), groups.tolist(), strict=True):
                found[index] = operations.regions[row]
    return found


SizeStatus = Literal["new", "gone", "bigger", "smaller"]


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


def resized(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    """Return what has another size, is new or gone, by the size of the change."""
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


@dataclass(frozen=True, slots=True)
class KernelChange:
    """What became of one kernel under the operations of one name."""

    operation: str
    name: str
    base_ns: float | None
    """None: it did not run there."""
    new_ns: float | None

    @property
    def delta_ns(self) -> float:
        """New time less base time."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


def kernel_changes(base: Kernels, new: Kernels) -> list[KernelChange]:
    """Put the kernels of both sides under each operation; another device has other kernels."""
    found: list[list[KernelChange]] = []
    for operation in base.keys() | new.keys():
        before, after = base.get(operation, {}), new.get(operation, {})
        changes = [
            KernelChange(operation, name, before.get(name), after.get(name))
            for name in before.keys() | after.keys()
        ]
        found.append(sorted(changes, key=lambda one: (-abs(one.delta_ns), one.name)))
    found.sort(key=lambda ones: (-abs(sum(one.delta_ns for one in ones)), ones[0].operation))
    return [change for changes in found for change in changes]
