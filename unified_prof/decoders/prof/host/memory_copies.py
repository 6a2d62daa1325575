"""MEMCPY_INFO: size and direction of asynchronous copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.launches import Launches
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import collect
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.decoders.prof.raw.timeline import Keys, Timeline
from unified_prof.vocabulary import COPY_OTHER, NO_CONTEXT

_LAST_DIRECTION = 7


def read_copies(host: HostDirectory, timeline: Timeline, sink: Sink) -> tuple[Records, Keys]:
    """Read the sizes of copies, sorted by thread and time."""
    records, key = collect(host, "compact", "memcpy_info", timeline, sink)
    order = np.argsort(key, kind="stable")
    return records[order], key[order]


def write_copies(
    launches: Launches,
    global_task_id: NDArray[np.int64],
    types: TaskTypes,
    copies: tuple[Records, Keys],
    sink: Sink,
) -> None:
    """Write every asynchronous copy of one device.

    A size belongs to the copies launched at exactly its thread and time, in the order of their
    batch and task id: each takes as much as a copy can, until nothing is left. Copies without a
    size have size 0 and operation `other`.
    """
    records, record_key = copies
    if not len(records):
        return
    tasks = launches.tasks
    is_copy = types.named("MEMCPY_ASYNC")[tasks.type_index]
    launch = np.flatnonzero(is_copy[launches.task] & (launches.context_id == NO_CONTEXT))
    if not len(launch):
        return
    task = launches.task[launch]
    key = tasks.key[task]
    order = np.lexsort((tasks.task_id[task], tasks.batch_id[task], key))
    launch, key = launch[order], key[order]
    rank = Runs(key).rank()
    size = np.zeros(len(key), np.uint64)
    operation = np.full(len(key), COPY_OTHER, np.int64)
    row = np.searchsorted(record_key, key, side="right") - 1
    has_size = row >= 0
    has_size[has_size] = record_key[row[has_size]] == key[has_size]
    found = records[row[has_size]]
    limit, total = found["max_size"], found["data_size"]
    nth = rank[has_size].astype(np.uint64)
    divisor = np.maximum(limit, np.uint64(1))
    chunks = total // divisor + (total % divisor > 0)
    remaining = np.where(nth < chunks, total - nth * limit, np.uint64(0))
    size[has_size] = np.minimum(remaining, limit)
    direction = np.where(found["direction"] > _LAST_DIRECTION, COPY_OTHER, found["direction"])
    operation[has_size] = np.where(size[has_size] > 0, direction, COPY_OTHER)
    sink.write(
        "MEMCPY_INFO",
        {
            "globalTaskId": global_task_id[launch],
            "size": size.astype(np.int64),
            "memcpyOperation": operation,
        },
    )
