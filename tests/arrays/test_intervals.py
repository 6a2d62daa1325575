"""Unions and intersections equal those of the covered nanoseconds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

RAW = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def merged(raw: list[tuple[int, int]]) -> IntervalSet:
    start, end = (np.array([pair[i] for pair in raw], np.int64) for i in (0, 1))
    return intervals.merge(start, end)


def covered(raw: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in raw for moment in range(start, end)}


def moments(one: IntervalSet) -> set[int]:
    return covered(list(zip(one.start_ns.tolist(), one.end_ns.tolist(), strict=True)))


def is_canonical(one: IntervalSet) -> bool:
    separate = bool((one.start_ns[1:] > one.end_ns[:-1]).all())
    return separate and bool((one.end_ns > one.start_ns).all())


@given(RAW)
@settings(max_examples=200)
def test_merging_keeps_the_covered_time(raw: list[tuple[int, int]]) -> None:
    one = merged(raw)
    assert moments(one) == covered(raw)
    assert one.total_ns == len(covered(raw))
    assert is_canonical(one)


@given(RAW, RAW)
@settings(max_examples=200)
def test_intersection_and_union_equal_those_of_the_covered_times(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    intersection = intervals.intersect(merged(a), merged(b))
    assert moments(intersection) == covered(a) & covered(b)
    assert intersection.total_ns == len(covered(a) & covered(b))
    assert moments(intervals.union(merged(a), merged(b))) == covered(a) | covered(b)


@given(RAW, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=100)
def test_clipping_keeps_the_time_within_the_bounds(
    raw: list[tuple[int, int]], low: int, high: int
) -> None:
    assert moments(intervals.clip(merged(raw), low, high)) == {
        moment for moment in covered(raw) if low <= moment < high
    }


def test_times_near_the_largest_integer_do_not_overflow() -> None:
    far = np.array([2**62 - 10], np.int64)
    assert intervals.merge(far, far + 10).total_ns == 10
