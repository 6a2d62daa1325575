"""By what factor times changed from one side to the other, of one workload or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unified_prof.analysis.compare.between import UNLEARNED, Between, Sample, spread
from unified_prof.analysis.compare.resampled import (
    STATISTICS,
    Statistic,
    of_runs,
    ratio_interval,
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
