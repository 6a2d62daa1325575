"""Durations equal those of the vendor's exporter to the bit, which its bandwidths show."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.decoders.prof.collectives import duration_ns, sum_of_digits

MHZ_48 = Fraction(1000, 48)


def test_durations_have_six_decimals_of_a_microsecond() -> None:
    assert duration_ns(49, MHZ_48) == 1020.833, "not 1020.8333..."
    assert duration_ns(1, Fraction(3, 10_000)) == 0.0, "less than half of the last decimal"


def test_bandwidth_equals_the_exporters_to_the_last_digit() -> None:
    """2,959,694,354 bytes in 49 ticks of 48 MHz; the nearest double to 1.020833 gives 204.0."""
    microseconds = duration_ns(49, MHZ_48) / 1000
    assert microseconds == math.nextafter(1.020833, 0)
    assert 2_959_694_354 / microseconds * 1e6 == 2899293375116204.7


@pytest.mark.parametrize(
    ("text", "total"),
    [
        *(("0", 0.0), ("0.000", 0.0), ("100", 100.0)),
        pytest.param(
            "0.7777", ((7 * 1e-4 + 7 * 1e-3) + 7 * 1e-2) + 7 * 1e-1, id="last digit first"
        ),
    ],
)
def test_digits_are_summed_from_the_last(text: str, total: float) -> None:
    assert sum_of_digits(text) == total


@given(st.integers(-5, 2**63), st.sampled_from([25, 38.4, 48, 49, 50, 100, 1000]))
def test_duration_differs_from_the_exact_one_by_rounding_only(ticks: int, mhz: float) -> None:
    rate = 1000 / Fraction(mhz)
    exact = max(ticks, 0) * rate
    assert abs(Fraction(duration_ns(ticks, rate)) - exact) <= Fraction(1, 2000) + exact / 2**50
