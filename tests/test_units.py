from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.base import text as units


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_microseconds_keep_every_nanosecond(ns: int) -> None:
    assert units.us_text_to_ns(str(Decimal(ns) / 1000)) == ns


@pytest.mark.parametrize("text", ["", "abc", "nan", "inf", "-inf", "1.2.3", "1e999999999", "1e40"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a decimal number"):
        units.us_text_to_ns(text)
