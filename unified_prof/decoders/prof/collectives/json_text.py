"""JSON as the vendor's exporter writes it into columns: compact, with its own texts of doubles.

Its writer turns a double into digits by the algorithm Grisu2 (Loitsch, PLDI 2010): the shortest
digits that lie safely inside the double's rounding interval, which are not always the closest, nor
always Python's. Databases are compared text by text, so the algorithm is followed here, with whole
numbers of any size in place of tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import cache
from math import isfinite

_FRACTION_BITS = 52
_HIDDEN = 1 << _FRACTION_BITS
_LEAST_EXPONENT, _EXPONENT_BIAS = -1074, 1075
_POWERS_FROM, _POWER_STEP = -348, 8
_LOG10_2 = 0.30102999566398114
_ROUNDED_PLACES = 9
"""Digits behind the point that the exporter's writer still rounds."""
_PLAIN_DIGITS, _LEADING_ZEROS = 21, 6

_Float = tuple[int, int]
"""A fraction and its power of two."""


def array_text(items: Sequence[object]) -> str:
    """Return a list of texts, whole numbers and doubles as JSON."""
    return "[" + ",".join(map(_item_text, items)) + "]"


def _item_text(item: object) -> str:
    if isinstance(item, float):
        return double_text(item) if isfinite(item) else "null"
    return json.dumps(item, ensure_ascii=False)


def double_text(value: float) -> str:
    """Return a finite double as text, such as `0.0`, `2687186122000000.0` or `1e30`."""
    if value == 0:
        return "0.0"
    digits, exponent = _shortest(abs(value))
    return ("-" if value < 0 else "") + _placed(digits, exponent)


def _placed(digits: str, exponent: int) -> str:
    """Set the point into `digits`, whose last stands for 10 to the power of `exponent`."""
    point = len(digits) + exponent
    if exponent >= 0 and point <= _PLAIN_DIGITS:
        return digits + "0" * exponent + ".0"
    if 0 < point <= _PLAIN_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if -_LEADING_ZEROS < point <= 0:
        return "0." + "0" * -point + digits
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1}"


def _shortest(value: float) -> tuple[str, int]:
    """Return digits of a positive double and the power of ten of the last one."""
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    fraction, biased = bits & (_HIDDEN - 1), bits >> _FRACTION_BITS
    exponent = biased - _EXPONENT_BIAS if biased else _LEAST_EXPONENT
    fraction |= _HIDDEN if biased else 0
    above = _normalized((2 * fraction + 1, exponent - 1))
    closer = fraction == _HIDDEN  # the next double below is half as far away
    below = (4 * fraction - 1, exponent - 2) if closer else (2 * fraction - 1, exponent - 1)
    below = (below[0] << (below[1] - above[1]), above[1])
    index = _power_index(above[1])
    power = _power_of_ten(_POWERS_FROM + _POWER_STEP * index)
    scaled = _product(_normalized((fraction, exponent)), power)
    top = _product(above, power)
    width = top[0] - 1 - (_product(below, power)[0] + 1)
    digits, places = _digits(top[0] - 1, -top[1], width, top[0] - 1 - scaled[0])
    return "".join(map(str, digits)), -(_POWERS_FROM + _POWER_STEP * index) + places


def _digits(top: int, shift: int, width: int, distance: int) -> tuple[list[int], int]:
    """Return the fewest leading digits of `top` that stay within `width` below it.

    Args:
        top: upper end of the interval, in units of 2 to the power of -`shift`.
        shift: bits behind the point.
        width: length of the interval.
        distance: how far the double itself lies below `top`.
    """
    whole, rest = top >> shift, top & ((1 << shift) - 1)
    digits: list[int] = []
    for place in range(len(str(whole)) - 1, -1, -1):
        digit, whole = divmod(whole, 10**place)
        if digit or digits:
            digits.append(digit)
        left = (whole << shift) + rest
        if left <= width:
            _round(digits, left, 10**place << shift, width, distance)
            return digits, place
    for place in range(1, 64):
        rest, width = rest * 10, width * 10
        digit, rest = rest >> shift, rest & ((1 << shift) - 1)
        if digit or digits:
            digits.append(digit)
        if rest < width:
            reach = distance * 10**place if place < _ROUNDED_PLACES else 0
            _round(digits, rest, 1 << shift, width, reach)
            return digits, -place
    raise AssertionError("a double has fewer than 64 digits behind the point")


def _round(digits: list[int], left: int, unit: int, width: int, distance: int) -> None:
    """Lower the last digit while that comes closer to the double and stays in the interval."""
    while (
        left < distance
        and width - left >= unit
        and (left + unit < distance or distance - left > left + unit - distance)
    ):
        digits[-1] -= 1
        left += unit


def _power_index(exponent: int) -> int:
    """Return which of the powers of ten, eight apart, brings a fraction into the working range."""
    estimate = (-61 - exponent) * _LOG10_2 + 347
    return (int(estimate) + (estimate > int(estimate)) >> 3) + 1


@cache
def _power_of_ten(power: int) -> _Float:
    """Return 10 to the power of `power` with a fraction of 64 bits, rounded to nearest."""
    numerator, denominator = (10**power, 1) if power >= 0 else (1, 10**-power)
    exponent = numerator.bit_length() - denominator.bit_length() - 64
    while True:
        shifted = numerator << max(-exponent, 0)
        divisor = denominator << max(exponent, 0)
        quotient, remainder = divmod(shifted, divisor)
        if quotient.bit_length() == 64:
            break
        exponent += 1 if quotient.bit_length() > 64 else -1
    quotient += 2 * remainder >= divisor
    return (quotient, exponent) if quotient < 1 << 64 else (quotient >> 1, exponent + 1)


def _normalized(number: _Float) -> _Float:
    shift = 64 - number[0].bit_length()
    return number[0] << shift, number[1] - shift


def _product(one: _Float, other: _Float) -> _Float:
    product = one[0] * other[0]
    return (product >> 64) + (product >> 63 & 1), one[1] + other[1] + 64
