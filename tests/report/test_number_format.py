"""Formatted figures: three digits, a suitable unit, and unmeasured values are not zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.report import names


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (999.5, "1.00 µs"),
        (1000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (12_250, "12.3 µs"),  # halves up, as in the pages
        (999_600, "1.00 ms"),
        (123_456_789, "123 ms"),
        (61_000_000_000, "61.0 s"),
        (12_345_000_000_000, "12,345 s"),
    ],
)
def test_duration_has_three_digits_and_a_unit(value_ns: float | None, text: str) -> None:
    assert names.format_duration(value_ns) == text


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (1 << 30, "1.00 GiB"),
        (395_776, "387 KiB"),
    ],
)
def test_size_has_a_binary_unit(value_bytes: int | None, text: str) -> None:
    assert names.format_size(value_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.0 %"), (0.01, "<0.1 %"), (12.345, "12.3 %"), (100.0, "100.0 %")],
)
def test_small_percentage_is_not_shown_as_zero(value: float | None, text: str) -> None:
    assert names.format_percent(value) == text


@given(st.integers(1, 10**15))
def test_formatted_duration_is_exact_within_half_a_percent(value_ns: int) -> None:
    number, unit = names.format_duration(value_ns).split()
    factor = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(value_ns, rel=0.0051)
