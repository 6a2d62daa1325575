"""Which step a moment lies in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN

Ints = NDArray[np.int64]

Steps = Sequence[tuple[str, int, int]]
"""Name, start and end in nanoseconds, in order of time."""


def step_of(start_ns: Ints, steps: Steps) -> Ints:
    """Return the index of the step that each moment lies in, UNKNOWN where in none."""
    starts = np.array([start for _, start, _ in steps], np.int64)
    ends = np.array([end for _, _, end in steps], np.int64)
    step = np.searchsorted(starts, start_ns, side="right") - 1
    result: Ints = np.where((step >= 0) & (start_ns < ends[step]), step, UNKNOWN)
    return result
