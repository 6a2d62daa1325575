"""The call tree equals that of comparing every pair of ranges."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays import intervals

Ranges = list[tuple[int, int, int]]


@st.composite
def nested_ranges(draw: st.DrawFn) -> Ranges:
    """Generate (thread, start, end) of ranges that nest and have different starts."""
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
    order = intervals.call_order(thread, start, end)
    return thread[order], start[order], end[order]


@given(nested_ranges())
@settings(max_examples=100)
def test_parent_is_the_shortest_enclosing_range(ranges: Ranges) -> None:
    thread, start, end = columns(ranges)
    parent = intervals.parents(thread, start, end)
    for index in range(len(thread)):
        enclosing = [
            other
            for other in range(len(thread))
            if other != index
            and thread[other] == thread[index]
            and start[other] < start[index]
            and end[index] <= end[other]
        ]
        shortest = min(
            enclosing, key=lambda other: end[other] - start[other], default=intervals.NONE
        )
        assert parent[index] == shortest


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12), st.integers(0, 12)), max_size=10))
@settings(max_examples=300)
def test_parent_of_a_crossing_range_is_the_innermost_open_range(raw: Ranges) -> None:
    thread, start, end = columns([(one, low, low + length) for one, low, length in raw])
    parent = intervals.parents(thread, start, end)
    open_ranges: list[int] = []
    for index in range(len(thread)):
        while open_ranges and (
            thread[open_ranges[-1]] != thread[index] or end[open_ranges[-1]] <= start[index]
        ):
            open_ranges.pop()
        assert parent[index] == (open_ranges[-1] if open_ranges else intervals.NONE)
        open_ranges.append(index)


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12), st.integers(0, 12)), max_size=12),
    st.integers(0, 4),
)
@settings(max_examples=300)
def test_enclosing_range_may_end_earlier_by_rounding_only(raw: Ranges, rounding: int) -> None:
    thread, start, end = columns([(one, low, low + length) for one, low, length in raw])
    found = intervals.around(thread, start, end, rounding)
    for index in range(len(thread)):
        enclosing = [
            other
            for other in range(index)
            if thread[other] == thread[index]
            and end[other] > start[index]
            and end[other] >= end[index] - rounding
        ]
        assert found[index] == (enclosing[-1] if enclosing else intervals.NONE)


@given(nested_ranges(), st.integers(1, 3), st.integers(0, 45))
@settings(max_examples=100)
def test_innermost_range_at_a_time_is_found(ranges: Ranges, at_thread: int, moment: int) -> None:
    thread, start, end = columns(ranges)
    found = intervals.innermost_at(
        thread,
        start,
        end,
        intervals.parents(thread, start, end),
        np.array([at_thread]),
        np.array([moment]),
    )[0]
    enclosing = [
        index
        for index in range(len(thread))
        if thread[index] == at_thread and start[index] <= moment <= end[index]
    ]
    # Of two ranges that meet at this time the later one counts.
    assert found == max(enclosing, key=lambda index: start[index], default=intervals.NONE)


def test_nearest_marked_range_includes_the_range_itself() -> None:
    parent = np.array([-1, 0, 1, -1])
    marked = np.array([False, True, False, False])
    assert intervals.nearest_marked(parent, marked).tolist() == [-1, 1, 1, -1]


@given(nested_ranges(), st.data())
@settings(max_examples=100)
def test_path_has_the_labels_from_the_outermost_range(ranges: Ranges, data: st.DataObject) -> None:
    thread, start, end = columns(ranges)
    parent = intervals.parents(thread, start, end)
    label = np.array([data.draw(st.integers(0, 2)) for _ in ranges], np.int64)
    number, above, own = intervals.paths(parent, label)

    def labels(index: int) -> list[int]:
        up = [] if parent[index] == intervals.NONE else labels(int(parent[index]))
        return [*up, int(label[index])]

    def path_labels(path: int) -> list[int]:
        up = [] if above[path] == intervals.NONE else path_labels(int(above[path]))
        return [*up, int(own[path])]

    assert [path_labels(int(one)) for one in number] == [
        labels(index) for index in range(len(ranges))
    ]
    assert len({tuple(path_labels(path)) for path in range(len(own))}) == len(own)
    assert (above < np.arange(len(own))).all()


interval = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25))


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, max_size=40), st.data())
def test_containing_ranges_and_inherited_values_equal_those_of_a_search(
    ranges: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    table = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    thread, start, end = table[:, 0], table[:, 1], table[:, 1] + table[:, 2]
    order = intervals.call_order(thread, start, end, np.arange(len(table)))
    thread, start, end = thread[order], start[order], end[order]
    parent = intervals.containing(thread, end)
    for child in range(len(table)):
        enclosing = [k for k in range(child) if thread[k] == thread[child] and end[k] >= end[child]]
        assert parent[child] == (enclosing[-1] if enclosing else intervals.NONE)

    own_values = data.draw(
        st.lists(st.sampled_from([intervals.NONE, 5, 6]), min_size=len(table), max_size=len(table))
    )
    inherited = intervals.inherit(np.array(own_values, dtype=np.int64), parent)
    for child in range(len(table)):
        at = child
        while at != intervals.NONE and own_values[at] == intervals.NONE:
            at = int(parent[at])
        assert inherited[child] == (own_values[at] if at != intervals.NONE else intervals.NONE)


def test_parent_of_many_siblings_is_found_quickly() -> None:
    count = 200_000
    start = np.append(0, np.arange(1, count))
    end = np.append(2 * count, np.arange(1, count))
    parent = intervals.containing(np.zeros(count, dtype=np.int64), end)
    assert start[0] == 0
    assert (parent[1:] == 0).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, max_size=40))
def test_parents_and_containers_differ_only_on_crossing(ranges: list[tuple[int, int, int]]) -> None:
    table = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    thread, start, end = table[:, 0], table[:, 1], table[:, 1] + table[:, 2]
    order = intervals.call_order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    opened, enclosing = intervals.parents(thread, start, end), intervals.containing(thread, end)
    for child in range(len(table)):
        earlier = [k for k in range(child) if thread[k] == thread[child]]
        still_open = [k for k in earlier if end[k] > start[child]]
        assert opened[child] == (still_open[-1] if still_open else intervals.NONE)
        crossed = any(start[child] < end[k] < end[child] for k in earlier)
        empty = start[child] == end[child]
        if not crossed and not empty:
            assert opened[child] == enclosing[child]
