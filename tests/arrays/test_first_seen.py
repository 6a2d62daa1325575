"""Numbers that are given to some values after others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import FirstSeen


@given(st.lists(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)))))
def test_numbers_are_given_in_the_order_of_first_use(parts: list[list[int]]) -> None:
    seen, expected = FirstSeen(), dict[int, int]()
    for part in parts:
        for value in part:
            expected.setdefault(value, len(expected))
        found = seen.numbers(np.array(part, np.int64))
        assert found.tolist() == [expected[value] for value in part]
    assert seen.values.tolist() == list(expected)
    assert len(seen) == len(expected)
