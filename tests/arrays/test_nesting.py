"""The call tree found by sweeping agrees with comparing every pair of ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays import nesting

Ranges = list[tuple[int, int, int]]


@st.composite
def nested_ranges(draw: st.DrawFn) -> Ranges:
    """Ranges (thread, start, end) that nest properly and never share a start."""
    ranges: Ranges = []

    def fill(thread: int, low: int, high: int, depth: int) -> None:
        at = low
        while at + 2 < high and depth < 4 and len(ranges) < 30:
            start = draw(st.integers(at, high - 2))
            end = draw(st.integers(start + 1, high))
            if draw(st.booleans()):
                ranges.append((thread, start, end))
                fill(thread, start + 1, end, depth + 1)
            at = end

    for thread in (1, 2):
        fill(thread, 0, 40, 0)
    return ranges


def columns(ranges: Ranges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    array = np.array(ranges, np.int64).reshape(-1, 3)
    thread, start, end = array[:, 0], array[:, 1], array[:, 2]
    order = nesting.call_order(thread, start, end)
    return thread[order], start[order], end[order]


@given(nested_ranges())
@settings(max_examples=100)
def test_the_parent_is_the_shortest_range_around(ranges: Ranges) -> None:
    thread, start, end = columns(ranges)
    parent = nesting.parents(thread, start, end)
    for index in range(len(thread)):
        around = [
            other
            for other in range(len(thread))
            if other != index
            and thread[other] == thread[index]
            and start[other] < start[index]
            and end[index] <= end[other]
        ]
        shortest = min(around, key=lambda other: end[other] - start[other], default=nesting.NONE)
        assert parent[index] == shortest


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12), st.integers(0, 12)), max_size=10))
@settings(max_examples=300)
def test_ranges_that_do_not_nest_belong_to_the_innermost_open_one(raw: Ranges) -> None:
    thread, start, end = columns([(one, low, low + length) for one, low, length in raw])
    parent = nesting.parents(thread, start, end)
    open_ones: list[int] = []
    for index in range(len(thread)):
        while open_ones and (
            thread[open_ones[-1]] != thread[index] or end[open_ones[-1]] <= start[index]
        ):
            open_ones.pop()
        assert parent[index] == (open_ones[-1] if open_ones else nesting.NONE)
        open_ones.append(index)


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12), st.integers(0, 12)), max_size=12),
    st.integers(0, 4),
)
@settings(max_examples=300)
def test_a_range_that_outlasts_another_by_more_than_rounding_only_crosses_it(
    raw: Ranges, rounding: int
) -> None:
    thread, start, end = columns([(one, low, low + length) for one, low, length in raw])
    found = nesting.around(thread, start, end, rounding)
    for index in range(len(thread)):
        around = [
            other
            for other in range(index)
            if thread[other] == thread[index]
            and end[other] > start[index]
            and end[other] >= end[index] - rounding
        ]
        assert found[index] == (around[-1] if around else nesting.NONE)


@given(nested_ranges(), st.integers(1, 3), st.integers(0, 45))
@settings(max_examples=100)
def test_the_innermost_range_at_a_moment(ranges: Ranges, at_thread: int, moment: int) -> None:
    thread, start, end = columns(ranges)
    found = nesting.innermost_at(
        thread,
        start,
        end,
        nesting.parents(thread, start, end),
        np.array([at_thread]),
        np.array([moment]),
    )[0]
    around = [
        index
        for index in range(len(thread))
        if thread[index] == at_thread and start[index] <= moment <= end[index]
    ]
    # Of two ranges that meet at this moment the later one is running.
    assert found == max(around, key=lambda index: start[index], default=nesting.NONE)


def test_climbing_stops_at_an_annotation() -> None:
    #          0 step > 1 op > 2 op > 3 annotation > 4 op > 5 op
    parent = np.array([-1, 0, 1, 2, 3, 4])
    stop = np.array([True, False, False, True, False, False])
    assert nesting.climb(parent, stop).tolist() == [-1, 1, 1, -1, 4, 4]


def test_the_nearest_mark_may_be_the_range_itself() -> None:
    parent = np.array([-1, 0, 1, -1])
    marked = np.array([False, True, False, False])
    assert nesting.nearest_marked(parent, marked).tolist() == [-1, 1, 1, -1]


@given(nested_ranges(), st.data())
@settings(max_examples=100)
def test_a_path_is_the_labels_from_the_outermost_range(ranges: Ranges, data: st.DataObject) -> None:
    thread, start, end = columns(ranges)
    parent = nesting.parents(thread, start, end)
    label = np.array([data.draw(st.integers(0, 2)) for _ in ranges], np.int64)
    number, above, own = nesting.paths(parent, label)

    def labels(index: int) -> list[int]:
        up = [] if parent[index] == nesting.NONE else labels(int(parent[index]))
        return [*up, int(label[index])]

    def told(path: int) -> list[int]:
        up = [] if above[path] == nesting.NONE else told(int(above[path]))
        return [*up, int(own[path])]

    assert [told(int(one)) for one in number] == [labels(index) for index in range(len(ranges))]
    assert len({tuple(told(path)) for path in range(len(own))}) == len(own)
    assert (above < np.arange(len(own))).all()
