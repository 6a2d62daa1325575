"""Whole numbers as decimal digits, all of a column at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 10_000
_FOUR_DIGITS = np.frombuffer(
    (np.indices((10, 10, 10, 10), np.uint8).reshape(4, -1).T + np.uint8(ord("0"))).tobytes(), "V4"
)
"""0000 to 9999."""
_MOST_DIGITS = 20
_WIDTH = 1 + _MOST_DIGITS
_POWERS = np.array([10**digits for digits in range(1, _MOST_DIGITS)], np.uint64)
_MINUS = ord("-")


def decimals(numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits of numbers, one after the other, and how many bytes each of them takes.

    Args:
        numbers: At least one.
    """
    is_negative = numbers < 0
    left = np.where(is_negative, -numbers, numbers).view(np.uint64)
    lengths = np.searchsorted(_POWERS, left, side="right") + 1 + is_negative
    digits = np.empty((len(numbers), _WIDTH), np.uint8)
    # Only as many groups of four as the longest has; what is before them is cut off below.
    groups = -(-int(lengths.max()) // 4)
    for place in range(_WIDTH - 4, _WIDTH - 4 - 4 * min(groups, _MOST_DIGITS // 4), -4):
        higher = left // np.uint64(_AT_ONCE)
        group = (left - higher * np.uint64(_AT_ONCE)).astype(np.intp)
        np.ndarray((len(numbers),), "V4", digits, place, (_WIDTH,))[:] = _FOUR_DIGITS[group]
        left = higher
    if is_negative.any():
        negative = np.flatnonzero(is_negative)
        digits[negative, _WIDTH - lengths[negative]] = _MINUS
    longest = int(lengths.max())
    if (lengths == longest).all():
        return digits[:, _WIDTH - longest :].reshape(-1), lengths
    return digits[np.arange(_WIDTH) >= (_WIDTH - lengths)[:, np.newaxis]], lengths
