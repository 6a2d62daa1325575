"""Metrics over versions, with confidence and marked changes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from unified_prof.compare.comparable import PEAK, TOTAL, Operations, Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.gate import Limits, gate
from unified_prof.compare.history import History, history
from unified_prof.errors import UsageError


def version(*milliseconds: float, device: str = "cpu: a model", peak: float | None = None) -> Run:
    runs = [one * 1e6 * np.linspace(1, 1.01, 10) for one in milliseconds]
    totals = {TOTAL: np.concatenate(runs)} if runs else {}
    lengths = {TOTAL: tuple(map(len, runs))} if runs else {}
    if peak is not None:
        totals[PEAK], lengths[PEAK] = np.array([peak]), (1,)
    family = frozenset({"skyline-run-time"})
    facts = {"device": device}
    none = Operations.none()
    return Run("v", family, "operation", facts, none, (), totals, lengths=lengths)


def versions_at(
    levels: Sequence[float], noise: float = 0.01, runs: int = 3, seed: int = 2
) -> list[Run]:
    generator = np.random.default_rng(seed)
    return [
        version(*(level * math.exp(generator.normal(0, noise)) for _ in range(runs)))
        for level in levels
    ]


def kinds(found: History) -> list[str | None]:
    return [None if point.change is None else point.change.kind for point in found.points]


def test_steps_of_a_metric_are_marked_where_they_happen() -> None:
    found = history(versions_at([10] * 6 + [12] * 6 + [9] * 6), TOTAL, Limits())
    assert [index for index, kind in enumerate(kinds(found)) if kind] == [6, 12]
    assert kinds(found)[6] == "worse"
    assert kinds(found)[12] == "better"
    change = found.points[12].change
    assert change is not None
    assert change.ratio == pytest.approx(0.75, rel=0.03)
    assert change.ratio is not None
    assert change.reason == f"{(change.ratio - 1) * 100:+.1f} %, beyond the limit"


def test_values_are_times_of_the_clock_that_the_gate_compares() -> None:
    run = version(10)
    total = run.totals[TOTAL]
    run = replace(run, waited={TOTAL: total / 2}, cpu={TOTAL: total})  # two threads
    found = history([run, run], TOTAL, Limits())
    assert found.clock == "cpu"
    assert found.points[0].value == pytest.approx(np.median(total))
    without = replace(run, cpu={})
    found = history([run, without], TOTAL, Limits())
    assert found.clock == "wall"
    assert found.points[0].value == pytest.approx(np.median(total) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_marked_as_a_change(seed: int) -> None:
    assert not any(kinds(history(versions_at([10] * 20, noise=0.03, seed=seed), TOTAL, Limits())))


def test_slow_drift_is_marked_when_it_is_significant() -> None:
    levels = [10 * 1.02**number for number in range(12)]
    assert "worse" in kinds(history(versions_at(levels, noise=0.002), TOTAL, Limits()))


def test_single_runs_are_compared_by_the_variation_between_versions() -> None:
    # A single run shows no variation, but versions at the same level do.
    found = history(versions_at([10] * 6 + [13] * 2, runs=1), TOTAL, Limits())
    assert kinds(found)[:6] == [None] * 6
    assert kinds(found)[6] == "worse"
    assert found.points[0].low is None
    learned = history(versions_at([10] * 2, runs=1), TOTAL, Limits(), Noise(0.01, 8))
    assert learned.points[0].low is not None


def test_mark_equals_the_verdict_of_the_gate() -> None:
    versions = versions_at([10, 10, 11.5])
    marked = kinds(history(versions, TOTAL, Limits()))[1:]
    regression = gate(versions[0], versions[1], [TOTAL], Limits()).outcome == "regression"
    assert (marked[0] == "worse") == regression


def test_point_is_the_geometric_mean_of_its_runs_within_its_interval() -> None:
    (point,) = history([version(10, 11, 12)], TOTAL, Limits()).points
    assert point.value == pytest.approx((10 * 11 * 12) ** (1 / 3) * 1.005e6)
    assert point.low is not None
    assert point.high is not None
    assert point.low < 10e6 < 12e6 < point.high, "three runs give a wide interval"
    assert point.runs == 3


def test_another_device_starts_a_new_level() -> None:
    slow = [version(20, 20.1, 20.2, device="cuda: a card") for _ in range(2)]
    found = history([*versions_at([10, 10]), *slow], TOTAL, Limits())
    assert kinds(found) == [None, None, "restarted", None]
    change = found.points[2].change
    assert change is not None
    assert change.reason == "measured on cuda: a card, before on cpu: a model"


def test_versions_without_the_metric_are_skipped() -> None:
    versions = [version(10, peak=1e9), version(10), version(10, peak=1e9), version(10, peak=2e9)]
    found = history(versions, PEAK, Limits())
    assert [point.value for point in found.points] == [1e9, None, 1e9, 2e9]
    assert kinds(found) == [None, None, None, "worse"]
    assert found.unit == "B"


def test_unknown_metric_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no metric 'speed'"):
        history(versions_at([10]), "speed", Limits())
