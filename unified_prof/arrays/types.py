"""Names of the array types that most modules use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
AnyInts = NDArray[np.integer]
"""Whole numbers of any width: columns that are kept narrow."""
