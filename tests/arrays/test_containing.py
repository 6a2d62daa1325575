from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays.nesting import NONE, call_order, containing, inherit, parents

interval = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25))


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, max_size=40), st.data())
def test_parents_and_values_equal_a_plain_search(
    given_intervals: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    table = np.array(given_intervals, dtype=np.int64).reshape(-1, 3)
    thread, start, end = table[:, 0], table[:, 1], table[:, 1] + table[:, 2]
    order = call_order(thread, start, end, np.arange(len(table)))
    thread, start, end = thread[order], start[order], end[order]
    parent = containing(thread, end)
    for child in range(len(table)):
        around = [k for k in range(child) if thread[k] == thread[child] and end[k] >= end[child]]
        assert parent[child] == (around[-1] if around else NONE)

    own = data.draw(
        st.lists(st.sampled_from([NONE, 5, 6]), min_size=len(table), max_size=len(table))
    )
    inherited = inherit(np.array(own, dtype=np.int64), parent)
    for child in range(len(table)):
        at = child
        while at != NONE and own[at] == NONE:
            at = int(parent[at])
        assert inherited[child] == (own[at] if at != NONE else NONE)


def test_a_long_row_of_siblings_finds_its_parent_quickly() -> None:
    count = 200_000
    start = np.append(0, np.arange(1, count))
    end = np.append(2 * count, np.arange(1, count))
    parent = containing(np.zeros(count, dtype=np.int64), end)
    assert start[0] == 0
    assert (parent[1:] == 0).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, max_size=40))
def test_open_at_the_start_and_containing_differ_only_where_ranges_do_not_nest(
    given_intervals: list[tuple[int, int, int]],
) -> None:
    table = np.array(given_intervals, dtype=np.int64).reshape(-1, 3)
    thread, start, end = table[:, 0], table[:, 1], table[:, 1] + table[:, 2]
    order = call_order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    opened, around = parents(thread, start, end), containing(thread, end)
    for child in range(len(table)):
        earlier = [k for k in range(child) if thread[k] == thread[child]]
        still_open = [k for k in earlier if end[k] > start[child]]
        assert opened[child] == (still_open[-1] if still_open else NONE)
        crossed = any(start[child] < end[k] < end[child] for k in earlier)
        empty = start[child] == end[child]
        if not crossed and not empty:
            assert opened[child] == around[child]
