from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.decoders.spool import Spool, windows

ROW = np.dtype([("key", "i8"), ("order", "i8")])


def rows(keys: Sequence[int], first: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    records = np.zeros(len(keys), dtype=ROW)
    records["key"] = keys
    records["order"] = np.arange(first, first + len(keys))
    return records


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
        for spool, appended in ((one, first), (other, second)):
            count = 0
            for keys in appended:
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
    for appended, got in ((first, found[0]), (second, found[1])):
        flat = [key for keys in appended for key in keys]
        assert got == sorted(zip(flat, range(len(flat)), strict=True), key=lambda row: row[0])


def window_sizes(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    with Spool(ROW, "key", run_rows=1000) as spool:
        for start in range(0, len(order), 500):
            spool.append(rows(order[start : start + 500].tolist(), start))
        sizes = [len(part) for (part,) in windows(spool, window_rows=2000)]
    assert sum(sizes) == len(order)
    return sizes


@pytest.mark.parametrize(
    ("order", "largest", "windows_at_most"),
    [
        pytest.param(np.arange(50_000), 8 * 2000, 50, id="consecutive runs"),
        pytest.param(
            np.arange(50_000) + 1500 * (np.arange(50_000) % 1000 == 0),
            8 * 2000,
            100,
            id="overlapping",
        ),
        pytest.param(np.random.default_rng(1).permutation(50_000), 50 * 256, 100, id="shuffled"),
    ],
)
def test_merging_runs_takes_bounded_memory_and_few_windows(
    order: np.ndarray[tuple[int], np.dtype[np.int64]], largest: int, windows_at_most: int
) -> None:
    sizes = window_sizes(order)
    assert max(sizes) <= largest
    assert len(sizes) <= windows_at_most


def test_consumed_run_releases_its_block() -> None:
    """An empty rest would keep all its rows alive until every run was read."""
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
    """Columns of a single value are not written; NaN counts as one value though NaN != NaN."""
    records = np.zeros(len(keys), WIDE)
    records["key"] = keys
    records["same"] = -7
    records["unknown"] = np.nan
    records["some"] = np.where(records["key"] % 3 == 0, np.nan, records["key"] / 7)
    records["pair"] = np.stack([records["key"] % 100, records["key"] % 7], axis=1)
    with Spool(WIDE, "key", run_rows=1000, by_column=by_column) as spool:
        for start in range(0, len(records), 300):
            spool.append(records[start : start + 300])
        found = np.concatenate([part for (part,) in windows(spool, window_rows=400)])
        written = spool._scratch.size
    expected = np.sort(records, order="key")
    assert found.tobytes() == expected.tobytes()
    assert written == len(records) * ((8 + 8 + 4) if by_column else WIDE.itemsize)


def test_rows_read_back_are_writable() -> None:
    """Readers fill in columns that were unknown when the rows were written."""
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
    records = np.zeros(2500, np.dtype([("key", "u8"), ("record", record)]))
    records["key"] = np.arange(len(records))[::-1]
    records["record"]["a"] = np.arange(len(records)) % 1000
    records["record"]["b"] = np.arange(len(records)) * 3
    with Spool(records.dtype, "key", run_rows=1000, by_column=by_column) as spool:
        for start in range(0, len(records), 300):
            spool.append(records[start : start + 300])
        found = np.concatenate([part for (part,) in windows(spool, window_rows=400)])
    expected = records[np.argsort(records["key"])]
    for name in ("a", "b"):
        assert found["record"][name].tolist() == expected["record"][name].tolist()
