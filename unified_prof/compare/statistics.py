"""Comparison of the times of two sides, for one workload or several.

Times have skewed distributions and outliers, and drift with the machine. Medians and minima are
therefore compared instead of means, and intervals are based on the number of runs, not of
iterations (see `confidence`). All results are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import Floats
from unified_prof.compare.confidence import (
    ALPHA,
    MIN_PAIRED_ROUNDS,
    STATISTICS,
    UNLEARNED,
    Noise,
    NoiseModel,
    Sample,
    Statistic,
    paired_changes,
    paired_spread,
    ratio_interval,
    spread,
    statistic_by_run,
    variance_within_run,
)


class Shift(Struct, frozen=True):
    """Change of one statistic (median or minimum) between two sides."""

    statistic: Statistic
    # Geometric means over the runs of each side.
    base: float
    new: float
    ratio: float  # Candidate over baseline; infinite if only the baseline is 0.
    # Interval of the ratio at confidence 1 - ALPHA.
    low: float
    high: float
    p_value: float  # Two-sided probability of a ratio at least this far from 1 if nothing changed.
    rounds: int = 0  # Rounds in which both sides stepped in turn; 0 if they did not.

    @property
    def width(self) -> float:
        """Width of the interval on a logarithmic scale."""
        if self.low <= 0 or not math.isfinite(self.high):
            return math.inf
        return math.log(self.high / self.low)


def shifts(
    pairs: Sequence[tuple[Sample, Sample]], model: NoiseModel = UNLEARNED
) -> tuple[Shift, Shift] | None:
    """Return the changes of the median and of the minimum, the smaller interval first.

    On a dedicated machine, iterations vary around the same time and the median is the better
    estimate. Interference by other programs only adds time, so it affects the minimum less than the
    median.

    The change of several workloads is that of their geometric mean. Their n-th runs are combined to
    one run, because disturbances of the machine affect all of them, so that their errors are not
    independent. Runs without a counterpart in the other workloads of their side are left out.

    Args:
        pairs: (baseline, candidate) of each workload.
        model: Expected variation between runs.

    Returns:
        None if a run of several workloads took no time.
    """
    if model.paired and (paired := _paired_shift(pairs, model)) is not None:
        return paired, paired
    median, fastest = (_shift(pairs, one, model) for one in STATISTICS)
    if median is None or fastest is None:
        return None
    return (fastest, median) if fastest.width < median.width else (median, fastest)


def _paired_shift(pairs: Sequence[tuple[Sample, Sample]], model: NoiseModel) -> Shift | None:
    """Return the change of the geometric mean of workloads whose sides stepped in turn.

    None if fewer than MIN_PAIRED_ROUNDS rounds are long enough.
    """
    each = [paired_changes(*pair) for pair in pairs]
    changes = [sum(one) / len(one) for one in zip(*each, strict=False)]
    if len(changes) < MIN_PAIRED_ROUNDS:
        return None
    found, center = paired_spread(changes, model.noise), sum(changes) / len(changes)
    medians = [[float(np.median(run)) for run in base.runs] for base, _ in pairs]
    logarithms = [math.log(max(one, 1e-300)) for runs in medians for one in runs]
    before = math.exp(sum(logarithms) / len(logarithms))
    return Shift(
        "median",
        before,
        before * math.exp(center),
        math.exp(center),
        math.exp(center - found.half_width),
        math.exp(center + found.half_width),
        found.p_value,
        len(changes),
    )


def _shift(
    pairs: Sequence[tuple[Sample, Sample]], statistic: Statistic, model: NoiseModel
) -> Shift | None:
    sides = []
    for side in zip(*pairs, strict=True):
        runs = [statistic_by_run(sample, statistic) for sample in side]
        if min(map(min, runs)) <= 0:
            return _shift_from_zero(*pairs[0], statistic) if len(pairs) == 1 else None
        rounds = zip(*runs, strict=False)
        sides.append([sum(map(math.log, one)) / len(pairs) for one in rounds])
    within = 0.0
    for pair in pairs:
        variances = [variance_within_run(run, statistic) for sample in pair for run in sample.runs]
        within += sum(variances) / len(variances) / len(pairs) ** 2
    before, after = (sum(side) / len(side) for side in sides)
    result = spread(after - before, sides[0], sides[1], within, model)
    return Shift(
        statistic,
        math.exp(before),
        math.exp(after),
        math.exp(after - before),
        math.exp(after - before - result.half_width),
        math.exp(after - before + result.half_width),
        result.p_value,
    )


def _shift_from_zero(base: Sample, new: Sample, statistic: Statistic) -> Shift:
    """Return the change if a run took no time, so that its logarithm is undefined."""
    before, after = (float(np.mean(statistic_by_run(side, statistic))) for side in (base, new))
    low, high = ratio_interval(base.values, new.values, statistic)
    ratio = after / before if before > 0 else math.inf if after > 0 else 1.0
    is_certain = low > 1 or high < 1
    return Shift(statistic, before, after, ratio, low, high, 0.0 if is_certain else 1.0)


def medians(matrix: Floats) -> Floats:
    """Return the median of each row, ignoring NaN; NaN if a row has no values."""
    count = (~np.isnan(matrix)).sum(axis=1)
    if not matrix.size:
        return np.full(len(matrix), np.nan)
    ordered = np.sort(matrix, axis=1)  # NaN comes last
    rows = np.arange(len(matrix))
    # Add half the difference, because the sum may overflow.
    low, high = ordered[rows, (count - 1) // 2], ordered[rows, np.maximum(count // 2, 0)]
    return np.where(count > 0, low + (high - low) / 2, np.nan)


def correct_for_many(p_values: Floats) -> Floats:
    """Return the p-values with the Benjamini-Hochberg correction; NaN (not tested) stays NaN.

    Without the correction, 10,000 comparisons of unchanged operations would report 500 changes at
    the 5 % level.
    """
    corrected = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    scaled = p_values[order] * len(known) / np.arange(1, len(known) + 1)
    corrected[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return corrected


Verdict = Literal["slower", "faster", "same", "unclear", "inconclusive"]

# Minimum number of samples per side for a verdict; with fewer, a single outlier decides.
MIN_SAMPLES = 5
# The verdict is `same` only if the whole interval is this close to a ratio of 1.
SAME_WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two samples of the same quantity."""

    base_median: float
    new_median: float
    # Candidate over baseline, of the statistic with the smaller interval; None if the baseline is
    # 0.
    ratio: float | None
    # Interval of the ratio at confidence 1 - ALPHA; None if there are too few samples.
    ratio_low: float | None
    ratio_high: float | None
    # Two-sided; None if there are too few samples.
    p_value: float | None
    base_count: int
    new_count: int
    base_runs: int = 1
    new_runs: int = 1
    statistic: Statistic = "median"  # Statistic of the ratio.
    # True if the other statistic changed in the opposite direction with certainty.
    contrary: bool = False
    noise: Noise | None = None  # Noise learned on this machine, if it was used.

    @property
    def conclusive(self) -> bool:
        """True if both sides have enough samples."""
        return self.p_value is not None

    @property
    def median_ratio(self) -> float | None:
        """Ratio of the medians, candidate over baseline; None if the baseline is 0."""
        return self.new_median / self.base_median if self.base_median > 0 else None

    @property
    def lacks_runs(self) -> bool:
        """True if run-to-run variation is unknown: one run per side, and no learned noise."""
        return self.base_runs == self.new_runs == 1 and self.noise is None

    def verdict(self, p_value: float | None = None) -> Verdict:
        """Return the verdict, using `p_value` if given (corrected for multiple tests).

        Returns:
            `slower` or `faster` if certain; `same` if the whole interval is within SAME_WITHIN of
            1; `unclear` if more than one of these is possible; `inconclusive` if there are too few
            samples.
        """
        p = self.p_value if p_value is None else p_value
        if p is None:
            return "inconclusive"
        if self.ratio_low is None or self.ratio_high is None:  # The baseline took no time.
            if self.new_median <= 0:
                return "same"
            return "slower" if p < ALPHA else "unclear"
        return verdict_of(self.ratio_low, self.ratio_high, p, contrary=self.contrary)


