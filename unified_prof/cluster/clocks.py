"""Alignment of the clocks of all ranks, from the ends of their collectives and transfers.

All members of a collective leave it together, as do both ends of a transfer: the difference of
their ends is that of their clocks. Differences are added along a tree of the most certain edges,
then all edges adjust the result. In long recordings the clocks drift apart; the drift of each clock
is computed from the same tree. Ranks that share no events with the others form a separate island:
the offset between islands is unknown.

Only merged timelines and the replay need this; waits do not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import AnyInts, Bools, Floats, Ints, Runs, positions
from unified_prof.arrays.packed import narrow
from unified_prof.cluster.matching import MatchedCollectives


@dataclass(frozen=True, slots=True)
class CommonClock:
    """Conversion of a rank's times to the common clock."""

    offset_ns: int = 0
    drift: float = 0.0  # Seconds that the rank's clock loses per second.
    at_ns: int = 0  # Time at which the offset is `offset_ns`.

    def common(self, times: Ints) -> Ints:
        """Return times of the rank's clock on the common clock."""
        moved = times + self.offset_ns
        if self.drift:
            moved = moved + np.rint((times - self.at_ns) * self.drift).astype(np.int64)
        return moved

    def common_at(self, time: int) -> int:
        """Return one time on the common clock."""
        return int(self.common(np.array([time], np.int64))[0])


_ROUNDS = 60  # Maximum number of relaxation rounds.
# Ranks of one host share a clock if the median difference of their clocks is smaller, ns.
_MAX_SAME_CLOCK_NS = 5_000.0
# Converts a median absolute deviation to the standard deviation of a normal distribution.
_MAD_TO_DEVIATION = 1.4826
# Minimum spread of differences, ns.
_MIN_SPREAD_NS = 200.0
_PPB = 1e9
_SAMPLED_EVENTS = 64  # Maximum number of events of each group and kind used to measure the drift.
_PAIRED_EVENTS = 1024  # The same for the offsets.
_SAMPLED_PAIRS = 200  # Number of pairs of ranks sampled to decide whether clocks drift at all.
_MIN_EVENTS_FOR_DRIFT = 12  # Minimum number of events of a pair to measure its drift.
_MIN_DRIFT_NS = 1_000.0  # Smaller drift over a recording is ignored, ns.
_MIN_DRIFT_ERRORS = 5.0  # Minimum drift in standard errors; high because many pairs are tested.


@dataclass(frozen=True, slots=True, eq=False)
class AlignedClocks:
    """Clocks of all ranks, indexed like `MatchedCollectives.ranks`."""

    offset: Ints  # Value to add to the times of a rank to get the common clock of its island, ns.
    error: Ints  # Standard error of the offset, ns.
    island: Ints  # Island of each rank: islands have no common clock; the largest island is 0.
    drift: Floats  # Seconds that each rank's clock loses per second; 0 if not significant.
    at: int  # Time at which the offsets are valid.

    def clock_of(self, index: int) -> CommonClock:
        """Return the clock of a rank."""
        return CommonClock(int(self.offset[index]), float(self.drift[index]), self.at)


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    a: Ints
    b: Ints
    difference: Floats  # End of b minus end of a, ns.
    error: Floats


