"""How the time of each operation changed, and how much of the whole change it explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unified_prof.analysis.compare.alignment import Ints
from unified_prof.analysis.compare.between import Between
from unified_prof.analysis.compare.comparable import Operations, Place, Run
from unified_prof.analysis.compare.grouped import Groups
from unified_prof.analysis.compare.judging import Floats, Samples, Status, judge
from unified_prof.analysis.compare.many import medians
from unified_prof.analysis.compare.statistics import Comparison


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
