"""Confidence intervals of changes, which take run-to-run variation into account.

The iterations of one run are not independent: memory layout, other programs and temperature stay
the same within a run and differ in the next run. Each run therefore counts as one value. With
several runs per side, their variance determines the interval (Student's t). With one run per side,
the interval is based on the `Noise` learned on this machine. Without either, a change must exceed
the largest known difference between runs of an unchanged workload (`MAX_RATIO_ON_DEVICE`,
`MAX_RATIO_ON_HOST`).

The variance of a statistic within a run is estimated by a bootstrap over blocks of iterations. All
results are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import Floats

# Degrees of freedom from which Student's t equals the normal distribution in double precision.
_NORMAL_FROM = 1e6


def two_sided(t: float, degrees: float) -> float:
    """Return the two-sided p-value of `t` in Student's t distribution.

    `t` is in standard errors and may be infinite; infinite `degrees` are the normal distribution.
    """
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if degrees >= _NORMAL_FROM:
        return math.erfc(t / math.sqrt(2))
    # The regularized incomplete beta function, computed by a continued fraction (Lentz).
    x = degrees / (degrees + t * t)
    a = degrees / 2
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + 0.5)
        - math.lgamma(a)
        - math.lgamma(0.5)
        + a * math.log(x)
        + 0.5 * math.log1p(-x)
    )
    if x > (a + 1) / (a + 0.5 + 2):
        return 1 - front * _fraction(1 - x, 0.5, a) / 0.5
    return front * _fraction(x, a, 0.5) / a


@lru_cache(maxsize=256)
def quantile(alpha: float, degrees: float) -> float:
    """Return the t whose absolute value is exceeded with probability `alpha`."""
    if degrees >= _NORMAL_FROM:
        return NormalDist().inv_cdf(1 - alpha / 2)
    low, high = 0.0, 1.0
    while two_sided(high, degrees) > alpha:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, degrees) > alpha else (low, middle)
    return high


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + term * d, tiny)
            c = _not_zero(1 + term / c, tiny)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


# Probability of a wrong verdict. It is low because a team runs many gates per day and repeats
# inconclusive ones.
ALPHA = 0.005
# Ratio by which two runs of an unchanged workload may differ on a device, because of its clocks and
# temperature; used if the noise was not learned. See docs/performance.md.
MAX_RATIO_ON_DEVICE = 1.25
MAX_RATIO_ON_HOST = 2.0  # The same on a host that other programs may use.
MIN_PAIRS = 3  # Minimum iterations per side for the change in one round.
MIN_PAIRED_ROUNDS = 3  # Minimum rounds for a verdict: two may agree by chance.
# Weight, in degrees of freedom, of the variance of all operations in that of a single one.
_POOLED_DEGREES = 4.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Run-to-run variation of an unchanged workload on a machine."""

    relative: float  # Standard deviation of the logarithm of a run's time: 0.03 is about 3 %.
    # Degrees of freedom of the estimate: number of runs it was learned from, minus one.
    degrees: float
    source: str = ""  # Description of where it was learned, for display.


