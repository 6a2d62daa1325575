"""Whether recordings are of one run: two runs of one program look alike but for when they ran.

World size, groups and kinds of collectives are the same. What is not: all members of a collective
leave it together. So the ends of one rank's collectives follow those of another's at a distance
that is the same for all of them, that of their clocks; of two runs it changes from one to the
next. And ranks of one host have one clock: if they end an hour apart, they did not meet.

All partials of a run to the rows of its summary file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from unified_prof.arrays.types import Ints
from unified_prof.base.columns import Ledger
from unified_prof.cluster import summary_rows as rows
from unified_prof.cluster import waits as streamed_sums
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.findings import find_all
from unified_prof.cluster.matching import MatchedCollectives, match_collectives
from unified_prof.cluster.rank_partial import Columns, Partial, PartialSource, UnreadableRecording
from unified_prof.cluster.rank_signals import collect_signals, infer_roles
from unified_prof.cluster.replay import Replay
from unified_prof.cluster.rule_context import RuleContext
from unified_prof.cluster.summary_rows import Row
from unified_prof.cluster.waits import compute_waits
from unified_prof.errors import StoreError, UsageError
from unified_prof.recording.collectives import POINT_TO_POINT
from unified_prof.recording.model import Finding

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


def recordings_of_other_runs(
    matched: MatchedCollectives, where: Mapping[int, PartialSource]
) -> list[UnreadableRecording]:
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
            f"these recordings are from {len(runs)} runs: {_words(matched, where, first)}; "
            f"{_words(matched, where, second)}",
            hint="give the recordings of one run",
            slug="several-runs",
        )
    usual = matched.ranks[first[0]]
    return [
        UnreadableRecording(
            _file(matched, where, index),
            f"belongs to another run than rank {usual} and {len(first) - 1:,} more "
            f"({_file(matched, where, first[0])}): "
            f"{_why(matched, first, index)}",
            matched.ranks[index],
        )
        for members in runs[1:]
        for index in members
    ]


def _runs(matched: MatchedCollectives) -> list[list[int]]:
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


def _pairs(matched: MatchedCollectives) -> tuple[Ints, Ints]:
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


def _file(matched: MatchedCollectives, where: Mapping[int, PartialSource], index: int) -> str:
    rank = matched.ranks[index]
    return where.get(rank, PartialSource()).file or f"rank {rank}"


def _words(
    matched: MatchedCollectives, where: Mapping[int, PartialSource], members: Sequence[int]
) -> str:
    """Name a run by one of its recordings, how many more, when and where it ran."""
    index = members[0]
    facts = matched.facts[index]
    more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
    host = f" on {facts.host}" if facts.host is not None else ""
    rank = f"rank {facts.rank}{host}, {_when(matched, index)}"
    return f"{_file(matched, where, index)} ({rank}){more}"


def _when(matched: MatchedCollectives, index: int) -> str:
    begin, _ = _span(matched.partials[index])
    try:
        return f"{datetime.fromtimestamp(begin / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"at {begin / 1e9:.0f} s"


def _why(matched: MatchedCollectives, first: Sequence[int], index: int) -> str:
    begin, _ = _span(matched.partials[first[0]])
    own, _ = _span(matched.partials[index])
    apart = abs(own - begin) / 1e9
    if apart >= 1:
        word = "after" if own > begin else "before"
        return f"recorded {apart:,.0f} s {word} that, and their collectives do not end together"
    return "their collectives do not end together"


_APART_NS = 60 * 1_000_000_000
"""Recordings of one run overlap; no clock of a host is off by so much."""


@dataclass(slots=True)
class RunSummary:
    """What the summary file holds: table -> rows, in the order of the schema's columns."""

    tables: dict[str, list[Row]]
    findings: list[Finding]
    world_size: int
    ranks_read: int
    absent: tuple[int, ...]
    unread: tuple[UnreadableRecording, ...]
    steps: tuple[int, ...]
    left_out: Ledger = field(default_factory=Ledger)
    world_size_is_minimum: bool = False

    @property
    def whole(self) -> bool:
        """Whether every rank of the run could be read."""
        return not self.absent and not self.unread


