"""Distinct values, lookup, numbering and ordering equal those of simple implementations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays import grouping
from unified_prof.arrays.grouping import (
    NOWHERE,
    FirstSeen,
    Lookup,
    Pool,
    Runs,
    are_in_order,
    by_key,
    distinct,
    distinct_rows,
    find,
    last_not_after,
    mapped,
    occurrence,
    order_of_keys,
    positions,
    rising,
    value_by_key,
)

DISTINCT_VALUES = st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1), st.just(7))


@given(st.lists(DISTINCT_VALUES), st.booleans())
def test_distinct_values_and_inverse_equal_those_of_numpy(values: list[int], same: bool) -> None:
    column = np.array(values[:1] * len(values) if same else values, np.int64)
    found, inverse = distinct(column)
    expected, places = np.unique(column, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert inverse.tolist() == places.tolist()
    assert rising(column).tolist() == expected.tolist()


@given(st.lists(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)))))
def test_values_are_numbered_in_the_order_of_first_use(parts: list[list[int]]) -> None:
    seen, expected = FirstSeen(), dict[int, int]()
    for part in parts:
        for value in part:
            expected.setdefault(value, len(expected))
        found = seen.numbers(np.array(part, np.int64))
        assert found.tolist() == [expected[value] for value in part]
    assert seen.values.tolist() == list(expected)
    assert len(seen) == len(expected)


some = st.lists(st.integers(-5, 40), max_size=30)


@given(some, some)
def test_sorted_key_is_found_at_its_first_row(keys: list[int], wanted: list[int]) -> None:
    keys.sort()
    expected = [keys.index(one) if one in keys else NOWHERE for one in wanted]
    assert find(np.array(keys, np.int64), np.array(wanted, np.int64)).tolist() == expected


@pytest.mark.parametrize("offset", [0, 1 << 40])
@given(keys=some, wanted=some)
def test_key_is_found_at_its_first_row(offset: int, keys: list[int], wanted: list[int]) -> None:
    keys = [one + offset for one in keys]
    wanted = [one + offset for one in wanted]
    expected = [keys.index(one) if one in keys else NOWHERE for one in wanted]
    found = Lookup(np.array(keys, np.int64)).rows(np.array(wanted, np.int64))
    assert found.tolist() == expected


@given(st.lists(st.tuples(st.integers(-2, 3), st.integers(-2, 3)), min_size=1, max_size=30), some)
def test_groups_of_rows_are_those_of_a_loop(rows: list[tuple[int, int]], sizes: list[int]) -> None:
    keys, values = np.array(rows, np.int64).reshape(-1, 2).T
    firsts = [index for index, row in enumerate(rows) if index == 0 or row != rows[index - 1]]
    runs = Runs(keys, values)
    of_row = [sum(first <= index for first in firsts) - 1 for index in range(len(rows))]
    assert (len(runs), runs.starts.tolist()) == (len(firsts), firsts)
    assert runs.last.tolist() == [*(first - 1 for first in firsts[1:]), len(rows) - 1]
    assert runs.number().tolist() == of_row
    assert runs.rank().tolist() == [index - firsts[run] for index, run in enumerate(of_row)]
    of_key = [rows[index][0] for index in range(len(rows))]
    assert {key: index.tolist() for key, index in by_key(keys)} == {
        key: [index for index, other in enumerate(of_key) if other == key] for key in of_key
    }
    assert occurrence(keys).tolist() == [of_key[:row].count(key) for row, key in enumerate(of_key)]
    first_values = dict(reversed(rows))
    wanted = np.arange(-3, 5)
    found = value_by_key(keys, values, wanted, -9)
    assert found.tolist() == [first_values.get(key, -9) for key in wanted.tolist()]
    for factor in (grouping._FACTOR, np.uint64(0)):  # With 0, all hashes are equal.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grouping, "_FACTOR", factor)
            first, representative = distinct_rows(keys, values)
        assert sorted(rows[index] for index in first.tolist()) == sorted(set(rows))
        assert [rows[index] for index in first[representative].tolist()] == rows
    assert mapped(lambda key: 3 - key, keys).tolist() == (3 - keys).tolist()
    assert (
        mapped(lambda *row: 5 * row[0] + row[1], keys, values).tolist()
        == (5 * keys + values).tolist()
    )
    assert are_in_order((keys, values)) == (rows == sorted(rows))
    assert are_in_order((keys,)) == (of_key == sorted(of_key))
    counts = np.abs(np.array(sizes, np.int64))
    assert positions(counts).tolist() == [at for size in counts.tolist() for at in range(size)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 10)), max_size=9),
)
def test_last_row_up_to_a_value_of_the_same_key(
    rows: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    rows.sort()
    keys, values = np.array(rows, np.int64).reshape(-1, 2).T
    wanted_keys, limits = np.array(wanted, np.int64).reshape(-1, 2).T

    def expected(added: int) -> list[int]:
        return [
            max((n for n, row in enumerate(rows) if (key, -1) < row < (key, limit)), default=-1)
            for key, limit in ((key, value + added) for key, value in wanted)
        ]

    found = last_not_after(keys, values, wanted_keys, limits)
    assert found.tolist() == expected(1)
    found = last_not_after(keys, values, wanted_keys, limits, "left")
    assert found.tolist() == expected(0)


def test_64_bit_keys_are_not_rounded() -> None:
    keys = np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64)
    assert find(keys, np.array([2**63 + 1, 2**64 - 2], np.uint64)).tolist() == [1, NOWHERE]


# Threads combined with times, small numbers, and numbers of any size.
KEYS = st.one_of(
    st.builds(lambda thread, time: thread << 48 | time, st.integers(0, 9), st.integers(0, 1 << 36)),
    st.integers(-5, 5),
    st.integers(0, (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(st.lists(KEYS, max_size=40), st.integers(0, 3), st.booleans())
def test_order_of_keys_equals_argsort(keys: list[int], repeated: int, unsigned: bool) -> None:
    column = np.array(keys * (1 + repeated), np.int64)
    if unsigned:
        column = column.view(np.uint64)
    expected = np.argsort(column, kind="stable")
    order = order_of_keys(column)
    if order is None:
        assert (column[1:] >= column[:-1]).all()
    else:
        assert order.tolist() == expected.tolist()


@pytest.mark.parametrize("high", [0, 1, 16, 48, 60, 63])
@pytest.mark.parametrize("low", [1, 20, 40])
def test_order_of_keys_that_differ_in_two_bit_ranges_equals_argsort(low: int, high: int) -> None:
    rng = np.random.default_rng(low * 64 + high)
    count = 3_000
    keys = rng.integers(0, 1 << low, count, np.uint64) | np.uint64(1 << 45)
    keys ^= rng.integers(0, 2, count, np.uint64) << np.uint64(high)
    for column in (keys, keys.view(np.int64)):
        order = order_of_keys(column)
        assert order is not None
        assert order.tolist() == np.argsort(column, kind="stable").tolist()


@pytest.mark.parametrize(
    ("differing", "most_places"),
    [((0, 20, 60), 42), ((0, 40, 50), 52), ((5,), 63), ((0, 1), 62), ((0, 1, 62), 61)],
)
def test_keys_are_packed_with_positions(differing: tuple[int, ...], most_places: int) -> None:
    keys = np.zeros(1, np.int64)
    for bit in differing:
        keys = np.append(keys | 1 << bit, keys)
    packed = grouping._with_places(keys, most_places)
    assert packed is not None
    order = np.sort(packed) & np.uint64((1 << most_places) - 1)
    assert order.tolist() == np.argsort(keys, kind="stable").tolist()
    assert grouping._with_places(keys, most_places + 1) is None


def test_ordering_a_record_column_does_not_change_it() -> None:
    rows = np.zeros(4, [("tag", "u1"), ("key", "u8")])
    rows["key"] = [3, 1, 3, 0]
    order = order_of_keys(rows["key"])
    assert order is not None
    assert order.tolist() == [3, 1, 0, 2]
    assert rows["key"].tolist() == [3, 1, 3, 0]


POOL_VALUES = st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1), st.just(1 << 63))


class SmallPool(Pool):
    _FEWEST_SLOTS, _MOST_SLOTS = 4, 16


@pytest.mark.parametrize("kind", [Pool, SmallPool])
@given(batches=st.lists(st.lists(POOL_VALUES, max_size=30), max_size=6))
def test_new_values_are_indexed_in_order(kind: type[Pool], batches: list[list[int]]) -> None:
    pool = kind()
    expected: dict[int, int] = {}
    for batch in batches:
        for value in sorted(set(batch) - expected.keys()):
            expected[value] = len(expected)
        found = pool.index_of(np.array(batch, np.uint64))
        assert found.tolist() == [expected[value] for value in batch]
        assert pool.values.tolist() == list(expected)
        assert len(pool) == len(expected)


def test_record_columns_of_other_widths_are_indexed() -> None:
    rows = np.zeros(5, [("tag", "u1"), ("thread", "u4")])
    rows["thread"] = [7, 7, 3, 9, 3]
    pool = Pool()
    assert pool.index_of(rows["thread"]).tolist() == [1, 1, 0, 2, 0]
    assert pool.index_of(np.array([-1], np.int64)).tolist() == [3]
    assert int(pool.values[3]) == (1 << 64) - 1
