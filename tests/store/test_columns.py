"""Types of the arrays that `Report.columns` returns."""

import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.errors import UsageError
from unified_prof.sqlite import column_reader
from unified_prof.sqlite.column_reader import of_query


def fetch(values: list[Any]) -> Any:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        return of_query(db.execute("SELECT x FROM t ORDER BY rowid"))["x"]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, -(2**63), 2**63 - 1], np.int64, [1, -(2**63), 2**63 - 1]),
        ([1, None, 2**62 + 1], np.int64, [1, None, 2**62 + 1]),
        ([0.5, 1.5], np.float64, [0.5, 1.5]),
        ([1, 0.5, 2**53], np.float64, [1.0, 0.5, 2.0**53]),
        ([2**53 + 1, 0.5], object, [2**53 + 1, 0.5]),
        ([-(2**63), 0.5], object, [-(2**63), 0.5]),
        (["a", None, "b\0c"], object, ["a", None, "b\0c"]),
        (["a", 1, 0.5, b"x"], object, ["a", 1, 0.5, b"x"]),
        ([], np.int64, []),
    ],
)
def test_values_become_narrow_arrays(values: list[Any], dtype: Any, expected: list[Any]) -> None:
    found = fetch(values)
    assert found.dtype == dtype
    assert found.tolist() == expected


def test_null_is_masked_among_integers_and_nan_among_floats() -> None:
    assert isinstance(fetch([1, None]), np.ma.MaskedArray)
    assert not isinstance(fetch([1, 2]), np.ma.MaskedArray)
    for values in ([0.5, None], [1, 0.5, None], [None, None]):
        found = fetch(values)
        assert found.dtype == np.float64
        assert np.isnan(found[-1])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_columns_do_not_depend_on_the_batch_size(values: list[Any], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_reader, "_ROWS_AT_A_TIME", rows)
        found = fetch(values)
    if found.dtype == np.float64:
        assert [None if np.isnan(value) else value for value in found] == values
    else:
        assert found.tolist() == values


def test_duplicate_column_names_are_refused() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        with pytest.raises(UsageError, match="more than one column x"):
            of_query(db.execute("SELECT 1 AS x, 2 AS y, 3 AS x"))
        assert of_query(db.execute("CREATE TABLE t (x)")) == {}
