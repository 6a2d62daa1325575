"""Waits and their sums equal those of a reference that looks at one event after the other."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, partials_of, simulate
from tests.cluster.test_matching import without_first
from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NO_VALUE
from unified_prof.cluster import clocks, waits
from unified_prof.cluster.matching import MatchedCollectives, match_collectives, match_sequences
from unified_prof.cluster.rank_communication import CoveredTime, cut_at_marks
from unified_prof.cluster.rank_partial import (
    COMMUNICATION_COLUMNS,
    STEP_COLUMNS,
    Partial,
    RankFacts,
    RankGroup,
    empty_columns,
)
from unified_prof.cluster.summary import summarize_run

PLAN = Plan(steps=3, setup_ns=1_000_000, slow={5: 1.3})


def matched_run(vendor: str, first: int = 0) -> MatchedCollectives:
    """Return a run in which rank 3 lacks its first operations, and the last rank is missing."""
    found = [
        without_first(one, first) if first and one.facts.rank == 3 else one
        for one in partials_of(simulate(PLAN), vendor=vendor)
    ]
    if first:
        found = found[:-1]
    return match_collectives(found)


def events_of(matched: MatchedCollectives) -> list[list[int]]:
    """Return the rows of each event."""
    rows = [list[int]() for _ in range(len(matched.events))]
    for row, event in enumerate(matched.rows.event[:].tolist()):
        if event >= 0:
            rows[event].append(row)
    return rows


def covered_before(one: Partial, at: int) -> float:
    """Return the time that kernels cover before a point in time, ns."""
    marks = {name: values.tolist() for name, values in one.marks.items()}
    total = 0.0
    for row, (time, lead, busy) in enumerate(
        zip(marks["time"], marks["lead"], marks["busy"], strict=True)
    ):
        until = time + lead + busy if row == len(marks["time"]) - 1 else marks["time"][row + 1]
        begin = time + lead
        end = max(until - marks["tail"][row], begin)
        if at >= end:
            total += busy
        elif at > begin:
            total += busy * (at - begin) / (end - begin)
    return total


CASES = [("huawei", 0), ("nvidia", 0), ("huawei", 5)]


@pytest.fixture(params=CASES, ids=["npu", "gpu", "incomplete"], scope="module")
def matched(request: pytest.FixtureRequest) -> MatchedCollectives:
    return matched_run(*request.param)


@pytest.mark.parametrize("block", [1 << 18, 7])
def test_waits_of_events_equal_the_reference(
    matched: MatchedCollectives, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_BLOCK", block)
    found, rows = waits.compute_waits(matched), matched.rows
    wait = [NO_VALUE] * len(rows)
    for event, members in enumerate(events_of(matched)):
        lengths = rows.length[members].tolist()
        least = min(lengths)
        last = members[lengths.index(least)]
        moved = min(int(rows.move[[last]][0]), least)
        expected = (last, least, least if moved < 0 else moved)
        assert (found.last[event], found.least[event], found.transfer[event]) == expected
        assert found.setup[event] == (NO_VALUE if moved < 0 else least - moved)
        if len(members) > 1:
            for row, length in zip(members, lengths, strict=True):
                wait[row] = length - least
    assert found.wait[:].tolist() == wait


def test_sums_of_a_run_equal_the_reference(matched: MatchedCollectives) -> None:
    rows, events = matched.rows, matched.events
    of_waits = waits.compute_waits(matched)
    by_step: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0] * 4)
    spans: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    collectives: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    caused = np.zeros((2, len(matched.ranks)), np.int64)
    for event, members in enumerate(events_of(matched)):
        is_transfer, setup = events.src[event] >= 0, max(int(of_waits.setup[event]), 0)
        complete, several = bool(events.complete[event]), len(members) > 1
        total = 0
        for row in members:
            rank, step = (int(column[[row]][0]) for column in (rows.rank, rows.step))
            wait = int(of_waits.wait[row])
            if not several:
                continue
            total += wait
            begin = int(rows.start[[row]][0])
            if step >= 0:
                by_step[step, rank][0] += wait
                by_step[step, rank][2] += setup
                spans[step, rank].append((begin, begin + wait, is_transfer))
        if complete and several:
            caused[:, int(rows.rank[[int(of_waits.last[event])]][0])] += total, 1
        if not is_transfer:
            columns = (events.group, events.kind, events.step, events.bytes)
            key = tuple(int(column[event]) for column in columns)
            figures = (int(of_waits.transfer[event]), total, setup, several, complete)
            collectives[key].append(figures)

    for (step, rank), of_cell in spans.items():
        one = matched.partials[rank]
        transfers = [span for span in of_cell if span[2]]
        by_step[step, rank][1] = exposed_union(one, of_cell)
        by_step[step, rank][3] = exposed_union(one, transfers)

    found = waits.sums_in_memory(matched, of_waits)
    np.testing.assert_array_equal(found.caused, caused)
    assert found.waits.keys() == by_step.keys()
    for cell, sums in by_step.items():
        assert found.waits[cell] == pytest.approx(sums, abs=40), cell
    expected = [summed(key, of_key) for key, of_key in sorted(collectives.items())]
    assert found.collectives == expected

    sequences = match_sequences(matched.partials)
    streamed = waits.add_up(sequences, waits.key_sums(sequences))
    np.testing.assert_array_equal(streamed.caused, caused)
    assert sorted(streamed.collectives) == expected
    for cell, sums in by_step.items():
        assert streamed.waits[cell][::2] == pytest.approx(sums[::2], abs=1), cell


def exposed_union(one: Partial, spans: list[tuple[int, int, bool]]) -> float:
    """Return the time in any of the spans that no kernel covers, ns."""
    edges = sorted({at for span in spans for at in span[:2]})
    return sum(
        max(end - begin - (covered_before(one, end) - covered_before(one, begin)), 0)
        for begin, end in pairwise(edges)
        if any(low <= begin and end <= high for low, high, _ in spans)
    )


def test_concurrent_waits_count_once() -> None:
    """Rank 0 waits for rank 1 in a send and a receive at once, and while a kernel runs."""
    kernels, late = [(0, 10), (60, 70)], [(0, 90), (100, 110)]
    send, receive = (10, 100), (20, 101)
    ranks = [
        rank_of(0, kernels, [("send", *send, 1), ("receive", *receive, 1)]),
        rank_of(1, late, [("receive", 90, 100, 0), ("send", 95, 101, 0)]),
    ]
    matched = match_collectives(ranks)
    of_waits = waits.compute_waits(matched)
    wait, exposed, _, bubble = waits.sums_in_memory(matched, of_waits).waits[0, 0]
    # The send waits from 10 to 90, and the receive from 20 to 95.
    assert (wait, exposed, bubble) == (155, 75, 75)


def rank_of(
    rank: int, kernels: list[tuple[int, int]], transfers: list[tuple[str, int, int, int]]
) -> Partial:
    """Return a rank with one step from 0 to 110, its kernels, and (kind, start, end, peer)."""
    kinds = ["receive", "send"]
    kind, start, end, peer = (list(column) for column in zip(*transfers, strict=True))
    operations = {
        name: np.full(len(transfers), NO_VALUE, np.int64) for name in COMMUNICATION_COLUMNS
    }
    count = np.zeros(len(transfers), np.int64)
    codes = np.array([kinds.index(one) for one in kind])
    operations |= {"kind": codes, "start": np.array(start), "end": np.array(end)}
    operations |= {"peer": np.array(peer), "group": count, "seq": count, "step": count}
    covered = CoveredTime(intervals.merge(*np.array(kernels, np.int64).T))
    steps = {name: np.zeros(1, np.int64) for name in STEP_COLUMNS} | {"end": np.array([110])}
    return Partial(
        RankFacts(rank, 2, steps_recorded=True),
        (RankGroup("pp", "pp", "", (0, 1)),),
        tuple(kinds),
        *((), (), operations, cut_at_marks(operations, steps, covered), steps),
        *(empty_columns("kernels"), empty_columns("links")),
    )


def summed(key: tuple[int, ...], events: list[tuple[int, ...]]) -> tuple[Any, ...]:
    """Return the row of `WholeSums.collectives` of some events."""
    usable = sorted(one for one in events if one[3])
    count, transfers = len(usable), [one[0] for one in usable]
    # The smallest value that at least a half, or 99 %, of the values do not exceed.
    quantiles = (
        next(v for n, v in enumerate(transfers, 1) if 100 * n >= share * count) if count else None
        for share in (50, 99)
    )
    sums = (sum(one[place] for one in usable) for place in range(3))
    return (*key, len(events), sum(one[4] for one in events), *sums, *quantiles)


def spread_of(values: Sequence[float]) -> float:
    """Return the deviation that a normal distribution with this median deviation has."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def test_differences_of_clocks_are_medians_of_pairs(matched: MatchedCollectives) -> None:
    ends = matched.rows.start[:] + matched.rows.length[:]
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for head, *others in events_of(matched):
        for other in others:
            pair = tuple(matched.rows.rank[[head, other]].tolist())
            differences[pair].append(int(ends[other] - ends[head]))
    found = clocks._edges(matched, np.zeros(len(matched.ranks)), 0)
    assert [*zip(found.a.tolist(), found.b.tolist(), strict=True)] == sorted(differences)
    spreads = {pair: spread_of(values) for pair, values in differences.items()}
    usual = median(spreads[pair] for pair, values in differences.items() if len(values) > 2)
    for at, (pair, values) in enumerate(sorted(differences.items())):
        assert found.difference[at] == median(values)
        error = max(spreads[pair], 200.0)
        error = max(error, usual) if len(values) <= 2 else error
        assert found.error[at] == pytest.approx(1.2533 * error / len(values) ** 0.5)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_sampled_events_are_evenly_spaced_and_include_the_last(count: int) -> None:
    sizes = [1, 2, 3, 7, 10, 11]
    chosen = clocks.sample_events([np.repeat(np.arange(len(sizes)), sizes)], count)
    edges = np.cumsum([0, *sizes]).tolist()
    for (low, high), size in zip(pairwise(edges), sizes, strict=True):
        step = -(-size // count)
        assert np.flatnonzero(chosen[low:high]).tolist() == sorted(
            {*range(0, size, step), size - 1}
        )


@pytest.mark.parametrize("vendor", ["huawei", "nvidia"])
def test_parts_of_steps_add_up(vendor: str) -> None:
    """All ranks are stages of pipelines, with several groups at once."""
    rows = summarize_run(partials_of(simulate(PLAN), vendor=vendor)).tables["STEP_RANK"]
    for _, _, start, end, compute, _, exposed, _, wait, _, bubble, _, idle in rows:
        assert compute + exposed + idle == end - start
        assert 0 <= bubble <= wait <= exposed
    assert any(row[10] for row in rows)
