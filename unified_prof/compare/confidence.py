"""Student's t distribution: how far a mean of few values may lie from the truth.

How sure a change between two sides is, when runs differ among themselves.

The iterations of one run are no independent samples of a machine: where its memory lies, what its
neighbours do, how warm it is, stays the same for a while, and is another in the next run. So a
side is as many values as it has runs. Of several runs a side their own scatter says how far their
mean may be off (Student's t); of one, what `Noise` was learned on this machine; where there is
neither, a change must exceed all that runs were ever seen to differ by, `UNKNOWN`.

How a statistic of one run scatters, told by a bootstrap of blocks of its iterations.

Deterministic: the same samples give the same answer.

Where a quantity of one side stands, and how sure that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from unified_prof.arrays.types import Floats

_NORMAL_FROM = 1e6
"""Degrees of freedom from which it is the normal distribution to all digits that count."""


def two_sided(t: float, degrees: float) -> float:
    """Return the probability of a value at least `t` away from 0.

    Args:
        t: the value, in standard errors; infinite is allowed.
        degrees: degrees of freedom, above 0; infinite is the normal distribution.
    """
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if degrees >= _NORMAL_FROM:
        return math.erfc(t / math.sqrt(2))
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


@lru_cache(maxsize=256)
def quantile(alpha: float, degrees: float) -> float:
    """Return the t that is passed on either side with probability `alpha` in all."""
    if degrees >= _NORMAL_FROM:
        return NormalDist().inv_cdf(1 - alpha / 2)
    low, high = 0.0, 1.0
    while two_sided(high, degrees) > alpha:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, degrees) > alpha else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


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


ALPHA = 0.005
"""How often a verdict may be wrong: a team asks many a day, and asks again where one is unclear."""
UNKNOWN = {"device": 1.25}
"""Clock -> the ratio that two runs of one workload may differ by where nothing else is known of
their noise: on a device its frequency and its temperature, see docs/performance.md."""
UNKNOWN_ON_HOST = 2.0
"""The same for times of a host, whose other programs are not known."""
_SHRINK = 4.0
"""Degrees of freedom that the scatter of all operations has in the scatter of one."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How much runs of one unchanged workload differ on a machine."""

    relative: float
    """Standard deviation of the logarithm of a run's time: 0.03 is about three percent."""
    degrees: float
    """Degrees of freedom of that estimate: runs it was learned from, less one."""
    source: str = ""
    """Where it was learned, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Measurements of one quantity, in the order of measurement, run by run."""

    values: Floats
    lengths: tuple[int, ...]
    """Values of each run, in order; their sum is the number of values."""

    @classmethod
    def of(cls, values: Sequence[float] | Floats, lengths: Sequence[int] = ()) -> Sample:
        """Return the values as a sample, of one run unless `lengths` tells otherwise.

        Raises:
            ValueError: the lengths are not those of the values.
        """
        array = np.asarray(values, np.float64)
        cuts = tuple(length for length in lengths if length) or (len(array),)
        if sum(cuts) != len(array):
            raise ValueError(f"runs of {cuts} values are not {len(array)} values")
        return cls(array, cuts)

    @property
    def runs(self) -> list[Floats]:
        """The values of each run."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1])

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Between:
    """What is known of the noise of two sides."""

    noise: Noise | None = None
    """As learned on this machine."""
    unknown: float = UNKNOWN_ON_HOST
    """What two single runs may differ by where nothing was learned, as a ratio."""

    @classmethod
    def of(cls, clock: str, noise: Noise | None = None) -> Between:
        """Return what is known of runs that were timed by `clock` (as in `Run.clock`)."""
        return cls(noise, UNKNOWN.get(clock, UNKNOWN_ON_HOST))


UNLEARNED = Between()
"""Of times of a host, on a machine that nothing was learned of."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far off the ratio of two sides may be."""

    half_width: float
    """Half the interval of the logarithm of the ratio at 1 - ALPHA."""
    p_value: float
    """Of a ratio so far from 1, were nothing changed."""


