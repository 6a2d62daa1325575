"""communication_statistic: the durations of collective operators by type."""

from __future__ import annotations

import numpy as np

from unified_prof.export.mindstudio import statistics
from unified_prof.export.mindstudio.delivery import Delivery, cell
from unified_prof.export.mindstudio.numbers import (
    half_away,
    thousandths,
    trimmed,
)
from unified_prof.export.mindstudio.recording import Recording
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.vocabulary import NOT_AVAILABLE

_HEADER = (
    *("Device_id", "OP Type", "Count"),
    *("Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)


@deliverable("communication_statistic", tables=("COMMUNICATION_OP",))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, longest total first; none where no operator's type is known."""
    operators = recording.collectives
    found = statistics.groups(
        (operators.device, operators.columns["opType"]), operators.duration_ns
    )
    totals = statistics.totals(found)
    named = [(group.key[0], recording.text(group.key[1]), group) for group in found]
    known = {device for device, op_type, _ in named if op_type != NOT_AVAILABLE}
    named = [one for one in named if one[0] in known]
    named.sort(key=lambda one: (-one[2].total_ns, *one[:2]))
    rows = []
    for device, op_type, group in named:
        # SQLite has rounded the average, C the share.
        mean = int(thousandths(np.array([group.total_ns / group.count / 1000]))[0]) / 1000
        share = group.total_ns * statistics.PERCENT / totals[device] if totals[device] else 0.0
        rows.append(
            ",".join(
                (
                    *(str(device), cell(op_type), str(group.count)),
                    trimmed(group.total_ns / 1000),
                    trimmed(group.min_ns / 1000),
                    trimmed(mean),
                    trimmed(group.max_ns / 1000),
                    trimmed(half_away(share)),
                )
            )
        )
    delivery.table("communication_statistic", _HEADER, len(rows), [rows])
