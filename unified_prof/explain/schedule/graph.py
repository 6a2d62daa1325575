"""Moments that depend on one another: the path to one of them, their slack, other times.

A moment is when something begins: a piece of work on a device, the next call of a host thread. It
comes when the last of what it depends on has arrived, and what the recording does not explain
after that (`Schedule.own_ns`) is its own and stays with it. So the schedule as recorded gives the
recorded times to the nanosecond, and with other durations what would have been.

What the time between two moments of a schedule is: the kinds of its edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints

NONE = -1
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """What depends on what, by the numbers of moments."""

    source: Ints
    target: Ints
    lag_ns: Ints
    """Time from the one to the other at the least."""
    behind: NDArray[np.bool_]
    """Whether that is counted from the end of what begins at the source."""
    kind: NDArray[np.int8]
    """What the time from one to the other is, a number of whoever made the edge."""

    def __len__(self) -> int:
        return len(self.source)

    @staticmethod
    def of(source: Ints, target: Ints, lag_ns: Ints | int, *, behind: bool, kind: int) -> Edges:
        """Return edges that are alike in all but their ends and times."""
        count = len(source)
        return Edges(
            source.astype(np.int64, copy=False),
            target.astype(np.int64, copy=False),
            np.broadcast_to(np.asarray(lag_ns, np.int64), count),
            np.full(count, behind),
            np.full(count, kind, np.int8),
        )

    @staticmethod
    def joined(parts: list[Edges]) -> Edges:
        """Return the edges of all parts."""
        return Edges(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.lag_ns for part in parts]),
            np.concatenate([part.behind for part in parts]),
            np.concatenate([part.kind for part in parts]),
        )

    def moved(self, by: int) -> Edges:
        """Return the edges of moments whose numbers are so much larger."""
        source, target = self.source + by, self.target + by
        return Edges(source, target, self.lag_ns, self.behind, self.kind)

    def take(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> Edges:
        """Return some of the edges."""
        return Edges(
            self.source[chosen],
            self.target[chosen],
            self.lag_ns[chosen],
            self.behind[chosen],
            self.kind[chosen],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Stretches of time in order, each ending where the next one begins."""

    start_ns: Ints
    end_ns: Ints
    moment: Ints
    """The moment that a stretch is the work of, or after which it is; NONE: nothing is known."""
    kind: NDArray[np.int8]
    """WORK, UNKNOWN or the kind of an edge."""

    def __len__(self) -> int:
        return len(self.start_ns)


WORK, UNKNOWN = -1, -2
"""Kinds of segments that are no edges: what a moment begins, and what nothing explains."""