def summarize_run(
    partials: Iterable[Partial],
    where: Mapping[int, PartialSource] | None = None,
    unread: Sequence[UnreadableRecording] = (),
    *,
    read: Callable[[int], Columns] | None = None,
    until: int | None = None,
) -> RunSummary:
    """Read partials of one run, each rank once, as one run.

    Args:
        partials: Of its ranks.
        where: Where they come from.
        unread: Ranks that could not be read.
        read: Where `partials` hold the first steps alone: returns all communication of a rank,
            by its global number; sums over the whole run are then taken of that.
        until: The last of those steps.

    Raises:
        StoreError: there is no rank that could be read.
        UsageError: they are of several runs, none of which has most of them.
    """
    found = list(partials)
    where = where or {}
    found, strangers = _one_run(found, where)
    unread = (*unread, *strangers)
    if not found:
        raise _nothing_read(unread)
    matched = match_collectives(found)
    if others := recordings_of_other_runs(matched, where):
        unread = (*unread, *others)
        left = {one.rank for one in others}
        matched = match_collectives(one for one in found if one.facts.rank not in left)
    _tell_of_other_times(matched)
    waited = compute_waits(matched)
    steps = _compared_steps(matched)
    part = infer_roles(matched, steps)
    clock = align_clocks(matched)
    proof = collect_signals(matched, part, steps)
    walked = [step for step in steps if until is None or step <= until]
    whole = None
    if read is not None:
        ask = read
        whole = streamed_sums.stream_sums(matched, lambda index: ask(matched.ranks[index]))
    offset = np.zeros_like(clock.offset)
    if int(clock.island.max(initial=0)) == 0:
        times = [one.marks["time"] for one in matched.partials]
        begins = [int(time[0]) if len(time) else clock.at for time in times]
        shifts = [clock.of(at).common_at(begin) - begin for at, begin in enumerate(begins)]
        offset = np.array(shifts, np.int64)
    case = RuleContext(
        matched,
        waited,
        part,
        proof,
        Replay(matched, waited, offset, walked),
        tuple(steps),
        _step_length(matched, steps),
    )
    told = find_all(case)
    world, is_minimum = _world_size(matched)
    bad = {one.rank for one in unread}
    absent = tuple(rank for rank in range(world) if rank not in matched.ranks and rank not in bad)
    tables = {
        "META_DATA": rows.fact_rows(matched, clock, steps, (world, is_minimum), unread),
        "RANK": rows.rank_rows(matched, part, clock, where, unread, absent),
        "GROUP": rows.group_rows(matched),
        "STEP_RANK": rows.step_rows(matched, waited, proof, whole),
        "COLLECTIVE": rows.collective_rows(matched, waited, whole),
        "BLAME": rows.blame_rows(matched, waited, proof, told, whole),
        "LINK": rows.link_rows(matched, waited),
        "OPERATION_RANK": rows.operation_rows(matched, steps),
        "FINDING": rows.finding_rows(told),
    }
    return RunSummary(
        tables,
        told,
        world,
        len(matched.ranks),
        absent,
        tuple(unread),
        tuple(steps),
        matched.left_out,
        is_minimum,
    )


def _nothing_read(unread: Sequence[UnreadableRecording]) -> StoreError:
    """Return the error of a run without a rank: the first file, why, and what to do about it."""
    text = "no rank's recording could be read"
    if not unread:
        return StoreError(text, slug="no-rank-readable")
    first = unread[0]
    more = f"; nor {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return StoreError(
        f"{text}; {first.file}: {first.why}{more}", hint=first.hint, slug="no-rank-readable"
    )


def _one_run(
    found: Sequence[Partial], where: Mapping[int, PartialSource]
) -> tuple[list[Partial], list[UnreadableRecording]]:
    """Keep the ranks of the run that most are of; those of another world size are another's."""
    sizes = Counter(one.facts.world_size for one in found if one.facts.world_size)
    if len(sizes) < 2:
        return list(found), []
    usual = max(sizes, key=lambda size: (sizes[size], size))
    kept, others = [], []
    for one in found:
        size = one.facts.world_size
        if size is None or size == usual:
            kept.append(one)
        else:
            file = where.get(one.facts.rank, PartialSource()).file or f"rank {one.facts.rank}"
            words = f"from a run of {size} ranks, the others from one of {usual}"
            others.append(UnreadableRecording(file, words, one.facts.rank))
    return kept, others


def _tell_of_other_times(matched: MatchedCollectives) -> None:
    """Tell of ranks that were recorded when the others were not: they can be of another run.

    Hosts' clocks differ by milliseconds, and ranks of one run wait for each other.
    """
    spans = sorted(
        (int(times.min()), int(times.max()), one.facts.rank)
        for one in matched.partials
        if len(times := one.marks["time"])
    )
    until = spans[0][1] if spans else 0
    for begin, end, rank in spans:
        if begin - until > _APART_NS:
            words = (
                f"rank {rank} was recorded {(begin - until) / 1e9:,.0f} s after others had ended"
            )
            matched.left_out.add("ranks_recorded_apart", f"{words}: possibly from another run")
        until = max(until, end)


def _world_size(matched: MatchedCollectives) -> tuple[int, bool]:
    """Return the number of ranks of the run, and whether it is a lower bound.

    It is one unless the recordings have a world size: then the largest rank and group count.
    """
    recorded = [one.world_size for one in matched.facts if one.world_size]
    if recorded:
        return max(recorded), False
    in_groups = [max(group.ranks) for group in matched.groups if group.told]
    largest = max([group.size for group in matched.groups], default=0)
    return max(max([*matched.ranks, *in_groups]) + 1, largest), largest > len(matched.ranks)


def _compared_steps(matched: MatchedCollectives) -> list[int]:
    """Return the steps that all ranks have; where there is none, those that most have."""
    counts: Counter[int] = Counter()
    for one in matched.partials:
        counts.update(set(one.steps["step"].tolist()))
    if not counts:
        return []
    most = max(counts.values())
    return sorted(step for step, count in counts.items() if count == most)


def _step_length(matched: MatchedCollectives, steps: list[int]) -> float:
    lengths: list[int] = []
    for one in matched.partials:
        chosen = np.isin(one.steps["step"], steps)
        lengths += (one.steps["end"] - one.steps["start"])[chosen].tolist()
    return float(np.median(lengths)) if lengths else 0.0
