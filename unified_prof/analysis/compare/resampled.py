"""How a statistic of one run scatters, told by a bootstrap of blocks of its iterations.

Deterministic: the same samples give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.compare.between import ALPHA, Sample

Floats = NDArray[np.float64]
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
