from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.decoders.spool import Spool, windows

ROW = np.dtype([("key", "i8"), ("order", "i8")])


def rows(keys: Sequence[int], first: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    made = np.zeros(len(keys), dtype=ROW)
    made["key"] = keys
    made["order"] = np.arange(first, first + len(keys))
    return made


batches = st.lists(st.lists(st.integers(-20, 20), max_size=30), max_size=8)


@settings(max_examples=60, deadline=None)
@given(batches, batches, st.integers(1, 40), st.integers(1, 2000), st.booleans())
def test_windows_return_all_rows_sorted_for_any_size(
    first: list[list[int]],
    second: list[list[int]],
    run_rows: int,
    window_rows: int,
    by_column: bool,
) -> None:
    with (
        Spool(ROW, "key", run_rows=run_rows, by_column=by_column) as one,
        Spool(ROW, "key", run_rows=run_rows, by_column=not by_column) as other,
    ):
        for spool, given_batches in ((one, first), (other, second)):
            count = 0
            for keys in given_batches:
                spool.append(rows(keys, count))
                count += len(keys)
        found: list[list[tuple[int, int]]] = [[], []]
        last = None
        for window in windows(one, other, window_rows=window_rows):
            keys = [key for part in window for key in part["key"].tolist()]
            assert keys
            assert last is None or min(keys) > last  # no key in two windows
            last = max(keys)
            for part, into in zip(window, found, strict=True):
                into += part.tolist()
    for given_batches, got in ((first, found[0]), (second, found[1])):
        flat = [key for keys in given_batches for key in keys]
        assert got == sorted(zip(flat, range(len(flat)), strict=True), key=lambda row: row[0])


def sizes_of_windows(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    with Spool(ROW, "key", run_rows=1000) as spool:
        for start in range(0, len(order), 500):
            spool.append(rows(order[start : start + 500].tolist(), start))
        sizes = [len(part) for (part,) in windows(spool, window_rows=2000)]
    assert sum(sizes) == len(order)
    return sizes


def test_runs_that_follow_one_another_make_windows_of_the_wanted_size() -> None:
    sizes = sizes_of_windows(np.arange(50_000))
    assert max(sizes) <= 8 * 2000
    assert len(sizes) <= 50


def test_runs_that_overlap_slightly_are_merged_with_bounded_memory() -> None:
    order = np.arange(50_000)
    order[::1000] += 1500
    sizes = sizes_of_windows(order)
    assert max(sizes) <= 8 * 2000
    assert len(sizes) <= 100


def test_runs_that_overlap_everywhere_are_merged_with_bounded_memory_and_time() -> None:
    order = np.random.default_rng(1).permutation(50_000)
    sizes = sizes_of_windows(order)
    assert max(sizes) <= 50 * 256
    assert len(sizes) <= 100


def test_a_run_that_was_read_keeps_no_block() -> None:
    """Its empty rest would keep all rows of it alive until every run was read."""
    with Spool(ROW, "key", run_rows=1000) as spool:
        for run in range(3):
            spool.append(rows(range(run * 1000, run * 1000 + 1000), 0))
        cursors = spool.cursors()
        assert len(cursors) == 3
        for cursor in cursors:
            cursor.load(1000)
            assert len(cursor.take_below(None)) == 1000
            assert cursor.finished
            assert cursor._block.base is None


WIDE = np.dtype(
    [("key", "i8"), ("same", "i4"), ("unknown", "f8"), ("some", "f8"), ("pair", "u2", (2,))]
)


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("keys", [range(2500), range(2500, 0, -1)], ids=["rising", "falling"])
def test_columns_of_any_values_are_read_back(keys: range, by_column: bool) -> None:
    """Columns of one value are not written; NaN is one value, and equal to nothing."""
    made = np.zeros(len(keys), WIDE)
    made["key"] = keys
    made["same"] = -7
    made["unknown"] = np.nan
    made["some"] = np.where(made["key"] % 3 == 0, np.nan, made["key"] / 7)
    made["pair"] = np.stack([made["key"] % 100, made["key"] % 7], axis=1)
    with Spool(WIDE, "key", run_rows=1000, by_column=by_column) as spool:
        for start in range(0, len(made), 300):
            spool.append(made[start : start + 300])
        found = np.concatenate([part for (part,) in windows(spool, window_rows=400)])
        written = spool._scratch.size
    expected = np.sort(made, order="key")
    assert found.tobytes() == expected.tobytes()
    assert written == len(made) * ((8 + 8 + 4) if by_column else WIDE.itemsize)


def test_rows_read_back_are_writable() -> None:
    """Whoever reads them fills in what was not known when they were put away."""
    for by_column in (False, True):
        with Spool(ROW, "key", run_rows=10, by_column=by_column) as spool:
            for start in range(0, 100, 5):
                spool.append(rows(range(start, start + 5), start))
            for (part,) in windows(spool, window_rows=30):
                part["key"] = 7


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
def test_records_with_gaps_are_read_back_unchanged(by_column: bool) -> None:
    """Records of raw files have unused fields; NumPy drops such gaps where it can."""
    record = np.dtype(
        {"names": ["a", "b"], "formats": ["<u2", "<u8"], "offsets": [0, 16], "itemsize": 64}
    )
    made = np.zeros(2500, np.dtype([("key", "u8"), ("record", record)]))
    made["key"] = np.arange(len(made))[::-1]
    made["record"]["a"] = np.arange(len(made)) % 1000
    made["record"]["b"] = np.arange(len(made)) * 3
    with Spool(made.dtype, "key", run_rows=1000, by_column=by_column) as spool:
        for start in range(0, len(made), 300):
            spool.append(made[start : start + 300])
        found = np.concatenate([part for (part,) in windows(spool, window_rows=400)])
    expected = made[np.argsort(made["key"])]
    for name in ("a", "b"):
        assert found["record"][name].tolist() == expected["record"][name].tolist()
