"""What is known of the tasks of one device once host and device logs are joined.

The hand-over to decoders that add to tasks (PMU records): they look tasks up by stream, task,
batch and context, and get the globalTaskId that TASK has, or a new one for tasks unknown there.
A decoder of such records has the signature

    def decode(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import find
from unified_prof.decoders.prof.identity.flips import Flips
from unified_prof.decoders.prof.identity.task_keys import IdCounter, pack_keys, streams_of
from unified_prof.decoders.prof.raw.directory import HostDirectory


@dataclass(frozen=True, slots=True)
class DeviceTasks:
    """The tasks of one device, for those who describe them; one row a key, sorted by key."""

    ids: IdCounter
    flips: Flips
    """The device's own flips: `flips.batch_of(stream, task, end_ticks, at_flip=True)`."""
    wide_task_ids: bool
    """Platforms 15 and 16: 32-bit task ids, unique on the device; records carry no stream."""
    expanded_streams: bool
    """Stream and task words of device records are in the expanded notation (`stream_words`)."""
    key: NDArray[np.uint64]
    """Of `task_keys.pack_keys`, ascending: every task of the device's log, also those that ended
    before the session. What describes a task that is not here (its log was lost) is left out."""
    global_task_id: NDArray[np.int64]
    """Of each key; -1 where it has none yet, for tasks that ended before the session."""
    block_num: NDArray[np.uint32]
    """Blocks of the compute operator; 0 where there is no operator."""
    mix_block_num: NDArray[np.uint32]
    host: HostDirectory | None
    """What the host recorded, where it did."""
    stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    """With `wide_task_ids`: ascending task ids, and the stream of each. Else empty."""

    def pack(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        batch_id: NDArray[Any],
        context_id: NDArray[Any],
    ) -> NDArray[np.uint64]:
        """Return the keys of tasks, as in `key`."""
        return pack_keys(stream_id, task_id, batch_id, context_id, wide_task_ids=self.wide_task_ids)

    def find(self, key: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row of every key, -1 where there is none."""
        return find(self.key, key)

    def ids_of(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the globalTaskIds of rows; tasks that have none yet get one."""
        without = np.unique(row[self.global_task_id[row] < 0])
        if len(without):
            self.global_task_id[without] = self.ids.take(len(without))
        return self.global_task_id[row]

    def streams_of(self, task_id: NDArray[Any]) -> NDArray[np.int64]:
        """Return the stream of every 32-bit task id, -1 where the host launched none such."""
        return streams_of(self.stream_by_task, task_id)
