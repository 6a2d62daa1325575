"""Columns and scalars as SQLite parameters."""

from array import array
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.base.text import storable
from unified_prof.errors import UsageError
from unified_prof.sqlite import batches
from unified_prof.sqlite.batches import Constant


class Color(IntEnum):
    RED = 4


def values(column: Any, rows: int = 1) -> list[Any]:
    """Return the values bound for one column."""
    sources, found = batches.read({"x": column}, table="T")
    source = sources["x"]
    if isinstance(source, Constant):
        return [source.value] * rows
    return source.part(0, found)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([1, -2], np.int8), [1, -2]),
        (np.array([1, 2**32 - 1], np.uint32), [1, 4294967295]),
        (np.array([1, 2**63, 2**64 - 1], np.uint64), [1, -(2**63), -1]),
        (np.array([1, 2**64 - 1], ">u8"), [1, -1]),
        (np.array([True, False]), [1, 0]),
        (np.array([0.5, 2.0], np.float16), [0.5, 2.0]),
        (np.array([0.5], np.longdouble), [0.5]),
        (np.arange(10)[::3], [0, 3, 6, 9]),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), [1, None, 3]),
        (np.ma.array([1, 2], mask=[False, False]), [1, 2]),
        (np.ma.array([2**64 - 1, 2], mask=[False, True], dtype=np.uint64), [-1, None]),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.array([None, "a", np.int64(7), np.float32(0.5)], object), [None, "a", 7, 0.5]),
        (np.ma.array(["a", "b"], mask=[False, True]), ["a", None]),
        ([1, None, 2**64 - 1], [1, None, -1]),
        ([2**64 - 1, 5], [-1, 5]),
        ([np.int32(1), np.uint64(2**64 - 1), np.bool_(True)], [1, -1, 1]),
        ([True, 2, 0.5, "x", None], [1, 2, 0.5, "x", None]),
        ([Color.RED, np.str_("s")], [4, "s"]),
        (range(3), [0, 1, 2]),
        (array("q", [5, 6]), [5, 6]),
        ((2**60 + 1, 0.5), [2**60 + 1, 0.5]),
        ([], []),
        (np.empty(0), []),
    ],
)
def test_columns_are_bound_as_plain_python_values(column: Any, expected: list[Any]) -> None:
    found = values(column)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, 1),
        (np.uint64(2**64 - 1), -1),
        (2**64 - 1, -1),
        (np.float32(0.25), 0.25),
        (np.longdouble(0.25), 0.25),
        (np.array(7), 7),
        ("text", "text"),
        (Color.RED, 4),
        (np.ma.masked, None),
    ],
)
def test_scalar_is_repeated_for_every_row(value: Any, expected: Any) -> None:
    found = values(value, rows=2)
    assert found == [expected, expected]
    assert type(found[0]) is type(expected)


def test_nan_and_masked_floats_are_null() -> None:
    sources, rows = batches.read(
        {"a": np.array([np.nan, 1.0]), "b": np.ma.array([1.0, 2.0], mask=[True, True])}, table="T"
    )
    assert [batches.non_null(sources[name], rows) for name in "ab"] == [1, 0]


def test_invalid_unicode_is_escaped() -> None:
    assert values(["ok \N{SNOWMAN}", "bad \udcff"]) == ["ok \N{SNOWMAN}", "bad \\xff"]
    assert values("bad \ud800") == ["bad \\ud800"]


@pytest.mark.parametrize(
    "column",
    [
        b"bytes",
        [b"bytes"],
        np.array([b"bytes"]),
        np.array([1 + 2j]),
        np.array(["2026-01-01"], "datetime64[ns]"),
        np.zeros((2, 2)),
        np.zeros(2, [("a", int)]),
        [object()],
        {1, 2},
        iter([1]),
        2**64,
        [-(2**63) - 1],
        [1, 2**64],
        np.datetime64("2026-01-01"),
    ],
)
def test_unsupported_columns_are_refused_by_name(column: Any) -> None:
    with pytest.raises(UsageError, match="column x for table T: "):
        values(column)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="different lengths: a 2, b 3"):
        batches.read({"a": [1, 2], "b": np.arange(3), "c": 1}, table="T")


def test_scalars_only_are_one_row_and_no_columns_are_zero_rows() -> None:
    assert batches.read({"a": 1, "b": None}, table="T")[1] == 1
    assert batches.read({}, table="T")[1] == 0


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text())
)
def test_plain_values_are_bound_unchanged(column: list[Any]) -> None:
    assert values(column) == [
        storable(value) if isinstance(value, str) else value for value in column
    ]
