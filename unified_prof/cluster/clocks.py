"""From the time of a rank's own clock to that of all.

One clock for all ranks, from the ends of what they did together.

All members of a collective leave it together, as do both ends of a transfer: the difference of
their ends is that of their clocks. Differences are taken along a tree of the surest edges, then
all edges pull everything into its place. In long recordings a difference changes, as no two
crystals are alike: how quickly it does, along the same tree, tells by how much each clock goes
slow. Ranks that share nothing with the others are an island of their own: between islands nothing
is known, and nothing is guessed.

Only merged timelines, one-way times and orders between hosts need this; waiting does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Floats, Ints
from unified_prof.cluster.matching import MatchedCollectives


@dataclass(frozen=True, slots=True)
class CommonClock:
    """What takes a rank's times to the common clock."""

    offset_ns: int = 0
    drift: float = 0.0
    """By how much it goes slow: seconds that it loses in one."""
    at_ns: int = 0
    """When the offset is `offset_ns`."""

    def common(self, times: Ints) -> Ints:
        """Return times of the rank's clock as those of the common one."""
        moved = times + self.offset_ns
        if self.drift:
            moved = moved + np.rint((times - self.at_ns) * self.drift).astype(np.int64)
        return moved

    def common_at(self, time: int) -> int:
        """Return one time as that of the common clock."""
        return int(self.common(np.array([time], np.int64))[0])


_ROUNDS = 60
_SAME_CLOCK_NS = 5_000.0
"""Ranks of one host whose clocks differ by less, in the middle, share one."""
_TO_DEVIATION = 1.4826  # of the median of absolute deviations of a normal distribution
_LEAST_SPREAD_NS = 200.0
_PPB = 1e9
_ASKED = 64
"""So many events of each group and kind tell how quickly clocks drift apart."""
_PAIRS_ASKED = 200
_LEAST_FOR_DRIFT = 12
_LEAST_DRIFT_NS = 1_000.0
"""What drifts less over a recording is as good as one offset."""
_SURE = 5.0
"""In so many standard errors, as many pairs are asked."""


@dataclass(frozen=True, slots=True, eq=False)
class AlignedClocks:
    """Of each rank of a `Matched`."""

    offset: Ints
    """What is added to its times to get the common clock of its island."""
    error: Ints
    """One standard error of that."""
    island: Ints
    drift: Floats
    """By how much its clock goes slow, seconds in one; 0 where that cannot be told from nothing."""
    at: int
    """When the offsets are those, by whichever clock."""

    def of(self, index: int) -> CommonClock:
        """Return the clock of a rank."""
        return CommonClock(int(self.offset[index]), float(self.drift[index]), self.at)


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    a: Ints
    b: Ints
    difference: NDArray[np.float64]
    """Ends of b less those of a."""
    error: NDArray[np.float64]


def align_clocks(matched: MatchedCollectives) -> AlignedClocks:
    """Align the clocks of all ranks that are connected by what they did together."""
    ends = matched.rows.end[matched.events.first] if len(matched.events) else np.empty(0, np.int64)
    at = (int(ends.min()) + int(ends.max())) // 2 if len(ends) else 0
    slopes = _slopes(matched)
    drift = np.zeros(len(matched.ranks))
    unsure = np.zeros(len(matched.ranks))
    if slopes is not None:
        drift, unsure, _ = _solved(matched, slopes)
        drift, unsure = drift / _PPB, unsure / _PPB
    offset, error, island = _solved(matched, _edges(matched, drift, at))
    # Who did things together long ago is sure of that time alone.
    half = (int(ends.max()) - int(ends.min())) / 2 if len(ends) else 0.0
    error = np.hypot(error, unsure * half)
    return AlignedClocks(
        np.rint(offset).astype(np.int64),
        np.ceil(error).astype(np.int64),
        _largest_first(island),
        drift,
        at,
    )


