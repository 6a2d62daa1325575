"""By what factor times changed from one side to the other, of one workload or of several.

Medians and corrected probabilities of thousands of operations at once.

Whether one side's times are larger than another's, and by how much.

Times of a workload are skewed, have outliers and drift with the machine: so medians and minima,
not means; blocks of neighbouring iterations, not single ones, are drawn by the bootstrap (see
`resampled`); and runs are what is counted, not their iterations (see `between`).
Everything here is deterministic: the same samples give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unified_prof.arrays.types import Floats
from unified_prof.compare.confidence import (
    ALPHA,
    STATISTICS,
    UNLEARNED,
    Between,
    Noise,
    Sample,
    Statistic,
    of_runs,
    ratio_interval,
    spread,
    within_run,
)


@dataclass(frozen=True, slots=True)
class Shift:
    """By what factor one statistic of a run changed."""

    statistic: Statistic
    base: float
    """Of several runs the geometric mean."""
    new: float
    ratio: float
    """New to base; infinite where only the base is 0."""
    low: float
    """Interval of the ratio at 1 - ALPHA."""
    high: float
    p_value: float
    """Of a ratio so far from 1, were nothing changed; two-sided."""

    @property
    def width(self) -> float:
        """Width of the interval on a logarithmic scale: how much the statistic scatters."""
        if self.low <= 0 or not math.isfinite(self.high):
            return math.inf
        return math.log(self.high / self.low)


def shifts(base: Sample, new: Sample, between: Between = UNLEARNED) -> tuple[Shift, Shift]:
    """Return the change of the median and of the minimum, the one that scatters less first.

    On a device of one's own every iteration scatters around the same time, and the median is the
    better estimate of it. Where other programs take the machine in turns, each disturbance only
    ever adds: the median says how busy the machine was, the fastest iterations still say how fast
    the workload is. Which of the two holds is seen from the samples.
    """
    median, fastest = (_shift(base, new, one, between) for one in STATISTICS)
    return (fastest, median) if fastest.width < median.width else (median, fastest)


def _shift(base: Sample, new: Sample, statistic: Statistic, between: Between) -> Shift:
    sides = [of_runs(side, statistic) for side in (base, new)]
    if min(map(min, sides)) <= 0:
        return _of_nothing(sides, base, new, statistic)
    within = [within_run(run, statistic) for side in (base, new) for run in side.runs]
    logarithms = [[math.log(value) for value in side] for side in sides]
    return _of_logarithms(logarithms, sum(within) / len(within), statistic, between)


def _of_logarithms(
    sides: Sequence[Sequence[float]], within: float, statistic: Statistic, between: Between
) -> Shift:
    """Return the change, by the logarithms of each run's statistic."""
    before, after = (sum(side) / len(side) for side in sides)
    found = spread(after - before, sides[0], sides[1], within, between)
    return Shift(
        statistic,
        math.exp(before),
        math.exp(after),
        math.exp(after - before),
        math.exp(after - before - found.half_width),
        math.exp(after - before + found.half_width),
        found.p_value,
    )


def shifts_together(
    pairs: Sequence[tuple[Sample, Sample]], between: Between = UNLEARNED
) -> tuple[Shift, Shift] | None:
    """Return how the geometric mean of several workloads changed, as `shifts` does for one.

    The first runs of all workloads are one run of the whole, the second ones another: what a
    machine does meanwhile hits all of them, so that their errors are not independent. Runs that
    another workload of that side lacks are left out.

    Args:
        pairs: (base, new) of each workload.
        between: what is known of the noise between runs of any of them.

    Returns:
        The statistic that scatters less first; None where a run took no time.
    """
    found = [_shift_together(pairs, one, between) for one in STATISTICS]
    median, fastest = found
    if median is None or fastest is None:
        return None
    return (fastest, median) if fastest.width < median.width else (median, fastest)


def _shift_together(
    pairs: Sequence[tuple[Sample, Sample]], statistic: Statistic, between: Between
) -> Shift | None:
    sides = []
    for side in zip(*pairs, strict=True):
        runs = [of_runs(sample, statistic) for sample in side]
        if min(map(min, runs)) <= 0:
            return None
        rounds = zip(*runs, strict=False)
        sides.append([sum(map(math.log, one)) / len(pairs) for one in rounds])
    within = 0.0
    for pair in pairs:
        own = [within_run(run, statistic) for sample in pair for run in sample.runs]
        within += sum(own) / len(own) / len(pairs) ** 2
    return _of_logarithms(sides, within, statistic, between)


def _of_nothing(
    sides: Sequence[Sequence[float]], base: Sample, new: Sample, statistic: Statistic
) -> Shift:
    """Return the change where a run took no time: no ratio of single runs says anything."""
    before, after = (float(np.mean(side)) for side in sides)
    low, high = ratio_interval(base.values, new.values, statistic)
    ratio = after / before if before > 0 else math.inf if after > 0 else 1.0
    sure = low > 1 or high < 1
    return Shift(statistic, before, after, ratio, low, high, 0.0 if sure else 1.0)


