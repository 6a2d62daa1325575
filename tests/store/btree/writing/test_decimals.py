from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.sqlite.pages.row_encoder import decimals


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1)
        | st.sampled_from(
            [sign * 10**n - less for n in range(19) for sign in (1, -1) for less in (0, 1)]
        ),
        min_size=1,
    )
)
def test_numbers_have_the_digits_that_python_gives_them(numbers: list[int]) -> None:
    digits, lengths = decimals(np.array(numbers, np.int64))
    assert digits.tobytes().decode() == "".join(map(str, numbers))
    assert lengths.tolist() == [len(str(number)) for number in numbers]


@pytest.mark.parametrize(
    "number", [0, 9, -(2**63), 2**63 - 1, 1_700_000_000_000_000_000, -10, 9999]
)
def test_numbers_of_one_length(number: int) -> None:
    digits, lengths = decimals(np.full(3, number, np.int64))
    assert digits.tobytes().decode() == str(number) * 3
    assert set(lengths.tolist()) == {len(str(number))}
