"""Findings of simulated runs name low clocks, time-outs, and ranks that are late in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cluster.simulated_run import Plan, SimulatedRun, partials_of, simulate
from tests.cluster.test_findings import findings_of
from unified_prof.cluster.summary import summarize_run


def gain_ms(plan: Plan, run: SimulatedRun) -> float:
    """Return the time per step that the faults cost."""
    healthy = simulate(replace(plan, stalls={}, late_in_turn=0))
    return (run.step_ns - healthy.step_ns) / 1e6


@pytest.mark.parametrize("mhz", [1200.0, 1790.0, None])
def test_low_clock_of_a_slow_rank_is_named(mhz: float | None) -> None:
    found = [
        replace(one, facts=replace(one.facts, clock_mhz=mhz if one.facts.rank == 5 else 1800.0))
        for one in partials_of(simulate(Plan(slow={5: 1.5}, batches=4)))
    ]
    (slow,) = summarize_run(found).findings
    low = "its device runs at a mean of 1,200 MHz, the others at 1,800 MHz: check its temperature"
    assert (low in slow.text) == (mhz == 1200)
    assert slow.figures.get("clock_mhz") == (1200 if mhz == 1200 else None)


@pytest.mark.parametrize(
    ("kinds", "is_clock"),
    [(("MatMul", "Attention"), True), (("MatMul",), False), (("MatMul", "Gelu"), False)],
)
def test_only_matrix_kernels_that_are_slow_alike_suggest_a_low_clock(
    kinds: tuple[str, ...], is_clock: bool
) -> None:
    plan = Plan(tp=1, dp=8, pp=1, slow={5: 1.3}, slow_kinds=kinds, steps=4, batches=4)
    (slow,) = findings_of(plan)[0]
    assert (slow.ranks, slow.kind) == ((5,), "slow_kernel")
    assert ("slower alike, as with a low clock" in slow.text) == is_clock


@pytest.mark.parametrize("stalls_move", [True, False])
@pytest.mark.parametrize(("tp", "dp", "buckets"), [(1, 8, 1), (2, 4, 1), (1, 8, 3)])
def test_collective_that_times_out_is_found_with_its_cost(
    tp: int, dp: int, buckets: int, stalls_move: bool
) -> None:
    plan = Plan(
        *(tp, dp, 2), steps=4, buckets=buckets, stalls={2: 4_300_000_000}, stalls_move=stalls_move
    )
    run = simulate(plan)
    (found, *rest) = summarize_run(partials_of(run)).ranked
    assert (found.kind, found.steps, len(found.ranks)) == ("retransmission", (2,), dp)
    assert found.cost_ms_per_step == pytest.approx(gain_ms(plan, run), rel=0.02)
    assert sum(one.cost_ms_per_step for one in rest) < 10
    # The time may be that of a first collective, which connects ranks, or of a late rank.
    for healthy in (replace(plan, stalls={0: 4_300_000_000}), Plan(stops={1: 4_300_000_000})):
        kinds = {one.kind for one in summarize_run(partials_of(simulate(healthy))).ranked}
        assert "retransmission" not in kinds


def test_late_input_of_many_ranks_in_turn_is_one_finding() -> None:
    """Each step, another rank waits 5 ms for its batch."""
    plan = Plan(tp=1, dp=8, pp=1, late_in_turn=5_000_000, steps=10)
    found, run = findings_of(plan)
    assert [(one.kind, one.ranks) for one in found] == [("late_input", tuple(range(8)))]
    assert found[0].steps == tuple(range(10))
    assert found[0].cost_ms_per_step == pytest.approx(gain_ms(plan, run), rel=0.05)


def test_half_of_the_ranks_with_slow_matrix_kernels_is_a_slow_host() -> None:
    """Their other kernels are as fast as those of the other half."""
    slow = dict.fromkeys(range(4, 8), 1.15)
    plan = Plan(tp=1, dp=8, pp=1, slow=slow, slow_kinds=("MatMul", "Attention"), steps=6, batches=4)
    run = simulate(plan)
    found, *rest = summarize_run(partials_of(run)).ranked
    assert (found.kind, found.ranks) == ("slow_host", (4, 5, 6, 7))
    assert {one.kind for one in rest} == {"exposed_communication"}
    gain_ms = (run.step_ns - simulate(replace(plan, slow={})).step_ns) / 1e6
    assert found.cost_ms_per_step == pytest.approx(gain_ms, rel=0.1)
