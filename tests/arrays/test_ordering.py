"""Orders found by counting are those that comparing finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import order_of_keys, stable_order

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


# Threads above times, streams above numbers, and numbers of any kind.
KEYS = st.one_of(
    st.builds(lambda thread, time: thread << 48 | time, st.integers(0, 9), st.integers(0, 1 << 36)),
    st.integers(-5, 5),
    st.integers(0, (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(st.lists(KEYS, max_size=40), st.integers(0, 3), st.booleans())
def test_keys_are_ordered_as_argsort_has_them(
    keys: list[int], repeated: int, unsigned: bool
) -> None:
    column = np.array(keys * (1 + repeated), np.int64)
    if unsigned:
        column = column.view(np.uint64)
    wanted = np.argsort(column, kind="stable")
    order = order_of_keys(column)
    if order is None:
        assert (column[1:] >= column[:-1]).all()
    else:
        assert order.tolist() == wanted.tolist()


@pytest.mark.parametrize("high", [0, 1, 16, 48, 60, 63])
@pytest.mark.parametrize("low", [1, 20, 40])
def test_keys_whose_bits_differ_in_two_places(low: int, high: int) -> None:
    rng = np.random.default_rng(low * 64 + high)
    count = 3_000
    keys = rng.integers(0, 1 << low, count, np.uint64) | np.uint64(1 << 45)
    keys ^= rng.integers(0, 2, count, np.uint64) << np.uint64(high)
    for column in (keys, keys.view(np.int64)):
        order = order_of_keys(column)
        assert order is not None
        assert order.tolist() == np.argsort(column, kind="stable").tolist()


def test_columns_of_records_have_no_order_of_their_own_to_be_changed() -> None:
    rows = np.zeros(4, [("tag", "u1"), ("key", "u8")])
    rows["key"] = [3, 1, 3, 0]
    order = order_of_keys(rows["key"])
    assert order is not None
    assert order.tolist() == [3, 1, 0, 2]
    assert rows["key"].tolist() == [3, 1, 3, 0]