def spread(
    centre: float,
    base: Sequence[float],
    new: Sequence[float],
    within: float,
    between: Between,
) -> Spread:
    """Say how sure the ratio of two sides is.

    Args:
        centre: logarithm of the ratio.
        base: logarithm of the statistic of each run of the base.
        new: the same of the new side.
        within: variance of such a logarithm that the iterations of a run explain.
        between: what is known of the noise between runs.
    """
    degrees = float(len(base) + len(new) - 2)
    squares = sum(float(np.var(side)) * len(side) for side in (base, new))
    variance = max(squares / degrees, within) if degrees else within
    allowed = 0.0
    if between.noise is not None:
        learned = max(between.noise.relative**2, within)
        variance = (degrees * variance + between.noise.degrees * learned) / (
            degrees + between.noise.degrees
        )
        degrees += between.noise.degrees
    elif not degrees:
        degrees, allowed = math.inf, math.log(between.unknown)
    error = math.sqrt(variance * (1 / len(base) + 1 / len(new)))
    beyond = max(0.0, abs(centre) - allowed)
    t = beyond / error if error > 0 else math.inf if beyond > 0 else 0.0
    return Spread(quantile(ALPHA, degrees) * error + allowed, two_sided(t, degrees))


def half_width(runs: Sequence[float], within: float, noise: Noise | None) -> float | None:
    """Return half the interval of the mean of one side at 1 - ALPHA; None where nothing says it.

    Args:
        runs: logarithm of the statistic of each run.
        within: variance of such a logarithm that the iterations of a run explain.
        noise: how much runs differ on this machine, where it was learned.
    """
    degrees = float(len(runs) - 1)
    variance = max(float(np.var(runs, ddof=1)), within) if degrees else within
    if noise is not None:
        learned = max(noise.relative**2, within)
        variance = (degrees * variance + noise.degrees * learned) / (degrees + noise.degrees)
        degrees += noise.degrees
    if not degrees:
        return None
    return quantile(ALPHA, degrees) * math.sqrt(variance / len(runs))


