"""op_statistic: the durations of kernels by type of operator and of core."""

from __future__ import annotations

import numpy as np

from unified_prof.export.mindstudio import statistics
from unified_prof.export.mindstudio.delivery import Delivery, cell
from unified_prof.export.mindstudio.numbers import trimmed
from unified_prof.export.mindstudio.recording import Recording
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.vocabulary import NOT_AVAILABLE

_HEADER = (
    *("Device_id", "OP Type", "Core Type", "Count"),
    *("Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)
_COUNTED_ELSEWHERE = ("COMMUNICATION", "HCCL_AI_CPU")
_NOT_SHOWN = ("WRITE_BACK", "INVALID")


@deliverable("op_statistic", tables=("COMPUTE_TASK_INFO",))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, longest total first.

    The average is that of whole nanoseconds and cut, the share is that of all kernels of the
    device, also of those without a row.
    """
    tasks, columns = recording.tasks, recording.kernels.columns
    info = recording.kernels.of(tasks.id)
    task = np.flatnonzero(info >= 0)
    core = columns["taskType"][info[task]]
    task = task[~np.isin(core, recording.ids(_COUNTED_ELSEWHERE))]
    row = info[task]
    found = statistics.groups(
        (tasks.device[task], columns["opType"][row], columns["taskType"][row]),
        tasks.duration_ns[task],
    )
    totals = statistics.totals(found)
    named = []
    for group in found:
        device, op_type, core_type = group.key
        op, kind = recording.text(op_type), recording.text(core_type)
        if op != NOT_AVAILABLE and kind not in _NOT_SHOWN:
            named.append((device, op, kind, group))
    named.sort(key=lambda one: (-one[3].total_ns, *one[:3]))
    rows = []
    for device, op, kind, group in named:
        share = group.total_ns / totals[device] * statistics.PERCENT if totals[device] else 0.0
        times = (group.total_ns, group.min_ns, group.total_ns // group.count, group.max_ns)
        rows.append(
            ",".join(
                (
                    *(str(device), cell(op), cell(kind), str(group.count)),
                    *(trimmed(ns / 1000) for ns in times),
                    trimmed(round(share, 3)),
                )
            )
        )
    delivery.table("op_statistic", _HEADER, len(rows), [rows])
