"""When a rank's steps were, and when it waited for input."""

from __future__ import annotations

import re

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.cluster.rank_columns import Ints
from unified_prof.store.reader import Report

_LOADER = "%DataLoader%"
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)$")


def steps_of(report: Report, busy: IntervalSet) -> tuple[dict[str, Ints], bool]:
    """Return number, begin and end of each step, and whether any is recorded; else all is one."""
    rows = report.rows(
        "SELECT id, startNs, endNs FROM STEP_TIME"
        " WHERE typeof(startNs) = 'integer' AND typeof(endNs) = 'integer' AND endNs > startNs"
        " ORDER BY startNs"
    )
    if not rows:
        rows = _named_steps(report)
    recorded = bool(rows)
    if not recorded and len(busy):
        rows = [(0, int(busy.start_ns[0]), int(busy.end_ns[-1]))]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return {"step": table[:, 0], "start": table[:, 1], "end": table[:, 2]}, recorded


def _named_steps(report: Report) -> list[tuple[int, int, int]]:
    rows = report.rows(
        "SELECT s.value, CAST(p.startNs AS INTEGER), CAST(p.endNs AS INTEGER)"
        " FROM PYTORCH_API p JOIN STRING_IDS s ON s.id = p.name"
        " WHERE p.name IN (SELECT id FROM STRING_IDS WHERE value LIKE 'ProfilerStep#%')"
    )
    return sorted(
        (
            (int(found[1]), start, end)
            for text, start, end in rows
            if (found := _STEP_NAME.match(str(text))) and end > start
        ),
        key=lambda step: step[1],
    )


def loader_of(report: Report) -> IntervalSet | None:
    """Return when the host waited for input; None where no loader was recorded."""
    names = report.rows("SELECT id FROM STRING_IDS WHERE value LIKE ?", (_LOADER,))
    if not names:
        return None
    marks = ", ".join(str(int(name)) for (name,) in names)
    rows = report.rows(
        "SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER) FROM PYTORCH_API"
        f" WHERE name IN ({marks})"
    )
    table = np.array(rows, np.int64).reshape(-1, 2)
    return intervals.merge(table[:, 0], table[:, 1]) if len(table) else None
