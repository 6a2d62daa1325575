"""The stream and task words of device records, in their three notations.

Numbers tasks: one dense globalTaskId per device, stream, task, batch and context.

Which round of its stream's task ids a task belongs to.

Task ids of a stream have 16 bits and wrap. At every wrap the host and the device each record a
flip; the batch of a task is the number of flips of its stream before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Runs, find

_EXPANDED_PLAIN_SQE = (3, 4)  # place holder and event record keep plain words


def decode_words(
    stream_word: NDArray[Any],
    task_word: NDArray[Any],
    *,
    expanded: bool,
    sqe_type: NDArray[Any] | int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the stream and task ids that the 16-bit words of device records stand for.

    Args:
        stream_word: the stream field of the records.
        task_word: the task field.
        expanded: the recording has an expand_stream_spec with status 1: streams have 15 bits.
        sqe_type: the task type of the records, where they have one.
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
        place = np.arange(len(stream_id))
        rounds = Rounds(self, at_flip=at_flip)
        if rounds.looks_back:
            rounds.watch(stream_id, task_id, ticks, place)
        return rounds.batch_of(stream_id, task_id, ticks, place)


class Rounds:
    """The flips of one device, for tasks that come in several parts, in any order.

    The place of a task among all decides between tasks of one moment: it has to be the same both
    times. Where a flip `looks_back`, all tasks have to be watched before the first is asked for.

    Args:
        flips: the flips.
        at_flip: as in `Flips.batch_of`.
    """

    def __init__(self, flips: Flips, *, at_flip: bool) -> None:
        order = np.lexsort((flips.ticks, flips.stream_id))
        self._stream = np.asarray(flips.stream_id[order], np.uint32)
        self._ticks = np.asarray(flips.ticks[order], np.uint64)
        first = np.asarray(flips.task_id[order], np.int64)
        self._limit = np.where(np.isin(first, _PLAIN_FLIP), 0, first)
        self._at_flip = at_flip
        # The last task before each flip that does not belong to the round after it: from there on
        # small ids reach the flip without interruption.
        self._other_ticks = np.zeros(len(order), np.uint64)
        self._other_place = np.full(len(order), -1, np.int64)

    @property
    def looks_back(self) -> bool:
        """Whether tasks before a flip may belong to the round after it."""
        return bool(self._limit.any())

    def watch(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        ticks: NDArray[Any],
        place: NDArray[np.int64],
    ) -> None:
        """Take note of tasks that keep earlier ones in the round before a flip."""
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
        place: NDArray[np.int64],
    ) -> NDArray[np.uint32]:
        """Return the batch of every task."""
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

    def _next_flip(
        self, stream_id: NDArray[Any], ticks: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the tasks of streams with flips, the flip after each or -1, and those before."""
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
        # The flip after a task is its stream's only if it is of that stream.
        own = following < flips
        own[own] = self._stream[following[own]] == stream[flips:][own]
        first = np.searchsorted(self._stream, stream[flips:])
        return rows, np.where(own, following, -1), following - first
