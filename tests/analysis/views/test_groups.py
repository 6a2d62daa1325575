"""Grouping of rows by key and layout of overlapping slices, against a simple implementation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import by_key
from unified_prof.recording.timeline import _row_of_each


@given(st.lists(st.integers(-3, 5)))
def test_rows_are_grouped_by_ascending_key_in_their_order(keys: list[int]) -> None:
    found = [(key, rows.tolist()) for key, rows in by_key(np.array(keys, np.int64))]
    assert found == [
        (key, [row for row, one in enumerate(keys) if one == key]) for key in sorted(set(keys))
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))).map(sorted))
def test_slice_is_drawn_on_the_lowest_free_row(slices: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in slices], np.int64)
    end = start + np.array([length for _, length in slices], np.int64)
    free_at: list[int] = []
    expected = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        row = next((row for row, until in enumerate(free_at) if until <= begin), len(free_at))
        free_at[row:] = [finish, *free_at[row + 1 :]]
        expected.append(row)
    assert _row_of_each(start, end).tolist() == expected
