"""Packed columns contain the original values in little memory."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.arrays import packed
from unified_prof.arrays.grouping import NOWHERE, Lookup
from unified_prof.arrays.packed import (
    Narrow,
    Packed,
    PackedLookup,
    Packing,
    codes,
    narrow,
    narrowest,
    pack,
    recoded,
)

LEAST = np.iinfo(np.int64).min
BLOCK = 1 << 9
ROWS = 2 * BLOCK + 77


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "_SHIFT", 9)
        patch.setattr(packed, "BLOCK", BLOCK)
        yield


def _columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    holes = rng.integers(5, 300, ROWS)
    holes[rng.random(ROWS) < 0.1] = LEAST
    mixed = np.arange(ROWS) * 7 - 1
    mixed[BLOCK:][::3] = -1
    late = np.where(rng.random(ROWS) < 0.005, 10**8, rng.integers(0, 20_000, ROWS))
    alternating = np.arange(ROWS) + np.where(np.arange(ROWS) % 500 < 250, 0, 60_000)
    return {
        "alternating": alternating,
        "outliers": np.cumsum(late),
        "descending": -3 * np.arange(ROWS),
        "times": 1_736_410_576_000_000_000 + np.cumsum(rng.integers(0, 20_000, ROWS)),
        "constant": np.full(ROWS, 4_294_967_295),
        "small": rng.integers(-7, 40, ROWS),
        "any": rng.integers(LEAST + 1, np.iinfo(np.int64).max, ROWS),
        "holes": holes,
        "all holes": np.full(ROWS, LEAST),
        "rows": mixed,
        "far apart": np.where(np.arange(ROWS) % 2, LEAST, 2**62),
        "empty": np.zeros(0, np.int64),
    }


@pytest.mark.parametrize("name", _columns())
@pytest.mark.parametrize("hole", [NOWHERE, LEAST])
def test_packed_column_has_the_original_values(name: str, hole: int) -> None:
    values = _columns()[name]
    if hole == NOWHERE and (values == LEAST).any():
        hole = LEAST  # a hole is below all other values
    packing = Packing(np.int16, np.int32, hole=hole)
    for part in np.array_split(values, 5):
        packing.add(part)
    column = packing.done()
    assert len(column) == len(values)
    assert (column.to_array() == values).all()
    rows = np.random.default_rng(2).integers(0, max(len(values), 1), min(len(values), 999))
    assert (column.at(rows) == values[rows]).all()
    assert (column.at(np.sort(rows)) == values[np.sort(rows)]).all()
    for low, high in ((BLOCK - 3, BLOCK + 9), (40, 41), (BLOCK, BLOCK + 1), (0, 0)):
        assert (column[low:high] == values[low:high]).all()
    for chosen in (values < 7, -1 - rows):
        assert (column[chosen] == values[chosen]).all()
    assert [column[row] for row in rows[:3].tolist()] == values[rows[:3]].tolist()
    assert (column.distinct() == np.unique(values)).all()
    joined = [*column.blocks()]
    assert sum(map(len, joined)) == len(values)
    least, most = column.bounds
    assert [*least] == [part.min() for part in joined]
    assert [*most] == [part.max() for part in joined]


def test_typical_task_columns_take_few_bytes() -> None:
    columns = _columns()
    assert pack(columns["times"]).nbytes <= 2 * ROWS
    assert pack(columns["outliers"]).nbytes <= 2.1 * ROWS
    assert pack(columns["alternating"]).nbytes <= 0.1 * ROWS
    assert pack(np.arange(ROWS) // 2).nbytes <= ROWS
    assert pack(columns["descending"]).nbytes == 0
    assert pack(columns["small"]).nbytes == ROWS
    assert pack(columns["constant"]).nbytes == 0


def test_column_has_the_narrowest_type_for_its_values() -> None:
    assert pack(np.array([1, -1]), np.int16, np.int32).dtype == np.int16
    assert pack(np.array([1, 40_000]), np.int16, np.int32).dtype == np.int32
    assert pack(np.array([1, 2**40]), np.int16, np.int32).dtype == np.int64
    for low, high in ((-(2**15), 0), (0, 2**15 - 1)):
        assert pack(np.array([low, high]), np.int16, np.int32).dtype == np.int16
        step = 1 if high else -1
        assert pack(np.array([low, high]) + step, np.int16, np.int32).dtype == np.int32
    assert pack(np.array([1, LEAST]), np.int16, hole=LEAST).dtype == np.int64
    assert pack(np.array([LEAST, LEAST]), np.int16, hole=LEAST).dtype == np.int64
    assert pack(np.array([1, -40_000]), np.int16, np.int32, hole=-50_000).dtype == np.int32


def _keys(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    return {
        "ascending": np.arange(ROWS) * 2 + 5,
        "repeated": np.arange(ROWS) // 3,
        "shuffled": rng.permutation(ROWS),
        "sparse": np.sort(rng.integers(0, 2**60, ROWS)),
        "with missing keys": np.append(np.arange(ROWS), LEAST),
        "empty": np.zeros(0, np.int64),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["ascending", "repeated", "shuffled", "sparse", "with missing keys", "empty"]
)
def test_packed_lookup_equals_the_plain_lookup(kind: str) -> None:
    keys = _keys(kind)
    column: Packed = pack(keys, hole=LEAST)
    lookup, plain = PackedLookup(column), Lookup(keys)
    rng = np.random.default_rng(4)
    queries = [
        np.arange(BLOCK - 50, BLOCK + 50),
        np.array([-1, LEAST, 2**62, 0]),
        keys[: BLOCK // 2],
        rng.permutation(keys)[:500],
        np.zeros(0, np.int64),
    ]
    for query in queries:
        assert (lookup.rows(query) == plain.rows(query)).all()


@given(st.data())
@settings(max_examples=80)
def test_last_row_up_to_a_value_is_found_across_blocks(data: st.DataObject) -> None:
    values = np.sort(np.random.default_rng(6).integers(0, ROWS, ROWS))
    edges = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, ROWS - 1, ROWS])
    low, high = data.draw(edges), data.draw(edges)
    wanted = np.sort(np.array(data.draw(st.lists(st.integers(-1, ROWS + 1))), np.int64))
    expected = low - 1 + np.searchsorted(values[low:high], wanted, side="right")
    assert pack(values).last_not_after(wanted, low, high).tolist() == expected.tolist()


@given(st.lists(st.one_of(st.integers(-3, 300), st.integers(-(2**40), 2**40)), min_size=1))
def test_values_are_recoded_as_indexes_of_distinct_values(some: list[int]) -> None:
    values = np.array(some, np.int64)
    for column in (values, np.abs(values) % 7, np.where(values == values[0], 2**20 - 1, 5)):
        distinct, index = np.unique(column, return_inverse=True)
        found, of_rows = codes(column)
        assert (found, of_rows.tolist()) == (distinct.tolist(), index.tolist())
        assert of_rows.dtype == np.int32
        assert recoded(pack(column), found).tolist() == index.tolist()


@pytest.mark.parametrize(
    ("bounds", "wide", "width"),
    [
        ((0, 0), 4, 1),
        ((-128, 127), 4, 1),
        ((-129, 0), 4, 2),
        ((0, 128), 4, 2),
        ((-(2**31), 2**31 - 1), 4, 4),
        ((-(2**31) - 1, 0), 8, 8),
        ((0, 2**31), 8, 8),
    ],
)
def test_narrow_types_hold_the_bounds(bounds: tuple[int, int], wide: int, width: int) -> None:
    column = np.array(bounds, np.int64)
    for found, size in ((narrow(column), wide), (narrowest(column), width)):
        assert (found.tolist(), found.dtype.itemsize) == ([*bounds], size)


def test_narrow_column_is_read_as_wide_numbers() -> None:
    values = np.array([100, 120, 90, -1], np.int64)
    column = Narrow(values.astype(np.int8), 1 << 40)
    expected = values + (1 << 40)
    assert column.stored == np.int8
    np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(column + column, 2 * expected)
    for rows in (np.array([[2, 0], [1, -1]]), expected > (1 << 40), slice(1, 3), 2):
        np.testing.assert_array_equal(column[rows], expected[rows])
    assert [column.count(value) for value in (expected[2], 5)] == [1, 0]
