"""Confidence of a ratio, from the variation between runs."""

import math

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
def test_quantiles_equal_those_of_printed_tables(
    alpha: float, degrees: float, expected: float
) -> None:
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


def test_two_different_runs_per_side_are_inconclusive() -> None:
    found = spread(math.log(1.2), [0.0, 0.05], [0.18, 0.23], 0.0, NoiseModel())
    assert found.half_width > math.log(1.2) > 0
    assert found.p_value > 0.01


def test_more_runs_narrow_the_interval() -> None:
    widths = [
        spread(0.0, [0.0, 0.05] * n, [0.0, 0.05] * n, 0.0, NoiseModel()).half_width
        for n in (1, 2, 4, 8)
    ]
    assert widths == sorted(widths, reverse=True)


def test_learned_noise_replaces_missing_runs_and_supports_few_runs() -> None:
    noise = NoiseModel(Noise(0.02, degrees=10))
    one = spread(0.1, [0.0], [0.1], 0.0, noise)
    assert one.half_width == pytest.approx(confidence.quantile(ALPHA, 10) * 0.02 * math.sqrt(2))
    lucky = [0.0, 1e-6], [0.1, 0.1 + 1e-6]
    unsupported, supported = (spread(0.1, *lucky, 0.0, model) for model in (NoiseModel(), noise))
    assert unsupported.half_width < 1e-4 < supported.half_width, "two runs may agree by chance"


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