class Sample(Struct, frozen=True, eq=False):
    """Measurements of one quantity, run by run, in the order of measurement."""

    values: Floats
    lengths: tuple[int, ...]  # Number of values of each run, in order.

    @classmethod
    def from_values(cls, values: Sequence[float] | Floats, lengths: Sequence[int] = ()) -> Sample:
        """Return a sample of the values; if `lengths` is empty, they are one run.

        Raises ValueError if the sum of the lengths is not the number of values.
        """
        array = np.asarray(values, np.float64)
        cuts = tuple(length for length in lengths if length) or (len(array),)
        if sum(cuts) != len(array):
            raise ValueError(f"the run lengths {cuts} do not add up to {len(array)} values")
        return cls(array, cuts)

    @property
    def runs(self) -> list[Floats]:
        """Values of each run."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1])

    def __len__(self) -> int:
        return len(self.values)


class NoiseModel(Struct, frozen=True):
    """Expected run-to-run variation of two sides."""

    noise: Noise | None = None  # Noise learned on this machine; None if there is none.
    # Ratio by which two single runs may differ if the noise was not learned.
    max_ratio: float = MAX_RATIO_ON_HOST
    # True if the n-th runs of both sides stepped in turn, so that their drift cancels.
    paired: bool = False

    @classmethod
    def for_clock(
        cls, clock: str, noise: Noise | None = None, *, paired: bool = False
    ) -> NoiseModel:
        """Return the model for runs timed by `clock` (a value of `Run.clock`)."""
        ratio = MAX_RATIO_ON_DEVICE if clock == "device" else MAX_RATIO_ON_HOST
        return cls(noise, ratio, paired)


UNLEARNED = NoiseModel()  # Host times on a machine whose noise was not learned.


class Spread(Struct, frozen=True):
    """Uncertainty of the ratio of two sides."""

    # Half width of the interval of the logarithm of the ratio, at confidence 1 - ALPHA.
    half_width: float
    p_value: float  # Probability of a ratio at least this far from 1 if nothing changed.


def spread(
    center: float, base: Sequence[float], new: Sequence[float], within: float, model: NoiseModel
) -> Spread:
    """Return the uncertainty of the ratio of two sides.

    `center` is the logarithm of the ratio, `base` and `new` are logarithms of the statistic of each
    run, and `within` is the variance of such a logarithm within a run.
    """
    degrees = float(len(base) + len(new) - 2)
    squares = sum(float(np.var(side)) * len(side) for side in (base, new))
    variance = max(squares / degrees, within) if degrees else within
    allowed = 0.0
    if model.noise is not None:
        learned = max(model.noise.relative**2, within)
        variance = (degrees * variance + model.noise.degrees * learned) / (
            degrees + model.noise.degrees
        )
        degrees += model.noise.degrees
    elif not degrees:
        degrees, allowed = math.inf, math.log(model.max_ratio)
    error = math.sqrt(variance * (1 / len(base) + 1 / len(new)))
    beyond = max(0.0, abs(center) - allowed)
    t = beyond / error if error > 0 else math.inf if beyond > 0 else 0.0
    return Spread(quantile(ALPHA, degrees) * error + allowed, two_sided(t, degrees))


def paired_changes(base: Sample, new: Sample) -> list[float]:
    """Return the change in each round in which both sides stepped in turn.

    It is the median of the logarithms of the ratios of iterations that followed one another. Rounds
    with fewer than MIN_PAIRS iterations are left out.
    """
    found = []
    for before, after in zip(base.runs, new.runs, strict=False):
        count = min(len(before), len(after))
        if count >= MIN_PAIRS:
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(float(np.median(np.log(after[:count] / before[:count]))))
    return [one for one in found if math.isfinite(one)]


def paired_spread(changes: Sequence[float], noise: Noise | None = None) -> Spread:
    """Return the uncertainty of the mean of `paired_changes`, at least two of them."""
    noise = noise and Noise(noise.relative * math.sqrt(2), noise.degrees)
    half = half_width(changes, 0.0, noise)
    assert half is not None
    degrees = len(changes) - 1 + (noise.degrees if noise else 0.0)
    center = abs(sum(changes) / len(changes))
    error = half / quantile(ALPHA, degrees)
    t = center / error if error > 0 else math.inf if center > 0 else 0.0
    return Spread(half, two_sided(t, degrees))


def half_width(runs: Sequence[float], within: float, noise: Noise | None) -> float | None:
    """Return the half width of the interval of one side's mean, at confidence 1 - ALPHA.

    `runs` are logarithms of the statistic of each run, `within` is their variance within a run.
    Return None if there is only one run and no noise was learned.
    """
    degrees = float(len(runs) - 1)
    variance = max(float(np.var(runs, ddof=1)), within) if degrees else within
    if noise is not None:
        learned = max(noise.relative**2, within)
        variance = (degrees * variance + noise.degrees * learned) / (degrees + noise.degrees)
        degrees += noise.degrees
    return None if not degrees else quantile(ALPHA, degrees) * math.sqrt(variance / len(runs))


def spread_by_row(
    center: Floats, base: Floats, new: Floats, within: Floats, model: NoiseModel
) -> tuple[Floats, Floats]:
    """Return the uncertainty of the ratio for each row of two matrices (rows are operations).

    The variance of one operation cannot be estimated well from a few runs. Each row's variance is
    therefore combined with the pooled variance of all rows.

    Args:
        center: Shape (rows,): logarithm of the ratio, NaN if unknown.
        base: Shape (rows, baseline runs): logarithms, NaN where a run has no value.
        new: The same for the candidate.
        within: Shape (rows,): variance within a run.
        model: Expected variation between runs.

    Returns:
        Half widths and p-values as in `Spread`, shape (rows,); NaN where `center` is NaN.
    """
    counts = [(~np.isnan(side)).sum(axis=1).astype(np.float64) for side in (base, new)]
    degrees = np.maximum(counts[0] + counts[1] - 2, 0.0)
    squares = _squares(base) + _squares(new)
    variance_of_row = np.divide(squares, degrees, out=np.zeros(len(base)), where=degrees > 0)
    variance_of_row = np.maximum(variance_of_row, within)
    allowed = np.zeros(len(base))
    if model.noise is not None:
        typical: Floats | float = np.maximum(model.noise.relative**2, within)
        support = model.noise.degrees
    else:
        several = variance_of_row[degrees > 0]
        typical = float(np.median(several)) if len(several) else 0.0
        support = _POOLED_DEGREES if len(several) > _POOLED_DEGREES else 0.0
        allowed[degrees == 0] = math.log(model.max_ratio)
    pooled = np.where(degrees > 0, degrees + support, support if model.noise else 0.0)
    weight = np.where(degrees + (model.noise is not None) > 0, support, 0.0)
    variance = np.divide(
        degrees * variance_of_row + weight * typical,
        pooled,
        out=variance_of_row.copy(),
        where=pooled > 0,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(variance * (1 / counts[0] + 1 / counts[1]))
    beyond = np.maximum(0.0, np.abs(center) - allowed)
    t = np.divide(beyond, error, out=np.where(beyond > 0, np.inf, 0.0), where=error > 0)
    freedom = np.where(pooled > 0, pooled, math.inf)
    half, p_values = np.full(len(base), np.nan), np.full(len(base), np.nan)
    known = np.flatnonzero(~np.isnan(center) & np.isfinite(error))
    for row in known.tolist():
        half[row] = quantile(ALPHA, float(freedom[row])) * error[row] + allowed[row]
        p_values[row] = two_sided(float(t[row]), float(freedom[row]))
    return half, p_values


def _squares(side: Floats) -> Floats:
    """Return each row's sum of squared deviations from its mean."""
    known = ~np.isnan(side)
    count = known.sum(axis=1)
    mean = np.divide(
        np.where(known, side, 0.0).sum(axis=1), count, out=np.zeros(len(side)), where=count > 0
    )
    away: Floats = np.where(known, side - mean[:, None], 0.0)
    result: Floats = np.square(away).sum(axis=1)
    return result


