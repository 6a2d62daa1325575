"""Task identities: stream and task ids of device records, batches, and sortable keys.

Task ids of a stream have 16 bits and wrap around. At each wrap-around, the host and the device both
record a flip. The batch of a task is the number of earlier flips of its stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Runs, find

# Task types with plain words in the expanded notation: place holder, event record.
_EXPANDED_PLAIN_SQE = (3, 4)


def decode_words(
    stream_word: NDArray[Any],
    task_word: NDArray[Any],
    *,
    expanded: bool,
    sqe_type: NDArray[Any] | int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Decode stream and task ids from the 16-bit words of device records.

    `expanded` is True if the recording has an expand_stream_spec with status 1 (15-bit streams),
    `sqe_type` is the task type of the records.
    """
    stream = np.asarray(stream_word).astype(np.uint32)
    task = np.asarray(task_word).astype(np.uint32)
    if expanded:
        swapped = (stream & 0x8000 != 0) & ~np.isin(sqe_type, _EXPANDED_PLAIN_SQE)
        return (
            np.where(swapped, task, stream) & 0x7FFF,
            np.where(swapped, task & 0x8000 | stream & 0x7FFF, task),
        )
    high_in_stream = stream & 0x1000 != 0
    swapped = ~high_in_stream & (stream & 0x2000 != 0)
    return (
        np.where(swapped, task & 0x0FFF, stream) % np.uint32(2048),
        np.where(
            high_in_stream,
            task & 0x1FFF | stream & 0xE000,
            np.where(swapped, stream & 0x0FFF | task & 0xF000, task),
        ),
    )


_NARROW_NO_CONTEXT = 0xFFFF


class IdCounter:
    """Assigns ids that are unique in one database."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, number: int) -> Ints:
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
    """Pack the identities of tasks of one device into 64-bit keys that sort by stream first.

    Task ids have 16 bits, wrap around and are combined with a 16-bit batch, or they have 32 bits
    and do not wrap (`wide_task_ids`, platforms 15 and 16).
    """
    context = np.asarray(context_id).astype(np.uint64)
    context = np.where(context < _NARROW_NO_CONTEXT, context + np.uint64(1), np.uint64(0))
    stream = np.asarray(stream_id).astype(np.uint64) << np.uint64(48)
    task = np.asarray(task_id).astype(np.uint64)
    if wide_task_ids:
        return np.asarray(stream | context << np.uint64(32) | task & np.uint64(0xFFFFFFFF))
    batch = (np.asarray(batch_id).astype(np.uint64) & np.uint64(0xFFFF)) << np.uint64(32)
    return np.asarray(stream | batch | context << np.uint64(16) | task & np.uint64(0xFFFF))


@dataclass(frozen=True, slots=True)
class TaskStreams:
    """Streams of tasks with 32-bit ids, whose device records have no stream."""

    task_id: NDArray[np.uint32]
    """Ascending."""
    stream_id: NDArray[np.uint32]

    @classmethod
    def none(cls) -> TaskStreams:
        """Return no tasks."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32))

    def find(self, task_id: NDArray[Any]) -> Ints:
        """Return the stream of each task id, -1 for ids that were not launched."""
        row = find(self.task_id, task_id)
        return np.where(row < 0, -1, np.r_[self.stream_id, 0][row].astype(np.int64))


_PLAIN_FLIP = (0, 65535)


