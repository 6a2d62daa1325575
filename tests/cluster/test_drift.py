"""Clock drift between hosts in long recordings is estimated and reported."""

import json

import numpy as np
import pytest

from tests.cluster.simulated_run import START, Plan, SimulatedRun, partials_of, simulate
from unified_prof.cluster.clocks import AlignedClocks, align_clocks
from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.summary import summarize_run

LONG = Plan(steps=40, late=dict.fromkeys(range(16), 250_000_000), drift_ppm=50)
"""A run of ten seconds."""


def clock_error_us(run: SimulatedRun, clock: AlignedClocks) -> float:
    """Return the largest difference between ranks on the common clock at the same true time."""
    end = run.steps[0][-1][1]
    worst = 0.0
    for time in np.linspace(0, end, 5).astype(int).tolist():
        local = [int(run.local_time(rank, time)) for rank in range(run.plan.world)]
        common = np.array([clock.clock_of(rank).common_at(at) for rank, at in enumerate(local)])
        worst = max(worst, float(np.abs(common - np.median(common)).max()) / 1e3)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_drift_is_estimated_and_removed(seed: int) -> None:
    run = simulate(Plan(**{**vars(LONG), "seed": seed}))
    clock = align_clocks(match_collectives(partials_of(run)))
    assert clock_error_us(run, clock) < 2
    true = -np.array([run.drift[run.plan.host(rank)] for rank in range(16)])
    error = (clock.drift - clock.drift[0]) - (true - true[0])
    assert np.abs(error).max() < 1e-7
    assert (clock.error < 2_000).all()


def test_constant_offset_is_wrong_by_hundreds_of_microseconds() -> None:
    run = simulate(LONG)
    clock = align_clocks(match_collectives(partials_of(run)))
    constant = AlignedClocks(clock.offset, clock.error, clock.island, np.zeros(16), clock.at)
    assert clock_error_us(run, constant) > 100


@pytest.mark.parametrize("plan", [Plan(), Plan(steps=10), Plan(steps=10, drift_ppm=1)])
def test_insignificant_drift_is_zero(plan: Plan) -> None:
    clock = align_clocks(match_collectives(partials_of(run := simulate(plan))))
    assert not clock.drift.any()
    assert clock_error_us(run, clock) < 2


def test_drifting_ranks_belong_to_the_run_and_the_drift_is_reported() -> None:
    summary = summarize_run(partials_of(simulate(LONG)))
    assert summary.unread == ()
    facts: dict[str, str] = dict(summary.tables["META_DATA"])
    drift = json.loads(facts["clock_drift"])
    assert abs(drift["at_ns"] - START) < 20_000_000_000
    assert 10_000 < max(map(abs, drift["ppb"].values())) < 400_000
    assert "clock_drift" not in dict(
        summarize_run(partials_of(simulate(Plan()))).tables["META_DATA"]
    )
