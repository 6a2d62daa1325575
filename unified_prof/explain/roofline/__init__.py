"""Roofline: FLOPs and bytes of operations compared with the peaks of devices."""

from __future__ import annotations

from unified_prof.explain.roofline.peaks import is_available, is_quick
from unified_prof.recording.model import Breakdown, BreakdownSpec
from unified_prof.recording.recording import Recording


def _rows(recording: Recording) -> Breakdown:
    from unified_prof.explain.roofline import breakdown  # not needed to list breakdowns

    return breakdown.rows(recording)


BREAKDOWNS = {"roofline": BreakdownSpec(is_available, _rows, is_quick)}
