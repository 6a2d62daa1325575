"""Which round of its stream's task ids a task belongs to.

Task ids of a stream have 16 bits and wrap. At every wrap the host and the device each record a
flip; the batch of a task is the number of flips of its stream before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs

_PLAIN_FLIP = (0, 65535)


@dataclass(frozen=True, slots=True)
class Flips:
    """The flips of one device, as recorded by one side: columns of one length."""

    stream_id: NDArray[Any]
    task_id: NDArray[Any]
    """The first id after the flip. Other than 0 and 65535, tasks right before the flip with a
    smaller id belong to the new round already: another thread was faster."""
    ticks: NDArray[np.uint64]

    @classmethod
    def none(cls) -> Flips:
        """Return no flips at all."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint64))

    def batch_of(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        ticks: NDArray[Any],
        *,
        at_flip: bool,
    ) -> NDArray[np.uint32]:
        """Return the batch of every task.

        Args:
            stream_id: streams of the tasks.
            task_id: their 16-bit ids.
            ticks: their times, in the counter of the flips.
            at_flip: a task at the very tick of a flip belongs to the new round (device logs),
                not to the old one (host records).
        """
        batches = np.zeros(len(stream_id), np.uint32)
        if not len(self.stream_id):
            return batches
        touched = np.flatnonzero(np.isin(stream_id, self.stream_id))
        if not len(touched):
            return batches
        flips = len(self.stream_id)
        stream = np.concatenate([self.stream_id, stream_id[touched]]).astype(np.uint32)
        task = np.concatenate([self.task_id, task_id[touched]]).astype(np.int64)
        time = np.concatenate([self.ticks, ticks[touched]]).astype(np.uint64)
        is_flip = np.arange(len(stream)) < flips
        order = np.lexsort((~is_flip if at_flip else is_flip, time, stream))
        is_flip, task = is_flip[order], task[order]
        count = np.cumsum(is_flip) - _at_stream_start(stream[order], is_flip)
        count += _pulled_back(stream[order], task, is_flip)
        tasks = ~is_flip
        batches[touched[order[tasks] - flips]] = count[tasks]
        return batches


def _at_stream_start(stream: NDArray[np.uint32], is_flip: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for every row, the number of flips in the streams before its own."""
    before: NDArray[np.int64] = np.cumsum(is_flip) - is_flip
    streams = Runs(stream)
    return streams.spread(before[streams.starts])


def _pulled_back(
    stream: NDArray[np.uint32], task: NDArray[np.int64], is_flip: NDArray[np.bool_]
) -> NDArray[Any]:
    """Mark the tasks right before a flip that already belong to the round after it."""
    rows = np.arange(len(task))
    flip_rows = np.flatnonzero(is_flip)
    next_flip = np.searchsorted(flip_rows, rows)
    has_next = next_flip < len(flip_rows)
    at = flip_rows[np.minimum(next_flip, len(flip_rows) - 1)]
    limit = np.where(np.isin(task[at], _PLAIN_FLIP), 0, task[at])
    small = has_next & ~is_flip & (stream[at] == stream) & (task < limit)
    # Pulled back is a run of small ids that reaches the flip without interruption.
    last_other = np.maximum.accumulate(np.where(small, -1, rows))
    before_flip = last_other[np.maximum(at - 1, 0)]
    return np.asarray(small & (rows > before_flip))
