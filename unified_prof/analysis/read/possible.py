"""Which times of a recording can have been."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Nothing runs on a device for two weeks, and Unix times stay below 2**62 ns until 2116.
MAX_DURATION_NS = 1 << 50
MAX_TIME_NS = 1 << 62


def possible(start_ns: Ints, duration_ns: Ints) -> NDArray[np.bool_]:
    """Return which intervals can have happened: known, in order, of this age, not endless."""
    result = (start_ns >= 0) & (start_ns <= MAX_TIME_NS)
    result &= duration_ns >= 0
    result &= duration_ns <= MAX_DURATION_NS
    return result
