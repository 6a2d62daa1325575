"""Whether one sample of times is larger than another, and by how much.

Times of a workload are skewed, have outliers and drift with the machine: so ranks, medians and
minima, not means; and blocks of neighbouring iterations, not single ones, are drawn by the
bootstrap.
Everything here is deterministic: the same samples give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["slower", "faster", "same", "unclear", "inconclusive"]
Statistic = Literal["median", "fastest"]

_STATISTICS: dict[Statistic, Callable[..., Any]] = {"median": np.median, "fastest": np.min}

# Three against three can never reach a p-value of 0.05; four can, just. Below five a side one
# outlier decides.
MIN_SAMPLES = 5
ALPHA = 0.05
SAME_WITHIN = 0.05
"""A ratio is called the same only where it is surely no further than this from 1."""
_RESAMPLES = 2_000
_EXACT_LIMIT = 20
"""Up to this many samples a side, and without ties, the p-value is exact."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two samples of the same quantity, compared."""

    base_median: float
    new_median: float
    ratio: float | None
    """New median to base median; None where the base is 0."""
    ratio_low: float | None
    ratio_high: float | None
    """Bootstrap interval of the ratio at 1 - ALPHA; None without enough samples."""
    p_value: float | None
    """Mann-Whitney, two-sided; None without enough samples."""
    base_count: int
    new_count: int

    @property
    def conclusive(self) -> bool:
        """Whether there are enough samples on both sides to say anything."""
        return self.p_value is not None

    def verdict(self, p_value: float | None = None) -> Verdict:
        """Say which way it went, judged by `p_value` if given (one corrected for many tests).

        Returns:
            `slower` and `faster` where that is sure; `same` where the ratio is surely within
            SAME_WITHIN of 1; `unclear` where the samples allow more than one of these;
            `inconclusive` where there are too few of them to say anything.
        """
        p = self.p_value if p_value is None else p_value
        if p is None:
            return "inconclusive"
        if self.ratio_low is None or self.ratio_high is None:  # the base took no time at all
            if self.new_median <= 0:
                return "same"
            return "slower" if p < ALPHA else "unclear"
        if p < ALPHA and self.ratio_low > 1:
            return "slower"
        if p < ALPHA and self.ratio_high < 1:
            return "faster"
        return "same" if is_same(self.ratio_low, self.ratio_high) else "unclear"


def is_same(ratio_low: float, ratio_high: float) -> bool:
    """Return whether all ratios between these are within SAME_WITHIN of 1."""
    return ratio_low >= 1 - SAME_WITHIN and ratio_high <= 1 + SAME_WITHIN


@dataclass(frozen=True, slots=True)
class Shift:
    """By what factor one statistic of a sample changed."""

    statistic: Statistic
    base: float
    new: float
    ratio: float
    """New to base; infinite where only the base is 0."""
    low: float
    """Bootstrap interval of the ratio at 1 - ALPHA."""
    high: float

    @property
    def width(self) -> float:
        """Width of the interval on a logarithmic scale: how much the statistic scatters."""
        if self.low <= 0 or not math.isfinite(self.high):
            return math.inf
        return math.log(self.high / self.low)


def shifts(base: Floats, new: Floats) -> tuple[Shift, Shift]:
    """Return the change of the median and of the minimum, the one that scatters less first.

    On a device of one's own every iteration scatters around the same time, and the median is the
    better estimate of it. Where other programs take the machine in turns, each disturbance only
    ever adds: the median says how busy the machine was, the fastest iterations still say how fast
    the workload is. Which of the two holds is seen from the samples.
    """
    found = [_shift(base, new, "median"), _shift(base, new, "fastest")]
    median, fastest = found
    return (fastest, median) if fastest.width < median.width else (median, fastest)


def _shift(base: Floats, new: Floats, statistic: Statistic) -> Shift:
    before, after = (float(_STATISTICS[statistic](sample, axis=0)) for sample in (base, new))
    low, high = ratio_interval(base, new, statistic=statistic)
    ratio = after / before if before > 0 else math.inf if after > 0 else 1.0
    return Shift(statistic, before, after, ratio, low, high)


def compare(base: Sequence[float] | Floats, new: Sequence[float] | Floats) -> Comparison:
    """Compare two samples; each is in the order of measurement.

    Raises:
        ValueError: a sample is empty or holds something that is not a finite number.
    """
    a, b = np.asarray(base, np.float64), np.asarray(new, np.float64)
    if not len(a) or not len(b):
        raise ValueError("a sample is empty")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a sample holds a value that is not finite")
    base_median, new_median = float(np.median(a)), float(np.median(b))
    ratio = new_median / base_median if base_median > 0 else None
    enough = min(len(a), len(b)) >= MIN_SAMPLES
    low, high = ratio_interval(a, b) if enough and ratio is not None else (None, None)
    return Comparison(
        base_median=base_median,
        new_median=new_median,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        p_value=mann_whitney(a, b) if enough else None,
        base_count=len(a),
        new_count=len(b),
    )


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