def medians(matrix: Floats) -> Floats:
    """Return the median of each row's known values; NaN where a row has none."""
    count = (~np.isnan(matrix)).sum(axis=1)
    if not matrix.size:
        return np.full(len(matrix), np.nan)
    ordered = np.sort(matrix, axis=1)  # NaN stands last
    rows = np.arange(len(matrix))
    # Half the difference, not half the sum: that may overflow.
    low, high = ordered[rows, (count - 1) // 2], ordered[rows, np.maximum(count // 2, 0)]
    found: Floats = np.where(count > 0, low + (high - low) / 2, np.nan)
    return found


def correct_for_many(p_values: Floats) -> Floats:
    """Return the p-values corrected by Benjamini and Hochberg; NaN (not tested) stays NaN.

    Ten thousand comparisons of unchanged operations would else name five hundred of them.
    """
    corrected = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    scaled = p_values[order] * len(known) / np.arange(1, len(known) + 1)
    corrected[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return corrected


Verdict = Literal["slower", "faster", "same", "unclear", "inconclusive"]

# Below five a side one outlier decides.
MIN_SAMPLES = 5
SAME_WITHIN = 0.05
"""A ratio is called the same only where it is surely no further than this from 1."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two samples of the same quantity, compared."""

    base_median: float
    new_median: float
    ratio: float | None
    """New to base, by the statistic that scatters less; None where the base is 0."""
    ratio_low: float | None
    """Interval of the ratio at 1 - ALPHA; None without enough samples."""
    ratio_high: float | None
    p_value: float | None
    """Two-sided; None without enough samples."""
    base_count: int
    new_count: int
    base_runs: int = 1
    new_runs: int = 1
    statistic: Statistic = "median"
    """What the ratio is of."""
    contrary: bool = False
    """Whether the other statistic surely went the other way."""
    noise: Noise | None = None
    """What was learned on this machine of runs' differences, where it was used."""

    @property
    def conclusive(self) -> bool:
        """Whether there are enough samples on both sides to say anything."""
        return self.p_value is not None

    @property
    def median_ratio(self) -> float | None:
        """New to base median; None where the base is 0."""
        return self.new_median / self.base_median if self.base_median > 0 else None

    @property
    def of_one_run(self) -> bool:
        """Whether nothing is known of how runs differ: one a side, and nothing learned."""
        return self.base_runs == self.new_runs == 1 and self.noise is None

    def verdict(self, p_value: float | None = None) -> Verdict:
        """Say which way it went, judged by `p_value` if given (one corrected for many tests).

        Returns:
            `slower` and `faster` where that is sure; `same` where the ratio is surely within
            SAME_WITHIN of 1; `unclear` where the runs allow more than one of these;
            `inconclusive` where there are too few samples to say anything.
        """
        p = self.p_value if p_value is None else p_value
        if p is None:
            return "inconclusive"
        if self.ratio_low is None or self.ratio_high is None:  # the base took no time at all
            if self.new_median <= 0:
                return "same"
            return "slower" if p < ALPHA else "unclear"
        return judged(self.ratio_low, self.ratio_high, p, contrary=self.contrary)


def judged(low: float, high: float, p_value: float, *, contrary: bool = False) -> Verdict:
    """Return what an interval of ratios says; the one rule of `diff` and `gate`."""
    if contrary:
        return "unclear"
    if p_value < ALPHA and low > 1:
        return "slower"
    if p_value < ALPHA and high < 1:
        return "faster"
    return "same" if is_same(low, high) else "unclear"


def is_same(ratio_low: float, ratio_high: float) -> bool:
    """Return whether all ratios between these are within SAME_WITHIN of 1."""
    return ratio_low >= 1 - SAME_WITHIN and ratio_high <= 1 + SAME_WITHIN


def compare(
    base: Sequence[float] | Floats | Sample,
    new: Sequence[float] | Floats | Sample,
    between: Between = UNLEARNED,
) -> Comparison:
    """Compare two samples; each is in the order of measurement.

    Raises:
        ValueError: a sample is empty or holds something that is not a finite number.
    """
    a = base if isinstance(base, Sample) else Sample.of(base)
    b = new if isinstance(new, Sample) else Sample.of(new)
    if not len(a) or not len(b):
        raise ValueError("a sample is empty")
    if not (np.isfinite(a.values).all() and np.isfinite(b.values).all()):
        raise ValueError("a sample holds a value that is not finite")
    base_median, new_median = float(np.median(a.values)), float(np.median(b.values))
    counts = (len(a), len(b), len(a.lengths), len(b.lengths))
    if min(len(a), len(b)) < MIN_SAMPLES:
        ratio = new_median / base_median if base_median > 0 else None
        return Comparison(base_median, new_median, ratio, None, None, None, *counts)
    decisive, other = shifts(a, b, between)
    return _compared(base_median, new_median, counts, decisive, other, between)


def _compared(
    base_median: float,
    new_median: float,
    counts: tuple[int, int, int, int],
    decisive: Shift,
    other: Shift,
    between: Between,
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
        noise=between.noise,
    )


def compare_together(
    pairs: Sequence[tuple[Sample, Sample]], between: Between = UNLEARNED
) -> tuple[Comparison, tuple[Shift, Shift] | None]:
    """Compare the geometric means of several workloads; see `shifts_together`.

    Returns:
        The comparison of the geometric means of their medians, and what it rests on: None where
        there are too few samples of a workload, or a run took no time.

    Raises:
        ValueError: there is no workload, or one without a value.
    """
    if not pairs or any(not len(sample) for pair in pairs for sample in pair):
        raise ValueError("a sample is empty")
    sides = tuple(zip(*pairs, strict=True))
    middles = [[float(np.median(sample.values)) for sample in side] for side in sides]
    base, new = (
        math.exp(sum(map(math.log, side)) / len(side)) if min(side) > 0 else 0.0 for side in middles
    )
    values = [min(map(len, side)) for side in sides]
    runs = [min(len(sample.lengths) for sample in side) for side in sides]
    counts = (values[0], values[1], runs[0], runs[1])
    enough = min(counts[:2]) >= MIN_SAMPLES
    found = shifts_together(pairs, between) if enough and base > 0 and new > 0 else None
    if found is None:
        ratio = new / base if base > 0 else None
        return Comparison(base, new, ratio, None, None, None, *counts), None
    return _compared(base, new, counts, *found, between), found