def align_clocks(matched: MatchedCollectives) -> AlignedClocks:
    """Align the clocks of all ranks that are connected by common events."""
    ends = matched.rows.ends(matched.events.first)
    at = (int(ends.min()) + int(ends.max())) // 2 if len(ends) else 0
    slopes = _slopes(matched)
    drift = np.zeros(len(matched.ranks))
    unsure = np.zeros(len(matched.ranks))
    if slopes is not None:
        drift, unsure, _ = _solved(matched, slopes)
        drift, unsure = drift / _PPB, unsure / _PPB
    offset, error, island = _solved(matched, _edges(matched, drift, at))
    # An offset is less certain the further it is extrapolated.
    half = (int(ends.max()) - int(ends.min())) / 2 if len(ends) else 0.0
    error = np.hypot(error, unsure * half)
    found, inverse, sizes = np.unique(island, return_inverse=True, return_counts=True)
    place = np.empty(len(found), np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(len(found))
    return AlignedClocks(
        np.rint(offset).astype(np.int64), np.ceil(error).astype(np.int64), place[inverse], drift, at
    )


def _solved(matched: MatchedCollectives, edges: _Edges) -> tuple[Floats, Floats, Ints]:
    """Solve for the value, error and island of each rank from the differences of pairs."""
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
    """Return the drift between the clocks of pairs, ns per second; None if not significant.

    The median difference in the first third of the events is compared with that in the last third.
    """
    events, rows = matched.events, matched.rows
    if not len(events):
        return None
    keys = [np.where(events.src >= 0, -1 - events.src, events.group), events.dst, events.kind]
    usable = np.flatnonzero(events.members > 1)
    usable = usable[sample_events([key[usable] for key in keys], _SAMPLED_EVENTS)]
    pair, first, others = member_pairs(matched, usable)
    time = rows.ends(first)
    difference = rows.ends(others) - time
    order = np.lexsort((time, pair))
    pair, difference, time = pair[order], difference[order], time[order]
    pairs = Runs(pair)
    heads, sizes = pairs.starts, pairs.sizes
    a, b = np.divmod(pair, len(matched.ranks))
    enough = np.flatnonzero(sizes >= _MIN_EVENTS_FOR_DRIFT)
    # A sample of the pairs decides whether clocks drift at all.
    for chosen in (enough[:: -(-len(enough) // _SAMPLED_PAIRS) or 1], enough):
        found: list[tuple[int, int, float, float]] = []
        significant = False
        for head, n in zip(heads[chosen].tolist(), sizes[chosen].tolist(), strict=True):
            part = slice(head, head + n)
            apart, when = difference[part] - difference[head], (time[part] - time[head]) / 1e9
            third = n // 3
            run = float(np.median(when[-third:]) - np.median(when[:third]))
            if run <= 0:
                continue
            slope = float(np.median(apart[-third:]) - np.median(apart[:third])) / run
            rest = apart - slope * when
            spread = _MAD_TO_DEVIATION * float(np.median(np.abs(rest - np.median(rest))))
            doubt = 1.2533 * max(spread, _MIN_SPREAD_NS) * (2 / third) ** 0.5 / run
            found.append((int(a[head]), int(b[head]), slope, doubt))
            significant |= abs(slope) * run > max(_MIN_DRIFT_NS, _MIN_DRIFT_ERRORS * doubt * run)
        if not significant:
            return None
    table = np.array(found)
    return _Edges(
        table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3]
    )


def sample_events(keys: Sequence[Ints], count: int) -> Bools:
    """Select up to `count` evenly spaced events of each run of equal keys, and the last one."""
    runs = Runs(*keys)
    chosen = np.asarray(runs.rank() % runs.spread(np.maximum(-(-runs.sizes // count), 1)) == 0)
    chosen[runs.last] = True
    return chosen


def member_pairs(matched: MatchedCollectives, events: Ints) -> tuple[AnyInts, AnyInts, AnyInts]:
    """Pair the first member of each event with every other member.

    Returns:
        First rank * number of ranks + other rank, and the rows of both.
    """
    rank, size = matched.rows.rank, matched.events.members[events] - 1
    first = np.repeat(matched.events.first[events].astype(np.int32), size)
    others = first + (positions(size) + 1).astype(np.int32)
    return narrow(rank[first] * len(matched.ranks) + rank[others]), first, others


def _edges(matched: MatchedCollectives, drift: Floats, at: int) -> _Edges:
    """Return the median clock differences of all pairs of ranks with common events."""
    rows, events = matched.rows, matched.events
    usable = np.flatnonzero(events.members > 1)
    if len(usable):
        usable = usable[sample_events([events.group[usable], events.kind[usable]], _PAIRED_EVENTS)]
    pair, first, others = member_pairs(matched, usable)
    difference = rows.ends(others)
    difference -= rows.ends(first)
    if drift.any():
        a, b = np.divmod(pair, len(matched.ranks))
        difference = difference + np.rint(
            (rows.ends(others) - at) * drift[b] - (rows.ends(first) - at) * drift[a]
        ).astype(np.int64)
    del first, others  # there may be millions of pairs
    order = np.lexsort((difference, pair))
    pair, difference = pair[order], difference[order]
    del order
    pairs = Runs(pair)
    heads, n = pairs.starts, pairs.sizes
    a, b = np.divmod(pair[heads], len(matched.ranks))
    del pair
    if not len(a):
        return _Edges(a, b, np.empty(0), np.empty(0))
    middle = (difference[heads + (n - 1) // 2] + difference[heads + n // 2]) / 2
    away = difference - pairs.spread(middle)
    del difference
    np.abs(away, out=away)
    away = away[np.lexsort((away, pairs.number()))]
    spread = _MAD_TO_DEVIATION * (away[heads + (n - 1) // 2] + away[heads + n // 2]) / 2
    error = 1.2533 * np.maximum(spread, _MIN_SPREAD_NS) / np.sqrt(n)
    # One or two events have no spread: use that of the run.
    usual = float(np.median(spread[n > 2])) if (n > 2).any() else 1_000.0
    few = n <= 2
    error[few] = np.maximum(error[few], 1.2533 * usual / np.sqrt(n[few]))
    return _Edges(a, b, middle, error)


def _spread_from(
    root: int,
    number: int,
    near: Sequence[Sequence[tuple[int, float, float]]],
    offset: Floats,
    error: Floats,
    island: Ints,
) -> None:
    """Set the offsets of all ranks reachable from a root, along the paths with the least error."""
    waiting = [(0.0, root, 0.0)]
    while waiting:
        doubt, one, value = heapq.heappop(waiting)
        if island[one] >= 0:
            continue
        island[one], offset[one], error[one] = number, value, doubt**0.5
        for other, difference, uncertain in near[one]:
            if island[other] < 0:
                heapq.heappush(waiting, (doubt + uncertain**2, other, value + difference))


def _relaxed(edges: _Edges, offset: Floats, roots: Sequence[int], island: Ints) -> Floats:
    """Fit the offsets to all edges by weight, since errors accumulate along paths of the tree."""
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
        # Time plus offset is equal for a and b, and their ends differ by b - a.
        np.add.at(pull, edges.a, weight * (offset[edges.b] + edges.difference))
        np.add.at(pull, edges.b, weight * (offset[edges.a] - edges.difference))
        new = offset.copy()
        new[moving] = (offset[moving] + pull[moving] / total[moving]) / 2
        if np.abs(new - offset).max() < 1:
            return new
        offset = new
    return offset


def _by_host(
    matched: MatchedCollectives, offset: Floats, error: Floats, island: Ints
) -> tuple[Floats, Floats]:
    """Assign the same offset to all ranks of a host if they share a clock."""
    offset, error = offset.copy(), error.copy()
    hosts: dict[tuple[str, int], list[int]] = {}
    for index, facts in enumerate(matched.facts):
        if facts.host is not None:
            hosts.setdefault((facts.host, int(island[index])), []).append(index)
    for members in hosts.values():
        own = offset[members]
        middle = float(np.median(own))
        if len(members) > 2 and float(np.median(np.abs(own - middle))) < _MAX_SAME_CLOCK_NS:
            spread = float(np.std(own))
            offset[members] = middle
            error[members] = np.minimum(
                error[members], max(spread, _MIN_SPREAD_NS) / len(members) ** 0.5
            )
    return offset, error
