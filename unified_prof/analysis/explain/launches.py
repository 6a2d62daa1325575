"""How the host launched work: by call, how long calls took and how long work waited for its turn.

The classes are those of HolisticTraceAnalysis. A kernel that runs shorter than the call that
launched it cannot keep a device busy; a slow call points to the host; a late kernel waited behind
others, which is well where the device is busy meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import sort_rows
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.breakdowns import finish
from unified_prof.analysis.views.groups import by_key
from unified_prof.analysis.views.launched import Launched
from unified_prof.analysis.ways import Way
from unified_prof.arrays.codes import codes
from unified_prof.units import NS_PER_US

Ints = NDArray[np.int64]

SLOW_CALL_NS = 50 * NS_PER_US
"""A launching call that takes longer is slow."""
LATE_NS = 100 * NS_PER_US
"""Work that starts later than this after its call has returned is late."""
NOT_RECORDED = "(launch not recorded)"


def offered(recording: Recording) -> bool:
    """Tell whether there are calls and tasks to join."""
    return len(recording.tasks) > 0 and len(recording.host_calls) > 0


def _breakdown(recording: Recording) -> Breakdown:
    found = recording.launches.of_calls
    ids, number = codes(recording.host_calls.name[found.call])
    names = recording.strings.texts(ids)
    rows = [_row(names[own] or "(unnamed call)", found, at) for own, at in by_key(number)]
    rows = sort_rows(rows)
    if found.unknown:
        rows.append(Row(name=NOT_RECORDED, kind="launch", count=found.unknown))
    return finish("launch", rows)


def _row(name: str, found: Launched, at: Ints) -> Row:
    called, work = found.returned_ns[at] - found.called_ns[at], found.work_ns[at]
    delay = np.sort(found.started_ns[at] - found.called_ns[at])
    waited = np.sort(np.maximum(found.started_ns[at] - found.returned_ns[at], 0))
    return Row(
        name=name,
        kind="launch",
        count=len(at),
        total_ns=int(called.sum()),
        extra={
            "work_ns": int(work.sum()),
            "delay_median_ns": _quantile(delay, 0.5),
            "delay_p99_ns": _quantile(delay, 0.99),
            "delay_max_ns": int(delay[-1]),
            "waited_median_ns": _quantile(waited, 0.5),
            "waited_p99_ns": _quantile(waited, 0.99),
            "short_kernels": int(((called <= SLOW_CALL_NS) & (work < called)).sum()),
            "slow_calls": int((called > SLOW_CALL_NS).sum()),
            "late_kernels": int((waited > LATE_NS).sum()),
        },
    )


def _quantile(ordered: Ints, share: float) -> int:
    """Return a quantile of values in rising order: one of them, the lower where it lies between."""
    return int(ordered[int(share * (len(ordered) - 1))])


WAYS = {"launch": Way(offered, _breakdown)}
