"""Limits and words that rules share, of recordings and of tracked workloads alike."""

from __future__ import annotations

from unified_prof.units import TIMES, scaled

STEPS_TO_LEAVE_ONE = 3
"""From so many steps on the first is left out, as one that warms up."""
WARMING_UP = 3.0
"""A step that is longer than so many medians warms up, or saves or evaluates: not judged."""
WARN_SHARE = 0.03
"""Share of a step from which a cost is worth a word where a rule has no limit of its own."""
LEAST_SHARE = 0.01
"""Of the time: what would save less is not worth a word where the share of the cause is limited
otherwise, or where nothing but the gain is uncertain."""
PAUSE_SHARE = 0.10
"""Of a recording without steps: a gap that is longer is a pause between phases, not a slow host."""
ROWS = 5
"""Rows of evidence that a finding shows."""


def duration(time_ns: float) -> str:
    """Return a time in words, as tables have it."""
    return scaled(time_ns, TIMES)


def times(count: int) -> str:
    """Return how often, in words."""
    return "once" if count == 1 else f"{count:,} times"


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
