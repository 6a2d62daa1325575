"""Orders found by counting are those that comparing finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.ordering import stable_order

numbers = st.sampled_from([0, 1, 2, 3, -1, -7, 70_000, 1 << 33, -(1 << 40)])


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=60))
def test_rows_are_ordered_as_lexsort_has_them(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    wanted = np.lexsort(columns[::-1])
    np.testing.assert_array_equal(stable_order(*columns), wanted)


@pytest.mark.parametrize("most", [1, 9, 1 << 17, 1 << 61])
def test_many_rows_and_wide_numbers(most: int) -> None:
    rng = np.random.default_rng(most % 1000)
    columns = [rng.integers(-most, most, 5_000) for _ in range(2)]
    np.testing.assert_array_equal(stable_order(*columns), np.lexsort(columns[::-1]))
