"""Collectives that AI CPU kernels run on the device: which task belongs to which of them.

The host launches only the kernel. What the kernel then puts on the streams of its group is in the
device's log, and what it was for in the records of the AI CPUs. A task belongs to the operator of
its group that was running when the task ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.aicpu_members import Members, members_of
from unified_prof.decoders.prof.collectives.aicpu_operators import (
    Bounds,
    Ground,
    Operator,
    find_rows,
    operators_of,
)
from unified_prof.decoders.prof.host.launches import MISSING
from unified_prof.decoders.prof.raw.slices import Records


@dataclass(slots=True)
class Collectives:
    """The collectives of one device that AI CPU kernels ran."""

    operators: list[Operator]
    members: Members
    record_row: NDArray[np.int64]
    """Of every record of a task: its row in `TaskRows`, MISSING where the log has no such task."""

    def flags(self) -> dict[str, tuple[int, int]]:
        """Return relay and retry by the full name of operators that the host may have too."""
        return {item.name: (item.relay, item.retry) for item in self.operators if item.of_host}


def find_collectives(ground: Ground, sink: Sink) -> Collectives | None:
    """Tell the collectives of a device and their tasks; None without any sign of one."""
    streams = ground.streams
    if not streams.of_kernels:
        if len(ground.records):
            sink.anomaly(
                "collective_without_streams",
                len(ground.records),
                "records of AI CPUs, of a group that no mc2_comm_info names",
            )
        return None
    record_row = _rows_of(ground, ground.records.tasks, sink)
    bounds = Bounds(ground, record_row)
    operators = operators_of(ground, bounds)
    members = members_of(ground, operators, record_row, bounds)
    placed = np.unique(members.record[members.record != MISSING])
    if outside := int((record_row != MISSING).sum()) - len(placed):
        sink.anomaly("task_outside_collectives", outside, "tasks that AI CPUs launched")
    return Collectives(operators, members, record_row)


def _rows_of(ground: Ground, tasks: Records, sink: Sink) -> NDArray[np.int64]:
    """Return the row of the device's log of every record of a task."""
    batch = ground.records.flips.batch_of(
        tasks["stream_id"], tasks["task_id"] & 0xFFFF, tasks["timestamp"], at_flip=True
    )
    found = find_rows(ground, tasks["stream_id"], tasks["task_id"], batch)
    if lost := int((found == MISSING).sum()):
        sink.anomaly("aicpu_task_not_in_log", lost, "tasks that AI CPUs say they launched")
    return found
