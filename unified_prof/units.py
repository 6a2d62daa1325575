"""The only unit conversions, all exact; and figures in the unit that fits, for people.

Times inside uprof are whole nanoseconds since the Unix epoch as Python or NumPy int64. A
float64 cannot hold those: above 2**53 ns (104 days after 1970) it loses nanoseconds.
"""

from __future__ import annotations

from decimal import Decimal

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

TIMES = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))
"""Units of nanoseconds for `scaled`, the largest first."""

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


def scaled(value: float, units: tuple[tuple[int, str], ...]) -> str:
    """Return `value` with three digits in the largest unit of which it is at least one."""
    for index, (factor, name) in enumerate(units):
        last = index == len(units) - 1
        if abs(value) >= factor or last:
            here = value / factor
            digits = 0 if last and float(value).is_integer() else max(0, 2 - _magnitude(here))
            text = f"{here:,.{digits}f}"
            # 999.6 µs rounds to 1,000 µs: that is 1.00 ms.
            if index and float(text.replace(",", "")) * factor >= units[index - 1][0]:
                return scaled(units[index - 1][0], units)
            return f"{text} {name}"
    raise AssertionError("the last unit fits everything")


def _magnitude(value: float) -> int:
    """Return how many digits stand before the decimal point, less one."""
    return len(str(int(abs(value)))) - 1
