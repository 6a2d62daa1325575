"""Planted faults are found with size and cost; a healthy run has no finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.cluster.made import Made, Plan, make, partials_of
from unified_prof.cluster import replay
from unified_prof.cluster.rank_partial import limit_to_first_steps
from unified_prof.cluster.rule_context import Segment, remove_excess
from unified_prof.cluster.summary import summarize_run
from unified_prof.recording.model import Finding


def findings_of(plan: Plan) -> tuple[list[Finding], Made]:
    made = make(plan)
    return summarize_run(partials_of(made)).findings, made


SOME = (3, 4, 5)


def true_cost_ms(plan: Plan, made: Made) -> float:
    healthy = make(replace(plan, slow={}, slow_links={}, slow_host=None, late={}, stops={}, hot={}))
    return (made.step_ns - healthy.step_ns) / 1e6


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_healthy_run_has_none(seed: int, noise: float) -> None:
    assert findings_of(Plan(seed=seed, noise=noise, setup_ns=2_000_000))[0] == []


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.3])
@pytest.mark.parametrize("rank", [0, 5, 15])
def test_a_slow_rank_with_its_factor_and_cost(rank: int, factor: float) -> None:
    plan = Plan(slow={rank: factor}, seed=rank, batches=4)
    found, made = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (rank,))]
    assert found[0].figures["factor"] == pytest.approx(factor, abs=0.015)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1, abs=0.02)
    assert found[0].hosts == (f"host{rank // 4}",)
    assert f"rank {rank} on host{rank // 4}" in found[0].text
    assert found[0].steps == (0, 1)


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(("buckets", "factor"), [(3, 1.6), (4, 1.3), (6, 1.3), (6, 1.6)])
@pytest.mark.parametrize("seed", range(2))
def test_what_it_costs_where_gradients_queue_up_beside_kernels(
    buckets: int, factor: float, seed: int
) -> None:
    plan = Plan(tp=2, dp=8, pp=2, per_host=8, slow={19: factor}, buckets=buckets, seed=seed)
    found, made = findings_of(plan)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.02)


def test_two_slow_ranks_are_two_findings_the_costlier_one_first() -> None:
    found, _ = findings_of(Plan(slow={3: 1.1, 12: 1.4}, tp=1, dp=8, pp=2))
    assert [one.ranks for one in found] == [(12,), (3,)]
    costs = [one.cost_ms_per_step for one in found]
    assert costs == sorted(costs, reverse=True)


def test_of_two_ranks_the_slow_one_is_told() -> None:
    found, made = findings_of(plan := Plan(tp=1, dp=2, pp=1, slow={1: 1.2}, steps=4, batches=6))
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (1,))]
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1)


def test_a_host_whose_ranks_all_compute_slowly_is_one_finding() -> None:
    slow = dict.fromkeys(range(4, 8), 1.2)
    found, _ = findings_of(Plan(slow=slow, dp=8, pp=1))
    assert [(one.kind, one.hosts, one.ranks) for one in found] == [
        ("slow_host", ("host1",), (4, 5, 6, 7))
    ]


@pytest.mark.parametrize(
    "plan", [Plan(slow_host=1), Plan(slow_host=1, tp=2, dp=2, pp=2), Plan(slow_host=0, dp=8)]
)
def test_a_host_that_launches_late(plan: Plan) -> None:
    found, made = findings_of(plan)
    host = f"host{plan.slow_host}"
    assert [(one.kind, one.hosts) for one in found] == [("slow_host", (host,))]
    assert found[0].figures["gap_us"] == pytest.approx(40, rel=0.05)
    assert found[0].figures["usual_gap_us"] == pytest.approx(1.5, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1)


def test_where_there_is_one_host_nobody_is_compared_with_it_but_the_device() -> None:
    found, _ = findings_of(Plan(tp=2, dp=2, pp=1, slow_host=0, batches=6))
    assert [(one.kind, one.hosts) for one in found] == [("slow_host", ("host0",))]
    assert "all 4 ranks are idle" in found[0].text


def test_late_input() -> None:
    found, made = findings_of(plan := Plan(late={6: 5_000_000}))
    assert [(one.kind, one.ranks) for one in found] == [("late_input", (6,))]
    assert found[0].figures["late_ms"] == pytest.approx(5, rel=0.01)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1)


def test_late_input_of_one_of_two() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, late={0: 5_000_000}, steps=4))
    assert [(one.kind, one.ranks) for one in found] == [("late_input", (0,))]


def test_input_that_is_late_everywhere() -> None:
    found, _ = findings_of(Plan(late=dict.fromkeys(range(16), 20_000_000)))
    assert [(one.kind, len(one.ranks)) for one in found] == [("late_input", 16)]


def test_a_slow_link_between_pipeline_stages() -> None:
    plan = Plan(slow_links={(2, 10): 3.0}, batches=4)
    found, made = findings_of(plan)
    assert [(one.kind, one.ranks, one.links) for one in found] == [
        ("slow_link", (2, 10), ((2, 10),))
    ]
    assert found[0].figures["factor"] == pytest.approx(3, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1, abs=0.02)


@pytest.mark.parametrize("groups", [3, 4, 5])
def test_of_few_groups_the_one_with_a_slow_link_is_told(groups: int) -> None:
    found, _ = findings_of(
        Plan(tp=groups, dp=4, pp=1, per_host=8, slow_links={(1, 1 + groups): 3.0})
    )
    assert [(one.kind, one.ranks) for one in found] == [
        ("slow_link", tuple(range(1, 4 * groups, groups)))
    ]


def test_a_slow_link_within_a_group_of_more_names_the_group_and_says_so() -> None:
    found, _ = findings_of(Plan(tp=4, dp=4, pp=1, slow_links={(5, 6): 3.0}))
    assert [(one.kind, one.ranks) for one in found] == [("slow_link", (4, 5, 6, 7))]
    assert "cannot be determined" in found[0].text
    assert found[0].figures["link_known"] is False


@pytest.mark.parametrize(
    "change",
    [{"slow": {5: 1.2}}, {"slow_host": 2}, {"late": {9: 4_000_000}}],
    ids=["slow_rank", "slow_host", "late_input"],
)
def test_it_is_the_same_whatever_device_recorded(change: Mapping[str, object]) -> None:
    made = make(replace(Plan(), **change))  # type: ignore[arg-type]
    npu = summarize_run(partials_of(made)).findings
    gpu = summarize_run(partials_of(made, vendor="nvidia")).findings
    assert npu == gpu
    assert len(npu) == 1


@pytest.mark.parametrize("absent", [(3, 5), (1,), (6, 7, 8)])
def test_ranks_that_are_missing_hide_neither_the_fault_nor_what_it_costs(
    absent: tuple[int, ...],
) -> None:
    made = make(plan := Plan(tp=2, dp=4, pp=2, slow={10: 1.2}, batches=4))
    found = [one for one in partials_of(made) if one.facts.rank not in absent]
    summary = summarize_run(found)
    assert [(one.kind, one.ranks) for one in summary.findings] == [("slow_rank", (10,))]
    cost = summary.findings[0].cost_ms_per_step
    assert cost == pytest.approx(true_cost_ms(plan, made), rel=0.25)


def test_one_of_three_with_the_same_work_is_told() -> None:
    made = make(Plan(tp=2, dp=2, pp=2, slow={6: 1.2}))
    found = [one for one in partials_of(made) if one.facts.rank not in (3, 5)]
    assert [one.ranks for one in summarize_run(found).findings] == [(6,)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_healthy_run_of_many_steps_has_none(seed: int, noise: float) -> None:
    assert findings_of(Plan(seed=seed, noise=noise, steps=12, setup_ns=2_000_000))[0] == []
    assert findings_of(Plan(tp=1, dp=2, pp=1, seed=seed, noise=noise, steps=12))[0] == []


@pytest.mark.parametrize("only", [SOME, (7,), (0,), (0, 2, 4, 6, 8)])
def test_a_rank_that_is_slow_in_some_steps(only: tuple[int, ...]) -> None:
    plan = Plan(slow={5: 1.3}, steps=10, only=only, batches=4)
    found, made = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_rank", (5,), only)]
    assert found[0].figures["factor"] == pytest.approx(1.3, abs=0.02)
    true = true_cost_ms(plan, made)
    assert found[0].cost_ms_per_step == pytest.approx(true, rel=0.1)
    each = found[0].figures["cost_ms_in_these_steps"]
    assert each == pytest.approx(true * 10 / len(only), rel=0.1)
    assert f"costs {each:.3g} ms in each of these steps" in found[0].text


def test_steps_are_named_in_words() -> None:
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=10, only=SOME, batches=4))
    assert "rank 5 on host1: its kernels take 1.3" in found[0].text
    assert "in steps 3, 4 and 5" in found[0].text
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=10, only=(7,), batches=4))
    assert "times as long in step 7 as those" in found[0].text
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=14, only=(0, 2, 4, 6, 8, 10), batches=4))
    assert "as long in 6 of 14 steps (0, 2, 4, 6, 8, ...) as those" in found[0].text


def test_one_of_two_ranks_that_is_slow_in_some_steps() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, slow={1: 1.2}, steps=10, only=SOME, batches=6))
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_rank", (1,), SOME)]


def test_a_host_that_computes_slowly_in_some_steps() -> None:
    slow = dict.fromkeys(range(4, 8), 1.2)
    found, _ = findings_of(Plan(slow=slow, dp=8, pp=1, steps=8, only=SOME))
    assert [(one.kind, one.hosts, one.steps) for one in found] == [("slow_host", ("host1",), SOME)]


@pytest.mark.parametrize("only", [SOME, (7,), (0, 1, 2, 3, 4, 5, 6)])
def test_a_link_that_is_slow_in_some_steps(only: tuple[int, ...]) -> None:
    plan = Plan(slow_links={(2, 10): 3.0}, batches=4, steps=10, only=only)
    found, made = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_link", (2, 10), only)]
    assert found[0].figures["factor"] == pytest.approx(3, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1, abs=0.01)


def test_the_only_link_is_compared_with_itself() -> None:
    plan = Plan(tp=1, dp=1, pp=2, slow_links={(0, 1): 3.0}, batches=4, steps=10, only=SOME)
    found, _ = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_link", (0, 1), SOME)]


def test_a_link_within_a_group_that_is_slow_in_some_steps() -> None:
    found, _ = findings_of(Plan(tp=4, dp=4, pp=1, slow_links={(5, 6): 3.0}, steps=8, only=SOME))
    assert [(one.kind, one.ranks, one.steps) for one in found] == [
        ("slow_link", (4, 5, 6, 7), SOME)
    ]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(
    "change",
    [{"slow": {5: 1.3}}, {"slow_links": {(2, 10): 3.0}}, {"late": {6: 5_000_000}}],
    ids=["slow_rank", "slow_link", "late_input"],
)
def test_steps_beyond_those_that_are_walked_cost_what_they_cost(
    change: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(Plan(steps=10, only=(7, 8), batches=4), **change)  # type: ignore[arg-type]
    whole, _ = findings_of(plan)
    monkeypatch.setattr(replay, "_MAX_OPERATIONS", 1_500)
    found, made = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [
        (one.kind, one.ranks, (7, 8)) for one in whole
    ]
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1, abs=0.02)


def test_steps_whose_communication_is_not_held_have_a_bound() -> None:
    made = make(Plan(slow={5: 1.3}, steps=10, only=(7, 8), batches=4))
    parts = partials_of(made)
    first = [limit_to_first_steps(one, 40) for one in parts]
    until = first[0].until
    assert until is not None
    found = summarize_run(first, until=until).findings
    assert [(one.kind, one.steps) for one in found] == [("slow_rank", (7, 8))]
    assert "costs at most" in found[0].text
    exact = summarize_run(parts).findings[0].cost_ms_per_step
    assert exact <= found[0].cost_ms_per_step < 4 * exact


PLACES = {
    "begin": "at the start of the step",
    "kernels": "between kernels before its all_reduce (tp)",
    "collective": "before its all_reduce (world)",
}


@pytest.mark.quick(cases=5)
@pytest.mark.parametrize("where", ["begin", "kernels", "collective"])
@pytest.mark.parametrize("only", [None, (3,), (1, 4)])
@pytest.mark.parametrize("rank", [0, 6, 15])
def test_a_rank_that_is_late_for_no_reason_that_is_recorded(
    where: str, only: tuple[int, ...] | None, rank: int
) -> None:
    plan = Plan(stops={rank: 5_000_000}, stop_where=where, steps=6, only=only)
    found, made = findings_of(plan)
    steps = tuple(range(6)) if only is None else only
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("late_rank", (rank,), steps)]
    assert found[0].figures["late_ms"] == pytest.approx(5, rel=0.02)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1)
    assert "the cause is not recorded" in found[0].text
    assert found[0].figures["where"] == PLACES[where]


def test_a_late_rank_whose_loader_was_not_recorded_may_wait_for_input() -> None:
    found, _ = findings_of(Plan(stops={6: 5_000_000}, loader=False))
    assert [(one.kind, one.ranks) for one in found] == [("late_rank", (6,))]
    assert "no data loader was recorded" in found[0].text


def test_a_late_rank_of_two() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, stops={1: 5_000_000}, steps=6))
    assert [(one.kind, one.ranks) for one in found] == [("late_rank", (1,))]
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, stops={1: 5_000_000}, steps=6, only=(2,)))
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("late_rank", (1,), (2,))]


@pytest.mark.parametrize("seed", range(3))
def test_without_a_recorded_loader_a_healthy_run_is_healthy(seed: int) -> None:
    assert findings_of(Plan(seed=seed, noise=0.05, steps=6, loader=False))[0] == []


MOE = Plan(tp=1, dp=8, pp=1, ep=4, steps=4, uneven=0.08)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "plan", [MOE, replace(MOE, pp=2), replace(MOE, ep=8, steps=1), replace(MOE, padded=True)]
)
def test_experts_that_differ_by_nature_are_no_fault(plan: Plan, seed: int) -> None:
    assert findings_of(replace(plan, seed=seed))[0] == []


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("hot", [{5: 2.0}, {0: 1.6}, {1: 2.0, 5: 2.0}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("pp", [1, 2])
def test_experts_that_get_more_tokens(hot: dict[int, float], padded: bool, pp: int) -> None:
    plan = replace(MOE, hot=hot, padded=padded, pp=pp)
    found, made = findings_of(plan)
    assert [(one.kind, sorted(one.ranks)) for one in found] == [("expert_imbalance", sorted(hot))]
    share = max(hot.values()) / ((max(hot.values()) + 3) / 4)
    assert found[0].figures["load"] == pytest.approx(share, rel=0.07)
    assert found[0].figures["work"] == pytest.approx(share, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, made), rel=0.1)


def test_a_slow_rank_among_experts_is_a_slow_rank() -> None:
    found, _ = findings_of(replace(MOE, slow={5: 1.3}, batches=4))
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (5,))]


def test_experts_that_get_more_now_and_then_are_no_fault() -> None:
    assert findings_of(replace(MOE, hot={5: 1.8}, steps=8, only=(2, 5)))[0] == []


def test_excess_is_removed_from_the_parts_of_a_segment_by_their_length() -> None:
    segments = [Segment(20, ((3, 30), (4, 10))), Segment(60, ((5, 80),))]
    assert remove_excess(1, segments, 40) == {(1, 3): 7.5, (1, 4): 2.5, (1, 5): 30}