@dataclass(frozen=True, slots=True)
class Flips:
    """Flips of one device, recorded by the host or by the device; columns of equal length."""

    stream_id: NDArray[Any]
    task_id: NDArray[Any]
    """First id after the flip. Unless it is 0 or 65535, tasks directly before the flip with a
    smaller id belong to the new batch, because another thread launched them concurrently."""
    ticks: NDArray[np.uint64]

    @classmethod
    def none(cls) -> Flips:
        """Return an empty set of flips."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint64))

    def batch_of(
        self, stream_id: NDArray[Any], task_id: NDArray[Any], ticks: NDArray[Any], *, at_flip: bool
    ) -> NDArray[np.uint32]:
        """Return the batch of each task, from its 16-bit id and its time in the flips' counter.

        A task at the tick of a flip belongs to the new batch if `at_flip` is true (device logs),
        else to the old batch (host records).
        """
        place = np.arange(len(stream_id))
        rounds = Rounds(self, at_flip=at_flip)
        if rounds.looks_back:
            rounds.observe(stream_id, task_id, ticks, place)
        return rounds.batch_of(stream_id, task_id, ticks, place)


class Rounds:
    """Determines the batches of one device's tasks, which are passed in parts and in any order.

    `place`, the position among all tasks, orders tasks with the same time and must be the same in
    both calls. If `looks_back` is true, all tasks must be passed to `observe` before `batch_of` is
    called. `at_flip` is explained in `Flips.batch_of`.
    """

    def __init__(self, flips: Flips, *, at_flip: bool) -> None:
        order = np.lexsort((flips.ticks, flips.stream_id))
        self._stream = np.asarray(flips.stream_id[order], np.uint32)
        self._ticks = np.asarray(flips.ticks[order], np.uint64)
        first = np.asarray(flips.task_id[order], np.int64)
        self._limit = np.where(np.isin(first, _PLAIN_FLIP), 0, first)
        self._at_flip = at_flip
        # The last task before each flip that does not belong to the next round. All tasks after it
        # have small ids, up to the flip.
        self._other_ticks = np.zeros(len(order), np.uint64)
        self._other_place = np.full(len(order), -1, np.int64)

    @property
    def looks_back(self) -> bool:
        """True if tasks before a flip may belong to the batch after it."""
        return bool(self._limit.any())

    def observe(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        ticks: NDArray[Any],
        place: Ints,
    ) -> None:
        """Record the tasks that show that earlier tasks belong to the batch before a flip."""
        rows, flip, _ = self._next_flip(stream_id, ticks)
        other = (flip >= 0) & (np.asarray(task_id, np.int64)[rows] >= self._limit[flip])
        rows, flip = rows[other], flip[other]
        order = np.lexsort((place[rows], ticks[rows], flip))
        rows, flip = rows[order], flip[order]
        if not len(rows):
            return
        last = Runs(flip).last
        rows, flip = rows[last], flip[last]
        later = (ticks[rows] > self._other_ticks[flip]) | (
            (ticks[rows] == self._other_ticks[flip]) & (place[rows] > self._other_place[flip])
        )
        self._other_ticks[flip[later]] = ticks[rows[later]]
        self._other_place[flip[later]] = place[rows[later]]

    def batch_of(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        ticks: NDArray[Any],
        place: Ints,
    ) -> NDArray[np.uint32]:
        """Return the batch of each task."""
        batches = np.zeros(len(stream_id), np.uint32)
        rows, flip, passed = self._next_flip(stream_id, ticks)
        if not len(rows):
            return batches
        batches[rows] = passed
        if self.looks_back:
            small = (flip >= 0) & (np.asarray(task_id, np.int64)[rows] < self._limit[flip])
            rows, flip = rows[small], flip[small]
            early = ticks[rows] < self._other_ticks[flip]
            early |= (ticks[rows] == self._other_ticks[flip]) & (
                place[rows] < self._other_place[flip]
            )
            batches[rows[~early]] += np.uint32(1)
        return batches

    def _next_flip(self, stream_id: NDArray[Any], ticks: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
        """Return tasks on streams with flips, their next flip or -1, and the flips before."""
        none = np.zeros(0, np.int64)
        if not len(self._stream):
            return none, none, none
        rows = np.flatnonzero(np.isin(stream_id, self._stream))
        if not len(rows):
            return none, none, none
        flips = len(self._stream)
        stream = np.concatenate([self._stream, np.asarray(stream_id)[rows]]).astype(np.uint32)
        time = np.concatenate([self._ticks, np.asarray(ticks)[rows]]).astype(np.uint64)
        is_flip = np.arange(len(stream)) < flips
        order = np.lexsort((~is_flip if self._at_flip else is_flip, time, stream))
        before = np.cumsum(is_flip[order])  # flips before each row, of all streams
        following = np.empty(len(order), np.int64)
        following[order] = before
        following = following[flips:]
        # The next flip may be one of another stream.
        same = following < flips
        same[same] = self._stream[following[same]] == stream[flips:][same]
        first = np.searchsorted(self._stream, stream[flips:])
        return rows, np.where(same, following, -1), following - first
