"""One definition of time for the total and its parts, whatever was waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.compare.test_diff import STEP, in_runs, run_of
from unified_prof.compare.comparable import (
    BACKWARD,
    FORWARD,
    TIMES,
    TOTAL,
    Run,
    exclude_waiting,
    pool,
)
from unified_prof.compare.diff import diff
from unified_prof.compare.gate import Limits, gate


def iterations(*, waited_ms: float = 0.0, seed: int = 0, known: tuple[str, ...] = TIMES) -> Run:
    """Make a run of 30 ms an iteration, 10 forward and 20 backward, that waited in its forward."""
    generator = np.random.default_rng(seed)
    wait = generator.uniform(0.5, 1.5, 12) * waited_ms * 1e6
    scatter = generator.uniform(1, 1.01, 12)
    own = {TOTAL: 30e6 * scatter, FORWARD: 10e6 * scatter, BACKWARD: 20e6 * scatter}
    waited = {TOTAL: wait, FORWARD: wait, BACKWARD: np.zeros(12)}
    made = replace(
        run_of(STEP),
        totals={metric: own[metric] + waited[metric] for metric in TIMES},
        waited={metric: waited[metric] for metric in known},
    )
    return in_runs(made)


def test_forward_and_backward_are_without_waiting_where_the_total_is() -> None:
    found = diff(iterations(), iterations(waited_ms=70, seed=1))
    medians = {metric: one.new_median for metric, one in found.totals.items()}
    assert medians[FORWARD] + medians[BACKWARD] == pytest.approx(medians[TOTAL], rel=0.02)
    assert {one.verdict() for one in found.totals.values()} == {"same"}
    assert found.waiting is not None
    assert found.waiting.left_out
    assert found.waiting.base_share == 0
    assert found.waiting.new_share == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("known", [(TOTAL,), (TOTAL, BACKWARD)])
def test_where_the_waiting_of_a_pass_is_not_known_all_times_are_with_it(
    known: tuple[str, ...],
) -> None:
    """As in reports of earlier versions: never a forward pass of 99 ms in a total of 30 ms."""
    waiting = iterations(waited_ms=70, seed=1, known=known)
    for sides in ((iterations(), waiting), (waiting, iterations())):
        found = diff(*sides)
        assert found.waiting is not None
        assert not found.waiting.left_out
        for side in ("base_median", "new_median"):
            total, forward = (getattr(found.totals[one], side) for one in (TOTAL, FORWARD))
            assert forward < total


def test_where_nobody_counts_the_waiting_nothing_is_said_of_it() -> None:
    silent = replace(iterations(), waited={})
    assert exclude_waiting(silent, silent)[2] is None


def test_one_side_alone_does_not_get_its_waiting_taken_off() -> None:
    new = iterations(waited_ms=70, seed=1)
    _, same, waiting = exclude_waiting(replace(iterations(), waited={}), new)
    assert same.totals == new.totals
    assert waiting is not None
    assert (waiting.left_out, waiting.base_share) == (False, None)


def test_the_gate_judges_by_the_same_times() -> None:
    verdict = gate(iterations(), iterations(waited_ms=70, seed=1), TIMES, Limits())
    assert verdict.outcome == "pass"
    assert verdict.waiting is not None
    assert verdict.waiting.left_out


def test_runs_that_are_pooled_keep_their_waiting() -> None:
    both = pool([iterations(waited_ms=5), iterations(waited_ms=7, seed=2)])
    assert len(both.totals[FORWARD]) == len(both.waited[FORWARD]) == 24
    _, _, waiting = exclude_waiting(both, both)
    assert waiting is not None
    assert waiting.left_out
    mixed = pool([iterations(waited_ms=5), replace(iterations(), waited={})])
    _, _, waiting = exclude_waiting(mixed, mixed)
    assert waiting is None, "not known of all iterations"
