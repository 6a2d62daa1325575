"""What is unlike its likes: medians of the others, and how far values usually lie apart."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TO_DEVIATION = 1.4826


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of all others; NaN where there is no other."""
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    low, high = (count - 2) // 2, (count - 1) // 2  # the middle of count - 1 values
    return np.asarray(
        (ascending[low + (place <= low)] + ascending[high + (place <= high)]) / 2, np.float64
    )


def deviation(values: Floats) -> float:
    """Return the robust standard deviation around 0 of values that should be 0."""
    known = values[np.isfinite(values)]
    return _TO_DEVIATION * float(np.median(np.abs(known))) if len(known) else 0.0


def farthest(count: int) -> float:
    """Return how many deviations nothing but chance keeps among so many values.

    The most of `count` normal values lies at about sqrt(2 ln count); the deviation itself is an
    estimate, the worse the fewer values it comes of.
    """
    return math.sqrt(2 * math.log(max(count, 2))) + 2.5 + 8 / max(count, 1)
