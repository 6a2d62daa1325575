"""Throughput and peak memory by size of batch, and the largest batch that fits.

Memory grows by the same for each sample, beside what does not depend on the batch: a line through
the peaks. How far the peaks lie off it is its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ENOUGH_FOR_ERROR = 3
"""A line goes through two peaks whatever they are."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One size of batch."""

    batch_size: int
    iteration_ms: float | None
    """Median; None: it was not measured."""
    peak_bytes: int | None
    failure: str | None = None
    """Why nothing was measured."""

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second."""
        return None if not self.iteration_ms else self.batch_size / self.iteration_ms * 1e3


@dataclass(frozen=True, slots=True)
class Fit:
    """The line through the peaks."""

    fixed_bytes: float
    bytes_per_sample: float
    error_bytes: float | None
    """How far a peak lies off the line at most; None: two peaks tell no error."""
    memory_bytes: int | None = None
    largest_batch: int | None = None
    """The largest that fits with the error added; None: not asked for, or none does."""
    largest_without_error: int | None = None


def fit(measured: Sequence[Measured], memory_bytes: int | None = None) -> Fit | None:
    """Return the line through the peaks, None where fewer than two sizes have one.

    Args:
        measured: the sizes.
        memory_bytes: what a batch has to fit in; None: unknown.
    """
    known = {one.batch_size: one.peak_bytes for one in measured if one.peak_bytes is not None}
    if len(known) < 2:
        return None
    sizes = np.array(list(known), np.float64)
    peaks = np.array(list(known.values()), np.float64)
    slope, fixed = (float(value) for value in np.polyfit(sizes, peaks, 1))
    error = float(np.abs(peaks - (fixed + slope * sizes)).max())
    error_bytes = error if len(known) >= ENOUGH_FOR_ERROR else None

    def largest(spare: float) -> int | None:
        if memory_bytes is None or slope <= 0:
            return None
        found = int((memory_bytes - fixed - spare) // slope)
        return found if found >= 1 else None

    return Fit(
        fixed,
        slope,
        error_bytes,
        memory_bytes,
        largest(error_bytes or 0.0),
        largest(0.0),
    )