def verdict_of(low: float, high: float, p_value: float, *, contrary: bool = False) -> Verdict:
    """Return the verdict for an interval of ratios, by the rule that `diff` and `gate` share."""
    if contrary:
        return "unclear"
    if p_value < ALPHA and low > 1:
        return "slower"
    if p_value < ALPHA and high < 1:
        return "faster"
    return "same" if is_same(low, high) else "unclear"


def is_same(ratio_low: float, ratio_high: float) -> bool:
    """Return True if all ratios in the interval are within SAME_WITHIN of 1."""
    return ratio_low >= 1 - SAME_WITHIN and ratio_high <= 1 + SAME_WITHIN


def compare(
    base: Sequence[float] | Floats | Sample,
    new: Sequence[float] | Floats | Sample,
    model: NoiseModel = UNLEARNED,
) -> Comparison:
    """Compare two samples, each in the order of measurement.

    Raises ValueError if a sample is empty or has a value that is not finite.
    """
    a = base if isinstance(base, Sample) else Sample.from_values(base)
    b = new if isinstance(new, Sample) else Sample.from_values(new)
    if not len(a) or not len(b):
        raise ValueError("a sample is empty")
    if not (np.isfinite(a.values).all() and np.isfinite(b.values).all()):
        raise ValueError("a sample has a value that is not finite")
    base_median, new_median = float(np.median(a.values)), float(np.median(b.values))
    counts = (len(a), len(b), len(a.lengths), len(b.lengths))
    if min(len(a), len(b)) < MIN_SAMPLES:
        ratio = new_median / base_median if base_median > 0 else None
        return Comparison(base_median, new_median, ratio, None, None, None, *counts)
    result = shifts([(a, b)], model)
    assert result is not None  # for one workload
    return _compared(base_median, new_median, counts, *result, model)


