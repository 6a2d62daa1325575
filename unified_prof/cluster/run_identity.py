"""Whether recordings are of one run: two runs of one program look alike but for when they ran.

World size, groups and kinds of collectives are the same. What is not: all members of a collective
leave it together. So the ends of one rank's collectives follow those of another's at a distance
that is the same for all of them, that of their clocks; of two runs it changes from one to the
next. And ranks of one host have one clock: if they end an hour apart, they did not meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.matching import Matched
from unified_prof.cluster.partial import Partial, Unread, Where
from unified_prof.errors import UsageError
from unified_prof.recording.collectives import POINT_TO_POINT

Ints = NDArray[np.int64]

_ONE_SIDED = (*POINT_TO_POINT, "broadcast", "scatter", "gather", "reduce")
"""A sender may leave these before the others have come."""
_ASKED = 32
"""So many events of each group and kind are looked at: the first, the last, some in between."""
_LEAST_EVENTS = 3
_SAME_CLOCK_NS = 100_000_000
"""Ranks of one host cannot be so far apart."""
_ANOTHER_TIME_NS = 60_000_000_000
"""Hosts whose clocks differ by so much are odd: less is asked for to take them for two runs."""
_DRIFT = 2e-4
"""Of two clocks: four times what crystals are sold for."""
_SPREAD_NS = 1_000_000
_SPREAD_THEN_NS = 20_000
"""How far distances may lie apart beside that: jitter of ends; of another time."""


def of_other_runs(matched: Matched, where: Mapping[int, Where]) -> list[Unread]:
    """Return the recordings that are of another run than most, with the reason.

    Args:
        matched: All that were read, as one run.
        where: Where they come from.

    Raises:
        UsageError: no run has most of them: two are named.
    """
    runs = _runs(matched)
    if len(runs) < 2:
        return []
    first, second = runs[0], runs[1]
    if 2 * len(first) <= len(matched.ranks):
        raise UsageError(
            f"these are recordings of {len(runs)} runs: {_words(matched, where, first)}; "
            f"{_words(matched, where, second)}",
            hint="name the recordings of one",
            slug="several-runs",
        )
    usual = matched.ranks[first[0]]
    return [
        Unread(
            _file(matched, where, index),
            f"it is of another run than rank {usual} and {len(first) - 1:,} more "
            f"({_file(matched, where, first[0])}): {_why(matched, first, index)}",
            matched.ranks[index],
        )
        for members in runs[1:]
        for index in members
    ]


def _runs(matched: Matched) -> list[list[int]]:
    """Return the ranks of each run, the largest first; one list where nothing speaks for more."""
    fits, misfits = _pairs(matched)
    if not len(misfits):
        return [list(range(len(matched.ranks)))]
    of = list(range(len(matched.ranks)))

    def find(one: int) -> int:
        while of[one] != one:
            of[one] = of[of[one]]
            one = of[one]
        return one

    for a, b in fits.tolist():
        of[find(a)] = find(b)
    # Who shares nothing is of the same, unless it is of one that does not fit.
    spans = [_span(one) for one in matched.partials]
    roots = sorted({find(one) for one in of}, key=lambda root: spans[root])
    apart = {frozenset((find(a), find(b))) for a, b in misfits.tolist()}
    for index, root in enumerate(roots):
        for other in roots[:index]:
            ours, theirs = find(root), find(other)
            members = [[at for at in range(len(of)) if find(at) == one] for one in (ours, theirs)]
            both = frozenset((ours, theirs))
            if ours != theirs and both not in apart and _overlap(spans, *members):
                of[ours] = theirs
                apart = {frozenset(find(one) for one in pair) for pair in apart}
    runs: dict[int, list[int]] = {}
    for one in range(len(of)):
        runs.setdefault(find(one), []).append(one)
    return sorted(runs.values(), key=lambda members: (-len(members), members))


def _overlap(spans: Sequence[tuple[int, int]], one: Sequence[int], other: Sequence[int]) -> bool:
    begin, end = (max(spans[at][0] for at in one), min(spans[at][1] for at in one))
    first, last = (max(spans[at][0] for at in other), min(spans[at][1] for at in other))
    return first < end + _ANOTHER_TIME_NS and begin < last + _ANOTHER_TIME_NS


def _span(one: Partial) -> tuple[int, int]:
    time = one.marks["time"]
    return (int(time[0]), int(time[-1])) if len(time) else (0, 0)


def _pairs(matched: Matched) -> tuple[Ints, Ints]:
    """Return the pairs of ranks whose collectives end together, and those whose do not."""
    events, rows = matched.events, matched.rows
    nothing = np.empty((0, 2), np.int64)
    both_ways = ~matched.is_kind(events.kind, *_ONE_SIDED) & (events.members > 1)
    usable = _some(events.group, events.kind, np.flatnonzero(both_ways))
    if not len(usable):
        return nothing, nothing
    size = events.members[usable]
    first = np.repeat(events.first[usable], size - 1)
    others = (
        first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(size - 1) - (size - 1), size - 1)
    )
    a, b = rows.rank[first], rows.rank[others]
    difference = rows.end[others] - rows.end[first]
    order = np.lexsort((difference, b, a))
    a, b, difference = a[order], b[order], difference[order]
    end = rows.end[first][order]
    heads = np.flatnonzero(np.r_[True, (np.diff(a) != 0) | (np.diff(b) != 0)])
    n = np.diff(np.r_[heads, len(a)])
    middle = difference[heads + n // 2]
    away = np.abs(difference - np.repeat(middle, n))
    away = away[np.lexsort((away, np.repeat(np.arange(len(heads)), n)))]
    # Three of four are to fit: the first of all may have been cut.
    spread = away[heads + (n - 1) * 3 // 4]
    span = np.maximum.reduceat(end, heads) - np.minimum.reduceat(end, heads)
    hosts = [facts.host for facts in matched.facts]
    together = np.array(
        [
            hosts[x] is not None and hosts[x] == hosts[y]
            for x, y in zip(a[heads].tolist(), b[heads].tolist(), strict=True)
        ],
        bool,
    )
    least = np.where(np.abs(middle) > _ANOTHER_TIME_NS, _SPREAD_THEN_NS, _SPREAD_NS)
    misfits = spread > least + _DRIFT * span
    distance = np.abs(middle)
    apart = together & (distance > _SAME_CLOCK_NS)
    misfits |= apart
    if apart.any():  # then it is no clock that makes others as far apart
        misfits |= distance > int(distance[apart].min()) // 2
    known = n >= _LEAST_EVENTS
    pairs = np.stack([a[heads], b[heads]], 1)
    return pairs[known & ~misfits], pairs[known & misfits]


def _some(group: Ints, kind: Ints, usable: Ints) -> Ints:
    """Return some events of each group and kind; they follow one another."""
    if not len(usable):
        return usable
    new = np.r_[True, (np.diff(group[usable]) != 0) | (np.diff(kind[usable]) != 0)]
    heads = np.flatnonzero(new)
    n = np.diff(np.r_[heads, len(usable)])
    place = np.arange(len(usable)) - np.repeat(heads, n)
    every = np.maximum(-(-n // _ASKED), 1)
    kept = place % np.repeat(every, n) == 0
    kept[heads + n - 1] = True
    return np.asarray(usable[kept], np.int64)


def _file(matched: Matched, where: Mapping[int, Where], index: int) -> str:
    rank = matched.ranks[index]
    return where.get(rank, Where()).file or f"rank {rank}"


def _words(matched: Matched, where: Mapping[int, Where], members: Sequence[int]) -> str:
    """Name a run by one of its recordings, how many more, when and where it ran."""
    index = members[0]
    facts = matched.facts[index]
    more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
    host = f" on {facts.host}" if facts.host is not None else ""
    rank = f"rank {facts.rank}{host}, {_when(matched, index)}"
    return f"{_file(matched, where, index)} ({rank}){more}"


def _when(matched: Matched, index: int) -> str:
    begin, _ = _span(matched.partials[index])
    try:
        return f"{datetime.fromtimestamp(begin / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"at {begin / 1e9:.0f} s"


def _why(matched: Matched, first: Sequence[int], index: int) -> str:
    begin, _ = _span(matched.partials[first[0]])
    own, _ = _span(matched.partials[index])
    apart = abs(own - begin) / 1e9
    if apart >= 1:
        word = "after" if own > begin else "before"
        return (
            f"it was recorded {apart:,.0f} s {word} that, and their collectives do not end together"
        )
    return "their collectives do not end together"
