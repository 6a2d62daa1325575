"""Which call a moment of a thread lies in.

Calls of one level are intervals (begin, end]; a thread's calls of levels other than NODE do not
nest, so one that begins before its predecessor ended is left out. NODE calls nest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.raw.timeline import Keys

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Intervals:
    """Calls of one level, sorted by thread and begin; columns of one length."""

    begin: Keys
    end: Keys
    connection_id: NDArray[np.int64]
    item: NDArray[np.uint32]
    """Index of the item hash in the pool of the calls."""
    type_index: NDArray[np.uint16]
    """Index of the (level, type) pair."""

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: NDArray[Any]) -> Intervals:
        """Return some rows, which keep their order."""
        return Intervals(
            self.begin[rows],
            self.end[rows],
            self.connection_id[rows],
            self.item[rows],
            self.type_index[rows],
        )

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Return, for every moment, the row of the latest begun call around it, or NOWHERE."""
        row = np.searchsorted(self.begin, keys, side="left").astype(np.int64) - 1
        if not len(self):
            return row
        outside = np.flatnonzero((row >= 0) & (self.end[row] < keys))
        if len(outside):
            row[outside] = _last_reaching(self.end, row[outside], keys[outside])
        return row


@dataclass(frozen=True, slots=True)
class CallTree:
    """The calls that tasks can lie in, by level."""

    acl: Intervals
    model: Intervals
    node: Intervals
    communication: Intervals


def joined(one: Intervals, other: Intervals) -> Intervals:
    """Return the calls of both, of which the first ones begin first."""
    return Intervals(
        *(
            np.concatenate([getattr(one, field.name), getattr(other, field.name)])
            for field in fields(Intervals)
        )
    )


def without_overlaps(calls: Intervals) -> Intervals:
    """Leave out calls that begin before the last one that was kept ended."""
    if not (calls.begin[1:] < calls.end[:-1]).any():
        return calls
    # From a kept call the next one kept is known; who is reached from the first is kept. The
    # ends of a thread are below the begins of the next, so threads need no separation.
    count = len(calls)
    following = np.r_[np.searchsorted(calls.begin, calls.end, side="left"), count]
    following = np.maximum(following, np.r_[np.arange(1, count + 1), count])
    kept = np.zeros(count + 1, bool)
    kept[0] = True
    while True:
        kept[following[np.flatnonzero(kept)]] = True
        if following[0] == count:
            break
        following = following[following]
    return calls.take(kept[:count])


def _last_reaching(end: Keys, start: NDArray[np.int64], keys: Keys) -> NDArray[np.int64]:
    """Return, for every query, the last row at or before `start` whose end is not before its key.

    Climbs and descends a pyramid of block maxima, all queries at once: about 2 log2(n) steps.
    """
    result = np.full(len(start), NOWHERE, np.int64)
    reach = np.maximum.accumulate(end)
    query = np.flatnonzero(reach[start] >= keys)  # others end before any call reaches them
    if not len(query):
        return result
    pyramid = [end]
    while len(pyramid[-1]) > 1:
        below = pyramid[-1]
        paired = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
        pyramid.append(np.concatenate([paired, below[len(below) // 2 * 2 :]]))
    offsets = np.r_[0, np.cumsum([len(level) for level in pyramid])]
    blocks = np.concatenate(pyramid)
    level = np.zeros(len(query), np.int64)
    block = start[query].copy()
    key = keys[query]
    descending = np.zeros(len(query), bool)
    while True:
        descending |= blocks[offsets[level] + block] >= key
        down, up = descending & (level > 0), ~descending
        if not (down | up).any():
            break
        # Descend to the right half where that reaches, else to the left one.
        lower = np.maximum(level - 1, 0)
        right = np.minimum(2 * block + 1, offsets[lower + 1] - offsets[lower] - 1)
        right = np.where(down, right, 0)
        child = np.where(blocks[offsets[lower] + right] >= key, right, 2 * block)
        # Climb to the neighbour on the left: of the parent for a left half.
        left_half = block % 2 == 0
        neighbour = np.where(left_half, block // 2 - 1, block - 1)
        block = np.where(down, child, np.where(up, neighbour, block))
        level = np.where(down, lower, np.where(up & left_half, level + 1, level))
    result[query] = block
    return result
