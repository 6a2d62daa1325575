import csv
import io
import sqlite3
from contextlib import closing
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import MISSING
from unified_prof.base.text import guard_formula, printable
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import cell, cell_lines

TIMES = st.integers(0, 2**62)
# Metrics of counters: shares, microseconds, GB/s; exact halves occur among sixteenths.
METRICS = st.one_of(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.integers(-(2**30), 2**30).map(lambda one: one / 16),
    st.integers(-(10**9), 10**9).map(lambda one: one / 1000),
    st.integers(-(10**9), 10**9).map(lambda one: (one + 0.5) / 1000),
)


def _column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@given(st.lists(TIMES, max_size=20))
def test_times_are_exact_microseconds(times: list[int]) -> None:
    cells = registry.microseconds(_column(*times))
    assert [Decimal(one) * 1000 for one in cells] == times
    assert all(len(one.partition(".")[2]) == 3 for one in cells)


@given(st.lists(TIMES, max_size=20))
def test_times_as_doubles_equal_their_parsed_text(times: list[int]) -> None:
    column = _column(*times)
    assert registry.as_doubles(column).tolist() == [float(t) for t in registry.microseconds(column)]


@given(METRICS)
def test_metrics_are_rounded_half_away_from_zero(value: float) -> None:
    exact = Decimal(value).quantize(Decimal("0.001"), ROUND_HALF_UP)
    assert registry.thousandths(np.array([value]))[0] == exact * 1000
    (text,) = registry.rounded(np.array([value]))
    assert Decimal(text) == exact


@given(st.integers(-(10**8), 10**8).map(lambda one: one / 64))
def test_metrics_are_formatted_as_by_sqlite(value: float) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        ((text,),) = db.execute("SELECT CAST(round(?, 3) AS TEXT)", (value,))
    (ours,) = registry.rounded(np.array([value]))
    assert ours.removeprefix("-" if float(text) == 0 else "~") == text.removeprefix(
        "-" if float(text) == 0 else "~"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.0625, "0.063"),
        (0.1875, "0.188"),
        (-0.0625, "-0.063"),
        (1.0005, "1.0"),  # slightly less in binary
        (12.0, "12.0"),
        (0.43, "0.43"),
        (1e15, "1.0e+15"),
        (1.5e18, "1.5e+18"),
        (float("nan"), "N/A"),
        (float("inf"), "N/A"),
    ],
)
def test_rounded_metric_has_its_text(value: float, text: str) -> None:
    assert registry.rounded(np.array([value])) == [text]


@pytest.mark.parametrize(
    ("value", "text"), [(6.0, "6"), (11.33, "11.33"), (0.0, "0"), (100.0, "100"), (1e6, "1000000")]
)
def test_totals_have_no_trailing_zeros(value: float, text: str) -> None:
    assert registry.trimmed(value) == text


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.0005, 0.001), (2.5005, 2.501), (-0.0005, -0.001), (1.0004, 1.0)]
)
def test_halves_are_rounded_away_from_zero_after_scaling(value: float, rounded: float) -> None:
    assert registry.half_away(value) == rounded


@given(st.lists(st.integers(0, 2**44), max_size=20))
def test_kilobytes_are_rounded_as_by_python(sizes: list[int]) -> None:
    assert registry.kilobytes(_column(*sizes)) == [str(round(size / 1024, 3)) for size in sizes]


def test_missing_value_is_not_zero() -> None:
    assert registry.integers(_column(0, MISSING)) == ["0", "N/A"]
    assert registry.microseconds(_column(1500, MISSING, -1)) == ["1.500", "N/A", "N/A"]
    assert registry.kilobytes(_column(64, MISSING)) == ["0.062", "N/A"]
    assert registry.cycles(np.array([148320.0, np.nan, 0.5])) == ["148320", "N/A", "0.5"]


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2))
)
def test_cells_are_read_back_as_escaped_text(rows: list[list[str]]) -> None:
    text = "\n".join(cell_lines([("", [cell(row[at]) for row in rows]) for at in range(2)]))
    assert [row for row in csv.reader(io.StringIO(text, newline="")) if row] == [
        [guard_formula("\t".join(map(printable, one.split("\t")))) for one in row] for row in rows
    ]


def test_cells_are_quoted_only_if_necessary() -> None:
    assert cell("plain text\t") == "plain text\t"
    assert cell('"1,2"') == '"""1,2"""'
    assert cell("two\nlines") == r"two\x0alines"
