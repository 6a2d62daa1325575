"""Changes of operations, regions, sizes and kernels between two runs.

Operations are compared in groups: aligned pairs, or all operations of a line, module or region. The
statistics of thousands of groups are computed together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from unified_prof.arrays.grouping import Floats, Ints
from unified_prof.base.text import part_lines
from unified_prof.compare.alignment import Pairs
from unified_prof.compare.comparable import Kernels, Operations, Place, Run, Sized, group_sums, pair
from unified_prof.compare.confidence import NoiseModel, spread_by_row
from unified_prof.compare.statistics import MIN_SAMPLES, Comparison, correct_for_many, medians

By = Literal["operation", "line", "module", "annotation"]


class Groups(Struct, frozen=True, eq=False):
    """Groups of operations: aligned pairs, unpaired ones, or all of a line or module."""

    # Place of each group in the candidate, or in the baseline if it was removed.
    places: Sequence[Place]
    base_places: Sequence[Place | None]
    moved: Sequence[bool]  # True for groups whose order changed.
    # Rows of the operations of each side, and the group of each row.
    base: tuple[Ints, Ints]
    new: tuple[Ints, Ints]


def pair_groups(base: Operations, new: Operations, pairs: Pairs) -> Groups:
    """Return pairs in program order of the baseline, then new operations, then removed ones."""
    first, second = pairs
    only_new = np.delete(np.arange(len(new)), second)
    only_base = np.delete(np.arange(len(base)), first)
    paired, added, count = len(first), len(first) + len(only_new), len(base) + len(only_new)
    removed = [base.places[i] for i in only_base.tolist()]
    # A mask of the pairs whose order differs between the sides.
    before = np.maximum.accumulate(np.append(-1, second))[:-1]
    moved: list[bool] = (second < before).tolist()
    return Groups(
        places=[new.places[j] for j in (*second.tolist(), *only_new.tolist())] + removed,
        base_places=[*(base.places[i] for i in first.tolist()), *[None] * len(only_new), *removed],
        moved=[*moved, *[False] * (count - paired)],
        base=(
            np.concatenate((first, only_base)),
            np.concatenate((np.arange(paired), np.arange(added, count))),
        ),
        new=(np.concatenate((second, only_new)), np.arange(added)),
    )


def group_by(single: Groups, by: By) -> Groups:
    """Return one group per line or module, in order of their first operations."""
    if by == "operation":
        return single
    keys = [place.line if by == "line" else place.module for place in single.places]
    numbers: dict[str | None, int] = {}
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    members: list[list[int]] = [[] for _ in numbers]
    for index, number in enumerate(group.tolist()):
        members[number].append(index)
    sums = [_group_place(key, single, rows, by) for key, rows in zip(numbers, members, strict=True)]

    def regrouped(side: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        return side[0], group[side[1]]

    return Groups(
        places=[place for place, _ in sums],
        base_places=[base_place for _, base_place in sums],
        moved=[False] * len(sums),
        base=regrouped(single.base),
        new=regrouped(single.new),
    )


def _group_place(
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


class Samples(Struct, frozen=True, eq=False):
    """Samples of all groups, shape (groups, samples), and the columns of each run."""

    samples: Floats
    runs: list[slice]

    @property
    def medians(self) -> Floats:
        """Logarithm of the median of each group in each run; NaN if there are no samples."""
        found = np.stack([medians(self.samples[:, run]) for run in self.runs], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms: Floats = np.log(found)
        logarithms[~np.isfinite(logarithms)] = np.nan
        return logarithms

    @property
    def variance(self) -> Floats:
        """Variance of the logarithm of the median, from the samples' variation within a run."""
        found = []
        for run in self.runs:
            samples = self.samples[:, run]
            median = medians(samples)
            count = (~np.isnan(samples)).sum(axis=1)
            deviation = medians(np.abs(samples - median[:, None]))
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(np.square(_MEDIAN_ERROR * deviation / median) / count)
        variances = np.stack(found, axis=1)
        known = np.isfinite(variances)
        mean: Floats = np.where(known, variances, 0.0).sum(axis=1) / np.maximum(
            known.sum(axis=1), 1
        )
        return mean


# Converts a median absolute deviation to the standard error of the median of one sample. The last
# factor accounts for the correlation of consecutive iterations.
_MEDIAN_ERROR = 1.4826 * math.sqrt(math.pi / 2) * math.sqrt(2)


