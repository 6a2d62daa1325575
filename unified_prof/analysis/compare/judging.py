"""What became of each of thousands of operations, by the samples of both sides at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.compare.alignment import Ints
from unified_prof.analysis.compare.between import Between, spreads
from unified_prof.analysis.compare.grouped import Groups
from unified_prof.analysis.compare.many import correct_for_many, medians
from unified_prof.analysis.compare.statistics import MIN_SAMPLES, Comparison

Floats = NDArray[np.float64]
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
