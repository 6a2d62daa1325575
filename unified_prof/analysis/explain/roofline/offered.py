"""Whether a recording can be put under the limits of its devices: asked of all, so it is light."""

from __future__ import annotations

from unified_prof.analysis.model import Breakdown
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.ways import Way

QUICK_TASKS = 500_000
"""Tasks up to which it takes a moment only: of more, a report has it where it is asked for."""


def offered(recording: Recording) -> bool:
    """Tell whether the shapes of what a device ran were recorded, here or where it was captured."""
    told_by = (recording, recording.captured_in)
    return recording.clock == "device" and any(
        one is not None and one.has_shapes for one in told_by
    )


def quick(recording: Recording) -> bool:
    """Tell whether it takes so little that every report may have it."""
    return len(recording.tasks) <= QUICK_TASKS


def _rows(recording: Recording) -> Breakdown:
    from unified_prof.analysis.explain.roofline import breakdown

    return breakdown.rows(recording)


WAYS = {"roofline": Way(offered, _rows, quick)}
