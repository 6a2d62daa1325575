"""Several workloads: the geometric mean is judged by the rule for a single workload."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.compare.comparable import PEAK, TOTAL, Operations, Run
from unified_prof.compare.confidence import Noise, Sample
from unified_prof.compare.gate import Limits, compare_workloads, gate, gate_workloads
from unified_prof.compare.statistics import compare_geometric_means, shifts
from unified_prof.errors import UsageError


def run_of(*milliseconds: float, clock: str = "operation", peak: float | None = None) -> Run:
    """Return a side with runs of the given durations."""
    runs = [one * 1e6 * np.linspace(1, 1.01, 10) for one in milliseconds]
    totals = {TOTAL: np.concatenate(runs)}
    lengths = {TOTAL: tuple(map(len, runs))}
    if peak is not None:
        totals[PEAK], lengths[PEAK] = np.array([peak]), (1,)
    family = frozenset({"skyline-run-time"})
    return Run("run", family, clock, {}, Operations.none(), (), totals, lengths=lengths)


def sample(milliseconds: Sequence[float]) -> Sample:
    return run_of(*milliseconds).sample(TOTAL)


def test_regression_of_all_workloads_is_found_although_each_is_inconclusive() -> None:
    # Each is slower by 12 %, on a machine whose runs vary by 3 %.
    generator = np.random.default_rng(11)

    def side(level: float) -> Run:
        return run_of(*(level * math.exp(generator.normal(0, 0.03)) for _ in range(3)))

    levels = enumerate((1.0, 5.0, 20.0, 80.0, 300.0, 1000.0))
    pairs = {str(number): (side(level), side(level * 1.12)) for number, level in levels}
    found = gate_workloads(pairs, [TOTAL], Limits(), {})
    assert {verdict.outcome for verdict in found.each.values()} == {"inconclusive"}
    (check,) = found.together
    assert check.outcome == "regression"
    assert check.comparison is not None
    assert check.comparison.ratio == pytest.approx(1.12, rel=0.05)
    assert found.outcome == "regression"
    assert found.exit_code == 1


def test_common_disturbance_of_a_round_is_no_evidence() -> None:
    # All workloads of a round are disturbed equally: six of them give no more evidence than one.
    rounds = (1.0, 1.3, 0.9)
    base = run_of(*(10 * one for one in rounds))
    new = run_of(*(11.5 * one for one in (1.2, 0.85, 1.1)))
    single = gate(base, new, [TOTAL], Limits()).checks[0]
    together = gate_workloads(
        {str(n): (base, new) for n in range(6)}, [TOTAL], Limits(), {}
    ).together[0]
    assert single.outcome == together.outcome == "inconclusive"
    assert single.shift is not None
    assert together.shift is not None
    assert together.shift.low == pytest.approx(single.shift.low, rel=0.01)


def test_regression_of_one_workload_is_not_hidden_by_a_faster_one() -> None:
    pairs = {
        "slower": (run_of(10, 10.01, 10.02), run_of(12, 12.01, 12.02)),
        "faster": (run_of(10, 10.01, 10.02), run_of(5, 5.01, 5.02)),
    }
    found = gate_workloads(pairs, [TOTAL], Limits(), {})
    assert found.together[0].outcome == "pass"
    assert found.each["slower"].outcome == "regression"
    assert found.outcome == "regression"


def test_runs_that_another_workload_lacks_are_left_out() -> None:
    pairs = [
        (sample([10, 10.1, 10.2, 99]), sample([10, 10.1])),
        (sample([20, 20]), sample([20, 20])),
    ]
    found = shifts(pairs)
    assert found is not None
    assert found[0].ratio == pytest.approx(1.0, rel=0.01)


def test_metric_missing_in_one_workload_is_inconclusive() -> None:
    pairs = {"a": (run_of(10, 10, peak=1e9), run_of(10, 10, peak=1e9)), "b": (run_of(1), run_of(1))}
    check = gate_workloads(pairs, [PEAK], Limits(), {}).together[0]
    assert (check.outcome, check.reason) == ("inconclusive", "not measured in b")
    assert compare_workloads(pairs, PEAK, {}) is None


def test_memory_is_judged_by_the_mean_of_its_ratios() -> None:
    pairs = {
        "a": (run_of(10, peak=1e9), run_of(10, peak=1.3e9)),
        "b": (run_of(10, peak=8e9), run_of(10, peak=8e9)),
    }
    check = gate_workloads(pairs, [PEAK], Limits(), {}).together[0]
    assert check.outcome == "regression"
    assert check.comparison is not None
    assert check.comparison.median_ratio == pytest.approx(1.3**0.5)


def test_few_samples_and_zero_times_have_no_ratio() -> None:
    few = Sample.from_values([1.0, 2.0])
    assert compare_geometric_means([(few, few)])[1] is None
    nothing = Sample.from_values([0.0] * 6)
    comparison, rests_on = compare_geometric_means([(nothing, nothing), (sample([1]), sample([1]))])
    assert rests_on is None
    assert comparison.ratio is None
    with pytest.raises(ValueError, match="empty"):
        compare_geometric_means([])


def test_learned_noise_is_used_only_if_it_is_known_for_all_workloads() -> None:
    pairs = {"a": (run_of(10), run_of(13)), "b": (run_of(20), run_of(26))}
    learned = {"a": Noise(0.01, 8), "b": Noise(0.02, 5)}
    assert gate_workloads(pairs, [TOTAL], Limits(), {}).together[0].outcome == "inconclusive"
    partly = gate_workloads(pairs, [TOTAL], Limits(), {"a": learned["a"]}).together[0]
    assert partly.outcome == "inconclusive"
    assert gate_workloads(pairs, [TOTAL], Limits(), learned).together[0].outcome == "regression"


def test_times_of_different_clocks_have_no_mean() -> None:
    pairs = {
        "a": (run_of(1), run_of(1)),
        "b": (run_of(1, clock="device"), run_of(1, clock="device")),
    }
    with pytest.raises(UsageError, match="different clocks: device, operation"):
        gate_workloads(pairs, [TOTAL], Limits(), {})


_RUNS = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(_RUNS, _RUNS), min_size=1, max_size=4), st.sampled_from([None, 0.01, 0.3])
)
def test_gate_and_diff_of_the_mean_do_not_contradict_each_other(
    times: list[tuple[list[float], list[float]]], relative: float | None
) -> None:
    pairs = {str(number): (run_of(*one), run_of(*two)) for number, (one, two) in enumerate(times)}
    noise = None if relative is None else Noise(relative, 6)
    noises = dict.fromkeys(pairs, noise)
    outcome = gate_workloads(pairs, [TOTAL], Limits(), noises).together[0].outcome
    compared = compare_workloads(pairs, TOTAL, noises)
    assert compared is not None
    verdict = compared.verdict()
    if outcome == "regression":
        assert verdict == "slower"
    if verdict in ("same", "faster"):
        assert outcome != "regression"
    if outcome == "pass":
        assert compared.ratio is not None
        assert compared.ratio < 1.05 or compared.new_median - compared.base_median < 60_000
