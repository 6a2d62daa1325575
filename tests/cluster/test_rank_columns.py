"""Columns of partials and small runs, compared with counting every nanosecond and operation."""

from collections import Counter, defaultdict
from itertools import combinations, pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.cluster import rank_communication as columns_of
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.matching import match_collectives, match_sequences
from unified_prof.cluster.rank_communication import CoveredTime
from unified_prof.cluster.rank_partial import (
    MarkFigures,
    Partial,
    RankFacts,
    RankGroup,
    empty_columns,
    figures_of,
    named_columns,
)
from unified_prof.cluster.sequences import sequences_of
from unified_prof.cluster.waits import add_up, compute_waits, key_sums, sums_in_memory

Spans = list[tuple[int, int]]  # Starts and ends, ns.
spans = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 5)).map(lambda one: (one[0], sum(one))),
    max_size=5,
).map(sorted)


def cells(found: Spans) -> set[int]:
    return {at for start, end in found for at in range(start, end)}


def columns(found: Spans) -> tuple[Ints, Ints]:
    start, end = np.array(found, np.int64).reshape(-1, 2).T
    return start, end


@given(spans, spans, st.lists(st.integers(0, 20), max_size=6), st.none() | spans)
def test_steps_and_marks(kernels: Spans, operations: Spans, edges: list[int], data: Spans) -> None:
    steps = [*pairwise(sorted(set(edges)))][::2] + [*pairwise(sorted(set(edges)))][-1:]
    steps = sorted(set(steps))
    tables = [dict(zip(("start", "end"), columns(one), strict=True)) for one in (operations, steps)]
    tables[1]["step"] = np.arange(len(steps)) + 7
    cover = CoveredTime(intervals.merge(*columns(kernels)), columns(kernels)[0])
    busy, loader = (
        None if one is None else intervals.merge(*columns(one))
        for one in (kernels + operations, data)
    )
    assert busy is not None
    work, sent, fetched = cells(kernels), cells(operations), cells(data or [])
    inside = [cells([step]) for step in steps]
    found = columns_of.step_time_parts(tables[1], cover.set, tables[0], busy, loader)
    assert found["compute"].tolist() == [len(one & work) for one in inside]
    assert found["communication"].tolist() == [len(one & sent) for one in inside]
    assert found["exposed"].tolist() == [len(one & sent - work) for one in inside]
    assert found["idle"].tolist() == [len(one - sent - work) for one in inside]
    late = [-1 if data is None else len(one & fetched - sent - work) for one in inside]
    assert found["input"].tolist() == late
    at = columns_of.step_at(np.arange(-1, 25), tables[1])
    own = {time: 7 + place for place, one in enumerate(inside) for time in one}
    assert at.tolist() == [own.get(time, -1) for time in range(-1, 25)]

    # At equal times, ends of operations come first, then steps, then starts.
    events = [(end, 0, op) for op, (_, end) in enumerate(operations)]
    events += [(start, 1, step) for step, (start, _) in enumerate(steps)]
    events += [(start, 2, op) for op, (start, _) in enumerate(operations)]
    events.sort()
    if work and (not events or min(work) < events[0][0]):
        events.insert(0, (min(work), 1, -1))
    last = max([*work, *(end - 1 for _, end in steps[-1:]), *(e[0] - 1 for e in events)], default=0)
    marks = columns_of.cut_at_marks(tables[0], tables[1], cover)
    rows = zip(*(marks[name].tolist() for name in marks), strict=True)
    starts = [start for start, _ in kernels]
    gaps = []
    for row, (event, following) in zip(rows, pairwise([*events, (last + 1, 0, 0)]), strict=True):
        time, what, op = event
        part = [one in work for one in range(time, following[0])]
        lead = part.index(True) if any(part) else len(part)
        tail = part[::-1].index(True) if any(part) else 0
        begun = sum(time <= start < following[0] for start in starts)
        assert row == (time, op, (1, 2, 0)[what], lead, sum(part), tail, begun)
        gaps += [(len(part) - lead - tail - sum(part), begun - bool(lead))] * any(part)
    gaps = gaps[: len(gaps) - any(part)] if events else []  # behind the last mark
    each = sorted(idle / count for idle, count in gaps for _ in range(count))
    expected = MarkFigures(events[0][0], events[-1][0]) if events else MarkFigures()
    if each:
        mean = sum(idle for idle, count in gaps if count > 0) / len(each)
        expected = expected._replace(gap=mean, median_gap=each[(len(each) - 1) // 2])
    assert figures_of(marks) == pytest.approx(expected)


@given(st.lists(st.tuples(*[st.integers(-1, 2)] * 3, st.integers(0, 9)), max_size=12))
def test_sums_by_key(rows: list[tuple[int, int, int, int]]) -> None:
    step, name, module, takes = np.array(rows, np.int64).reshape(-1, 4).T
    by_key = defaultdict[tuple[int, ...], list[int]](list)
    for *key, length in rows:
        by_key[tuple(key)].append(length)
    found = columns_of.work_by_name(step, name, module, takes)
    assert [*zip(*(one.tolist() for one in found.values()), strict=True)] == [
        (*key, len(own), sum(own), min(own), max(own))
        for key, own in sorted(by_key.items())
        if key[0] >= 0
    ]
    owned = [(owner, at, at + length) for owner, at, _, length in rows if owner >= 0]
    own, begin, end = np.array(owned, np.int64).reshape(-1, 3).T
    of_owner = [[(a, b) for number, a, b in owned if number == owner] for owner in range(4)]
    union = columns_of.union_by_owner(own, begin, end - begin, 4)
    assert union.tolist() == [len(cells(one)) if one else -1 for one in of_owner]
    # Positive sizes and times: rates are in order of their values.
    sizes, times = (
        np.array([(3 * length + 2, length % 3 + 1) for *_, length in rows]).reshape(-1, 2).T
    )
    links = columns_of.link_parts(step, name, sizes, times)
    of_link = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for src, dst, size, length in zip(
        step.tolist(), name.tolist(), sizes.tolist(), times.tolist(), strict=True
    ):
        of_link[src, dst].append((size, length))
    assert [*zip(*(one.tolist() for one in links.values()), strict=True)] == [
        (*key, len(parts), *map(sum, zip(*parts, strict=True)), rates[len(rates) // 2], rates[0])
        for key, parts in sorted(of_link.items())
        for rates in [sorted(size * 10**9 // length for size, length in parts)]
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 2)), max_size=12))
def test_sequences(rows: list[tuple[int, int, int]]) -> None:
    """Collectives of a group and kind, and transfers with a peer, are numbered as they come."""
    kinds = ["all_reduce", "send", "receive", "broadcast"]
    kind, group, peer = np.array(rows, np.int64).reshape(-1, 3).T
    seen, numbers, members = Counter[object](), [], defaultdict[object, list[int]](list)
    for place, (of_kind, of_group, other) in enumerate(rows):
        is_transfer = of_kind in (1, 2)
        key = of_kind, ("peer", other) if is_transfer and other >= 0 else ("group", of_group)
        numbers.append(seen[key])
        seen[key] += 1
        members[of_kind, other if is_transfer else of_group].append(place)
    found = {"kind": kind, "group": group, "peer": peer}
    seq = columns_of.sequence_numbers(found, kinds)
    assert seq.tolist() == numbers
    count = len(rows)
    table = named_columns("communication", *[np.arange(count)] * 10) | found | {"seq": seq}
    table["end"] = table["start"] + 3
    one = sequences_of(table, kinds).whole
    keys = zip(one.kind.tolist(), one.other.tolist(), strict=True)
    for place, pair in enumerate(keys):
        own = sorted(members.pop(pair), key=lambda row: (numbers[row], row))
        low, high = one.edges[place : place + 2]
        assert one.columns["op"][low:high].tolist() == own
        assert one.numbers(place).tolist() == [numbers[row] for row in own]
        assert one.columns["length"][low:high].tolist() == [3] * len(own)
        assert one.only([place]).columns["op"].tolist() == own
    assert not members


KINDS = ("all_reduce", "all_gather", "send", "receive")


class SmallRun:
    """A random run of four ranks, of which each has its clock, and all its communication."""

    def __init__(self, seed: int) -> None:
        random, self.ranks = Random(seed), (0, 2, 3, 5)
        self.clock = {rank: random.randrange(-500, 500) for rank in self.ranks}
        # Rank 9 was not recorded; two communicators have the same ranks.
        groups = [(0, 2), (0, 2), (2, 3, 9), (3, 5), (0, 2, 3, 5)]
        groups = random.sample(groups, random.choice((2, 3, 5)))
        # Step, bytes, kind, and start and end of each member, in true time.
        self.events: list[tuple[int, int, str, dict[int, tuple[int, int]]]] = []
        self.places: list[dict[int, int]] = []  # of each event: row of each member
        self.moves: dict[tuple[int, int], int] = {}  # Event and rank: time in which data moved.
        # Names of communicators may differ: then the order of their first use counts.
        self.suffix = random.choice(("", "rank {}"))
        rows: dict[int, list[list[int]]] = {rank: [] for rank in self.ranks}
        at = 1000
        for step in (0, 0, 0, 0, 1, 1, 2, 2, 2):
            at += 100
            number = random.randrange(len(groups))
            members = [rank for rank in groups[number] if rank != 9]
            kind, size = random.choice(("all_reduce", "all_gather", "send")), random.choice((8, 64))
            ends = members
            if kind == "send":
                ends = members = random.sample(members, 2)
            starts = {rank: at + random.randrange(40) for rank in members}
            end = max(starts.values()) + random.randrange(1, 20)
            self.events.append((step, size, kind, {one: (starts[one], end) for one in members}))
            self.places.append({rank: len(rows[rank]) for rank in members})
            for rank in members:
                name, peer = kind, -1
                if kind == "send":
                    name = "send" if rank == ends[0] else "receive"
                    peer = ends[1] if rank == ends[0] else ends[0]
                times = starts[rank] + self.clock[rank], end + self.clock[rank]
                known = [one for one, ranks in enumerate(groups) if rank in ranks]
                self.moves[len(self.places) - 1, rank] = move = random.choice((-1, 0, 5, 90))
                row = [known.index(number), KINDS.index(name), 0, *times, size, peer, move, step, 0]
                rows[rank].append(row)
        self.partials = [self.partial(rank, rows[rank], groups) for rank in self.ranks]

    def partial(self, rank: int, rows: list[list[int]], groups: list[tuple[int, ...]]) -> Partial:
        table = named_columns("communication", *np.array(rows, np.int64).reshape(-1, 10).T)
        table["seq"] = columns_of.sequence_numbers(table, [*KINDS])
        own = [
            RankGroup(f"pg{number}{self.suffix.format(rank)}", "other", "", ranks, len(ranks))
            for number, ranks in enumerate(groups)
            if rank in ranks
        ]
        empty: dict[str, Any] = {
            part: empty_columns(part) for part in ("marks", "steps", "kernels", "links")
        }
        return Partial(RankFacts(rank), tuple(own), KINDS, (), ("",), table, **empty)


@pytest.mark.parametrize("seed", range(12))
def test_matches_waits_and_clocks_of_small_runs(seed: int) -> None:
    run = SmallRun(seed)
    matched = match_collectives(run.partials)
    waits, rows, events = compute_waits(matched), matched.rows, matched.events
    expected = {frozenset(one.items()): event for event, one in enumerate(run.places)}
    caused = {rank: [0, 0] for rank in run.ranks}
    waited = defaultdict[tuple[int, int], list[int]](lambda: [0] * 4)
    for number in range(len(events)):
        of_event = range(events.first[number], events.first[number] + events.members[number])
        places = [(matched.ranks[rows.rank[row]], int(rows.op[row])) for row in of_event]
        event = expected.pop(frozenset(places))
        step, size, kind, times = run.events[event]
        ranks = [rank for rank, _ in places]
        assert ranks == sorted(times)
        lengths = [times[rank][1] - times[rank][0] for rank in ranks]
        of_group = matched.groups[events.group[number]].ranks
        is_complete = kind == "send" or 9 not in of_group
        assert (events.step[number], events.bytes[number]) == (step, size)
        assert bool(events.complete[number]) == is_complete
        assert (events.src[number] >= 0) == (kind == "send")
        last = ranks[lengths.index(min(lengths))]
        assert matched.ranks[rows.rank[waits.last[number]]] == last
        move = run.moves[event, last]
        transfer = min(move, min(lengths)) if move >= 0 else min(lengths)
        setup = min(lengths) - transfer if move >= 0 else -1
        figures = waits.least[number], waits.transfer[number], waits.setup[number]
        assert figures == (min(lengths), transfer, setup)
        each = [length - min(lengths) if len(ranks) > 1 else -1 for length in lengths]
        assert [waits.wait[row] for row in of_event] == each
        if len(ranks) > 1:
            for rank, one in zip(ranks, each, strict=True):
                sums_of = waited[step, rank]
                bubble = one if kind == "send" else 0
                for at, more in enumerate((one, one, max(setup, 0), bubble)):
                    sums_of[at] += more
            if is_complete:
                caused[last][0] += sum(each)
                caused[last][1] += 1
    assert not expected
    sums = sums_in_memory(matched, waits)
    assert sums.caused.T.tolist() == [caused[rank] for rank in run.ranks]
    assert {(step, matched.ranks[at]): [*one] for (step, at), one in sums.waits.items()} == waited
    found = match_sequences(run.partials)
    whole = add_up(found, key_sums(found))
    assert whole.caused.tolist() == sums.caused.tolist()
    assert whole.waits == sums.waits
    assert sorted(whole.collectives) == sorted(sums.collectives)
    # Ranks with common events, also through others, have a common clock.
    islands = {rank: {rank} for rank in run.ranks}
    for *_, times in run.events:
        joined = set().union(*(islands[rank] for rank in times))
        islands |= dict.fromkeys(joined, joined)
    clocks = align_clocks(matched)
    sizes = np.bincount(clocks.island).tolist()
    assert sizes == sorted(sizes, reverse=True)
    for one, other in combinations(range(len(run.ranks)), 2):
        pair = run.ranks[one], run.ranks[other]
        is_common = pair[1] in islands[pair[0]]
        assert (clocks.island[one] == clocks.island[other]) == is_common
        if is_common:
            apart = clocks.offset[one] - clocks.offset[other]
            assert apart == run.clock[pair[1]] - run.clock[pair[0]]