def spreads(
    centre: Floats, base: Floats, new: Floats, within: Floats, between: Between
) -> tuple[Floats, Floats]:
    """Do the same for the rows of two matrices; the scatter of all rows supports that of each.

    Few runs say little of the scatter of a single operation, but many operations of the same runs
    say much of what is usual.

    Args:
        centre: logarithm of the ratio, one a row; NaN is not known.
        base: shape (rows, runs of the base): logarithms, NaN where a run has none.
        new: the same of the new side.
        within: variance that the iterations of a run explain, one a row.
        between: what is known of the noise between runs.

    Returns:
        Half widths and p-values as in `Spread`, one a row; NaN where the centre is.
    """
    counts = [(~np.isnan(side)).sum(axis=1).astype(np.float64) for side in (base, new)]
    degrees = np.maximum(counts[0] + counts[1] - 2, 0.0)
    squares = _squares(base) + _squares(new)
    own = np.divide(squares, degrees, out=np.zeros(len(base)), where=degrees > 0)
    own = np.maximum(own, within)
    allowed = np.zeros(len(base))
    if between.noise is not None:
        usual: Floats | float = np.maximum(between.noise.relative**2, within)
        support = between.noise.degrees
    else:
        several = own[degrees > 0]
        usual = float(np.median(several)) if len(several) else 0.0
        support = _SHRINK if len(several) > _SHRINK else 0.0
        allowed[degrees == 0] = math.log(between.unknown)
    joined = np.where(degrees > 0, degrees + support, support if between.noise else 0.0)
    variance = np.divide(
        degrees * own + np.where(degrees + (between.noise is not None) > 0, support, 0.0) * usual,
        joined,
        out=own.copy(),
        where=joined > 0,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(variance * (1 / counts[0] + 1 / counts[1]))
    beyond = np.maximum(0.0, np.abs(centre) - allowed)
    t = np.divide(beyond, error, out=np.where(beyond > 0, np.inf, 0.0), where=error > 0)
    freedom = np.where(joined > 0, joined, math.inf)
    half, p_values = np.full(len(base), np.nan), np.full(len(base), np.nan)
    known = np.flatnonzero(~np.isnan(centre) & np.isfinite(error))
    for row in known.tolist():
        half[row] = quantile(ALPHA, float(freedom[row])) * error[row] + allowed[row]
        p_values[row] = two_sided(float(t[row]), float(freedom[row]))
    return half, p_values


def _squares(side: Floats) -> Floats:
    """Return each row's sum of squared distances from its mean."""
    known = ~np.isnan(side)
    count = known.sum(axis=1)
    mean = np.divide(
        np.where(known, side, 0.0).sum(axis=1),
        count,
        out=np.zeros(len(side)),
        where=count > 0,
    )
    away: Floats = np.where(known, side - mean[:, None], 0.0)
    found: Floats = np.square(away).sum(axis=1)
    return found


Statistic = Literal["median", "fastest"]

STATISTICS: dict[Statistic, Callable[..., Any]] = {"median": np.median, "fastest": np.min}
_RESAMPLES = 1_000


def of_runs(side: Sample, statistic: Statistic) -> list[float]:
    """Return a statistic of each run of a side."""
    return [float(STATISTICS[statistic](run)) for run in side.runs]


def within_run(run: Floats, statistic: Statistic) -> float:
    """Return the variance of the logarithm of a run's statistic, by a bootstrap of its blocks."""
    return 0.0 if len(run) == 1 else _scatter(run.tobytes(), statistic)


@lru_cache(maxsize=1024)  # a gate asks for a verdict and for what it rests on, of the same runs
def _scatter(values: bytes, statistic: Statistic) -> float:
    run = np.frombuffer(values)
    generator = np.random.default_rng(len(run))
    return float(np.var(np.log(_resampled(run, statistic, generator))))


def ratio_interval(a: Floats, b: Floats, statistic: Statistic) -> tuple[float, float]:
    """Return a bootstrap interval of the ratio of b's statistic to a's; 0 in `a` is infinite."""
    generator = np.random.default_rng(len(a) * 1_000_003 + len(b))
    resampled_a = _resampled(a, statistic, generator)
    resampled_b = _resampled(b, statistic, generator)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = resampled_b / resampled_a
    ratios[np.isnan(ratios)] = 1.0
    low, high = np.quantile(ratios, (ALPHA / 2, 1 - ALPHA / 2), method="inverted_cdf")
    return float(low), float(high)


def _resampled(sample: Floats, statistic: Statistic, generator: np.random.Generator) -> Floats:
    """Return the statistic of samples made of blocks of neighbouring iterations.

    A disturbance of the machine hits several in a row.
    """
    count = len(sample)
    block = max(1, round(count**0.5))
    blocks = -(-count // block)
    starts = generator.integers(0, count, (_RESAMPLES, blocks))
    offsets = np.arange(block)
    # Circular: a block that runs over the end goes on at the beginning.
    picks = (starts[:, :, None] + offsets).reshape(_RESAMPLES, -1)[:, :count] % count
    resampled: Floats = STATISTICS[statistic](sample[picks], axis=1)
    return resampled


@dataclass(frozen=True, slots=True)
class Level:
    """Where a quantity stands, of one side alone."""

    value: float
    """Of several runs the geometric mean of their medians."""
    low: float | None
    """Interval at 1 - ALPHA; None where nothing is known of how runs differ."""
    high: float | None


def level(sample: Sample, noise: Noise | None = None) -> Level:
    """Return where a quantity stands, and how sure that is.

    Raises:
        ValueError: the sample is empty.
    """
    if not len(sample):
        raise ValueError("a sample is empty")
    medians = of_runs(sample, "median")
    if min(medians) <= 0:
        return Level(float(np.mean(medians)), None, None)
    logarithms = [math.log(one) for one in medians]
    centre = sum(logarithms) / len(logarithms)
    value = medians[0] if len(set(medians)) == 1 else math.exp(centre)
    within = sum(within_run(run, "median") for run in sample.runs) / len(logarithms)
    half = half_width(logarithms, within, noise)
    if half is None:
        return Level(value, None, None)
    return Level(value, math.exp(centre - half), math.exp(centre + half))
