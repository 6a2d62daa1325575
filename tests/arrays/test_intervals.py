"""Operations on sets of intervals equal those on the covered nanoseconds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Pairs = list[tuple[int, int]]
RAW = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def interval_set(raw: Pairs) -> IntervalSet:
    return IntervalSet(*np.array(raw, np.int64).reshape(-1, 2).T)


def merged(raw: Pairs, *, keep_empty: bool = False) -> IntervalSet:
    start, end = np.array(raw, np.int64).reshape(-1, 2).T
    return intervals.merge(start, end, keep_empty=keep_empty)


def covered(raw: Pairs) -> set[int]:
    return {moment for start, end in raw for moment in range(start, end)}


def pairs(one: IntervalSet) -> Pairs:
    return list(zip(one.start_ns.tolist(), one.end_ns.tolist(), strict=True))


def runs(moments: set[int]) -> Pairs:
    """Return the only merged set that covers these moments."""
    starts = sorted(moment for moment in moments if moment - 1 not in moments)
    ends = sorted(moment + 1 for moment in moments if moment + 1 not in moments)
    return list(zip(starts, ends, strict=True))


@given(RAW)
@settings(max_examples=200)
def test_merged_set_covers_the_same_time_without_overlaps(raw: Pairs) -> None:
    expected = runs(covered(raw))
    assert pairs(merged(raw)) == expected
    assert merged(raw).total_ns == len(covered(raw))
    assert len(merged(raw)) == len(expected)
    points = {(one, one) for one, end in raw if one == end}
    alone = {(one, _) for one, _ in points if not any(a <= one <= b for a, b in expected)}
    assert pairs(merged(raw, keep_empty=True)) == sorted({*expected, *alone})


@given(RAW, RAW, RAW)
@settings(max_examples=200)
def test_operations_equal_those_on_the_covered_times(a: Pairs, b: Pairs, c: Pairs) -> None:
    moments = covered(a), covered(b), covered(c)
    first, second, third = map(merged, (a, b, c))
    assert pairs(intervals.union(first, second, third)) == runs(set.union(*moments))
    assert pairs(intervals.union()) == []
    assert pairs(intervals.intersect(first, second)) == runs(moments[0] & moments[1])
    assert pairs(intervals.subtract(first, second)) == runs(moments[0] - moments[1])
    ends = sorted(moments[0])
    assert pairs(intervals.hull(first)) == ([(ends[0], ends[-1] + 1)] if ends else [])
    assert [
        (low, high, pairs(first)[left], pairs(second)[right])
        for low, high, left, right in zip(*intervals.overlaps(first, second), strict=True)
    ] == [
        (max(x[0], y[0]), min(x[1], y[1]), x, y)
        for x in pairs(first)
        for y in pairs(second)
        if max(x[0], y[0]) < min(x[1], y[1])
    ]


@given(RAW, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=200)
def test_bounds_select_the_time_between_them(raw: Pairs, low: int, high: int) -> None:
    one = merged(raw)
    before = pairs(one)
    within = {moment for moment in covered(raw) if low <= moment < high}
    assert pairs(intervals.clip(one, low, high)) == runs(within)
    assert pairs(intervals.part(one, low, high)) == runs(within)
    assert pairs(one) == before
    times = np.arange(-1, 42)
    totals = [sum(moment < at for moment in covered(raw)) for at in times.tolist()]
    assert intervals.covered_before(one, times).tolist() == totals
    if low <= high:
        column = np.array([low]), np.array([high])
        assert intervals.covered(one, *column).tolist() == [len(within)]
    holders = [[a <= at < b for a, b in before] for at in times.tolist()]
    found = intervals.holding(one, times).tolist()
    assert found == [flags.index(True) if any(flags) else -1 for flags in holders]


def test_empty_and_touching_intervals_are_searched() -> None:
    touching = interval_set([(0, 0), (0, 1), (1, 1), (1, 2)])
    assert intervals.holding(touching, np.array([-1, 0, 1, 2])).tolist() == [-1, 1, 3, -1]
    found = np.stack(intervals.overlaps(touching, interval_set([(0, 2)])), axis=1)
    assert found.tolist() == [[0, 1, 1, 0], [1, 2, 3, 0]]


def test_times_near_the_largest_integer_do_not_overflow() -> None:
    far = np.array([2**62 - 10], np.int64)
    assert intervals.merge(far, far + 10).total_ns == 10
