"""What the host recorded about collective operators and their tasks, placed in calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.call_tree import NOWHERE
from unified_prof.decoders.prof.host.compute_info import HostKnowledge
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import collect
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.decoders.prof.raw.timeline import Timeline


@dataclass(frozen=True, slots=True)
class CommunicationRecords:
    """What the host recorded about collectives, placed in calls."""

    tasks: Records
    """hccl_info records that count, sorted by (communication call, context)."""
    task_key: NDArray[np.uint64]
    """Communication call << 32 | context."""
    operators: Records
    """hccl_op_info records that count, sorted by NODE call."""
    operator_node: NDArray[np.int64]


def read_communication(
    host: HostDirectory, knowledge: HostKnowledge, timeline: Timeline, sink: Sink
) -> CommunicationRecords:
    """Read the descriptions of collectives; of several for one call the last counts."""
    tasks, key = collect(host, "additional", "hccl_info", timeline, sink)
    row = knowledge.tree.communication.find(key)
    tasks, row = _placed(tasks, row, "hccl_info", sink)
    task_key = row.astype(np.uint64) << np.uint64(32) | tasks["context_id"]
    order = np.argsort(task_key, kind="stable")
    last = order[Runs(task_key[order]).last]
    operators, key = collect(host, "compact", "hccl_op_info", timeline, sink)
    node = knowledge.tree.node.find(key)
    operators, node = _placed(operators, node, "hccl_op_info", sink)
    order = np.argsort(node, kind="stable")
    newest = order[Runs(node[order]).last]
    return CommunicationRecords(tasks[last], task_key[last], operators[newest], node[newest])


def _placed(
    records: Records, row: NDArray[np.int64], kind: str, sink: Sink
) -> tuple[Records, NDArray[np.int64]]:
    inside = row != NOWHERE
    if not inside.all():
        sink.anomaly(f"unplaced_{kind}", int((~inside).sum()), f"{kind} records outside calls")
    return records[inside], row[inside]
