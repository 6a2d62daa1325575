"""Medians and corrected probabilities of thousands of operations at once."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.compare.resampled import Floats


def medians(matrix: Floats) -> Floats:
    """Return the median of each row's known values; NaN where a row has none."""
    count = (~np.isnan(matrix)).sum(axis=1)
    if not matrix.size:
        return np.full(len(matrix), np.nan)
    ordered = np.sort(matrix, axis=1)  # NaN stands last
    rows = np.arange(len(matrix))
    # Half the difference, not half the sum: that may overflow.
    low, high = ordered[rows, (count - 1) // 2], ordered[rows, np.maximum(count // 2, 0)]
    found: Floats = np.where(count > 0, low + (high - low) / 2, np.nan)
    return found


def correct_for_many(p_values: Floats) -> Floats:
    """Return the p-values corrected by Benjamini and Hochberg; NaN (not tested) stays NaN.

    Ten thousand comparisons of unchanged operations would else name five hundred of them.
    """
    corrected = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    scaled = p_values[order] * len(known) / np.arange(1, len(known) + 1)
    corrected[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return corrected
