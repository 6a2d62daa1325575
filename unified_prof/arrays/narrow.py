"""Whole numbers in fewer bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def narrow(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return values in four bytes each, if they fit."""
    limits = np.iinfo(np.int32)
    fits = limits.min <= values.min(initial=0) and values.max(initial=0) <= limits.max
    return values.astype(np.int32) if fits else values
