"""The gate fails for regressions that the measurements support."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.analysis.compare.test_diff import STEP, in_runs, run_of
from unified_prof.compare.comparable import Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import comparability_warnings, diff
from unified_prof.compare.gate import Limits, gate
from unified_prof.errors import UsageError


def scaled(factor: float, *, samples: int = 20, seed: int = 1) -> Run:
    return run_of(
        [(n, m, line, ms * factor) for n, m, line, ms in STEP], samples=samples, seed=seed
    )


def memory(*peaks: float) -> Run:
    return replace(run_of(STEP), totals={"peak-memory": np.array(peaks)})


@pytest.mark.parametrize("seed", range(20))
def test_unchanged_run_passes(seed: int) -> None:
    assert gate(scaled(1, seed=seed), scaled(1, seed=seed + 50), ["total"], Limits()).exit_code == 0


@pytest.mark.parametrize("seed", range(20))
def test_run_slower_by_20_percent_is_a_regression(seed: int) -> None:
    base, new = scaled(1, seed=seed), scaled(1.2, seed=seed + 50)
    assert gate(base, new, ["total"], Limits()).exit_code == 1


def test_regression_exceeds_the_relative_and_the_absolute_limit() -> None:
    limits = Limits(max_regress=0.05, min_abs_ns=10e6)
    assert gate(scaled(1), scaled(1.2), ["total"], limits).outcome == "pass"
    limits = Limits(max_regress=0.5, min_abs_ns=1)
    assert gate(scaled(1), scaled(1.2), ["total"], limits).outcome == "pass"


@pytest.mark.parametrize("seed", range(5))
def test_reason_of_a_pass_has_the_smallest_limit_that_would_pass(seed: int) -> None:
    base, new = scaled(1, seed=seed), scaled(1.01, seed=seed + 50)
    (check,) = gate(base, new, ["total"], Limits()).checks
    found = re.fullmatch(
        r"\w+ \+[\d.]+ % \(upper bound \+([\d.]+) %\), within the limit", check.reason
    )
    assert found is not None, check.reason
    bound = float(found[1]) / 100 + 0.0005  # it is rounded
    assert gate(base, new, ["total"], Limits(max_regress=bound, min_abs_ns=0)).outcome == "pass"


def test_change_that_rounds_to_nothing_has_no_minus_sign() -> None:
    run = scaled(1)
    (check,) = gate(run, scaled(0.9999), ["total"], Limits()).checks
    assert "+0.0 % (upper bound" in check.reason


def test_faster_run_passes() -> None:
    assert gate(scaled(1), scaled(0.5), ["total"], Limits()).outcome == "pass"


def test_few_samples_are_inconclusive() -> None:
    verdict = gate(scaled(1, samples=3), scaled(2, samples=3), ["total"], Limits())
    assert verdict.exit_code == 3
    assert "too few samples (3 and 3)" in verdict.checks[0].reason


@pytest.mark.parametrize(
    ("metric", "nearest"),
    [
        ("backward", "total"),
        ("peak-memory", "total"),
        ("operation:rleu*", "operation:relu"),
        ("operation:nothing", "total"),
    ],
)
def test_metric_that_neither_side_has_is_a_usage_error(metric: str, nearest: str) -> None:
    with pytest.raises(UsageError, match="matches nothing in") as caught:
        gate(scaled(1), scaled(1), ["total", metric], Limits())
    assert nearest in str(caught.value.hint)


def test_metric_that_one_side_lacks_is_inconclusive() -> None:
    before, after = replace(scaled(1), label="old"), replace(run_of(STEP[:1]), label="new")
    (check,) = gate(before, after, ["operation:relu"], Limits()).checks
    assert check.outcome == "inconclusive"
    assert check.reason == "not measured in new, but in old: renamed or removed?"


def test_operation_is_gated_by_name_module_or_line() -> None:
    slower = run_of([STEP[0], ("relu", "net", 11, 1.0), STEP[2]], samples=20, seed=1)
    base = scaled(1)
    for pattern in ("relu", "net", "model.py:11"):
        assert gate(base, slower, [f"operation:{pattern}"], Limits()).outcome == "regression"
    assert gate(base, slower, ["operation:net.fc*"], Limits()).outcome == "pass"


def test_single_peak_per_side_is_enough_for_memory() -> None:
    assert gate(memory(100e6), memory(120e6), ["peak-memory"], Limits()).outcome == "regression"
    assert gate(memory(100e6), memory(100e6), ["peak-memory"], Limits()).outcome == "pass"
    assert gate(memory(1e6), memory(1.5e6), ["peak-memory"], Limits()).outcome == "pass"


def test_worst_check_decides() -> None:
    base = replace(scaled(1), totals={**scaled(1).totals, "backward": np.array([1e6])})
    verdict = gate(base, scaled(1.2), ["total", "backward"], Limits())
    assert [check.outcome for check in verdict.checks] == ["regression", "inconclusive"]
    assert verdict.exit_code == 1


@pytest.mark.parametrize("metrics", [[], ["speed"]])
def test_unknown_metric_is_a_usage_error(metrics: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        gate(scaled(1), scaled(1), metrics, Limits())
    assert "peak-memory" in str(caught.value.hint)


def run_on_busy_machine(factor: float, seed: int) -> Run:
    """Return a run on a machine where other programs interrupt most iterations."""
    generator = np.random.default_rng(seed)
    waits = generator.exponential(5e6, 160) * (generator.random(160) < 0.6)
    samples = factor * 1.5e6 * generator.uniform(1, 1.03, 160) + waits
    return in_runs(replace(run_of(STEP), totals={"total": samples}))


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize("seed", range(20))
def test_fastest_iterations_decide_if_other_programs_interrupt_most_of_them(seed: int) -> None:
    same = gate(
        run_on_busy_machine(1, seed), run_on_busy_machine(1, seed + 100), ["total"], Limits()
    )
    slower = gate(
        run_on_busy_machine(1, seed), run_on_busy_machine(1.2, seed + 200), ["total"], Limits()
    )
    assert same.outcome != "regression"
    assert slower.outcome == "regression"
    shift = slower.checks[0].shift
    assert shift is not None
    assert shift.statistic == "fastest"
    assert shift.ratio == pytest.approx(1.2, rel=0.03)


def test_median_and_fastest_that_disagree_are_inconclusive() -> None:
    base = run_of(STEP, samples=20)
    samples = base.totals["total"].copy()
    samples[np.arange(20) % 3 > 0] *= 1.5
    found = gate(base, replace(base, totals={"total": samples}), ["total"], Limits())
    assert found.outcome == "inconclusive"
    assert "median" in found.checks[0].reason
    assert "fastest" in found.checks[0].reason


def test_step_is_not_compared_with_a_whole_recording() -> None:
    with pytest.raises(UsageError, match="no steps"):
        gate(replace(scaled(1), steps=3), scaled(1), ["total"], Limits())


def test_different_device_states_are_warned_about() -> None:
    base, new = scaled(1.0), scaled(1.0, seed=2)
    cool = {"device_driver": "570.86.15", "throttled after 0": "no", "sm_clock_mhz after 0": "1980"}
    hot = {"device_driver": "570.86.15", "throttled after 0": "power cap", "tf32_matmul": "True"}
    warnings = comparability_warnings(
        replace(base, facts={**base.facts, **cool, "tf32_matmul": "False"}),
        replace(new, facts={**new.facts, **hot, "sm_clock_mhz after 0": "1975"}),
    )
    assert warnings == [
        "the runs differ in tf32_matmul: False and True",
        "the runs differ in throttled after 0: no and power cap",
    ]


def one_run(factor: float, *, seed: int = 1, clock: str = "operation") -> Run:
    specs = [(name, module, line, ms * factor) for name, module, line, ms in STEP]
    return replace(run_of(specs, samples=40, seed=seed, runs=1), clock=clock)


def test_one_run_per_side_is_inconclusive() -> None:
    for factor in (1.0, 1.2, 1.6):
        check = gate(one_run(1), one_run(factor, seed=2), ["total"], Limits()).checks[0]
        assert check.outcome == "inconclusive"
        assert check.lacks_runs
        assert "one run per side does not show run-to-run variation" in check.reason


@pytest.mark.parametrize(("clock", "factor"), [("operation", 2.5), ("device", 1.5)])
def test_difference_beyond_any_noise_is_a_regression_at_once(clock: str, factor: float) -> None:
    fast, slow = one_run(1, clock=clock), one_run(factor, seed=2, clock=clock)
    assert gate(fast, slow, ["total"], Limits()).outcome == "regression"
    assert gate(slow, fast, ["total"], Limits()).outcome == "pass"


@pytest.mark.parametrize(
    ("factor", "relative", "outcome"),
    [
        (1.0, 0.01, "pass"),
        (1.0, 0.10, "inconclusive"),
        (1.2, 0.01, "regression"),
        (1.2, 0.10, "inconclusive"),
        (2.0, 0.10, "regression"),
    ],
)
def test_learned_noise_decides_after_one_run(factor: float, relative: float, outcome: str) -> None:
    noise = Noise(relative, degrees=9)
    found = gate(one_run(1), one_run(factor, seed=2), ["total"], Limits(), noise)
    assert found.outcome == outcome
    assert not found.checks[0].lacks_runs


@settings(max_examples=60)
@given(st.floats(0.7, 1.6), st.floats(0.002, 0.2), st.integers(1, 6), st.integers(0, 10_000))
def test_diff_does_not_contradict_gate(factor: float, noise: float, runs: int, seed: int) -> None:
    generator = np.random.default_rng(seed)

    def side(scale: float) -> Run:
        runs_ns = 5e6 * scale * np.exp(generator.normal(0, noise, runs))
        values = np.repeat(runs_ns, 10) * generator.uniform(1, 1.02, runs * 10)
        return in_runs(replace(run_of(STEP), totals={"total": values}), runs)

    base, new = side(1.0), side(factor)
    outcome = gate(base, new, ["total"], Limits()).outcome
    verdict = diff(base, new).totals["total"].verdict()
    assert (outcome, verdict) not in {
        ("regression", "faster"),
        ("regression", "same"),
        ("regression", "unclear"),
        ("inconclusive", "faster"),
        ("inconclusive", "same"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "noise"), [(2, 0.05), (3, 0.01), (3, 0.12), (5, 0.12), (8, 0.05)])
def test_verdict_on_random_variation_between_runs_is_rarely_wrong(runs: int, noise: float) -> None:
    """Runs differ from one another, iterations within a run hardly."""
    generator = np.random.default_rng(runs)
    wrong = 0
    for _ in range(100):
        sides = []
        for factor in (1.0, 1.0, 1.2):
            level = 5e6 * factor * np.exp(generator.normal(0, noise, runs))
            values = np.repeat(level, 10) * generator.uniform(1, 1.01, runs * 10)
            lengths = {"total": (10,) * runs}
            sides.append(replace(run_of(STEP), totals={"total": values}, lengths=lengths))
        base, same, slower = sides
        wrong += gate(base, same, ["total"], Limits()).outcome == "regression"
        wrong += gate(base, slower, ["total"], Limits()).outcome == "pass"
    assert wrong <= 2, "of 200"


def test_interval_of_few_very_different_runs_is_readable() -> None:
    def side(values_ns: list[float]) -> Run:
        return in_runs(replace(run_of(STEP), totals={"total": np.array(values_ns)}), 2)

    base, new = side([1e6] * 5 + [9e6] * 5), side([1e6] * 5 + [7e6] * 5)
    (check,) = gate(base, new, ["total"], Limits()).checks
    assert check.outcome == "inconclusive"
    assert check.reason.endswith("the interval is -100.0 % to over +1,000 %")