def compare_groups(
    base: Samples, new: Samples, groups: Groups, model: NoiseModel
) -> tuple[list[Status], dict[int, Comparison]]:
    """Return the status of each group, and the statistics of groups that exist on both sides."""
    count = len(groups.places)
    only_new, gone = np.ones(count, bool), np.ones(count, bool)
    only_new[groups.base[1]] = False
    gone[groups.new[1]] = False
    before, after = base.medians, new.medians
    center = _mean(after) - _mean(before)
    few = np.minimum(_counts(base.samples), _counts(new.samples)) < MIN_SAMPLES
    center[few | only_new | gone] = np.nan
    within = np.maximum(base.variance, new.variance)
    half, p_values = spread_by_row(center, before, after, within, model)
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
            (float(center[index]), float(half[index]), float(p_values[index])),
            model,
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
    model: NoiseModel,
) -> Comparison:
    """Return the statistics of one group; if it took no time, only its medians are compared."""
    center, half, p_value = found
    if math.isnan(half):
        changed = medians_ns[0] != medians_ns[1]
        return Comparison(*medians_ns, None, None, None, 0.0 if changed else 1.0, *counts, *runs)
    low, ratio, high = (math.exp(one) for one in (center - half, center, center + half))
    return Comparison(*medians_ns, ratio, low, high, p_value, *counts, *runs, noise=model.noise)


def _mean(rows: Floats) -> Floats:
    """Return the mean of each row's values that are not NaN; NaN if there are none."""
    known = ~np.isnan(rows)
    count = known.sum(axis=1)
    total = np.where(known, rows, 0.0).sum(axis=1)
    result: Floats = np.divide(total, count, out=np.full(len(rows), np.nan), where=count > 0)
    return result


def _counts(matrix: Floats) -> Ints:
    result: Ints = (~np.isnan(matrix)).sum(axis=1)
    return result


