"""What the times of two runs mean: with or without the waiting for a processor, alike for all.

On a machine that others use, a thread that is ready to run waits for its turn. That time is no
property of the program, so it is taken off, where it is known of everything that is compared:
of the total, the forward and the backward time, and on both sides. Where it is not, nothing is
taken off. So the parts never exceed the whole, and never is the one time held against the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from unified_prof.analysis.compare.comparable import TIMES, TOTAL, Floats, Run


@dataclass(frozen=True, slots=True)
class Waiting:
    """How two runs were made comparable in what they waited for."""

    left_out: bool
    """Whether the times compared are without it; else they are as the clock measured."""
    base_share: float | None
    """Part of the whole iterations' time that was waiting, 0 to 1; None: not known."""
    new_share: float | None


def alike(base: Run, new: Run) -> tuple[Run, Run, Waiting | None]:
    """Return both runs with times of one definition, and which; None: neither knows its waiting."""
    shares = (_share(base), _share(new))
    if shares == (None, None):
        return base, new, None
    common = [metric for metric in TIMES if metric in base.totals and metric in new.totals]
    left_out = all(_known(run, metric) for run in (base, new) for metric in common)
    if left_out:
        base, new = _without_waiting(base), _without_waiting(new)
    return base, new, Waiting(left_out, *shares)


def _known(run: Run, metric: str) -> bool:
    waited = run.waited.get(metric)
    return (
        waited is not None and len(waited) == len(run.totals[metric]) and not np.isnan(waited).any()
    )


def _without_waiting(run: Run) -> Run:
    totals: Mapping[str, Floats] = {
        metric: np.maximum(values - run.waited[metric], 0.0)
        if metric in TIMES and _known(run, metric)
        else values
        for metric, values in run.totals.items()
    }
    return replace(run, totals=totals)


def _share(run: Run) -> float | None:
    """Return the part of the measured time that was waiting, None where that is not known."""
    if TOTAL not in run.totals or not _known(run, TOTAL):
        return None
    total = float(run.totals[TOTAL].sum())
    return float(run.waited[TOTAL].sum()) / total if total > 0 else None
