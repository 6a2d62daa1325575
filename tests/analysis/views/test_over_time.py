"""Lines over time keep their extremes when they are thinned."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.recording.timeline import stacked, thin_line


def test_thinned_line_keeps_ends_and_extremes() -> None:
    time = np.arange(100_000)
    value = np.zeros(100_000)
    value[54_321], value[77_777] = 9, -3
    at, kept = thin_line(time, value)
    assert len(kept) <= 20_002
    assert (at[0], at[-1]) == (0, 99_999)
    assert kept[at == 54_321].tolist() == [9]
    assert kept[at == 77_777].tolist() == [-3]


def test_short_line_is_not_thinned() -> None:
    time, value = np.arange(5), np.arange(5.0)
    assert thin_line(time, value) == (time, value)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 4)), max_size=8))
def test_stacked_line_is_the_sum_of_intervals(intervals: list[tuple[int, int, int]]) -> None:
    start, length, height = np.array(intervals, np.int64).reshape(-1, 3).T
    moments, value = stacked(start, start + length, height)
    each = [(begin, begin + duration, tall) for begin, duration, tall in intervals]
    expected = sorted({moment for begin, end, _ in each for moment in (begin, end)})
    assert moments.tolist() == expected
    assert value.tolist() == [
        sum(tall for begin, end, tall in each if begin <= moment < end) for moment in expected
    ]


def test_stacked_line_is_exactly_zero_where_nothing_is_open() -> None:
    start, end = np.array([0, 5, 40]), np.array([20, 30, 41])
    _, value = stacked(start, end, np.array([0.1, 0.7, 1e9]))
    assert value.tolist()[-3:] == [0.0, 1e9, 0.0]
    empty = np.zeros(0, np.int64)
    assert [len(one) for one in stacked(empty, empty, empty)] == [0, 0]
