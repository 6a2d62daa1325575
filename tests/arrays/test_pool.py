"""Indexes of repeated numbers are those that a dictionary in the order of first use gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import Pool

VALUES = st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1), st.just(1 << 63))


@given(st.lists(st.lists(VALUES, max_size=30), max_size=6))
def test_unseen_values_get_the_next_indexes_in_their_own_order(batches: list[list[int]]) -> None:
    pool = Pool()
    expected: dict[int, int] = {}
    for batch in batches:
        for value in sorted(set(batch) - expected.keys()):
            expected[value] = len(expected)
        found = pool.index_of(np.array(batch, np.uint64))
        assert found.tolist() == [expected[value] for value in batch]
        assert pool.values.tolist() == list(expected)
        assert len(pool) == len(expected)


def test_more_values_than_slots() -> None:
    """Those that share a slot are found as well, whatever came before them."""
    rng = np.random.default_rng(4)
    pool = Pool()
    values = rng.integers(0, 1 << 63, 300_000, np.uint64)
    for part in np.array_split(values, 7):
        pool.index_of(part)
    assert len(pool) == len(np.unique(values))
    index = pool.index_of(values)
    np.testing.assert_array_equal(pool.values[index], values)


def test_columns_of_records_and_of_other_widths() -> None:
    rows = np.zeros(5, [("tag", "u1"), ("thread", "u4")])
    rows["thread"] = [7, 7, 3, 9, 3]
    pool = Pool()
    assert pool.index_of(rows["thread"]).tolist() == [1, 1, 0, 2, 0]
    assert pool.index_of(np.array([-1], np.int64)).tolist() == [3]
    assert int(pool.values[3]) == (1 << 64) - 1
