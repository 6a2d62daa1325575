"""Where a quantity of one side stands, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unified_prof.analysis.compare.between import Noise, Sample, half_width
from unified_prof.analysis.compare.resampled import of_runs, within_run


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
