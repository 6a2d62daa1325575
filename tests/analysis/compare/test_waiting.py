"""Time waiting for a processor is excluded from totals and their parts alike."""

import numpy as np
import pytest
from msgspec.structs import replace

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
    """Return a run of 30 ms per iteration, 10 forward and 20 backward, with waits in forward."""
    generator = np.random.default_rng(seed)
    wait = generator.uniform(0.5, 1.5, 12) * waited_ms * 1e6
    scatter = generator.uniform(1, 1.01, 12)
    busy = {TOTAL: 30e6 * scatter, FORWARD: 10e6 * scatter, BACKWARD: 20e6 * scatter}
    waited = {TOTAL: wait, FORWARD: wait, BACKWARD: np.zeros(12)}
    run = replace(
        run_of(STEP),
        totals={metric: busy[metric] + waited[metric] for metric in TIMES},
        waited={metric: waited[metric] for metric in known},
    )
    return in_runs(run)


def test_waits_are_excluded_from_forward_backward_and_total() -> None:
    found = diff(iterations(), iterations(waited_ms=70, seed=1))
    medians = {metric: one.new_median for metric, one in found.totals.items()}
    assert medians[FORWARD] + medians[BACKWARD] == pytest.approx(medians[TOTAL], rel=0.02)
    assert {one.verdict() for one in found.totals.values()} == {"same"}
    assert found.waiting is not None
    assert found.waiting.left_out
    assert found.waiting.base_share == 0
    assert found.waiting.new_share == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("known", [(TOTAL,), (TOTAL, BACKWARD)])
def test_waits_are_included_if_they_are_unknown_for_a_pass(known: tuple[str, ...]) -> None:
    """Reports of earlier versions lack them; a forward pass must not exceed the total."""
    waiting = iterations(waited_ms=70, seed=1, known=known)
    for sides in ((iterations(), waiting), (waiting, iterations())):
        found = diff(*sides)
        assert found.waiting is not None
        assert not found.waiting.left_out
        for side in ("base_median", "new_median"):
            total, forward = (getattr(found.totals[one], side) for one in (TOTAL, FORWARD))
            assert forward < total


def test_unknown_waits_are_not_mentioned() -> None:
    unknown = replace(iterations(), waited={})
    assert exclude_waiting(unknown, unknown)[2] is None


def test_waits_are_included_if_the_other_side_has_unknown_waits() -> None:
    new = iterations(waited_ms=70, seed=1)
    _, same, waiting = exclude_waiting(replace(iterations(), waited={}), new)
    assert same.totals == new.totals
    assert waiting is not None
    assert (waiting.left_out, waiting.base_share) == (False, None)


def test_gate_excludes_waits() -> None:
    verdict = gate(iterations(), iterations(waited_ms=70, seed=1), TIMES, Limits())
    assert verdict.outcome == "pass"
    assert verdict.waiting is not None
    assert verdict.waiting.left_out


def test_pooled_runs_keep_their_waits() -> None:
    both = pool([iterations(waited_ms=5), iterations(waited_ms=7, seed=2)])
    assert len(both.totals[FORWARD]) == len(both.waited[FORWARD]) == 24
    _, _, waiting = exclude_waiting(both, both)
    assert waiting is not None
    assert waiting.left_out
    mixed = pool([iterations(waited_ms=5), replace(iterations(), waited={})])
    _, _, waiting = exclude_waiting(mixed, mixed)
    assert waiting is None, "not known for all iterations"
