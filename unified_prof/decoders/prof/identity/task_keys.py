"""Numbers tasks: one dense globalTaskId per device, stream, task, batch and context."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import find

_NARROW_NO_CONTEXT = 0xFFFF


class IdCounter:
    """The next free id of a file."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, number: int) -> NDArray[np.int64]:
        """Return the next `number` ids."""
        ids = np.arange(self.next, self.next + number, dtype=np.int64)
        self.next += number
        return ids


def pack_keys(
    stream_id: NDArray[Any],
    task_id: NDArray[Any],
    batch_id: NDArray[Any],
    context_id: NDArray[Any],
    *,
    wide_task_ids: bool,
) -> NDArray[Any]:
    """Pack the identity of tasks of one device into sortable 64-bit keys.

    Streams have 16 bits and contexts fewer. Task ids have 16 bits and wrap (16 bits of batch), or
    32 bits and do not (`wide_task_ids`, platforms 15 and 16). Sorting keys sorts by stream first.
    """
    context = np.asarray(context_id).astype(np.uint64)
    context = np.where(context < _NARROW_NO_CONTEXT, context + np.uint64(1), np.uint64(0))
    stream = np.asarray(stream_id).astype(np.uint64) << np.uint64(48)
    task = np.asarray(task_id).astype(np.uint64)
    if wide_task_ids:
        return np.asarray(stream | context << np.uint64(32) | task & np.uint64(0xFFFFFFFF))
    batch = (np.asarray(batch_id).astype(np.uint64) & np.uint64(0xFFFF)) << np.uint64(32)
    return np.asarray(stream | batch | context << np.uint64(16) | task & np.uint64(0xFFFF))


def streams_of(
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]], task_id: NDArray[Any]
) -> NDArray[np.int64]:
    """Look 32-bit task ids up in (ascending task ids, streams); -1 where one is not there."""
    known, streams = stream_by_task
    row = find(known, task_id)
    return np.where(row < 0, -1, np.r_[streams, 0][row].astype(np.int64))