def _compared(
    base_median: float,
    new_median: float,
    counts: tuple[int, int, int, int],
    decisive: Shift,
    other: Shift,
    model: NoiseModel,
) -> Comparison:
    known = base_median > 0 and decisive.base > 0
    return Comparison(
        base_median,
        new_median,
        decisive.ratio if known else None,
        decisive.low if known else None,
        decisive.high if known else None,
        decisive.p_value,
        *counts,
        statistic=decisive.statistic,
        contrary=(decisive.low > 1 and other.high < 1) or (decisive.high < 1 and other.low > 1),
        noise=model.noise,
    )


def compare_geometric_means(
    pairs: Sequence[tuple[Sample, Sample]], model: NoiseModel = UNLEARNED
) -> tuple[Comparison, tuple[Shift, Shift] | None]:
    """Compare the geometric means of several workloads; see `shifts`.

    Returns:
        The comparison of the geometric means of their medians, and the shifts it is based on: None
        if a workload has too few samples or a run took no time.

    Raises:
        ValueError: There are no workloads, or one has no values.
    """
    if not pairs or any(not len(sample) for pair in pairs for sample in pair):
        raise ValueError("a sample is empty")
    sides = tuple(zip(*pairs, strict=True))
    medians_by_side = [[float(np.median(sample.values)) for sample in side] for side in sides]
    base, new = (
        math.exp(sum(map(math.log, side)) / len(side)) if min(side) > 0 else 0.0
        for side in medians_by_side
    )
    values = [min(map(len, side)) for side in sides]
    runs = [min(len(sample.lengths) for sample in side) for side in sides]
    counts = (values[0], values[1], runs[0], runs[1])
    enough = min(counts[:2]) >= MIN_SAMPLES
    result = shifts(pairs, model) if enough and base > 0 and new > 0 else None
    if result is None:
        ratio = new / base if base > 0 else None
        return Comparison(base, new, ratio, None, None, None, *counts), None
    return _compared(base, new, counts, *result, model), result
