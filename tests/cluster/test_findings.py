"""Faults of simulated runs are found with size and cost; healthy runs have no finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, SimulatedRun, partials_of, simulate
from unified_prof.cluster import findings, idle_rules, moe_imbalance, replay
from unified_prof.cluster.rank_communication import link_parts
from unified_prof.cluster.rank_partial import (
    MARK_END,
    MARK_START,
    MARK_STEP,
    partial_to_parquet,
    read_first_steps,
)
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import Candidate, RuleContext, Segment, remove_excess
from unified_prof.cluster.summary import summarize_run
from unified_prof.recording.model import Finding


def findings_of(plan: Plan) -> tuple[list[Finding], SimulatedRun]:
    run = simulate(plan)
    return summarize_run(partials_of(run)).findings, run


SOME = (3, 4, 5)


def true_cost_ms(plan: Plan, run: SimulatedRun) -> float:
    healthy = simulate(
        replace(plan, slow={}, slow_links={}, slow_host=None, late={}, stops={}, hot={}, moving=0)
    )
    return (run.step_ns - healthy.step_ns) / 1e6


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_healthy_run_has_no_finding(seed: int, noise: float) -> None:
    assert findings_of(Plan(seed=seed, noise=noise, setup_ns=2_000_000))[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.05, 1.1, 1.3])
@pytest.mark.parametrize("rank", [0, 5, 15])
def test_slow_rank_is_found_with_its_factor_and_cost(rank: int, factor: float) -> None:
    plan = Plan(slow={rank: factor}, seed=rank, batches=4)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (rank,))]
    assert found[0].figures["factor"] == pytest.approx(factor, abs=0.015)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1, abs=0.02)
    assert found[0].hosts == (f"host{rank // 4}",)
    assert f"rank {rank} on host{rank // 4}" in found[0].text
    assert found[0].steps == (0, 1)


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(("buckets", "factor"), [(3, 1.6), (4, 1.3), (6, 1.3), (6, 1.6)])
@pytest.mark.parametrize("seed", range(2))
def test_cost_of_a_slow_rank_is_exact_under_overlap(buckets: int, factor: float, seed: int) -> None:
    plan = Plan(tp=2, dp=8, pp=2, per_host=8, slow={19: factor}, buckets=buckets, seed=seed)
    found, run = findings_of(plan)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.02)


def test_two_slow_ranks_are_sorted_by_cost() -> None:
    found, _ = findings_of(Plan(slow={3: 1.1, 12: 1.4}, tp=1, dp=8, pp=2))
    assert [one.ranks for one in found] == [(12,), (3,)]
    costs = [one.cost_ms_per_step for one in found]
    assert costs == sorted(costs, reverse=True)


def test_slow_rank_of_two_is_identified() -> None:
    found, run = findings_of(plan := Plan(tp=1, dp=2, pp=1, slow={1: 1.2}, steps=4, batches=6))
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (1,))]
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


def test_host_with_slow_kernels_on_all_ranks_is_one_finding() -> None:
    slow = dict.fromkeys(range(4, 8), 1.2)
    found, _ = findings_of(Plan(slow=slow, dp=8, pp=1))
    (host,) = found
    assert (host.kind, host.hosts, host.ranks) == ("slow_host", ("host1",), (4, 5, 6, 7))


@pytest.mark.parametrize(
    "plan", [Plan(slow_host=1), Plan(slow_host=1, tp=2, dp=2, pp=2), Plan(slow_host=0, dp=8)]
)
def test_host_with_slow_launches_is_found(plan: Plan) -> None:
    found, run = findings_of(plan)
    host = f"host{plan.slow_host}"
    assert [(one.kind, one.hosts) for one in found] == [("host_bound", (host,))]
    assert found[0].figures["gap_us"] == pytest.approx(40, rel=0.05)
    assert found[0].figures["usual_gap_us"] == pytest.approx(1.5, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


def test_slow_launches_on_the_only_host_are_found_by_device_idle_time() -> None:
    found, _ = findings_of(Plan(tp=2, dp=2, pp=1, slow_host=0, batches=6))
    assert [(one.kind, one.hosts) for one in found] == [("host_bound", ("host0",))]
    assert "all ranks are idle" in found[0].text


def test_late_input_of_a_rank_is_found_with_its_cost() -> None:
    found, run = findings_of(plan := Plan(late={6: 5_000_000}))
    assert [(one.kind, one.ranks) for one in found] == [("late_input", (6,))]
    assert found[0].figures["late_ms"] == pytest.approx(5, rel=0.01)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


def test_late_input_of_one_of_two_ranks_is_identified() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, late={0: 5_000_000}, steps=4))
    assert [(one.kind, one.ranks) for one in found] == [("late_input", (0,))]


def test_late_input_of_all_ranks_is_one_finding() -> None:
    found, _ = findings_of(Plan(late=dict.fromkeys(range(16), 20_000_000)))
    assert [(one.kind, len(one.ranks)) for one in found] == [("late_input", 16)]


def test_slow_link_between_pipeline_stages_is_found_with_its_cost() -> None:
    plan = Plan(slow_links={(2, 10): 3.0}, batches=4)
    found, run = findings_of(plan)
    (link,) = found
    assert (link.kind, link.ranks, link.links) == ("slow_link", (2, 10), ((2, 10),))
    assert found[0].figures["factor"] == pytest.approx(3, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1, abs=0.02)


@pytest.mark.parametrize("groups", [3, 4, 5])
def test_group_with_a_slow_link_is_found_among_few_groups(groups: int) -> None:
    plan = Plan(tp=groups, dp=4, pp=1, per_host=8, slow_links={(1, 1 + groups): 3.0})
    ranks = tuple(range(1, 4 * groups, groups))
    assert [(one.kind, one.ranks) for one in findings_of(plan)[0]] == [("slow_link", ranks)]


def test_slow_link_within_a_larger_group_names_the_group() -> None:
    found, _ = findings_of(Plan(tp=4, dp=4, pp=1, slow_links={(5, 6): 3.0}))
    assert [(one.kind, one.ranks) for one in found] == [("slow_link", (4, 5, 6, 7))]
    assert "cannot be determined" in found[0].text
    assert found[0].figures["link_known"] is False


@pytest.mark.parametrize(
    ("slow", "size", "found"),
    [
        ([(1, 2), (2, 1)], 2 << 20, ((1, 2), 1)),
        ([(rank, 3) for rank in range(3)], 2 << 20, ((3,), 3)),
        ([(1, 2), (2, 1)], 64 << 10, None),  # latency dominates small parts
        ([], 2 << 20, None),
    ],
    ids=["pair", "rank", "small", "healthy"],
)
def test_parts_of_collectives_locate_a_slow_link_of_the_only_group(
    slow: Sequence[tuple[int, int]], size: int, found: tuple[tuple[int, ...], int] | None
) -> None:
    plan = Plan(tp=4, dp=1, pp=1, slow_links={(1, 2): 4.0} if slow else {})
    run = simulate(plan)
    pairs = np.array([(a, b) for a in range(4) for b in range(4) if a != b] * 10)
    took = np.array([size // (5 if tuple(pair) in slow else 20) for pair in pairs.tolist()])
    links = link_parts(pairs[:, 0], pairs[:, 1], np.full(len(pairs), size), took)
    faults = summarize_run([replace(one, links=links) for one in partials_of(run)]).findings
    assert [(one.kind, one.ranks, len(one.links)) for one in faults] == (
        [("slow_link", *found)] if found else []
    )
    for one in faults:
        assert one.figures["factor"] == pytest.approx(4, rel=0.01)
        assert one.cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


@pytest.mark.parametrize(
    "change",
    [{"slow": {5: 1.2}}, {"slow_host": 2}, {"late": {9: 4_000_000}}],
    ids=["slow_rank", "slow_host", "late_input"],
)
def test_findings_of_npu_and_gpu_recordings_are_equal(change: Mapping[str, object]) -> None:
    run = simulate(replace(Plan(), **change))  # type: ignore[arg-type]
    npu = summarize_run(partials_of(run)).findings
    gpu = summarize_run(partials_of(run, vendor="nvidia")).findings
    assert npu == gpu
    assert len(npu) == 1


def test_cost_is_per_compared_step_if_a_recording_starts_late() -> None:
    run = simulate(plan := Plan(tp=1, dp=8, pp=1, slow={5: 1.2}, steps=8, batches=8))
    begin = run.steps[3][4][0]
    run.kernels[3] = [one for one in run.kernels[3] if one[0] >= begin]
    run.operations[3] = [one for one in run.operations[3] if one["start"] >= begin]
    run.steps[3] = run.steps[3][4:]
    found = partials_of(run)
    for part in (found[3].steps, found[3].kernels, found[3].communication):
        part["step"][:] += 4
    (one,) = summarize_run(found).findings
    assert (one.kind, one.ranks, one.steps) == ("slow_rank", (5,), (4, 5, 6, 7))
    assert one.cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


@pytest.mark.parametrize(("slow", "kinds"), [({}, []), ({5: 1.3}, [("waits_for_absent", (5,))])])
def test_absent_rank_of_all_groups_is_named_if_others_wait_for_it(
    slow: dict[int, float], kinds: list[tuple[str, tuple[int, ...]]]
) -> None:
    run = simulate(Plan(tp=1, dp=8, pp=1, slow=slow, steps=6, batches=8, buckets=4))
    found = summarize_run([one for one in partials_of(run) if one.facts.rank != 5]).findings
    assert [(one.kind, one.ranks) for one in found] == kinds


@pytest.mark.parametrize("absent", [(3, 5), (1,), (6, 7, 8)])
def test_missing_ranks_hide_neither_the_fault_nor_its_cost(absent: tuple[int, ...]) -> None:
    run = simulate(plan := Plan(tp=2, dp=4, pp=2, slow={10: 1.2}, batches=4))
    found = [one for one in partials_of(run) if one.facts.rank not in absent]
    summary = summarize_run(found)
    assert [(one.kind, one.ranks) for one in summary.findings] == [("slow_rank", (10,))]
    cost = summary.findings[0].cost_ms_per_step
    assert cost == pytest.approx(true_cost_ms(plan, run), rel=0.25)


def test_slow_rank_of_three_with_equal_work_is_identified() -> None:
    run = simulate(Plan(tp=2, dp=2, pp=2, slow={6: 1.2}))
    found = [one for one in partials_of(run) if one.facts.rank not in (3, 5)]
    assert [one.ranks for one in summarize_run(found).findings] == [(6,)]


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_healthy_run_of_many_steps_has_no_finding(seed: int, noise: float) -> None:
    assert findings_of(Plan(seed=seed, noise=noise, steps=12, setup_ns=2_000_000))[0] == []
    assert findings_of(Plan(tp=1, dp=2, pp=1, seed=seed, noise=noise, steps=12))[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("only", [SOME, (7,), (0,), (0, 2, 4, 6, 8)])
def test_rank_that_is_slow_in_some_steps_is_found_with_these_steps(only: tuple[int, ...]) -> None:
    plan = Plan(slow={5: 1.3}, steps=10, only=only, batches=4)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_rank", (5,), only)]
    assert found[0].figures["factor"] == pytest.approx(1.3, abs=0.02)
    true = true_cost_ms(plan, run)
    assert found[0].cost_ms_per_step == pytest.approx(true, rel=0.1)
    each = found[0].figures["cost_ms_in_these_steps"]
    assert each == pytest.approx(true * 10 / len(only), rel=0.1)
    text = f"{each:.2f} ms" if each >= 1 else f"{1000 * each:.0f} µs"
    assert f"costs {text} in each of these steps" in found[0].text


@pytest.mark.slow
def test_finding_names_its_steps() -> None:
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=10, only=SOME, batches=4))
    assert "rank 5 on host1: its kernels take 1.3" in found[0].text
    assert "in steps 3, 4 and 5" in found[0].text
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=10, only=(7,), batches=4))
    assert "times as long in step 7 as those" in found[0].text
    found, _ = findings_of(Plan(slow={5: 1.3}, steps=14, only=(0, 2, 4, 6, 8, 10), batches=4))
    assert "as long in 6 of 14 steps (0, 2, 4, 6, 8, ...) as those" in found[0].text


def test_rank_of_two_that_is_slow_in_some_steps_is_identified() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, slow={1: 1.2}, steps=10, only=SOME, batches=6))
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_rank", (1,), SOME)]


def test_host_that_is_slow_in_some_steps_is_found() -> None:
    slow = dict.fromkeys(range(4, 8), 1.2)
    found, _ = findings_of(Plan(slow=slow, dp=8, pp=1, steps=8, only=SOME))
    assert [(one.kind, one.hosts, one.steps) for one in found] == [("slow_host", ("host1",), SOME)]


@pytest.mark.parametrize("only", [SOME, (7,), (0, 1, 2, 3, 4, 5, 6)])
def test_link_that_is_slow_in_some_steps_is_found(only: tuple[int, ...]) -> None:
    plan = Plan(slow_links={(2, 10): 3.0}, batches=4, steps=10, only=only)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_link", (2, 10), only)]
    assert found[0].figures["factor"] == pytest.approx(3, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1, abs=0.01)


def test_only_link_of_a_run_is_compared_with_its_other_steps() -> None:
    plan = Plan(tp=1, dp=1, pp=2, slow_links={(0, 1): 3.0}, batches=4, steps=10, only=SOME)
    found, _ = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("slow_link", (0, 1), SOME)]


def test_link_within_a_group_that_is_slow_in_some_steps_is_found() -> None:
    found, _ = findings_of(Plan(tp=4, dp=4, pp=1, slow_links={(5, 6): 3.0}, steps=8, only=SOME))
    (link,) = found
    assert (link.kind, link.ranks, link.steps) == ("slow_link", (4, 5, 6, 7), SOME)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(
    "change",
    [{"slow": {5: 1.3}}, {"slow_links": {(2, 10): 3.0}}, {"late": {6: 5_000_000}}],
    ids=["slow_rank", "slow_link", "late_input"],
)
def test_faults_in_steps_beyond_the_replayed_ones_have_the_same_cost(
    change: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(Plan(steps=10, only=(7, 8), batches=4), **change)  # type: ignore[arg-type]
    whole, _ = findings_of(plan)
    monkeypatch.setattr(replay, "_MAX_OPERATIONS", 1_500)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks, one.steps) for one in found] == [
        (one.kind, one.ranks, (7, 8)) for one in whole
    ]
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1, abs=0.02)


def test_fault_in_steps_without_communication_data_has_an_upper_bound() -> None:
    pytest.importorskip("pyarrow")
    run = simulate(Plan(slow={5: 1.3}, steps=10, only=(7, 8), batches=4))
    parts = partials_of(run)
    files = [partial_to_parquet(one) for one in parts]
    first = [read_first_steps(partial(bytes, file), "it", 40) for file in files]
    assert first[0].until is not None
    found = summarize_run(first).findings
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
def test_rank_with_an_unrecorded_pause_is_late_without_known_cause(
    where: str, only: tuple[int, ...] | None, rank: int
) -> None:
    plan = Plan(stops={rank: 5_000_000}, stop_where=where, steps=6, only=only)
    found, run = findings_of(plan)
    steps = tuple(range(6)) if only is None else only
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("late_rank", (rank,), steps)]
    assert found[0].figures["late_ms"] == pytest.approx(5, rel=0.02)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)
    assert f"`uprof advise --rank {rank}` may name the cause" in found[0].text
    assert found[0].figures["where"] == PLACES[where]


def test_ranks_that_are_slow_in_turn_are_one_finding() -> None:
    found, _ = findings_of(Plan(tp=1, dp=8, pp=1, steps=8, batches=8, in_turn=1.3))
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", tuple(range(8)))]
    assert found[0].figures["factor"] == pytest.approx(1.3, abs=0.02)


def test_late_rank_without_recorded_loader_may_wait_for_input() -> None:
    found, _ = findings_of(Plan(stops={6: 5_000_000}, loader=False))
    assert [(one.kind, one.ranks) for one in found] == [("late_rank", (6,))]
    assert "no data loader was recorded" in found[0].text


def test_late_rank_of_two_is_identified() -> None:
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, stops={1: 5_000_000}, steps=6))
    assert [(one.kind, one.ranks) for one in found] == [("late_rank", (1,))]
    found, _ = findings_of(Plan(tp=1, dp=2, pp=1, stops={1: 5_000_000}, steps=6, only=(2,)))
    assert [(one.kind, one.ranks, one.steps) for one in found] == [("late_rank", (1,), (2,))]


@pytest.mark.parametrize("seed", range(3))
def test_healthy_run_without_recorded_loader_has_no_finding(seed: int) -> None:
    assert findings_of(Plan(seed=seed, noise=0.05, steps=6, loader=False))[0] == []


MOE = Plan(tp=1, dp=8, pp=1, ep=4, steps=4, uneven=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "plan", [MOE, replace(MOE, pp=2), replace(MOE, ep=8, steps=1), replace(MOE, padded=True)]
)
def test_random_expert_load_is_no_finding(plan: Plan, seed: int) -> None:
    assert findings_of(replace(plan, seed=seed))[0] == []


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("hot", [{5: 2.0}, {0: 1.6}, {1: 2.0, 5: 2.0}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("pp", [1, 2])
def test_experts_with_more_tokens_are_found(hot: dict[int, float], padded: bool, pp: int) -> None:
    plan = replace(MOE, hot=hot, padded=padded, pp=pp)
    found, run = findings_of(plan)
    assert [(one.kind, sorted(one.ranks)) for one in found] == [("expert_imbalance", sorted(hot))]
    share = max(hot.values()) / ((max(hot.values()) + 3) / 4)
    assert found[0].figures["load"] == pytest.approx(share, rel=0.07)
    assert found[0].figures["work"] == pytest.approx(share, rel=0.1)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.1)


def test_load_of_experts_is_measured_by_what_they_send_back() -> None:
    sent = np.array([[100, 100 * load] * 4 for load in (1.5, 0.9, 0.8, 0.8)])
    none = np.zeros(sent.shape, np.int64)
    group = moe_imbalance._Group(
        (0, 1, 2, 3), np.arange(8), np.repeat(np.arange(4), 2), sent, sent * 0, none, none
    )
    context: Any = SimpleNamespace(matched=SimpleNamespace(ranks=(0, 1, 2, 3)))
    (load,) = moe_imbalance._overloaded(context, group)
    assert (load.rank, load.by_bytes) == (0, True)
    assert load.ratio == pytest.approx(1.5)


def test_slow_rank_among_experts_is_a_slow_rank() -> None:
    found, _ = findings_of(replace(MOE, slow={5: 1.3}, batches=4))
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (5,))]


@pytest.mark.parametrize("padded", [False, True])
def test_load_that_moves_from_rank_to_rank_is_one_expert_imbalance(padded: bool) -> None:
    plan = replace(MOE, moving=3.0, steps=8, padded=padded)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("expert_imbalance", tuple(range(8)))]
    assert found[0].figures["load"] == pytest.approx(3 / (6 / 4), rel=0.07)
    assert found[0].cost_ms_per_step == pytest.approx(true_cost_ms(plan, run), rel=0.15)


def test_experts_with_more_tokens_in_few_steps_are_no_finding() -> None:
    assert findings_of(replace(MOE, hot={5: 1.8}, steps=8, only=(2, 5)))[0] == []


def test_excess_is_removed_from_segment_parts_in_proportion() -> None:
    segments = [Segment(20, ((3, 30), (4, 10))), Segment(60, ((5, 80),))]
    assert remove_excess(1, segments, 40) == {(1, 3): 7.5, (1, 4): 2.5, (1, 5): 30}


@pytest.mark.parametrize(
    ("mark", "parts", "text"),
    [
        # (lead, busy, tail) of 100 ns after a mark, in which the device is idle for the rest
        (MARK_STEP, (60, 40, 0), "at the start of the step"),
        (MARK_STEP, (10, 0, 0), "at the start of the step"),
        (MARK_STEP, (10, 30, 60), "before its all_gather"),
        (MARK_STEP, (10, 30, 0), "between kernels before its all_gather"),
        (MARK_END, (10, 60, 30), "before its all_gather"),
        (MARK_END, (40, 30, 30), "after its all_reduce"),
    ],
)
def test_location_of_idle_time(mark: int, parts: tuple[int, int, int], text: str) -> None:
    assert idle_rules.location(one_interval(mark, parts, MARK_START), (0, 0)) == text


def test_comparison_with_nothing_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that is no number would make the stored run unreadable."""
    rules = [
        lambda context, rule=rule: (
            replace(one, figures=one.figures | {"factor": float("nan")}) for one in rule(context)
        )
        for rule in findings.RULES
    ]
    plan = Plan(slow={5: 1.3})
    assert [one.kind for one in findings_of(plan)[0]] == ["slow_rank"]
    monkeypatch.setattr(findings, "RULES", rules)
    assert findings_of(plan)[0] == []


