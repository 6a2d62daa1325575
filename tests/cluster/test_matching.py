"""Rows of ranks become events by ranks, kind and number, never by name; gaps are noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.cluster.made import Made, Plan, make, partial_of, partials_of
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.matching import MatchedCollectives, match_collectives, sequence_shift
from unified_prof.cluster.rank_partial import NO_VALUE, Partial, RankGroup
from unified_prof.cluster.summary import summarize_run
from unified_prof.cluster.summary_rows import P2P, measure_links
from unified_prof.cluster.waits import compute_waits

PLAN = Plan(steps=3, setup_ns=1_000_000, slow={5: 1.3})


@pytest.fixture(scope="module")
def made() -> Made:
    return make(PLAN)


def waited(matched: MatchedCollectives) -> dict[int, int]:
    known = compute_waits(matched).wait
    sums = np.zeros(len(matched.ranks), np.int64)
    np.add.at(sums, matched.rows.rank[known >= 0], known[known >= 0])
    return dict(zip(matched.ranks, sums.tolist(), strict=True))


def test_everything_is_matched_and_waiting_is_as_planted(made: Made) -> None:
    matched = match_collectives(partials_of(made))
    assert matched.events.complete.all()
    assert len(matched.events) * 2 <= len(matched.rows)
    assert (matched.rows.event >= 0).all()
    found = waited(matched)
    mean = float(np.mean(made.wait))
    for rank, wait in enumerate(made.wait):
        assert abs(found[rank] - wait) < 0.02 * max(wait, mean)


def test_setup_is_neither_waiting_nor_moving_and_told_only_where_parts_are(made: Made) -> None:
    matched = match_collectives(partials_of(made))
    found = compute_waits(matched)
    groups = sum(kind != "pp" for kind in made.groups.values())
    assert found.setup.sum() == pytest.approx(groups * PLAN.setup_ns, rel=0.02)
    gpu = compute_waits(match_collectives(partials_of(made, vendor="nvidia")))
    assert (gpu.setup == NO_VALUE).all()


def rename(change: Callable[[RankGroup, int], RankGroup]) -> Callable[[Partial], Partial]:
    def renamed(one: Partial) -> Partial:
        return replace(one, groups=tuple(change(g, one.facts.rank) for g in one.groups))

    return renamed


@pytest.mark.parametrize(
    "change",
    [
        rename(lambda group, _: replace(group, name="0")),  # all collide
        rename(lambda group, rank: replace(group, name=f"{rank}-{group.ranks}")),  # all differ
        rename(lambda group, _: replace(group, name="", title="")),
    ],
    ids=["names collide", "names differ by rank", "no names"],
)
def test_names_of_groups_do_not_matter(made: Made, change: Callable[[Partial], Partial]) -> None:
    plain = partials_of(made)
    assert waited(match_collectives([change(one) for one in plain])) == waited(
        match_collectives(plain)
    )


def later(one: Partial, first: int) -> Partial:
    """Return a recording that began with the operation `first`."""
    count = len(one.communication["start"])
    kept = {name: values[first:].copy() for name, values in one.communication.items()}
    key = kept["group"] * 64 + kept["kind"] * 8
    for value in np.unique(key):
        mine = key == value
        kept["seq"][mine] -= kept["seq"][mine].min()
    marks = one.marks
    inside = (marks["op"] >= first) | (marks["what"] == 2)
    shown = {name: values[inside].copy() for name, values in marks.items()}
    shown["op"] = np.where(shown["what"] == 2, shown["op"], shown["op"] - first)
    assert count > first
    return replace(one, communication=kept, marks=shown)


def test_sequences_without_steps_are_shifted_to_where_their_sizes_agree() -> None:
    step, size = np.full(50, NO_VALUE), np.random.default_rng(1).integers(1, 100, 50)
    assert sequence_shift([step, step[7:]], [size, size[7:]]) == [0, 7]


@pytest.mark.parametrize("rank", [0, 5, 13])
@pytest.mark.parametrize("first", [1, 7])
def test_a_recording_that_began_later_is_shifted_into_place(
    made: Made, rank: int, first: int
) -> None:
    plain = partials_of(made)
    cut = [later(one, first) if one.facts.rank == rank else one for one in plain]
    matched = match_collectives(cut)
    assert dict(matched.left_out.items()) == {}
    whole = waited(match_collectives(plain))
    others = waited(matched)
    # Events with its missing operations are incomplete; all others are unchanged.
    assert (~matched.events.complete).sum() == first
    for one, wait in others.items():
        assert wait <= whole[one]
    mine = matched.rows.rank == rank
    assert (matched.rows.event[mine] >= 0).all()
    assert matched.events.complete[matched.rows.event[mine]].all()


def test_sequences_that_fit_nowhere_are_left_out_and_named(made: Made) -> None:
    plain = partials_of(made)
    sizes = plain[0].communication["bytes"].copy()
    sizes[:] = np.arange(len(sizes)) + 1
    steps = np.full(len(sizes), NO_VALUE)
    odd = replace(plain[0], communication={**plain[0].communication, "bytes": sizes, "step": steps})
    matched = match_collectives([odd, *plain[1:]])
    (name, (count, words)), *_ = matched.left_out.items()
    assert name == "sequences_do_not_fit"
    assert count > 0
    assert "ranks 0" in words or "rank 0" in words


def test_collectives_with_members_missing_are_partial_and_blame_nobody(made: Made) -> None:
    matched = match_collectives([one for one in partials_of(made) if one.facts.rank != 3])
    with_three = [at for at, group in enumerate(matched.groups) if 3 in group.ranks]
    affected = np.isin(matched.events.group, with_three) & ~matched.transfers
    assert not matched.events.complete[affected].any()
    assert matched.events.complete[~affected & ~matched.transfers].all()
    summary = summarize_run(partial_of(made, rank) for rank in range(16) if rank != 3)
    assert summary.absent == (3,)
    times = {row[0]: row[2] for row in summary.tables["BLAME"]}
    assert sum(times.values()) == int(matched.events.complete.sum())


def test_clocks_agree_within_two_microseconds(made: Made) -> None:
    found = align_clocks(match_collectives(partials_of(made)))
    assert set(found.island.tolist()) == {0}
    true = np.array([-made.clock[PLAN.host(rank)] for rank in range(PLAN.world)])
    away = found.offset - true
    assert np.abs(away - np.median(away)).max() < 2_000
    assert found.error.max() < 2_000


def test_ranks_that_share_nothing_are_islands() -> None:
    made = make(Plan(tp=2, dp=1, pp=1, steps=2))
    other = make(Plan(tp=2, dp=1, pp=1, steps=2, seed=1))
    moved = []
    for one in partials_of(other):
        groups = tuple(replace(g, ranks=(2, 3)) for g in one.groups)
        facts = replace(one.facts, rank=one.facts.rank + 2, host="elsewhere")
        moved.append(replace(one, facts=facts, groups=groups))
    found = align_clocks(match_collectives([*partials_of(made), *moved]))
    assert found.island.tolist() == [0, 0, 1, 1]


def test_groups_without_ranks_are_matched_by_name_and_not_called_complete(made: Made) -> None:
    untold = [
        replace(
            one,
            groups=tuple(
                replace(g, ranks=(), size=NO_VALUE) for g in one.groups if g.kind == "world"
            ),
            communication={
                name: values[one.communication["bytes"] == 4096]
                for name, values in one.communication.items()
            },
        )
        for one in partials_of(made)[:2]
    ]
    for one in untold:
        one.communication["group"][:] = 0
    matched = match_collectives(untold)
    assert len(matched.events) == PLAN.steps
    assert matched.events.members.tolist() == [2] * PLAN.steps
    assert not matched.events.complete.any()
    assert (compute_waits(matched).wait >= 0).all()


def test_the_slowest_hundredth_of_the_transfers_of_a_link_is_below_its_p99() -> None:
    matched = match_collectives(partials_of(make(Plan(tp=1, dp=2, steps=3, batches=50))))
    waits = compute_waits(matched)
    waits = replace(waits, transfer=waits.transfer + np.arange(len(waits.transfer)) * 100)
    there, back = (link for link in measure_links(matched, waits) if link.kind == P2P)
    events = matched.events
    for link in (there, back):
        of_link = matched.transfers & (events.src == link.src) & (events.dst == link.dst)
        rates = np.sort(events.bytes[of_link] / waits.transfer[of_link])
        assert (link.n, link.p50, link.p99) == (150, rates[75], rates[1])
