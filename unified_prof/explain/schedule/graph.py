"""Dependency graph of a schedule: critical path, slack, and times with other durations.

A moment is the start of a device task or of a host call. Its time is the arrival of its last
dependency plus `Schedule.own_ns`, a constant that the recording does not explain. So the recorded
durations reproduce the recorded times exactly, and other durations give an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Frame, Ints

NONE = -1
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Edges(Frame):
    """Dependencies between moments, which are given by number."""

    source: Ints
    target: Ints
    lag_ns: Ints  # Minimum time from source to target...
    # ...counted from the end of the task at the source if True, else from its begin.
    behind: Bools
    kind: NDArray[np.int8]  # Kind of edge, such as HOST.

    @staticmethod
    def uniform(
        source: Ints, target: Ints, lag_ns: Ints | int, *, behind: bool, kind: int
    ) -> Edges:
        """Return edges of one kind."""
        count = len(source)
        return Edges(
            source.astype(np.int64, copy=False),
            target.astype(np.int64, copy=False),
            np.broadcast_to(np.asarray(lag_ns, np.int64), count),
            np.full(count, behind),
            np.full(count, kind, np.int8),
        )

    def moved(self, by: int) -> Edges:
        """Return the edges with all numbers increased."""
        source, target = self.source + by, self.target + by
        return Edges(source, target, self.lag_ns, self.behind, self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(Frame):
    """Contiguous segments of a path, in order of time."""

    start_ns: Ints
    end_ns: Ints
    moment: Ints  # Moment whose task a segment is, or that precedes it; NONE if unknown.
    kind: NDArray[np.int8]  # WORK, UNKNOWN or the kind of an edge.


# Kinds of segments that are not edges: the task of a moment, and unexplained time.
WORK, UNKNOWN = -1, -2


# Some profilers write start and duration in whole microseconds: calls seem to end before tasks.
ROUNDING_NS = 2_000


class Schedule:
    """Moments in topological order, which is the order of time.

    Attributes:
        time_ns: Time of each moment.
        takes_ns: Duration of the task that begins there; 0 without a task.
        edges: Sorted by target; the source of each precedes its target.
        first: Index of the first edge of each moment, with an end.
        own_ns: Time from the last arrival to the moment; its time if it has no edges.
        dropped: Edges that the recorded times contradict.
    """

    def __init__(self, time_ns: Ints, takes_ns: Ints, edges: Edges) -> None:
        reached = time_ns[edges.source] + np.where(edges.behind, takes_ns[edges.source], 0)
        fits = reached + np.minimum(edges.lag_ns, 0) <= time_ns[edges.target] + ROUNDING_NS
        fits &= edges.source < edges.target
        self.dropped = edges.take(~fits)
        kept = np.flatnonzero(fits)
        kept = kept[np.argsort(edges.target[kept], kind="stable")]
        edges, reached = edges.take(kept), reached[kept]
        # Negative if rounded times contradict an edge, so that a replay does not add its rounding.
        lag = np.minimum(edges.lag_ns, time_ns[edges.target] - reached)
        self.edges = Edges(edges.source, edges.target, lag, edges.behind, edges.kind)
        self.time_ns, self.takes_ns = time_ns, takes_ns
        self.first: Ints = np.searchsorted(self.edges.target, np.arange(len(time_ns) + 1))
        self._reached = np.minimum(reached, time_ns[edges.target])
        latest = np.zeros(len(time_ns), np.int64)
        np.maximum.at(latest, self.edges.target, reached + lag)
        self.own_ns: Ints = time_ns - latest

    @staticmethod
    def earliest(
        begin_ns: Ints, edges: Edges, optional: Bools, absent: Bools
    ) -> tuple[Schedule, Ints, Ints]:
        """Return a schedule whose moments come as early as edges allow, without recorded times.

        If moments wait for each other, or for what never comes, the earliest one that has only
        optional edges left ignores them.

        Args:
            begin_ns: Time of each moment to which no edge leads, 0 for others; in any order.
            edges: Edges from begin to begin; no lag is negative.
            optional: Mask of the edges that moments may ignore.
            absent: Mask of the moments that never come.

        Returns:
            The schedule, the moment in it of each given one (`NONE` if it never comes), and for
            each of its edges the index of the given one.
        """
        count = len(begin_ns)
        by_source = np.argsort(edges.source, kind="stable")
        first = _fast(np.searchsorted(edges.source[by_source], np.arange(count + 1)))
        target, lag = _fast(edges.target[by_source]), _fast(edges.lag_ns[by_source])
        may_ignore = _fast(optional[by_source])
        left = (np.bincount(edges.target, minlength=count) + absent).tolist()
        needed = np.bincount(edges.target[~optional], minlength=count) + absent
        required: list[int] = needed.tolist()
        time: list[int] = begin_ns.tolist()
        ready = [moment for moment in range(count) if not left[moment]]
        came: list[int] = []
        blocked: set[int] = set()
        while ready:
            moment = ready.pop()
            came.append(moment)
            now = time[moment]
            for edge in range(first[moment], first[moment + 1]):
                to = target[edge]
                if left[to] <= 0:
                    continue
                time[to] = max(time[to], now + lag[edge])
                left[to] -= 1
                required[to] -= not may_ignore[edge]
                if not left[to]:
                    ready.append(to)
                    blocked.discard(to)
                elif not required[to]:
                    blocked.add(to)
            if not ready and blocked:
                released = min(blocked, key=lambda one: (time[one], one))
                blocked.discard(released)
                left[released] = 0
                ready.append(released)
        order = np.array(came, np.int64)
        order = order[np.argsort(np.array(time, np.int64)[order], kind="stable")]
        place = np.full(count, NONE, np.int64)
        place[order] = np.arange(len(order))
        source, to_place = place[edges.source], place[edges.target]
        kept = np.flatnonzero((source != NONE) & (source < to_place))
        kept = kept[np.argsort(to_place[kept], kind="stable")]
        edges = Edges(source, to_place, edges.lag_ns, edges.behind, edges.kind).take(kept)
        times = np.array(time, np.int64)[order]
        return Schedule(times, np.zeros(len(order), np.int64), edges), place, kept

    def __len__(self) -> int:
        return len(self.time_ns)

    @cached_property
    def arriving(self) -> Ints:
        """The edge of the dependency of each moment that arrived last, NONE if it has none.

        If several arrive together, it is the one with the latest source.
        """
        edges = self.edges
        arrived = self._reached + np.maximum(edges.lag_ns, 0)
        order = np.lexsort((self._reached, arrived, edges.target))
        result = np.full(len(self), NONE, np.int64)
        result[edges.target[order]] = order  # the last one of each target stays
        return result

    def path(self, moment: int, since_ns: int) -> Segments:
        """Return the critical path to a moment, from `since_ns` on."""
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
        # The task of the source, then the edge to the target; time before them is unknown.
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

    def replay(self, takes_ns: Ints | None = None, lag_ns: Ints | None = None) -> Ints:
        """Replay the schedule with other durations and lags; return the time of each moment."""
        takes = self.takes_ns if takes_ns is None else takes_ns
        lag = self.edges.lag_ns if lag_ns is None else lag_ns
        weight = self._weight(takes, lag)
        changed = np.flatnonzero(weight != self._weight(self.takes_ns, self.edges.lag_ns))
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

    def _weight(self, takes_ns: Ints, lag_ns: Ints) -> Ints:
        """Return the time from the start of the source of each edge to its target."""
        return lag_ns + np.where(self.edges.behind, takes_ns[self.edges.source], 0)

    def slack_ns(self, ends: Ints) -> Ints:
        """Return how much later each moment could come without delaying any of `ends`.

        Moments on which nothing depends could come until the last end.
        """
        weight = self._weight(self.takes_ns, self.edges.lag_ns)
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
        return np.where(latest == _LATEST, free, latest - self.time_ns)


def _fast(values: Ints | Bools) -> memoryview[int]:
    """Return a view whose single items are accessed in half the time."""
    return memoryview(cast(Any, values))


_BLOCK = 1 << 16


def _with_edges(
    first: Ints, begin: int, *, backwards: bool = False
) -> Iterator[tuple[int, int, int]]:
    """Yield the moments that have edges from one on, with the range of their edges."""
    count = len(first) - 1
    blocks = range(begin, count, _BLOCK)
    for low in reversed(blocks) if backwards else blocks:
        high = min(low + _BLOCK, count)
        chosen = np.flatnonzero(first[low + 1 : high + 1] > first[low:high]) + low
        if backwards:
            chosen = chosen[::-1]
        yield from zip(
            chosen.tolist(), first[chosen].tolist(), first[chosen + 1].tolist(), strict=True
        )


# Kinds of edges: a thread's own time; a synchronizing call and its return; from putting an item
# into a queue to taking it out; from the end of one thread to the start of another; from a launch
# to its task; from one task to the next on its stream; from a task to what waited for it by an
# event; the same inferred from times alone; the end of a step; a batch of worker processes; from a
# member of a collective, or the collective before it, to its end; from that end to a waiting rank.
HOST, SYNCHRONIZING, QUEUE, HANDED, LAUNCH, STREAM, EVENT, SEEN, DONE, FETCHED = range(10)
MEMBER, COLLECTIVE = 10, 11
