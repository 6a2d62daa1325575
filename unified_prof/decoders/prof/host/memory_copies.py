"""MEMCPY_INFO: size and direction of asynchronous copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.task_track import HostTasks, TaskTypes
from unified_prof.decoders.prof.identity.task_keys import pack_keys
from unified_prof.decoders.prof.raw.layouts import record_type
from unified_prof.decoders.rows import Rows
from unified_prof.vocabulary import COPY_OTHER, NO_CONTEXT

_LAST_DIRECTION = 7

SIZES = np.dtype([("key", "u8"), ("record", record_type("memcpy_info"))])
"""A memcpy_info record and its place on the timeline."""

COPY = np.dtype([("key", "u8"), ("task_id", "u4"), ("size", "i8"), ("operation", "u2")])
"""A copy: the identity of its task, and what MEMCPY_INFO says of it."""


def copies_of(
    tasks: HostTasks, device_id: int, types: TaskTypes, sizes: Rows, *, wide_task_ids: bool
) -> Rows:
    """Return every asynchronous copy of one device.

    A size belongs to the copies launched at exactly its thread and time, in the order of their
    batch and task id: each takes as much as a copy can, until nothing is left. Copies without a
    size have size 0 and operation `other`.

    Args:
        tasks: launches.
        device_id: the device.
        types: the types of launches.
        sizes: the records of the same stretch of the timeline, in the order of their keys.
        wide_task_ids: as in `pack_keys`.
    """
    is_copy = types.named("MEMCPY_ASYNC")[tasks.type_index] & (tasks.device_id == device_id)
    task = np.flatnonzero(is_copy)
    task = task[
        np.lexsort(
            (tasks.stream_id[task], tasks.task_id[task], tasks.batch_id[task], tasks.key[task])
        )
    ]
    copies = np.zeros(len(task), COPY)
    key = tasks.key[task]
    copies["key"] = pack_keys(
        tasks.stream_id[task],
        tasks.task_id[task],
        tasks.batch_id[task],
        np.full(len(task), NO_CONTEXT, np.uint32),
        wide_task_ids=wide_task_ids,
    )
    copies["task_id"] = tasks.task_id[task]
    row = np.searchsorted(sizes["key"], key, side="right") - 1
    has_size = row >= 0
    has_size[has_size] = sizes["key"][row[has_size]] == key[has_size]
    found = sizes["record"][row[has_size]]
    size, direction = _shared(found, Runs(key).rank()[has_size].astype(np.uint64))
    copies["size"][has_size] = size.astype(np.int64)
    copies["operation"] = COPY_OTHER
    copies["operation"][has_size] = np.where(size > 0, direction, COPY_OTHER)
    return copies


def _shared(found: Rows, nth: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return size and direction of copies: what the nth of those that share a record gets of it."""
    limit, total = found["max_size"], found["data_size"]
    divisor = np.maximum(limit, np.uint64(1))
    chunks = total // divisor + (total % divisor > 0)
    remaining = np.where(nth < chunks, total - nth * limit, np.uint64(0))
    direction = np.where(found["direction"] > _LAST_DIRECTION, COPY_OTHER, found["direction"])
    return np.minimum(remaining, limit), direction.astype(np.int64)


def write_copies(copies: Rows, global_task_id: NDArray[np.int64], sink: Sink) -> None:
    """Write some copies."""
    if len(copies):
        sink.write(
            "MEMCPY_INFO",
            {
                "globalTaskId": global_task_id,
                "size": copies["size"].copy(),
                "memcpyOperation": copies["operation"].astype(np.int64),
            },
        )
