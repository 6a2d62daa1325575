"""Operations of ranks are matched by ranks, kind and number, not by name."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, SimulatedRun, partials_of, simulate
from unified_prof.arrays.grouping import NO_VALUE
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.matching import MatchedCollectives, match_collectives, sequence_shift
from unified_prof.cluster.rank_partial import Partial, RankGroup
from unified_prof.cluster.summary_rows import P2P, measure_links
from unified_prof.cluster.waits import compute_waits

PLAN = Plan(steps=3, setup_ns=1_000_000, slow={5: 1.3})


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    return simulate(PLAN)


def wait_by_rank(matched: MatchedCollectives) -> dict[int, int]:
    known = compute_waits(matched).wait
    sums = np.zeros(len(matched.ranks), np.int64)
    np.add.at(sums, matched.rows.rank[known >= 0], known[known >= 0])
    return dict(zip(matched.ranks, sums.tolist(), strict=True))


def test_setup_time_is_separate_and_known_only_on_npus(run: SimulatedRun) -> None:
    matched = match_collectives(partials_of(run))
    found = compute_waits(matched)
    groups = sum(kind != "pp" for kind in run.groups.values())
    assert found.setup.sum() == pytest.approx(groups * PLAN.setup_ns, rel=0.02)
    gpu = compute_waits(match_collectives(partials_of(run, vendor="nvidia")))
    assert (gpu.setup == NO_VALUE).all()


def with_groups(change: Callable[[RankGroup, int], RankGroup]) -> Callable[[Partial], Partial]:
    def changed(one: Partial) -> Partial:
        return replace(one, groups=tuple(change(g, one.facts.rank) for g in one.groups))

    return changed


@pytest.mark.parametrize(
    "change",
    [
        with_groups(lambda group, _: replace(group, name="0")),
        with_groups(lambda group, rank: replace(group, name=f"{rank}-{group.ranks}")),
        with_groups(lambda group, _: replace(group, name="", title="")),
    ],
    ids=["names collide", "names differ by rank", "no names"],
)
def test_group_names_do_not_affect_the_matching(
    run: SimulatedRun, change: Callable[[Partial], Partial]
) -> None:
    plain = partials_of(run)
    changed = match_collectives([change(one) for one in plain])
    assert wait_by_rank(changed) == wait_by_rank(match_collectives(plain))


def without_first(one: Partial, first: int) -> Partial:
    """Return the recording without its first operations."""
    count = len(one.communication["start"])
    kept = {name: values[first:].copy() for name, values in one.communication.items()}
    key = kept["group"] * 64 + kept["kind"] * 8
    for value in np.unique(key):
        rows = key == value
        kept["seq"][rows] -= kept["seq"][rows].min()
    marks = one.marks
    inside = (marks["op"] >= first) | (marks["what"] == 2)
    kept_marks = {name: values[inside].copy() for name, values in marks.items()}
    kept_marks["op"] = np.where(kept_marks["what"] == 2, kept_marks["op"], kept_marks["op"] - first)
    assert count > first
    return replace(one, communication=kept, marks=kept_marks)


def test_sequences_without_steps_are_shifted_until_their_sizes_agree() -> None:
    step, size = np.full(50, NO_VALUE), np.random.default_rng(1).integers(1, 100, 50)
    assert sequence_shift([step, step[7:]], [size, size[7:]]) == [0, 7]


@pytest.mark.parametrize("rank", [0, 5, 13])
@pytest.mark.parametrize("first", [1, 7])
def test_recording_that_starts_later_is_shifted(run: SimulatedRun, rank: int, first: int) -> None:
    plain = partials_of(run)
    cut = [without_first(one, first) if one.facts.rank == rank else one for one in plain]
    matched = match_collectives(cut)
    assert dict(matched.left_out.items()) == {}
    whole = wait_by_rank(match_collectives(plain))
    others = wait_by_rank(matched)
    # Events that lack its first operations are incomplete; all others are unchanged.
    assert (~matched.events.complete).sum() == first
    for one, wait in others.items():
        assert wait <= whole[one]
    of_rank = matched.rows.rank == rank
    assert (matched.rows.event[of_rank] >= 0).all()
    assert matched.events.complete[matched.rows.event[of_rank]].all()


def test_sequences_that_match_nowhere_are_left_out_and_reported(run: SimulatedRun) -> None:
    plain = partials_of(run)
    sizes = plain[0].communication["bytes"].copy()
    sizes[:] = np.arange(len(sizes)) + 1
    steps = np.full(len(sizes), NO_VALUE)
    odd = replace(plain[0], communication={**plain[0].communication, "bytes": sizes, "step": steps})
    matched = match_collectives([odd, *plain[1:]])
    (name, (count, words)), *_ = matched.left_out.items()
    assert name == "sequences_do_not_fit"
    assert count > 0
    assert "ranks 0" in words or "rank 0" in words


def test_clocks_agree_within_two_microseconds(run: SimulatedRun) -> None:
    found = align_clocks(match_collectives(partials_of(run)))
    assert set(found.island.tolist()) == {0}
    true = np.array([-run.clock[PLAN.host(rank)] for rank in range(PLAN.world)])
    away = found.offset - true
    assert np.abs(away - np.median(away)).max() < 2_000
    assert found.error.max() < 2_000


def test_groups_without_ranks_are_matched_by_name_and_incomplete(run: SimulatedRun) -> None:
    without_ranks = [
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
        for one in partials_of(run)[:2]
    ]
    for one in without_ranks:
        one.communication["group"][:] = 0
    matched = match_collectives(without_ranks)
    assert len(matched.events) == PLAN.steps
    assert matched.events.members.tolist() == [2] * PLAN.steps
    assert not matched.events.complete.any()
    assert (compute_waits(matched).wait >= 0).all()


def test_p99_bandwidth_of_a_link_is_exceeded_by_99_percent_of_its_transfers() -> None:
    matched = match_collectives(partials_of(simulate(Plan(tp=1, dp=2, steps=3, batches=50))))
    waits = compute_waits(matched)
    waits = replace(waits, transfer=waits.transfer + np.arange(len(waits.transfer)) * 100)
    there, back = (link for link in measure_links(matched, waits) if link.kind == P2P)
    events = matched.events
    for link in (there, back):
        of_link = matched.transfers & (events.src == link.src) & (events.dst == link.dst)
        rates = np.sort(events.bytes[of_link] / waits.transfer[of_link])
        assert (link.n, link.p50, link.p99) == (150, rates[75], rates[1])
