"""Ranks are compared with each other as simple implementations do it."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.cluster.rank_signals import median_of_others, upper_cluster


@given(st.lists(st.integers(-9, 9), max_size=9))
def test_median_of_others_equals_that_of_the_list_without_the_value(values: list[int]) -> None:
    others = [values[:at] + values[at + 1 :] for at in range(len(values))]
    expected = [statistics.median(one) if one else np.nan for one in others]
    np.testing.assert_array_equal(median_of_others(np.array(values, float)), expected)


@pytest.mark.parametrize(
    ("values", "majority", "expected"),
    [
        ([0, 1, 0, 1.1, 0], False, [0, 1, 0, 1.1, 0]),
        ([3, 4, 3.1, 4.2], False, [0, 0.95, 0, 1.15]),
        ([0, 1, 1, 1, 0], False, None),  # more than half are above
        ([0, 1, 1, 1, 0], True, [0, 1, 1, 1, 0]),
        ([0, 0, 0, 1], True, None),  # one value is no cluster
        ([0, 1, 1], True, None),
        ([0, 0, 1, np.nan], True, None),
        ([0, 0, 0.03, 0.03], False, [0, 0, 0.03, 0.03]),  # the smallest gap
        ([0, 0, 0.029, 0.029], False, None),
        ([0, 0.1, 0.7, 0.8], False, [0, 0, 0.65, 0.75]),  # 0.6 is 8 times the spread of 0.074
        ([0, 0.2, 0.8, 0.9], False, None),  # 0.6 is 4 times the spread of 0.15
    ],
)
def test_values_above_a_gap_are_a_cluster(
    values: list[float], majority: bool, expected: list[float] | None
) -> None:
    found = upper_cluster(np.array(values, float), majority=majority)
    assert found is None if expected is None else found == pytest.approx(expected)