Statistic = Literal["median", "fastest"]

STATISTICS: dict[Statistic, Callable[..., Any]] = {"median": np.median, "fastest": np.min}
_RESAMPLES = 1_000


def statistic_by_run(side: Sample, statistic: Statistic) -> list[float]:
    """Return a statistic for each run of a side."""
    return [float(STATISTICS[statistic](run)) for run in side.runs]


def variance_within_run(run: Floats, statistic: Statistic) -> float:
    """Return the variance of the logarithm of a run's statistic, by a block bootstrap."""
    return 0.0 if len(run) == 1 else _bootstrap_variance(run.tobytes(), statistic)


@lru_cache(maxsize=1024)  # A gate computes a verdict and its shifts from the same runs.
def _bootstrap_variance(values: bytes, statistic: Statistic) -> float:
    run = np.frombuffer(values)
    generator = np.random.default_rng(len(run))
    return float(np.var(np.log(_resampled(run, statistic, generator))))


def ratio_interval(a: Floats, b: Floats, statistic: Statistic) -> tuple[float, float]:
    """Return a bootstrap interval of the ratio of b's statistic to a's; infinite if a's is 0."""
    generator = np.random.default_rng(len(a) * 1_000_003 + len(b))
    resampled_a = _resampled(a, statistic, generator)
    resampled_b = _resampled(b, statistic, generator)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = resampled_b / resampled_a
    ratios[np.isnan(ratios)] = 1.0
    low, high = np.quantile(ratios, (ALPHA / 2, 1 - ALPHA / 2), method="inverted_cdf")
    return float(low), float(high)


def _resampled(sample: Floats, statistic: Statistic, generator: np.random.Generator) -> Floats:
    """Return the statistic of bootstrap samples composed of blocks of consecutive iterations.

    Blocks are used because a disturbance of the machine affects several consecutive iterations.
    """
    count = len(sample)
    block = max(1, round(count**0.5))
    blocks = -(-count // block)
    starts = generator.integers(0, count, (_RESAMPLES, blocks))
    offsets = np.arange(block)
    # Circular: a block that reaches the end continues at the beginning.
    picks = (starts[:, :, None] + offsets).reshape(_RESAMPLES, -1)[:, :count] % count
    result: Floats = STATISTICS[statistic](sample[picks], axis=1)
    return result


class Estimate(Struct, frozen=True):
    """Value of a quantity on one side, with its interval."""

    value: float  # Geometric mean of the medians of the runs.
    # Interval at confidence 1 - ALPHA; None if the variation between runs is unknown.
    low: float | None
    high: float | None


def estimate(sample: Sample, noise: Noise | None = None) -> Estimate:
    """Return the value of a quantity and its interval. Raises ValueError if the sample is empty."""
    if not len(sample):
        raise ValueError("a sample is empty")
    medians = statistic_by_run(sample, "median")
    if min(medians) <= 0:
        return Estimate(float(np.mean(medians)), None, None)
    logarithms = [math.log(median) for median in medians]
    center = sum(logarithms) / len(logarithms)
    value = medians[0] if len(set(medians)) == 1 else math.exp(center)
    within = sum(variance_within_run(run, "median") for run in sample.runs) / len(logarithms)
    half = half_width(logarithms, within, noise)
    if half is None:
        return Estimate(value, None, None)
    return Estimate(value, math.exp(center - half), math.exp(center + half))