class Schedule:
    """Moments in an order in which each comes after all that it depends on.

    Attributes:
        time_ns: when each moment came.
        takes_ns: how long what begins there takes; 0: it is only a moment.
        edges: sorted by their targets; the source of each stands before its target.
        first: where the edges of each moment begin, with an end.
        own_ns: time from the last arrival to the moment; of one without edges, its time.
        dropped: edges that the recorded times contradict.
    """

    def __init__(self, time_ns: Ints, takes_ns: Ints, edges: Edges) -> None:
        """Take moments in the order of time; what should come first of two equal ones is first."""
        reached = time_ns[edges.source] + np.where(edges.behind, takes_ns[edges.source], 0)
        fits = (edges.source < edges.target) & (reached <= time_ns[edges.target])
        self.dropped = edges.take(~fits)
        kept = np.flatnonzero(fits)
        kept = kept[np.argsort(edges.target[kept], kind="stable")]
        edges, reached = edges.take(kept), reached[kept]
        lag = np.minimum(edges.lag_ns, time_ns[edges.target] - reached)
        self.edges = Edges(edges.source, edges.target, lag, edges.behind, edges.kind)
        self.time_ns, self.takes_ns = time_ns, takes_ns
        self.first: Ints = np.searchsorted(self.edges.target, np.arange(len(time_ns) + 1))
        self._reached = reached
        latest = np.zeros(len(time_ns), np.int64)
        np.maximum.at(latest, self.edges.target, reached + lag)
        self.own_ns: Ints = time_ns - latest

    def __len__(self) -> int:
        return len(self.time_ns)

    @cached_property
    def arriving(self) -> Ints:
        """The edge by which the last of what each moment depends on arrived, NONE without any.

        Of those that arrive together it is the one that set out last.
        """
        edges = self.edges
        order = np.lexsort((self._reached, self._reached + edges.lag_ns, edges.target))
        result = np.full(len(self), NONE, np.int64)
        result[edges.target[order]] = order  # the last one of each target stays
        return result

    def path(self, moment: int, since_ns: int) -> Segments:
        """Return what the time up to a moment was spent on, from `since_ns` on, walking back."""
        arriving, source = _fast(self.arriving), _fast(self.edges.source)
        time = _fast(self.time_ns)
        through: list[int] = []
        at = moment
        while time[at] > since_ns and (edge := arriving[at]) != NONE:
            through.append(edge)
            at = source[edge]
        used = np.array(through[::-1], np.int64)
        sources = self.edges.source[used]
        begins, ends = self.time_ns[sources], self.time_ns[self.edges.target[used]]
        done = self._reached[used]
        # What begins at the source, then what leads to the target; what was before is not known.
        start = np.concatenate((np.stack((begins, done), 1).ravel(), [since_ns]))
        end = np.concatenate((np.stack((done, ends), 1).ravel(), [min(time[at], time[moment])]))
        of = np.concatenate((np.repeat(sources, 2), [NONE]))
        kind = np.concatenate(
            (
                np.stack((np.full(len(used), WORK, np.int8), self.edges.kind[used]), 1).ravel(),
                np.array([UNKNOWN], np.int8),
            )
        )
        start = np.maximum(start, since_ns)
        kept = np.flatnonzero(end > start)
        kept = kept[np.argsort(start[kept], kind="stable")]
        return Segments(start[kept], end[kept], of[kept], kind[kept])

    def again(self, takes_ns: Ints | None = None, lag_ns: Ints | None = None) -> Ints:
        """Return when each moment would come with other durations; without any, as recorded.

        Args:
            takes_ns: instead of `takes_ns`.
            lag_ns: instead of that of `edges`.
        """
        takes = self.takes_ns if takes_ns is None else takes_ns
        lag = self.edges.lag_ns if lag_ns is None else lag_ns
        weight = lag + np.where(self.edges.behind, takes[self.edges.source], 0)
        before = self.edges.lag_ns + np.where(
            self.edges.behind, self.takes_ns[self.edges.source], 0
        )
        changed = np.flatnonzero(weight != before)
        result = self.time_ns.copy()
        if not len(changed):
            return result
        begin = int(self.edges.target[changed].min())
        time, own = _fast(result), _fast(self.own_ns)
        source, weights = _fast(self.edges.source), _fast(weight)
        for moment, low, high in _with_edges(self.first, begin):
            latest = time[source[low]] + weights[low]
            for edge in range(low + 1, high):
                arrival = time[source[edge]] + weights[edge]
                if arrival > latest:
                    latest = arrival
            time[moment] = latest + own[moment]
        return result

    def slack_ns(self, ends: Ints) -> Ints:
        """Return how much later each moment could come without any of `ends` coming later.

        Nothing depends on some moments: they could come later for as long as there is a last end.
        """
        weight = self.edges.lag_ns + np.where(
            self.edges.behind, self.takes_ns[self.edges.source], 0
        )
        latest = np.full(len(self), _LATEST, np.int64)
        latest[ends] = self.time_ns[ends]
        may, own = _fast(latest), _fast(self.own_ns)
        source, weights = _fast(self.edges.source), _fast(weight)
        for moment, low, high in _with_edges(self.first, 0, backwards=True):
            if may[moment] == _LATEST:
                continue
            until = may[moment] - own[moment]
            for edge in range(low, high):
                bound = until - weights[edge]
                if bound < may[source[edge]]:
                    may[source[edge]] = bound
        last = int(self.time_ns[ends].max()) if len(ends) else 0
        free = np.maximum(last - self.time_ns - self.takes_ns, 0)
        result: Ints = np.where(latest == _LATEST, free, latest - self.time_ns)
        return result


def _fast(values: Ints) -> memoryview[int]:
    """Return a view of numbers that gives and takes them one by one in half the time."""
    return memoryview(cast(Any, values))


_AT_ONCE = 1 << 16


def _with_edges(
    first: Ints, begin: int, *, backwards: bool = False
) -> Iterator[tuple[int, int, int]]:
    """Yield moments from one on, with where their edges begin and end, those that have some."""
    count = len(first) - 1
    blocks = range(begin, count, _AT_ONCE)
    for low in reversed(blocks) if backwards else blocks:
        high = min(low + _AT_ONCE, count)
        chosen = np.flatnonzero(first[low + 1 : high + 1] > first[low:high]) + low
        if backwards:
            chosen = chosen[::-1]
        yield from zip(
            chosen.tolist(), first[chosen].tolist(), first[chosen + 1].tolist(), strict=True
        )


(
    HOST,
    SYNCHRONISING,
    QUEUE,
    HANDED,
    LAUNCH,
    STREAM,
    EVENT,
    SEEN,
    DONE,
) = range(9)
"""In this order: a thread's own work; a call that waits, and its return; from putting something
into a queue to its being taken out; from one thread's end to another one's begin; from a launching
call to the work; from one piece of work to the next on its stream; from work to what waited for it
by an event; the same where no event was recorded but only the times say so; the end of a step."""
