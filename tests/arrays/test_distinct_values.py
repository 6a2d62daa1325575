"""Distinct values without sorting are those that sorting finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import distinct, rising

VALUES = st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1), st.just(7))


@given(st.lists(VALUES), st.booleans())
def test_like_sorting(values: list[int], same: bool) -> None:
    given_values = np.array(values[:1] * len(values) if same else values, np.int64)
    found, inverse = distinct(given_values)
    expected, places = np.unique(given_values, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert inverse.tolist() == places.tolist()


@given(st.lists(VALUES))
def test_by_sorting_alone(values: list[int]) -> None:
    given_values = np.array(values, np.int64)
    assert rising(given_values).tolist() == np.unique(given_values).tolist()
