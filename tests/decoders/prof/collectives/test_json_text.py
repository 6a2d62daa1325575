"""JSON as the vendor's exporter writes it: texts of doubles, compact arrays."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.decoders.prof.collectives import array_text, double_text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_round_trip(value: float) -> None:
    assert float(double_text(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (2687186122000000.0, "2687186122000000.0"),
        (0.001, "0.001"),
        (1.5e-7, "1.5e-7"),
        (1e30, "1e30"),
        (-2.5, "-2.5"),
        # Within the rounding interval, but not the shortest digits, which Python writes.
        (1492853880555555.5, "1492853880555555.6"),
        (50617993570993576.0, "50617993570993579.0"),
        (97968894789356.98, "97968894789356.99"),
    ],
)
def test_doubles_have_the_digits_of_the_exporters_writer(value: float, text: str) -> None:
    assert double_text(value) == text


def test_arrays_are_compact_and_keep_texts_unchanged() -> None:
    items = ["Group Name", 'dpu_组("1")', "Rank Size", 4, "Bandwidth(B/s)", 0.5]
    expected = '["Group Name","dpu_组(\\"1\\")","Rank Size",4,"Bandwidth(B/s)",0.5]'
    assert array_text(items) == expected
    assert json.loads(array_text([math.inf, math.nan, 1.0])) == [None, None, 1.0]
