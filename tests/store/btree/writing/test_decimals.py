"""Decimal texts and variable-length encodings of integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.sqlite.pages.row_encoder import decimals, encoded


def check_decimals(numbers: list[int]) -> None:
    digits, lengths = decimals(np.array(numbers, np.int64))
    assert digits.tobytes().decode() == "".join(map(str, numbers))
    assert lengths.tolist() == [len(str(number)) for number in numbers]


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1)
        | st.sampled_from(
            [sign * 10**n - less for n in range(19) for sign in (1, -1) for less in (0, 1)]
        ),
        min_size=1,
    )
)
def test_decimals_equal_those_of_python(numbers: list[int]) -> None:
    check_decimals(numbers)


@pytest.mark.parametrize(
    "number", [0, 9, -(2**63), 2**63 - 1, 1_700_000_000_000_000_000, -10, 9999]
)
def test_decimals_of_one_length_equal_those_of_python(number: int) -> None:
    check_decimals([number] * 3)


@pytest.mark.parametrize("bits", range(64))
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_encoded_numbers_have_seven_bits_per_byte_and_eight_last(bits: int, off: int) -> None:
    number = ((1 << bits) + off) % 2**64
    if number < 1 << 56:
        groups = [number >> at & 0x7F for at in range(0, max(number.bit_length(), 1), 7)]
        expected = [group | 0x80 for group in groups[:0:-1]] + groups[:1]
    else:
        expected = [number >> 8 + at & 0x7F | 0x80 for at in range(49, -1, -7)] + [number & 0xFF]
    assert list(encoded(number)) == expected
    assert encoded(number - 2**64) == encoded(number)
