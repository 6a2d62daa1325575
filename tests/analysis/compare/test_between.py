"""Confidence of a ratio, from the variation between runs."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.compare import confidence
from unified_prof.compare.confidence import ALPHA, Noise, NoiseModel, Sample, spread, spread_by_row

logarithms = st.lists(st.floats(-3, 3), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("alpha", "degrees", "expected"),
    [
        (0.05, 1, 12.7062),
        (0.05, 2, 4.3027),
        (0.05, 4, 2.7764),
        (0.01, 10, 3.1693),
        (0.05, 1e9, 1.96),
    ],
)
def test_quantiles_equal_printed_tables(alpha: float, degrees: float, expected: float) -> None:
    assert confidence.quantile(alpha, degrees) == pytest.approx(expected, abs=1e-4)


@given(st.floats(0.01, 50), st.floats(0.5, 100))
def test_quantile_is_the_inverse_of_the_probability(t: float, degrees: float) -> None:
    p = confidence.two_sided(t, degrees)
    assert 0 <= p <= 1
    if p > 1e-6:  # below that, 1 - p loses its digits
        assert confidence.quantile(p, degrees) == pytest.approx(t, rel=1e-6)


def test_sample_is_divided_into_runs() -> None:
    sample = Sample.from_values([1, 2, 3, 4, 5], (2, 0, 3))
    assert [run.tolist() for run in sample.runs] == [[1, 2], [3, 4, 5]]
    assert [run.tolist() for run in Sample.from_values([1, 2]).runs] == [[1, 2]]
    with pytest.raises(ValueError, match="do not add up to 3 values"):
        Sample.from_values([1, 2, 3], (2, 2))


def pooled(sides: list[list[float]], within: float, noise: Noise | None) -> tuple[float, float]:
    """Return the standard error of the difference of means, and its degrees of freedom.

    That is the textbook's pooled variance; noise is one more estimate of it.
    """
    estimates = [(len(one) - 1.0, statistics.variance(one)) for one in sides if len(one) > 1]
    degrees = sum(weight for weight, _ in estimates)
    variance = sum(weight * one for weight, one in estimates) / degrees if degrees else 0.0
    estimates = [(degrees, max(variance, within))]
    if noise:
        estimates.append((noise.degrees, max(noise.relative**2, within)))
    total = sum(weight for weight, _ in estimates)
    variance = sum(weight * one for weight, one in estimates) / total if total else within
    return math.sqrt(variance * sum(1 / len(one) for one in sides)), total


@given(logarithms, logarithms, st.floats(0, 0.1), st.booleans())
def test_interval_is_that_of_the_pooled_variance(
    base: list[float], new: list[float], within: float, learned: bool
) -> None:
    noise = Noise(0.3, 5) if learned else None
    center = statistics.mean(new) - statistics.mean(base)
    error, degrees = pooled([base, new], within, noise)
    # Two single runs may differ by a factor of 1.5.
    allowed = 0.0 if degrees else math.log(1.5)
    found = spread(center, base, new, within, NoiseModel(noise, 1.5))
    quantile = confidence.quantile(ALPHA, degrees or math.inf)
    assert found.half_width == pytest.approx(quantile * error + allowed)
    beyond = max(abs(center) - allowed, 0)
    if error > 1e-6:
        p_value = confidence.two_sided(beyond / error, degrees or math.inf)
        assert found.p_value == pytest.approx(p_value, abs=1e-9)
    error, degrees = pooled([base], within, noise)
    half = confidence.half_width(base, within, noise)
    expected = confidence.quantile(ALPHA, degrees) * error if degrees else None
    assert half == pytest.approx(expected)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.booleans())
def test_interval_of_paired_rounds_is_that_of_their_mean(
    changes: list[float], learned: bool
) -> None:
    """The noise of a difference is that of two runs."""
    noise = Noise(0.3, 5) if learned else None
    error, degrees = pooled([changes], 0.0, noise and Noise(0.3 * math.sqrt(2), 5))
    found = confidence.paired_spread(changes, noise)
    assert found.half_width == pytest.approx(confidence.quantile(ALPHA, degrees) * error)
    if error > 1e-6:
        p_value = confidence.two_sided(statistics.mean(changes) / error, degrees)
        assert found.p_value == pytest.approx(p_value, abs=1e-9)


@given(st.floats(0, 30), st.floats(1, 60))
def test_probability_is_the_area_of_both_tails(t: float, degrees: float) -> None:
    """The density of Student's t is a power of the cosine of atan(t / sqrt(degrees))."""
    middles = (np.arange(4000) + 0.5) / 4000
    areas = []
    for start in (math.atan(t / math.sqrt(degrees)), 0):
        length = math.pi / 2 - start
        areas.append(length * np.mean(np.cos(start + length * middles) ** (degrees - 1)))
    assert confidence.two_sided(t, degrees) == pytest.approx(areas[0] / areas[1], abs=1e-5)


@given(logarithms, logarithms, st.floats(0, 0.1), st.booleans())
def test_vectorized_spread_equals_that_of_single_rows(
    base: list[float], new: list[float], within: float, learned: bool
) -> None:
    between = NoiseModel(Noise(0.03, 5) if learned else None, 1.5)
    center = sum(new) / len(new) - sum(base) / len(base)
    one = spread(center, base, new, within, between)
    half, p_value = spread_by_row(
        np.array([center]), np.array([base]), np.array([new]), np.array([within]), between
    )
    assert half[0] == pytest.approx(one.half_width)
    assert p_value[0] == pytest.approx(one.p_value, abs=1e-12)


def test_few_operations_look_changed_if_only_noise_differs() -> None:
    generator = np.random.default_rng(1)
    base, new = generator.normal(0, 0.05, (2, 400, 2))
    center = new.mean(axis=1) - base.mean(axis=1)
    _, p_values = spread_by_row(center, base, new, np.zeros(400), NoiseModel())
    assert (p_values < 0.05).mean() < 0.1
    assert (p_values < 0.001).sum() <= 3


def test_unknown_values_stay_unknown() -> None:
    half, p_values = spread_by_row(
        np.array([np.nan, 0.0]), np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2), NoiseModel()
    )
    assert np.isnan(half).tolist() == np.isnan(p_values).tolist() == [True, False]
