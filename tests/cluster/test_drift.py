"""Clocks of long recordings drift apart; the drift is reported with their offsets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cluster.made import START, Made, Plan, make, partials_of
from unified_prof.cluster.clocks import AlignedClocks, align_clocks
from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.summary import summarize_run

LONG = Plan(steps=40, late=dict.fromkeys(range(16), 250_000_000), drift_ppm=50)
"""Ten seconds."""


def off_us(made: Made, clock: AlignedClocks) -> float:
    """Return by how much true times differ between ranks on the common clock, at most."""
    end = made.steps[0][-1][1]
    worst = 0.0
    for time in np.linspace(0, end, 5).astype(int).tolist():
        seen = [int(made.seen(rank, time)) for rank in range(made.plan.world)]
        common = np.array([clock.clock_of(rank).common_at(seen[rank]) for rank in range(len(seen))])
        worst = max(worst, float(np.abs(common - np.median(common)).max()) / 1e3)
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_drift_is_taken_out(seed: int) -> None:
    made = make(Plan(**{**vars(LONG), "seed": seed}))
    clock = align_clocks(match_collectives(partials_of(made)))
    assert off_us(made, clock) < 2
    true = -np.array([made.drift[made.plan.host(rank)] for rank in range(16)])
    away = (clock.drift - clock.drift[0]) - (true - true[0])
    assert np.abs(away).max() < 1e-7
    assert (clock.error < 2_000).all()


def test_one_offset_would_be_hundreds_of_microseconds_off() -> None:
    made = make(LONG)
    clock = align_clocks(match_collectives(partials_of(made)))
    constant = AlignedClocks(clock.offset, clock.error, clock.island, np.zeros(16), clock.at)
    assert off_us(made, constant) > 100


@pytest.mark.parametrize("plan", [Plan(), Plan(steps=10), Plan(steps=10, drift_ppm=1)])
def test_what_cannot_be_told_from_nothing_is_none(plan: Plan) -> None:
    clock = align_clocks(match_collectives(partials_of(made := make(plan))))
    assert not clock.drift.any()
    assert off_us(made, clock) < 2


def test_no_rank_is_taken_for_one_of_another_run_for_its_drift() -> None:
    summary = summarize_run(partials_of(make(LONG)))
    assert summary.unread == ()
    facts: dict[str, str] = dict(summary.tables["META_DATA"])
    told = json.loads(facts["clock_drift"])
    assert abs(told["at_ns"] - START) < 20_000_000_000
    assert 10_000 < max(map(abs, told["ppb"].values())) < 400_000
    assert "clock_drift" not in dict(summarize_run(partials_of(make(Plan()))).tables["META_DATA"])
