"""Costs that all ranks share are findings without ranks at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cluster import simulated_run
from tests.cluster.simulated_run import GRADIENTS, Plan, partials_of, simulate
from unified_prof.cluster import shared_costs
from unified_prof.cluster.summary import RunSummary, summarize_run

EXPOSED = Plan(tp=1, dp=8, pp=1, batches=2, buckets=2, network_gb_per_s=40)
SMALL = Plan(tp=1, dp=8, pp=1, batches=1, buckets=64)
BUBBLE = Plan(tp=1, dp=1, pp=4, batches=2, steps=4, buckets=2)
EQUAL = Plan(tp=1, dp=4, pp=1, batches=4, steps=4)
SETUP = Plan(tp=1, dp=8, pp=1, batches=2, buckets=2, setup_ns=20_000_000)


def summary(plan: Plan) -> tuple[RunSummary, float]:
    """Return the summary and the length of a step in ms."""
    run = simulate(plan)
    return summarize_run(partials_of(run)), run.step_ns / 1e6


# The costs that all ranks share: plan, kind, the same run without this cost or None, and words.
CASES: dict[str, tuple[Plan, str, Plan | None, str]] = {
    "exposed": (
        *(EXPOSED, "exposed_communication", replace(EXPOSED, network_gb_per_s=1e6)),
        f"most in all_reduce of {GRADIENTS >> 21:.1f} MiB, 2 per step",
    ),
    "exposed_and_slow_rank": (
        replace(EXPOSED, slow={5: 1.3}),
        "exposed_communication",
        replace(EXPOSED, network_gb_per_s=1e6, slow={5: 1.3}),
        "costs at most",
    ),
    "setup": (
        *(SETUP, "collective_setup", replace(SETUP, setup_ns=0)),
        "which occurs once: record later steps",
    ),
    "unequal_batches": (
        *(replace(EQUAL, lengths=(1.4, 1.1, 0.8, 0.7)), "unequal_batches", EQUAL),
        "differ by up to 2.0",
    ),
    "unequal_batches_and_slow_rank": (
        replace(EQUAL, lengths=(1.4, 1.1, 0.8, 0.7), dp=8, slow={5: 1.5}),
        *("unequal_batches", None, "are longest on 4 ranks in turn"),
    ),
    "small_messages": (SMALL, "small_buckets", None, "most in all_reduce of 1.00 MiB, 64 per step"),
    "bubble": (BUBBLE, "pipeline_bubble", None, "use 16 micro-batches per step instead of 2"),
    "bubble_and_slow_rank": (
        *(replace(BUBBLE, slow={1: 1.4}), "pipeline_bubble", None),
        "every rank waits for other stages",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cost_of_all_ranks_is_a_finding_without_ranks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, kind, without, words = CASES[name]
    if kind == "small_buckets":  # short kernels, which do not cover the messages
        monkeypatch.setattr(simulated_run, "KERNELS", (("MatMul", 3_000),) * 4)
    found, step_ms = summary(plan)
    (one,) = [one for one in found.ranked if one.kind == kind]
    assert one not in found.findings
    assert (one.ranks, one.links) == ((), ())
    assert words in one.text
    if without is not None:
        healthy, healthy_ms = summary(without)
        assert kind not in {each.kind for each in healthy.ranked}
        gain_ms = step_ms - healthy_ms
        assert one.cost_ms_per_step == pytest.approx(gain_ms, rel=0.15)
    assert [row[1] for row in found.tables["FINDING"]] == [each.kind for each in found.ranked]


def test_setup_of_every_collective_is_no_setup_of_communicators() -> None:
    partials = partials_of(simulate(replace(EXPOSED, network_gb_per_s=5)))
    for one in partials:
        one.communication["move"] //= 8
    found = summarize_run(partials).ranked
    assert "collective_setup" not in {one.kind for one in found}


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (replace(EXPOSED, steps=6), "exposed_communication"),
        (replace(SMALL, steps=6), "small_buckets"),
    ],
)
def test_latency_of_collectives_is_saved_with_their_transfers(
    plan: Plan, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time that the first collective of a group takes to connect its ranks stays."""
    if kind == "small_buckets":
        monkeypatch.setattr(simulated_run, "KERNELS", (("MatMul", 3_000),) * 4)
    costs = []
    for parts in (1, 8):  # the rest of the time is latency
        partials = partials_of(simulate(plan))
        for one in partials:
            one.communication["move"] //= parts
        ranked = summarize_run(partials).ranked
        costs += [one.cost_ms_per_step for one in ranked if one.kind == kind]
    assert len(costs) == 2
    assert costs[1] >= 0.9 * costs[0]


@pytest.mark.parametrize("recorded", [8, 7, 2])
def test_wait_for_ranks_without_recordings_is_no_setup(recorded: int) -> None:
    found = summarize_run(partials_of(simulate(SETUP))[:recorded])
    setups = {setup for *_, setup, _, _, _ in found.tables["STEP_RANK"]}
    assert ("collective_setup" in {one.kind for one in found.ranked}) == (recorded > 4)
    assert (setups == {None}) == (recorded < 4)


@pytest.mark.parametrize(("recorded", "missing_ms"), [(8, 0), (2, 0), (2, 30)])
def test_rank_that_waits_for_a_missing_one_is_no_straggler(recorded: int, missing_ms: int) -> None:
    """Rank 1 is 4 ms late; if rank 5 is 30 ms late, no rank gains from an earlier rank 1."""
    stops = {1: 4_000_000, **({5: missing_ms * 1_000_000} if missing_ms else {})}
    plan = Plan(tp=1, dp=8, pp=1, batches=2, stops=stops, stop_where="begin")
    found = summarize_run(partials_of(simulate(plan))[:recorded])
    kinds = {one.kind for one in found.ranked if one.ranks == (1,)}
    assert kinds == (set() if missing_ms else {"late_rank"})


def test_bubble_is_what_is_left_after_a_slow_rank_is_fixed() -> None:
    healthy = next(one for one in summary(BUBBLE)[0].ranked if one.kind == "pipeline_bubble")
    found, _ = summary(replace(BUBBLE, slow={1: 1.4}))
    assert [one.kind for one in found.ranked] == ["slow_rank", "pipeline_bubble"]
    assert found.ranked[1].cost_ms_per_step == pytest.approx(healthy.cost_ms_per_step, rel=0.1)


@pytest.mark.parametrize(
    ("pairs", "around"),
    [
        ({(0, 1), (1, 2), (2, 0)}, True),
        ({(0, 1), (1, 2)}, False),  # inference
        ({(0, 1), (1, 2), (1, 0), (2, 1)}, False),
        ({(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)}, False),  # interleaved stages
    ],
)
def test_ring_that_exchanges_with_neighbours_is_no_pipeline(
    pairs: set[tuple[int, int]], around: bool
) -> None:
    assert shared_costs.moves_around(pairs) == around
