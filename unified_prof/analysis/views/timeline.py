"""The device's work over time: every task where they are few, merged blocks where they are many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, Labels
from unified_prof.analysis.read.collectives import Collectives, device_name
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.analysis.views.communication import CollectiveNames

Ints = NDArray[np.int64]


_PART = 5
"""The part of the blocks that the busiest time may have for its tasks one by one: a fifth."""


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One stream, or the collectives of one device: blocks in order of time."""

    device: str
    name: str
    start_ns: Ints
    """Relative to the timeline's start."""
    duration_ns: Ints
    """From the start of the first task in the block to the end of the last."""
    busy_ns: Ints
    """Sum of the durations of the tasks in the block."""
    count: Ints
    """Tasks in the block; where it is more than one, `label` and `kind` are the longest one's."""
    label: NDArray[np.int32]
    """Number in the timeline's labels."""
    kind: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """All lanes over one window."""

    start_ns: int
    """Unix time of the window's start."""
    duration_ns: int
    labels: tuple[str, ...]
    lanes: tuple[Lane, ...]
    merged_below_ns: int
    """Tasks shorter than this may be merged with their neighbours; 0: every task is there."""
    tasks: int
    """Tasks that the blocks stand for."""
    whole_ns: tuple[int, int] | None = None
    """Where tasks are merged: the busiest part, from and to, in which every task is there."""


def build(
    tasks: Tasks, comms: Collectives, names: CollectiveNames, *, limit: int | None = None
) -> Timeline | None:
    """Return the timeline of a report, None if it has no device work.

    Args:
        tasks: the device tasks.
        comms: the collectives, which get a lane of their own.
        names: what those are called.
        limit: at most about this many blocks; None is no limit.
    """
    labels = Labels()
    # The profiler's own marks stand at both ends, and would stretch the time that is drawn.
    shown = np.flatnonzero(tasks.of_the_program)
    name = np.concatenate(
        (
            tasks.kernel_labels(labels, shown),
            names.names(labels),
        )
    )
    start = np.concatenate((tasks.start_ns[shown], comms.start_ns))
    if not len(start):
        return None
    duration = np.concatenate((tasks.duration_ns[shown], comms.duration_ns))
    kind = np.concatenate((tasks.kind[shown], np.full(len(comms), COMMUNICATION, np.int8)))
    # Lanes in order of device, then collectives, then streams.
    device = np.concatenate((tasks.device[shown].astype(np.int64), comms.device))
    stream_of = tasks.stream[shown] & 0x7FFFFFFF
    place = np.concatenate((stream_of, np.full(len(comms), -1)))
    places, lane = np.unique(device << 32 | (place + 1), return_inverse=True)
    origin = int(start.min())
    order = np.lexsort((start, lane))
    start, duration, lane = start[order] - origin, duration[order], lane[order]
    name, kind = name[order], kind[order]
    window = int((start + duration).max())
    busiest = (
        None if limit is None or len(start) <= limit else _busiest(start, max(1, limit // _PART))
    )
    shortest, heads = _resolution(start, duration, lane, window, limit, busiest)
    blocks = _blocks(start, duration, heads)
    bounds = np.searchsorted(lane[heads], np.arange(len(places) + 1))
    lanes = []
    for number, where in enumerate(places.tolist()):
        own = slice(bounds[number], bounds[number + 1])
        longest = blocks.longest[own]
        stream = (where & 0xFFFFFFFF) - 1
        lanes.append(
            Lane(
                device=device_name(where >> 32),
                name="collectives" if stream < 0 else f"stream {stream}",
                start_ns=blocks.start_ns[own],
                duration_ns=blocks.duration_ns[own],
                busy_ns=blocks.busy_ns[own],
                count=blocks.count[own],
                label=name[longest],
                kind=kind[longest],
            )
        )
    return Timeline(
        origin, window, tuple(labels.texts), tuple(lanes), shortest, len(order), busiest
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    start_ns: Ints
    duration_ns: Ints
    busy_ns: Ints
    count: Ints
    longest: Ints
    """Row of the longest task of each block."""


def _busiest(start: Ints, tasks: int) -> tuple[int, int] | None:
    """Return the shortest time in which so many tasks start, None where far more start at once."""
    ordered = np.sort(start)
    length = ordered[tasks - 1 :] - ordered[: len(ordered) - tasks + 1]
    first = int(length.argmin())
    begin, end = int(ordered[first]), int(ordered[first + tasks - 1]) + 1
    inside = np.searchsorted(ordered, end) - np.searchsorted(ordered, begin)
    return (begin, end) if inside <= 2 * tasks else None


def _resolution(
    start: Ints,
    duration: Ints,
    lane: Ints,
    window: int,
    limit: int | None,
    whole: tuple[int, int] | None,
) -> tuple[int, Ints]:
    """Return how short a task may be merged, and the first row of each block.

    Tasks of one lane that are shorter than the resolution and start in the same slot of that
    length become one block; longer ones, and those that start in `whole`, stay as they are.
    """
    shown = np.arange(len(start))
    if limit is None or len(start) <= limit:
        return 0, shown
    kept = np.zeros(len(start), bool)
    if whole is not None:
        kept = (start >= whole[0]) & (start < whole[1])
    resolution = max(1, window * int(lane[-1] + 1) // (4 * limit))
    while True:
        slot = start // resolution
        first = np.ones(len(start), bool)
        apart = (duration >= resolution) | kept
        first[1:] = (slot[1:] != slot[:-1]) | (lane[1:] != lane[:-1]) | apart[1:] | apart[:-1]
        heads = np.flatnonzero(first)
        if len(heads) <= limit or resolution > window:
            return resolution, heads
        resolution *= 2


def _blocks(start: Ints, duration: Ints, heads: Ints) -> _Blocks:
    count = np.diff(np.append(heads, len(start)))
    end = np.maximum.reduceat(start + duration, heads)
    block = np.repeat(np.arange(len(heads)), count)
    is_longest = np.flatnonzero(duration == np.maximum.reduceat(duration, heads)[block])
    longest = np.empty(len(heads), np.int64)
    longest[block[is_longest][::-1]] = is_longest[::-1]
    return _Blocks(
        start_ns=start[heads],
        duration_ns=end - start[heads],
        busy_ns=np.add.reduceat(duration, heads),
        count=count,
        longest=longest,
    )