def _solved(matched: MatchedCollectives, edges: _Edges) -> tuple[Floats, Floats, Ints]:
    """Return each rank's value, its error and its island, from the differences of pairs."""
    count = len(matched.ranks)
    offset = np.zeros(count)
    error = np.zeros(count)
    island = np.full(count, -1, np.int64)
    near: list[list[tuple[int, float, float]]] = [[] for _ in range(count)]
    for a, b, difference, doubt in zip(
        edges.a.tolist(), edges.b.tolist(), edges.difference, edges.error, strict=True
    ):
        near[a].append((b, -difference, doubt))
        near[b].append((a, difference, doubt))
    roots = sorted(range(count), key=lambda one: (-len(near[one]), one))
    number = 0
    for root in roots:
        if island[root] < 0:
            _spread_from(root, number, near, offset, error, island)
            number += 1
    offset = _relaxed(edges, offset, roots, island)
    offset, error = _by_host(matched, offset, error, island)
    return offset, error, island


def _slopes(matched: MatchedCollectives) -> _Edges | None:
    """Return how quickly clocks of pairs drift apart, ns in a second; None: none does for sure.

    The difference of the ends at the begin of the recording is compared with that at its end.
    Some events of each group are enough for that.
    """
    events, rows = matched.events, matched.rows
    if not len(events):
        return None
    keys = [np.where(events.src >= 0, -1 - events.src, events.group), events.dst, events.kind]
    usable = np.flatnonzero(events.members > 1)
    usable = usable[_some([key[usable] for key in keys])]
    a, b, first, others = _members(matched, usable)
    difference, time = rows.end[others] - rows.end[first], rows.end[first]
    order = np.lexsort((time, b, a))
    a, b, difference, time = a[order], b[order], difference[order], time[order]
    heads = np.flatnonzero(np.r_[True, (np.diff(a) != 0) | (np.diff(b) != 0)][: len(a)])
    sizes = np.diff(np.r_[heads, len(a)])
    enough = np.flatnonzero(sizes >= _LEAST_FOR_DRIFT)
    # Whether any drifts at all some of them tell.
    for chosen in (enough[:: -(-len(enough) // _PAIRS_ASKED) or 1], enough):
        found: list[tuple[int, int, float, float]] = []
        sure = False
        for head, n in zip(heads[chosen].tolist(), sizes[chosen].tolist(), strict=True):
            part = slice(head, head + n)
            apart, when = difference[part] - difference[head], (time[part] - time[head]) / 1e9
            third = n // 3
            run = float(np.median(when[-third:]) - np.median(when[:third]))
            if run <= 0:
                continue
            slope = float(np.median(apart[-third:]) - np.median(apart[:third])) / run
            rest = apart - slope * when
            spread = _TO_DEVIATION * float(np.median(np.abs(rest - np.median(rest))))
            doubt = 1.2533 * max(spread, _LEAST_SPREAD_NS) * (2 / third) ** 0.5 / run
            found.append((int(a[head]), int(b[head]), slope, doubt))
            sure |= abs(slope) * run > max(_LEAST_DRIFT_NS, _SURE * doubt * run)
        if not sure:
            return None
    table = np.array(found)
    return _Edges(
        table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3]
    )


def _some(keys: Sequence[Ints]) -> NDArray[np.bool_]:
    """Choose some of the events that have equal keys, which follow one another."""
    count = len(keys[0])
    new = np.ones(count, bool)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    heads = np.flatnonzero(new)
    n = np.diff(np.r_[heads, count])
    place = np.arange(count) - np.repeat(heads, n)
    return np.asarray(place % np.repeat(np.maximum(-(-n // _ASKED), 1), n) == 0)


def _members(matched: MatchedCollectives, events: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Pair each member of events with the first: both ranks, and both rows."""
    rows = matched.rows
    size = matched.events.members[events]
    first = np.repeat(matched.events.first[events], size - 1)
    others = (
        first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(size - 1) - (size - 1), size - 1)
    )
    return rows.rank[first], rows.rank[others], first, others


def _largest_first(island: Ints) -> Ints:
    found, inverse, sizes = np.unique(island, return_inverse=True, return_counts=True)
    place = np.empty(len(found), np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(len(found))
    return place[inverse]


def _edges(matched: MatchedCollectives, drift: Floats, at: int) -> _Edges:
    """Pair each member of an event with its first member, and sum up by pairs of ranks."""
    rows = matched.rows
    a, b, first, others = _members(matched, np.flatnonzero(matched.events.members > 1))
    difference = rows.end[others] - rows.end[first]
    if drift.any():
        difference = difference + np.rint(
            (rows.end[others] - at) * drift[b] - (rows.end[first] - at) * drift[a]
        ).astype(np.int64)
    order = np.lexsort((difference, b, a))
    a, b, difference = a[order], b[order], difference[order]
    if not len(a):
        return _Edges(a, b, np.empty(0), np.empty(0))
    heads = np.flatnonzero(np.r_[True, (np.diff(a) != 0) | (np.diff(b) != 0)])
    n = np.diff(np.r_[heads, len(a)])
    middle = (difference[heads + (n - 1) // 2] + difference[heads + n // 2]) / 2
    away = np.abs(difference - np.repeat(middle, n))
    away = away[np.lexsort((away, np.repeat(np.arange(len(heads)), n)))]
    spread = _TO_DEVIATION * (away[heads + (n - 1) // 2] + away[heads + n // 2]) / 2
    error = 1.2533 * np.maximum(spread, _LEAST_SPREAD_NS) / np.sqrt(n)
    # Of one or two events nobody knows the spread: that of the run in general.
    usual = float(np.median(spread[n > 2])) if (n > 2).any() else 1_000.0
    few = n <= 2
    error[few] = np.maximum(error[few], 1.2533 * usual / np.sqrt(n[few]))
    return _Edges(a[heads], b[heads], middle, error)


def _spread_from(
    root: int,
    number: int,
    near: Sequence[Sequence[tuple[int, float, float]]],
    offset: NDArray[np.float64],
    error: NDArray[np.float64],
    island: Ints,
) -> None:
    """Reach every rank over the path with the least doubt."""
    waiting = [(0.0, root, 0.0)]
    while waiting:
        doubt, one, value = heapq.heappop(waiting)
        if island[one] >= 0:
            continue
        island[one], offset[one], error[one] = number, value, doubt**0.5
        for other, difference, uncertain in near[one]:
            if island[other] < 0:
                heapq.heappush(waiting, (doubt + uncertain**2, other, value + difference))


def _relaxed(
    edges: _Edges, offset: NDArray[np.float64], roots: Sequence[int], island: Ints
) -> NDArray[np.float64]:
    """Let all edges count, by their weight: the tree alone adds up errors along its paths."""
    if not len(edges.a):
        return offset
    weight = 1 / edges.error**2
    total = np.zeros(len(offset))
    np.add.at(total, edges.a, weight)
    np.add.at(total, edges.b, weight)
    held = np.zeros(len(offset), bool)
    _, first = np.unique(island[list(roots)], return_index=True)
    held[np.array(roots)[first]] = True
    moving = ~held & (total > 0)
    for _ in range(_ROUNDS):
        pull = np.zeros(len(offset))
        # The time of a plus its offset is that of b plus its own, and ends differ by b - a.
        np.add.at(pull, edges.a, weight * (offset[edges.b] + edges.difference))
        np.add.at(pull, edges.b, weight * (offset[edges.a] - edges.difference))
        new = offset.copy()
        new[moving] = (offset[moving] + pull[moving] / total[moving]) / 2
        if np.abs(new - offset).max() < 1:
            return new
        offset = new
    return offset


def _by_host(
    matched: MatchedCollectives,
    offset: NDArray[np.float64],
    error: NDArray[np.float64],
    island: Ints,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give ranks of one host one offset, where they share a clock."""
    offset, error = offset.copy(), error.copy()
    hosts: dict[tuple[str, int], list[int]] = {}
    for index, facts in enumerate(matched.facts):
        if facts.host is not None:
            hosts.setdefault((facts.host, int(island[index])), []).append(index)
    for members in hosts.values():
        own = offset[members]
        middle = float(np.median(own))
        if len(members) > 2 and float(np.median(np.abs(own - middle))) < _SAME_CLOCK_NS:
            spread = float(np.std(own))
            offset[members] = middle
            error[members] = np.minimum(
                error[members], max(spread, _LEAST_SPREAD_NS) / len(members) ** 0.5
            )
    return offset, error
