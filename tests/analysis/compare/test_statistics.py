"""Statistical comparison of two samples."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.compare.confidence import Sample
from unified_prof.compare.statistics import compare, correct_for_many, medians, shifts


def test_interval_that_includes_slower_and_faster_is_unclear() -> None:
    base = np.array([100, 20, 110, 25, 95, 22, 105, 21, 100, 24.0])
    new = np.array([39, 100, 20, 110, 22, 105, 21, 25, 98, 24.0])
    found = compare(base, new)
    assert found.ratio is not None
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low < 0.9
    assert found.ratio_high > 1.1
    assert found.verdict() == "unclear"


def test_difference_significantly_below_5_percent_is_the_same() -> None:
    generator = np.random.default_rng(3)
    base, new = (Sample.from_values(generator.uniform(100, 101, 20), (5,) * 4) for _ in range(2))
    assert compare(base, new).verdict() == "same"
    assert compare(base.values, new.values).verdict() == "unclear", "one run each"


def test_zero_time_can_only_get_slower() -> None:
    nothing = np.zeros(6)
    assert compare(nothing, nothing).verdict() == "same"
    assert compare(nothing, nothing + 5).verdict() == "slower"
    assert compare(nothing, [0, 0, 0, 5, 5, 5]).verdict() == "unclear"


@given(st.lists(st.floats(0.1, 100), min_size=5, max_size=30))
def test_sample_compared_with_itself_is_neither_slower_nor_faster(values: list[float]) -> None:
    found = compare(values, values)
    assert found.ratio == 1
    assert found.verdict() in ("same", "unclear")


@given(
    st.lists(st.floats(1, 100), min_size=5, max_size=20),
    st.lists(st.floats(1, 100), min_size=5, max_size=20),
)
def test_swapping_the_sides_swaps_the_verdict(a: list[float], b: list[float]) -> None:
    there, back = compare(a, b), compare(b, a)
    assert there.p_value == pytest.approx(back.p_value)
    assert {there.verdict(), back.verdict()} != {"slower"}
    assert {there.verdict(), back.verdict()} != {"faster"}


def test_interval_of_a_20_percent_slowdown_contains_the_true_ratio() -> None:
    generator = np.random.default_rng(2)
    base = 5 + generator.gamma(2, 0.05, 30)
    a, b = (Sample.from_values(x, (10,) * 3) for x in (base, base[::-1] * 1.2))
    found = compare(a, b)
    assert found.verdict() == "slower"
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low <= 1.2 <= found.ratio_high
    assert found.ratio_low > 1.1


def test_few_samples_are_inconclusive() -> None:
    found = compare([10.0] * 4, [1.0] * 4)
    assert not found.conclusive
    assert found.verdict() == "inconclusive"


@pytest.mark.parametrize("bad", [[], [float("nan")] * 6, [1.0, float("inf")]])
def test_empty_or_nonfinite_sample_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        compare([1.0] * 6, bad)


known = st.lists(st.sampled_from([0.001, 0.01, 0.01, 0.02, 0.3, 0.9, math.nan]), max_size=9)


@given(known)
def test_correction_for_multiple_tests_is_that_of_benjamini_and_hochberg(raw: list[float]) -> None:
    tested = [p for p in raw if not math.isnan(p)]
    expected = [
        min([1.0, *(q * len(tested) / sum(one <= q for one in tested) for q in tested if q >= p)])
        if not math.isnan(p)
        else p
        for p in raw
    ]
    assert correct_for_many(np.array(raw)).tolist() == pytest.approx(expected, nan_ok=True)


@given(
    st.lists(st.floats(1, 100), min_size=5, max_size=20),
    st.lists(st.floats(1, 100), min_size=5, max_size=20),
)
def test_interval_contains_its_ratio_narrower_first(a: list[float], b: list[float]) -> None:
    found = shifts([(Sample.from_values(a), Sample.from_values(b))])
    assert found is not None
    first, second = found
    assert first.width <= second.width
    assert {first.statistic, second.statistic} == {"median", "fastest"}
    fastest = first if first.statistic == "fastest" else second
    assert fastest.ratio == pytest.approx(min(b) / min(a))
    assert fastest.low <= fastest.high


@given(known, known)
def test_medians_ignore_unknown_values(one: list[float], other: list[float]) -> None:
    width = max(len(one), len(other))
    matrix = np.array([[*row, *[math.nan] * (width - len(row))] for row in (one, other)])
    expected = [
        statistics.median(values) if (values := [x for x in row if not math.isnan(x)]) else math.nan
        for row in (one, other)
    ]
    assert medians(matrix.reshape(2, width)).tolist() == pytest.approx(expected, nan_ok=True)
