"""Verdicts on runs that stepped in turn, checked with a simulator independent of the rule."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from unified_prof.compare.comparable import FORWARD, TOTAL, Operations, Run, program_times
from unified_prof.compare.gate import Limits, default_metrics, gate

STEPS = 40


def run_of(rounds: list[np.ndarray], **other: object) -> Run:
    run = Run(
        "",
        frozenset({"skyline-run-time"}),
        "operation",
        {},
        Operations.none(),
        (),
        {TOTAL: np.concatenate(rounds)},
        lengths={TOTAL: tuple(map(len, rounds))},
    )
    return replace(run, **other)


class Machine:
    """Simulates steps of 20 ms of two live processes that alternate."""

    def __init__(self, private: float, generator: np.random.Generator) -> None:
        self._private, self._random = private, generator

    def round(self, slower: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of both sides: drift, autocorrelated noise, outliers, process luck."""
        random = self._random
        drift = np.cumsum(random.normal(0, 0.02, 2 * STEPS)) + random.normal(0, 0.3)
        noise = np.zeros(2 * STEPS)
        for step in range(1, 2 * STEPS):
            noise[step] = 0.7 * noise[step - 1] + random.normal(0, 0.04)
        tail = random.standard_t(2, 2 * STEPS) * 0.02
        hit = np.where(random.random(2 * STEPS) < 0.05, random.exponential(1.0, 2 * STEPS), 0.0)
        slot = 20e6 * np.exp(drift + noise + np.clip(tail, -0.5, 5)) * (1 + hit)
        luck = np.exp(random.normal(0, self._private, 2)) * np.array([1.0, slower])
        order = np.array([0, 1, 1, 0] * (STEPS // 2))
        return slot[order == 0] * luck[0], slot[order == 1] * luck[1]

    def outcome(self, slower: float, most: int = 12) -> str:
        """Gate until the verdict is certain."""
        sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        found = "inconclusive"
        while found == "inconclusive" and len(sides[0]) < most:
            for side, times in zip(sides, self.round(slower), strict=True):
                side.append(times)
            if len(sides[0]) >= 3:
                base, new = map(run_of, sides)
                found = gate(base, new, [TOTAL], Limits(), paired=True).outcome
        return found


@pytest.mark.slow
@pytest.mark.parametrize("private", [0.01, 0.03])
def test_wrong_verdicts_are_rarer_than_one_in_two_hundred(private: float) -> None:
    machine = Machine(private, np.random.default_rng(round(private * 100)))
    unchanged = Counter(machine.outcome(1.0) for _ in range(400))
    slower = Counter(machine.outcome(1.25) for _ in range(400))
    assert unchanged["regression"] <= 2, unchanged
    assert slower["pass"] <= 2, slower
    assert unchanged["pass"] >= 360, unchanged
    assert slower["regression"] >= 360, slower


def test_drift_that_both_sides_share_does_not_count() -> None:
    speeds = np.exp([0.0, 0.4, -0.3, 0.2])
    base = [np.full(10, 10e6 * speed) for speed in speeds]
    new = [times * factor for times, factor in zip(base, (1.201, 1.199, 1.2, 1.2), strict=True)]
    assert gate(run_of(base), run_of(new), [TOTAL], Limits(), paired=True).outcome == "regression"
    assert gate(run_of(base), run_of(new), [TOTAL], Limits()).outcome == "inconclusive"


def test_two_rounds_that_agree_are_not_enough() -> None:
    base = [np.full(10, 10e6), np.full(10, 10e6)]
    new = [times * 1.2 for times in base]
    assert gate(run_of(base[:1]), run_of(new[:1]), [TOTAL], Limits(), paired=True).exit_code == 3
    shift = gate(run_of(base), run_of(new), [TOTAL], Limits(), paired=True).checks[0].shift
    assert shift is not None
    assert shift.rounds == 0


def host_run(total: float, waited: float, cpu: float) -> Run:
    found = {name: np.full(10, value) for name, value in ((TOTAL, total), (FORWARD, total / 2))}
    return Run(
        "",
        frozenset({"skyline-run-time"}),
        "operation",
        {},
        Operations.none(),
        (),
        found,
        waited={TOTAL: np.full(10, waited), FORWARD: np.full(10, waited / 2)},
        cpu={TOTAL: np.full(10, cpu), FORWARD: np.full(10, cpu / 2)},
    )


def test_cpu_time_is_compared_where_the_process_is_never_idle() -> None:
    base, new, waiting = program_times(host_run(10e6, 4e6, 6e6), host_run(20e6, 13.5e6, 6.1e6))
    assert waiting is not None
    assert waiting.clock == "cpu"
    assert base.totals[TOTAL][0] == 6e6
    assert new.totals[FORWARD][0] == 3.05e6
    # A time that one side lacks is not compared.
    base, new, waiting = program_times(base, replace(new, totals={TOTAL: new.totals[TOTAL]}))
    assert waiting is not None
    assert waiting.clock == "cpu"


def test_wall_time_without_waiting_is_compared_if_one_side_is_idle() -> None:
    base, new, waiting = program_times(host_run(10e6, 4e6, 6e6), host_run(20e6, 4e6, 6e6))
    assert waiting is not None
    assert waiting.clock == "wall"
    assert (base.totals[TOTAL][0], new.totals[TOTAL][0]) == (6e6, 16e6)


def test_unknown_cpu_time_falls_back_to_wall_time() -> None:
    old = replace(host_run(10e6, 4e6, 6e6), cpu={})
    _, _, waiting = program_times(old, host_run(10e6, 4e6, 6e6))
    assert waiting is not None
    assert waiting.clock == "wall"


def counted(base: float, new: float, limits: Limits, metric: str = "flops") -> str:
    before, after = (run_of([np.full(10, 1e6)], counts={metric: one}) for one in (base, new))
    return gate(before, after, [metric], limits).outcome


def test_exact_metric_may_not_rise_at_all_unless_it_has_a_limit() -> None:
    assert counted(100, 100, Limits()) == counted(100, 99, Limits()) == "pass"
    assert counted(100, 101, Limits()) == "regression"
    assert counted(0, 1, Limits(), "synchronizations") == "regression"
    assert counted(100, 104, Limits(by_metric={"flops": 0.05})) == "pass"
    assert counted(100, 106, Limits(by_metric={"flops": 0.05})) == "regression"


def test_counts_that_vary_exclude_metrics_that_depend_on_shapes() -> None:
    counts = {"aten-calls": 9.0, "flops": 5.0, "activation-bytes": 7.0}
    steady = run_of([np.full(10, 1e6)], counts=counts)
    random = replace(steady, facts={"counts that vary": "bytes"})
    assert default_metrics([(steady, steady)]) == ["aten-calls", "flops", "activation-bytes", TOTAL]
    assert default_metrics([(steady, random)]) == ["aten-calls", TOTAL]
    assert default_metrics([(replace(steady, counts={}), steady)]) == [TOTAL]