def mann_whitney(a: Floats, b: Floats) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test of two samples."""
    return float(mann_whitney_rows(a[None, :], b[None, :])[0])


def mann_whitney_rows(a: Floats, b: Floats) -> Floats:
    """Return the two-sided p-value of the Mann-Whitney U test for each row of two matrices.

    Exact for small samples without ties, else the normal approximation with corrections for ties
    and for continuity.

    Args:
        a: shape (rows, samples of the one side).
        b: shape (rows, samples of the other).
    """
    count_a, count_b = a.shape[1], b.shape[1]
    total = count_a + count_b
    both = np.concatenate((a, b), axis=1)
    order = np.argsort(both, axis=1, kind="stable")
    ordered = np.take_along_axis(both, order, axis=1)
    first = np.ones(both.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    # Tied values share the mean of the ranks they occupy; a row's first value is a first too,
    # so the flat matrix can be cut into ties at once.
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, both.size))
    shared = starts % total + (sizes + 1) / 2
    ranks = np.empty(both.shape)
    np.put_along_axis(ranks, order, np.repeat(shared, sizes).reshape(both.shape), axis=1)
    u = ranks[:, :count_a].sum(axis=1) - count_a * (count_a + 1) / 2
    ties = np.add.reduceat(
        sizes.astype(np.float64) ** 3 - sizes, np.searchsorted(starts, np.arange(len(a)) * total)
    )
    p_values = _approximate(u, ties, count_a, count_b)
    if max(count_a, count_b) <= _EXACT_LIMIT:
        exact = ties == 0
        smaller = np.minimum(u, count_a * count_b - u)[exact].round().astype(np.intp)
        p_values[exact] = _exact_p_values(count_a, count_b)[smaller]
    return p_values


def _approximate(u: Floats, ties: Floats, count_a: int, count_b: int) -> Floats:
    total = count_a + count_b
    variance = count_a * count_b / 12 * (total + 1 - ties / (total * (total - 1)))
    distance = np.maximum(0.0, np.abs(u - count_a * count_b / 2) - 0.5)
    # All values equal: no variance, and nothing to tell the sides apart.
    z = np.divide(distance, np.sqrt(variance), out=np.zeros_like(u), where=variance > 1e-9)
    return np.array([math.erfc(one / math.sqrt(2)) for one in z.tolist()])


@cache
def _exact_p_values(count_a: int, count_b: int) -> Floats:
    """Return the two-sided p-value of each value of the smaller U, from 0."""
    # The number of orders with each U are the terms of a Gaussian binomial coefficient:
    # multiply by (1 - q^(b + i)) and divide by (1 - q^i) for i = 1..a.
    size = count_a * count_b + 1
    ways = [1] + [0] * (size - 1)
    for i in range(1, count_a + 1):
        for k in range(size - 1, count_b + i - 1, -1):
            ways[k] -= ways[k - count_b - i]
        for k in range(i, size):
            ways[k] += ways[k - i]
    orders = math.comb(count_a + count_b, count_a)
    below = 0
    p_values = []
    for count in ways[: size // 2 + 1]:
        below += count
        p_values.append(min(1.0, 2 * below / orders))
    return np.array(p_values)


def ratio_interval(
    a: Floats, b: Floats, *, statistic: Statistic = "median", alpha: float = ALPHA
) -> tuple[float, float]:
    """Return a percentile bootstrap interval of the ratio of b's statistic to a's.

    Blocks of neighbouring iterations are drawn, because a disturbance of the machine hits several
    in a row. A resampled 0 in `a` counts as an infinite ratio.
    """
    generator = np.random.default_rng(len(a) * 1_000_003 + len(b))
    resampled_a = _resampled(a, statistic, generator)
    resampled_b = _resampled(b, statistic, generator)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = resampled_b / resampled_a
    ratios[np.isnan(ratios)] = 1.0
    low, high = np.quantile(ratios, (alpha / 2, 1 - alpha / 2), method="inverted_cdf")
    return float(low), float(high)


def _resampled(sample: Floats, statistic: Statistic, generator: np.random.Generator) -> Floats:
    count = len(sample)
    block = max(1, round(count**0.5))
    blocks = -(-count // block)
    starts = generator.integers(0, count, (_RESAMPLES, blocks))
    offsets = np.arange(block)
    # Circular: a block that runs over the end goes on at the beginning.
    picks = (starts[:, :, None] + offsets).reshape(_RESAMPLES, -1)[:, :count] % count
    resampled: Floats = _STATISTICS[statistic](sample[picks], axis=1)
    return resampled


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
