"""Times and ids of traces as integers."""

from decimal import ROUND_DOWN, Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.decoders.kineto.fields import to_int64, us_to_ns


def raw(*texts: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(text.encode()) for text in texts]


numbers = st.decimals(
    min_value=-(10**12), max_value=10**13, allow_nan=False, allow_infinity=False, places=3
) | st.decimals(min_value=0, max_value=10**15, allow_nan=False, allow_infinity=False, places=6)


@settings(max_examples=60)
@given(st.lists(numbers, min_size=1, max_size=20))
def test_times_equal_exact_decimal_arithmetic(values: list[Decimal]) -> None:
    texts = [format(value, "f") for value in values]
    times, valid = us_to_ns(raw(*texts))
    assert valid.all()
    exact = [int((Decimal(t) * 1000).quantize(Decimal(1), ROUND_DOWN)) for t in texts]
    assert times.tolist() == exact


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["1695835543008415.123", "1695835543008415.124"],
            [1695835543008415123, 1695835543008415124],
        ),
        (["12", "5"], [12000, 5000]),
        (["12.5", "5", "0.25", "7.123456"], [12500, 5000, 250, 7123]),
        (["-0.5", "-1.2349"], [-500, -1234]),
        (['"12.5"', "1e3", "2.5E-1"], [12500, 1000000, 250]),
    ],
)
def test_all_number_spellings_are_read_exactly(texts: list[str], expected: list[int]) -> None:
    times, valid = us_to_ns(raw(*texts))
    assert valid.all()
    assert times.tolist() == expected


def test_invalid_time_does_not_affect_others() -> None:
    texts = ["1.5", "", "null", "[1,2]", '"soon"', "99999999999999999", "NaN", "2"]
    times, valid = us_to_ns(raw(*texts))
    assert valid.tolist() == [True, False, False, False, False, False, False, True]
    assert times[valid].tolist() == [1500, 2000]


def test_ids_are_read_from_text_hexadecimal_and_unsigned() -> None:
    column, bad = to_int64([7, "8", "0x10", 2**64 - 1, None, 9.0])
    assert column.tolist() == [7, 8, 16, -1, -1, 9]
    assert bad == 0


def test_unreadable_ids_are_counted() -> None:
    column, bad = to_int64(["x", 1.5, True, [1], 2**70, 3], missing=-7)
    assert column.tolist() == [-7, -7, -7, -7, -7, 3]
    assert column.dtype == np.int64
    assert bad == 5
