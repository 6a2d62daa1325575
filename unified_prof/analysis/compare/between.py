"""How sure a change between two sides is, when runs differ among themselves.

The iterations of one run are no independent samples of a machine: where its memory lies, what its
neighbours do, how warm it is, stays the same for a while, and is another in the next run. So a
side is as many values as it has runs. Of several runs a side their own scatter says how far their
mean may be off (Student's t); of one, what `Noise` was learned on this machine; where there is
neither, a change must exceed all that runs were ever seen to differ by, `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.compare import student

Floats = NDArray[np.float64]

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
    return Spread(student.quantile(ALPHA, degrees) * error + allowed, student.two_sided(t, degrees))


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
    return student.quantile(ALPHA, degrees) * math.sqrt(variance / len(runs))


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
        half[row] = student.quantile(ALPHA, float(freedom[row])) * error[row] + allowed[row]
        p_values[row] = student.two_sided(float(t[row]), float(freedom[row]))
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