class Change(Struct, frozen=True):
    """Change of one operation, or of all operations of one line, module or region."""

    place: Place  # Place in the candidate, or in the baseline if it was removed.
    # Place in the baseline; None if it is new.
    base_place: Place | None
    status: Status
    # Medians over the samples; None if it is new or was removed.
    base_ns: float | None
    new_ns: float | None
    # Change of the forward and backward times; None if a side did not measure them.
    forward_delta_ns: float | None
    backward_delta_ns: float | None
    explained_ns: float  # Its share of the net change of all operations, at most that change.
    # None if it is new or was removed, or if there are too few samples.
    comparison: Comparison | None
    moved: bool = False  # True if its order changed.
    count: int = 1  # Number of operations in the group.
    # Dtypes of its inputs that only this side has; empty unless both sides have such.
    base_types: tuple[str, ...] = ()
    new_types: tuple[str, ...] = ()

    @property
    def delta_ns(self) -> float:
        """Candidate minus baseline; a missing side counts as 0."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


def median_deltas(
    base: Operations, new: Operations, groups: Groups
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """Return samples (baseline, candidate), medians (baseline, candidate), and their differences.

    Samples have shape (groups, samples), the others (groups,), all in nanoseconds.
    """
    count = len(groups.places)
    before = group_sums(base.total_ns[groups.base[0]], groups.base[1], count)
    after = group_sums(new.total_ns[groups.new[0]], groups.new[1], count)
    base_ns, new_ns = medians(before), medians(after)
    return (before, after), (base_ns, new_ns), np.nan_to_num(new_ns) - np.nan_to_num(base_ns)


def changes_of(
    base_run: Run,
    new_run: Run,
    groups: Groups,
    model: NoiseModel,
    explained_by_group_ns: Floats | None = None,
) -> list[Change]:
    """Return the change of each group, sorted by certainty, then by size.

    `explained_by_group_ns` is the share of the net change for each group, if groups overlap; None
    divides the net change among the groups.
    """
    base, new = base_run.operations, new_run.operations
    count = len(groups.places)
    (before, after), (base_ns, new_ns), delta_ns = median_deltas(base, new, groups)
    status, comparisons = compare_groups(
        Samples(before, base_run.columns_of_runs()),
        Samples(after, new_run.columns_of_runs()),
        groups,
        model,
    )
    certain = np.array([_CERTAIN.get(one, 1) for one in status], np.int64)
    order = np.lexsort((-np.abs(delta_ns), certain))
    explained_ns = explained_by(delta_ns[order].tolist())
    if explained_by_group_ns is not None:
        explained_ns = explained_by_group_ns[order].tolist()
    counts = np.maximum(
        np.bincount(groups.base[1], minlength=count), np.bincount(groups.new[1], minlength=count)
    ).tolist()
    columns = zip(
        order.tolist(),
        _none_for_nan(base_ns[order]),
        _none_for_nan(new_ns[order]),
        _none_for_nan(_delta(base.forward_ns, new.forward_ns, groups)[order]),
        _none_for_nan(_delta(base.backward_ns, new.backward_ns, groups)[order]),
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


def with_types(changes: Sequence[Change], base: Run, new: Run) -> list[Change]:
    """Return the changes with the dtypes of inputs that differ between the sides."""
    changed = {}
    for name in base.types.keys() & new.types.keys():
        before, after = set(base.types[name]), set(new.types[name])
        if before - after and after - before:
            changed[name] = (tuple(sorted(before - after)), tuple(sorted(after - before)))
    if not changed:
        return [*changes]
    nothing: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    types = [
        changed.get(change.place.name, nothing) if change.place.kind == "operation" else nothing
        for change in changes
    ]
    return [
        replace(change, base_types=before, new_types=after) if before else change
        for change, (before, after) in zip(changes, types, strict=True)
    ]


# Statuses that come first.
_CERTAIN: dict[Status, int] = {"slower": 0, "faster": 0, "new": 0, "gone": 0}


def _delta(base: Floats, new: Floats, groups: Groups) -> Floats:
    """Return the change of the median of each group, NaN if a side has no value."""
    count = len(groups.places)
    after, before = (
        medians(group_sums(side[rows], group, count))
        for side, (rows, group) in ((new, groups.new), (base, groups.base))
    )
    return after - before


def _none_for_nan(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def explained_by(delta_ns: Sequence[float]) -> list[float]:
    """Return the share of the net change that each change explains, in proportion to its size.

    Only changes in the direction of the net change have a share. A single change may exceed the net
    change if others compensate for it; shares never exceed it.
    """
    net = sum(delta_ns)
    same_direction = sum(abs(delta) for delta in delta_ns if delta * net > 0)
    return [net * abs(delta) / same_direction if delta * net > 0 else 0.0 for delta in delta_ns]


class PartChange(Struct, frozen=True):
    """Change of a part of the median iteration, such as data loading."""

    name: str  # As in `Totals.iteration_parts_ns`.
    line: str | None  # Line where the part begins, in the candidate if it has one.
    base_ns: float
    new_ns: float
    explained_ns: float  # Its share of the change of the iteration, at most that change.

    @property
    def delta_ns(self) -> float:
        """Candidate minus baseline."""
        return self.new_ns - self.base_ns


def part_changes(base: Run, new: Run) -> list[PartChange]:
    """Return the parts of the median iteration, largest change first; empty if a side has none.

    They add up to the median iteration of each side. A part that a side lacks took no time.
    """
    before, after = base.parts_ns, new.parts_ns
    if not before or not after:
        return []
    lines = [part_lines(run.facts) for run in (base, new)]
    parts = dict.fromkeys((*after, *before))
    times = [(before.get(part, 0.0), after.get(part, 0.0)) for part in parts]
    explained = explained_by([new_ns - base_ns for base_ns, new_ns in times])
    changes = [
        PartChange(part, lines[1].get(part) or lines[0].get(part), *ns, share)
        for part, ns, share in zip(parts, times, explained, strict=True)
        if any(ns)
    ]
    return sorted(changes, key=lambda change: -abs(change.delta_ns))


NO_REGION = "(outside any region)"


class Regions:
    """One group per region; an operation belongs to every region that encloses it."""

    def __init__(self, single: Groups, base: Operations, new: Operations) -> None:
        around = _regions_around(single, base, new)
        numbers: dict[str, int] = {}
        pairs = [
            (index, numbers.setdefault(name, len(numbers)))
            for index, names in enumerate(around)
            for name in dict.fromkeys(names or (NO_REGION,))
        ]
        members: list[list[int]] = [[] for _ in numbers]
        for index, number in pairs:
            members[number].append(index)
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
        for index, number in pairs:
            groups_of[index].append(number)
        self.groups = Groups(
            places=places,
            base_places=base_places,
            moved=[False] * len(places),
            base=regrouped(single.base),
            new=regrouped(single.new),
        )
        delta_ns = median_deltas(base, new, single)[2]
        explained_ns = np.array(explained_by(delta_ns.tolist()))
        self.explained_ns: Floats = np.array([explained_ns[rows].sum() for rows in members])


def _regions_around(single: Groups, base: Operations, new: Operations) -> list[tuple[str, ...]]:
    """Return the regions that enclose each group, from the candidate if it has any."""
    result: list[tuple[str, ...]] = [()] * len(single.places)
    for operations, (rows, groups) in ((base, single.base), (new, single.new)):
        if operations.regions:
            for row, index in zip(rows.tolist(), groups.tolist(), strict=True):
                result[index] = operations.regions[row]
    return result


SizeStatus = Literal["new", "gone", "bigger", "smaller"]


class SizeChange(Struct, frozen=True):
    """A weight or an activation whose size changed."""

    place: Place
    status: SizeStatus
    base_bytes: int | None
    new_bytes: int | None

    @property
    def delta_bytes(self) -> int:
        """Candidate minus baseline; a missing side counts as 0."""
        return (self.new_bytes or 0) - (self.base_bytes or 0)


def size_changes(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    """Return weights and activations that changed in size or exist on one side, largest first."""
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


_MAX_SEPARATE = 3  # Changes of one loop up to this number stay separate.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # Number of a layer in a module path.
_Changed = TypeVar("_Changed", Change, SizeChange)


def sum_loops(changes: Sequence[Change]) -> list[Change]:
    """Return the changes, those of a loop with the same status as one, in the same order.

    A loop calls an operation at one line several times, or in several layers: their numbers in
    module paths become `*`. The sums of all changes stay the same.
    """
    return sorted(
        (
            rows[0]
            if len(rows) == 1
            else replace(
                rows[0],
                place=place,
                base_ns=_sum_known([row.base_ns for row in rows]),
                new_ns=_sum_known([row.new_ns for row in rows]),
                forward_delta_ns=_sum_known([row.forward_delta_ns for row in rows]),
                backward_delta_ns=_sum_known([row.backward_delta_ns for row in rows]),
                explained_ns=sum(row.explained_ns for row in rows),
                comparison=None,
                moved=any(row.moved for row in rows),
                count=sum(row.count for row in rows),
            )
            for place, rows in _loops(changes)
        ),
        key=lambda change: (_CERTAIN.get(change.status, 1), -abs(change.delta_ns)),
    )


def sum_size_loops(changes: Sequence[SizeChange]) -> list[SizeChange]:
    """Return the changes, those of a loop with the same status as one, largest first."""
    found = [
        rows[0]
        if len(rows) == 1
        else SizeChange(
            replace(place, name=f"{place.name} x{len(rows)}"),
            rows[0].status,
            _sum_known([row.base_bytes for row in rows]),
            _sum_known([row.new_bytes for row in rows]),
        )
        for place, rows in _loops(changes)
    ]
    return sorted(found, key=lambda change: -abs(change.delta_bytes))


def _loops(changes: Sequence[_Changed]) -> list[tuple[Place, list[_Changed]]]:
    """Return the changes of each loop with its place; others alone."""
    groups: dict[tuple[str | None, ...], list[_Changed]] = {}
    for change in changes:
        place = change.place
        pattern = None if place.module is None else _NUMBER.sub("*", place.module)
        before = change.base_place if isinstance(change, Change) else None
        line_before = None if before is None else before.line
        key = (change.status, place.kind, place.name, pattern, place.line, line_before)
        groups.setdefault(key, []).append(change)
    result: list[tuple[Place, list[_Changed]]] = []
    for (_, _, _, pattern, *_), rows in groups.items():
        if len(rows) <= _MAX_SEPARATE:
            result += [(row.place, [row]) for row in rows]
        else:
            modules = {row.place.module for row in rows}
            place = replace(rows[0].place, module=pattern if len(modules) > 1 else modules.pop())
            result.append((place, rows))
    return result


_Amount = TypeVar("_Amount", int, float)


def _sum_known(values: Sequence[_Amount | None]) -> _Amount | None:
    """Return the sum of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


class KernelChange(Struct, frozen=True):
    """Change of one kernel, over all operations with the same name."""

    operation: str
    name: str
    # None if it did not run on that side.
    base_ns: float | None
    new_ns: float | None

    @property
    def delta_ns(self) -> float:
        """Candidate minus baseline; a missing side counts as 0."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


def kernel_changes(base: Kernels, new: Kernels) -> list[KernelChange]:
    """Return the kernels of both sides by operation, largest change first."""
    result: list[list[KernelChange]] = []
    for operation in base.keys() | new.keys():
        before, after = base.get(operation, {}), new.get(operation, {})
        changes = [
            KernelChange(operation, name, before.get(name), after.get(name))
            for name in before.keys() | after.keys()
        ]
        result.append(sorted(changes, key=lambda change: (-abs(change.delta_ns), change.name)))
    result.sort(key=lambda ones: (-abs(sum(one.delta_ns for one in ones)), ones[0].operation))
    return [change for changes in result for change in changes]
