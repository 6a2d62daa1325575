"""Durations as the vendor's exporter has them: decimal numbers that become doubles digit by digit.

It divides ticks by the frequency, keeps six decimals of the microseconds and adds the digits up,
each times its power of ten, from the last to the first. The sum is now and then one unit in the
last place away from the double nearest to the text, and bandwidths are printed with all digits.
"""

from __future__ import annotations

from fractions import Fraction

_PLACES = 6
_US_TO_NS_POWER = 3


def duration_ns(ticks: int, rate: Fraction) -> float:
    """Return what `ticks` of `rate` ns each take in ns, to the bit as the exporter has it."""
    if ticks <= 0:
        return 0.0
    return sum_of_digits(f"{ticks / float(1000 / rate):.{_PLACES}f}", _US_TO_NS_POWER)


def sum_of_digits(text: str, power: int = 0) -> float:
    """Return a plain decimal such as `1.020833` times 10 to `power`, summed from the last digit."""
    whole, _, decimals = text.partition(".")
    digits = (whole + decimals).lstrip("0")
    last = power - len(decimals)
    total = 0.0
    for index, digit in enumerate(reversed(digits)):
        # 10.0 ** -3 is the double nearest to 0.001 only where the C library's pow is exact.
        total += int(digit) * float(f"1e{last + index}")
    return total
