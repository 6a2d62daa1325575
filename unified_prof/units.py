"""The only unit conversions, all exact.

Times inside uprof are whole nanoseconds since the Unix epoch as Python or NumPy int64. A
float64 cannot hold those: above 2**53 ns (104 days after 1970) it loses nanoseconds.
"""

from __future__ import annotations

from decimal import Decimal

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_MAX_EXPONENT = 30  # of a time in ns: far beyond any, and still quick to compute with


def us_text_to_ns(text: str) -> int:
    """Convert decimal microseconds, as vendors print them, to whole nanoseconds.

    Digits beyond the nanosecond are cut off towards zero.

    Raises:
        ValueError: `text` is not a finite decimal number of less than 30 digits.
    """
    try:
        value = Decimal(text) * NS_PER_US
        if value.adjusted() > _MAX_EXPONENT:  # 1e999999 would be a number of a million digits
            raise ValueError
        return int(value)
    except (ArithmeticError, ValueError, OverflowError):
        raise ValueError(f"not a decimal number of microseconds: {text!r}") from None


def ms_to_ns(duration_ms: float) -> int:
    """Convert a duration from milliseconds to the nearest whole nanosecond."""
    return round(duration_ms * NS_PER_MS)
