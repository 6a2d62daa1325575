"""Text of unknown origin, made safe to show: one line that does nothing but appear.

Names come from other people's programs and file systems. In a terminal, escape sequences could
move the cursor or forge output, a newline could forge a second line, and characters that change
the direction of writing could disguise what a name is.

The only unit conversions, all exact; and figures in the unit that fits, for people.

Times inside uprof are whole nanoseconds since the Unix epoch as Python or NumPy int64. A
float64 cannot hold those: above 2**53 ns (104 days after 1970) it loses nanoseconds.
"""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Any

# Cc control, Cf format (direction marks, zero width), Cs surrogate, Co private, Zl/Zp breaks.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# How Python holds the bytes 0x80 to 0xff of a file name that is not UTF-8 (PEP 383).
_FIRST_RAW_BYTE, _LAST_RAW_BYTE = 0xDC80, 0xDCFF


def printable(text: str) -> str:
    r"""Return `text` as one line in which control, format and surrogate characters are escapes.

    A terminal's escape becomes `\x1b`, a direction mark `\u202e`, and a byte of a file name that
    is not UTF-8 appears as the byte that it is: `caf\xe9.db`. All else, in any script, stays. The
    result can be encoded as UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(character) if unicodedata.category(character) in _ACTIVE else character
        for character in text
    )


# Spreadsheets execute cells that start with these characters as formulas.
_FORMULA = ("=", "+", "-", "@")


def guard_formula(text: str) -> str:
    """Return `text` with an apostrophe in front if a spreadsheet would execute it."""
    # Full-width characters count as well: some programs normalize them.
    first = unicodedata.normalize("NFKC", text.lstrip()[:1])
    return f"'{text}" if first in _FORMULA else text


def storable(text: str) -> str:
    r"""Return `text` with surrogates as escapes, so that it can be encoded as UTF-8.

    They stand for bytes of file names that are not UTF-8: `caf\xe9`. Nothing else changes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_escaped(one) if "\ud800" <= one <= "\udfff" else one for one in text)
    return text


def storable_in(value: Any) -> Any:
    """Return plain data with every text of it `storable`, keys included."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable_in(key): storable_in(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [storable_in(one) for one in value]
    return value


def _escaped(character: str) -> str:
    code = ord(character)
    if _FIRST_RAW_BYTE <= code <= _LAST_RAW_BYTE:
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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
