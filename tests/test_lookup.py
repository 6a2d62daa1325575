from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.lookup import NOWHERE, find

NUMBERS = st.lists(st.integers(-5, 5), max_size=12)


@given(keys=NUMBERS, wanted=NUMBERS)
def test_the_first_place_of_each_value_as_a_list_finds_it(
    keys: list[int], wanted: list[int]
) -> None:
    keys.sort()
    found = find(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [keys.index(w) if w in keys else NOWHERE for w in wanted]


def test_numbers_of_64_bits_are_not_rounded() -> None:
    keys = np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64)
    assert find(keys, np.array([2**63 + 1, 2**64 - 2], np.uint64)).tolist() == [1, NOWHERE]
