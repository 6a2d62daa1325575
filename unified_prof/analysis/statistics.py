"""Whether one sample of times is larger than another, and by how much.

Times of a workload are skewed, have outliers and drift with the machine: so ranks and medians,
not means; and blocks of neighbouring iterations, not single ones, are drawn by the bootstrap.
Everything here is deterministic: the same samples give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["slower", "faster", "same", "inconclusive"]

# Three against three can never reach a p-value of 0.05; four can, just. Below five a side one
# outlier decides.
MIN_SAMPLES = 5
ALPHA = 0.05
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
        """Say which way it went, judged by `p_value` if given (one corrected for many tests)."""
        p = self.p_value if p_value is None else p_value
        if p is None or self.ratio_low is None or self.ratio_high is None:
            return "inconclusive"
        if p < ALPHA and self.ratio_low > 1:
            return "slower"
        if p < ALPHA and self.ratio_high < 1:
            return "faster"
        return "same"


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


def mann_whitney(a: Floats, b: Floats) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test.

    Exact for small samples without ties, else the normal approximation with corrections for ties
    and for continuity.
    """
    count_a, count_b = len(a), len(b)
    both = np.concatenate((a, b))
    order = np.argsort(both, kind="stable")
    ordered = both[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(ordered)])
    ranks = np.empty(len(both))
    # Tied values share the mean of the ranks they occupy.
    ranks[order] = np.repeat(starts + (sizes + 1) / 2, sizes)
    u = float(ranks[:count_a].sum() - count_a * (count_a + 1) / 2)
    if (sizes == 1).all() and max(count_a, count_b) <= _EXACT_LIMIT:
        smaller = round(min(u, count_a * count_b - u))
        ways = _ways(count_a, count_b)
        return min(1.0, 2 * sum(ways[: smaller + 1]) / math.comb(count_a + count_b, count_a))
    total = count_a + count_b
    ties = float((sizes.astype(np.float64) ** 3 - sizes).sum()) / (total * (total - 1))
    variance = count_a * count_b / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - count_a * count_b / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


@cache
def _ways(count_a: int, count_b: int) -> tuple[int, ...]:
    """Return in how many of the orders of the samples U takes each of its values."""
    # The Gaussian binomial coefficient (count_a + count_b over count_a), term by term:
    # multiply by (1 - q^(b + i)) and divide by (1 - q^i) for i = 1..a.
    size = count_a * count_b + 1
    terms = [1] + [0] * (size - 1)
    for i in range(1, count_a + 1):
        for k in range(size - 1, count_b + i - 1, -1):
            terms[k] -= terms[k - count_b - i]
        for k in range(i, size):
            terms[k] += terms[k - i]
    return tuple(terms)


def ratio_interval(a: Floats, b: Floats, *, alpha: float = ALPHA) -> tuple[float, float]:
    """Return a percentile bootstrap interval of median(b) / median(a).

    Blocks of neighbouring iterations are drawn, because a disturbance of the machine hits several
    in a row. A resampled median of 0 in `a` counts as an infinite ratio.
    """
    generator = np.random.default_rng(len(a) * 1_000_003 + len(b))
    medians_a = _resampled_medians(a, generator)
    medians_b = _resampled_medians(b, generator)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = medians_b / medians_a
    ratios[np.isnan(ratios)] = 1.0
    low, high = np.quantile(ratios, (alpha / 2, 1 - alpha / 2), method="inverted_cdf")
    return float(low), float(high)


def _resampled_medians(sample: Floats, generator: np.random.Generator) -> Floats:
    count = len(sample)
    block = max(1, round(count ** (1 / 3)))
    blocks = -(-count // block)
    starts = generator.integers(0, count, (_RESAMPLES, blocks))
    offsets = np.arange(block)
    # Circular: a block that runs over the end goes on at the beginning.
    picks = (starts[:, :, None] + offsets).reshape(_RESAMPLES, -1)[:, :count] % count
    return np.median(sample[picks], axis=1)


def correct_for_many(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected by Benjamini and Hochberg; None stays None.

    Ten thousand comparisons of unchanged operations would else name five hundred of them.
    """
    known = [(p, index) for index, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    smallest = 1.0
    for rank, (p, index) in sorted(enumerate(sorted(known), start=1), reverse=True):
        smallest = min(smallest, p * len(known) / rank)
        corrected[index] = smallest
    return corrected
