"""Keys are found where they stand first, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import NOWHERE, Lookup, find

some = st.lists(st.integers(-5, 40), max_size=30)


@given(some, some)
def test_every_key_is_found_where_it_stands_first(keys: list[int], wanted: list[int]) -> None:
    keys.sort()
    expected = [keys.index(one) if one in keys else NOWHERE for one in wanted]
    assert find(np.array(keys, np.int64), np.array(wanted, np.int64)).tolist() == expected


@pytest.mark.parametrize("far", [0, 1 << 40])
@given(keys=some, wanted=some)
def test_keys_in_any_order_dense_or_sparse(far: int, keys: list[int], wanted: list[int]) -> None:
    keys = [one + far for one in keys]
    wanted = [one + far for one in wanted]
    expected = [keys.index(one) if one in keys else NOWHERE for one in wanted]
    found = Lookup(np.array(keys, np.int64)).rows(np.array(wanted, np.int64))
    assert found.tolist() == expected


def test_numbers_of_64_bits_are_not_rounded() -> None:
    keys = np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64)
    assert find(keys, np.array([2**63 + 1, 2**64 - 2], np.uint64)).tolist() == [1, NOWHERE]