@pytest.mark.parametrize(("part", "kinds"), [(0.05, ["late_input"]), (0.2, ["late_input", "part"])])
def test_small_part_of_a_fault_of_the_same_rank_is_no_finding(
    part: float, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(context: RuleContext) -> Iterator[Candidate]:
        for one in idle_rules.late_input(context):
            cut = {at: part * ns for at, ns in one.change.interval_ns.items()}
            yield replace(one, kind="part", change=ReplayChange(interval_ns=cut))

    monkeypatch.setattr(findings, "RULES", (*findings.RULES, parts))
    assert [one.kind for one in findings_of(Plan(late={6: 8_000_000}, steps=4))[0]] == kinds


def test_location_of_idle_time_before_another_step() -> None:
    context = one_interval(MARK_STEP, (10, 30, 60), MARK_STEP)
    assert idle_rules.location(context, (0, 0)) == "after its first kernels"
    context = one_interval(MARK_END, (10, 30, 60), None)
    assert idle_rules.location(context, (0, 0)) == "after its all_reduce"


def one_interval(mark: int, parts: tuple[int, int, int], following: int | None) -> Any:
    """Return the context of one rank with an interval of 100 ns between two marks."""
    what, ops = ([mark], [0]) if following is None else ([mark, following], [0, 1])
    marks = {"what": what, "op": ops, "time": [0, 100], "lead": [0], "busy": [0], "tail": [0]}
    marks |= {name: [ns] for name, ns in zip(("lead", "busy", "tail"), parts, strict=True)}
    partial = SimpleNamespace(
        marks={name: np.array(values) for name, values in marks.items()},
        kinds=("all_reduce", "all_gather"),
        communication={"kind": [0, 1], "group": [-1, -1]},
    )
    return SimpleNamespace(matched=SimpleNamespace(partials=[partial]), kernels="kernels")


# Sends from rank r to r + 8 between three pipeline stages of 8 ranks on four hosts of 6.
STAGES = Plan(tp=1, dp=8, pp=3, per_host=6, batches=4)


@pytest.mark.parametrize(
    ("sources", "ranks", "direction", "words"),
    [
        (range(6), range(6), "out", "traffic from host host0 to other hosts"),
        ((4, 5, 6, 7, 8, 9), range(12, 18), "in", "traffic from other hosts to host host2"),
        ((10, 11), (10, 11, 18, 19), "out", "traffic from host host1 to host host3"),
    ],
)
def test_slow_links_with_a_common_end_are_one_finding_about_it(
    sources: Sequence[int], ranks: Sequence[int], direction: str, words: str
) -> None:
    plan = replace(STAGES, slow_links={(rank, rank + 8): 4.0 for rank in sources})
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("slow_host_link", tuple(ranks))]
    assert words in found[0].text
    assert f"({len(sources)} links or groups" in found[0].text
    assert sorted(found[0].links) == sorted((rank, rank + 8) for rank in sources)
    figures = found[0].figures
    assert (figures["direction"], figures["links"]) == (direction, len(sources))
    assert figures["factor"] == pytest.approx(4, rel=0.15)
    assert figures["like_gb_per_s"] == pytest.approx(figures["factor"] * figures["gb_per_s"], 0.01)
    # The links also slow down the all-reduce of all ranks, which is another finding's cost.
    assert 0.5 < found[0].cost_ms_per_step / true_cost_ms(plan, run) < 1.05


def test_slow_links_of_one_device_number_are_a_slow_rail() -> None:
    plan = Plan(tp=1, dp=4, pp=4, slow_links={(rank, rank + 4): 4.0 for rank in (1, 5, 9)})
    found, _ = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("slow_host_link", (1, 5, 9, 13))]
    assert "between devices 1 of different hosts (one rail)" in found[0].text
    assert found[0].figures["host"] is None


@pytest.mark.parametrize(
    ("device", "gb_per_s", "is_slow"),
    [
        *(("NVIDIA H100", 14, True), ("NVIDIA H100", 16, False)),
        *(("A100", 7, True), ("A100", 8, False), (None, 1, False)),
    ],
)
def test_network_is_slow_below_a_share(device: str | None, gb_per_s: float, is_slow: bool) -> None:
    """The adapter of an H100 has 50 GB/s, that of an A100 25."""
    parts = partials_of(simulate(Plan(batches=4, network_gb_per_s=gb_per_s)))
    named = [replace(one, facts=replace(one.facts, device_name=device)) for one in parts]
    found = summarize_run(named)
    assert not found.findings
    assert [one.kind for one in found.ranked if one.kind == "slow_network"] == [
        "slow_network"
    ] * is_slow
