"""Host tasks of one device, one row for every context: what device tasks are joined to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.ordering import order_of_keys
from unified_prof.decoders.prof.host.call_tree import NOWHERE
from unified_prof.decoders.prof.host.operators import Contexts
from unified_prof.decoders.prof.host.task_track import HostTasks, TaskTypes
from unified_prof.decoders.prof.identity.task_keys import pack_keys
from unified_prof.vocabulary import NO_CONTEXT

MISSING = -1


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one device with their contexts, sorted by identity."""

    tasks: HostTasks
    """The launches, a row each."""
    key: NDArray[np.uint64]
    """Identity with context, ascending; the columns below have its length."""
    task: NDArray[np.int64]
    """Row in `tasks`."""
    context_id: NDArray[np.uint32]
    placeholder: NDArray[np.bool_]
    """A whole task that was told to consist of contexts, which describe the operator."""


def launches_of(
    tasks: HostTasks,
    device_id: int,
    types: TaskTypes,
    node_contexts: Contexts,
    communication_contexts: Contexts,
    *,
    wide_task_ids: bool,
) -> Launches:
    """Take the launches of one device and expand those that consist of contexts.

    With 32-bit task ids the device logs a task as a whole, whatever contexts it was told to have.
    """
    on_device = tasks.device_id == device_id
    if not on_device.all():
        tasks = tasks.take(np.flatnonzero(on_device))
    expandable = (types.kernels() | types.named("FFTS_PLUS", "STARS_COMMON"))[tasks.type_index]
    in_node = expandable & (tasks.node != NOWHERE) & (tasks.communication == NOWHERE)
    in_node &= not wide_task_ids
    in_communication = expandable & (tasks.communication != NOWHERE)
    expanded: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for mask, owner, contexts in (
        (in_node, tasks.node, node_contexts),
        (in_communication, tasks.communication, communication_contexts),
    ):
        rows = np.flatnonzero(mask)
        position, context = contexts.expand(owner[rows])
        expanded.append((rows[position], context))
    count = len(tasks)
    has_contexts = np.zeros(count, bool)
    for rows, _ in expanded:
        has_contexts[rows] = True
    task = np.concatenate([np.arange(count), *(rows for rows, _ in expanded)])
    context_id = np.concatenate(
        [np.full(count, NO_CONTEXT, np.uint32), *(context for _, context in expanded)]
    )
    placeholder = np.concatenate([has_contexts, np.zeros(len(task) - count, bool)])
    key = pack_keys(
        tasks.stream_id[task],
        tasks.task_id[task],
        tasks.batch_id[task],
        context_id,
        wide_task_ids=wide_task_ids,
    )
    order = order_of_keys(key)
    if order is None:
        return Launches(tasks, key, task, context_id, placeholder)
    return Launches(tasks, key[order], task[order], context_id[order], placeholder[order])
