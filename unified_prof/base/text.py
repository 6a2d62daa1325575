"""Safe display of untrusted text, and formatting of numbers with units.

Names come from untrusted programs and file systems. In a terminal, escape sequences could move the
cursor or forge output, a line break could forge a second line, and direction marks could disguise a
name.

Times are integer nanoseconds since the Unix epoch as Python or NumPy int64: a float64 loses
nanoseconds above 2**53 ns (104 days after 1970). All unit conversions are exact.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from os.path import commonprefix
from typing import Any, TypeVar

# Cc control, Cf format (direction marks, zero width), Cs surrogate, Co private, Zl/Zp breaks.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Surrogates for the bytes 0x80 to 0xff of file names that are not UTF-8 (PEP 383).
_FIRST_RAW_BYTE, _LAST_RAW_BYTE = 0xDC80, 0xDCFF


def source_hash(content: bytes) -> str:
    """Return a hash of a source file, independent of its line ends."""
    return hashlib.blake2b(content.replace(b"\r\n", b"\n"), digest_size=8).hexdigest()


def printable(text: str) -> str:
    r"""Return `text` as one line with control, format and surrogate characters escaped.

    An escape character becomes `\x1b`, a direction mark `\u202e`, a byte of a file name that is not
    UTF-8 its value: `caf\xe9.db`. All other characters stay. The result can be encoded as UTF-8.
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
    r"""Return `text` with surrogates escaped, so that it can be encoded as UTF-8.

    Surrogates represent bytes of file names that are not UTF-8: `caf\xe9`.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_escaped(one) if "\ud800" <= one <= "\udfff" else one for one in text)
    return text


def storable_in(value: Any) -> Any:
    """Apply `storable` to all texts of plain data, keys included."""
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

# Units of nanoseconds and bytes for `scaled`, largest first.
TIMES = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))
SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))

_MAX_EXPONENT = 30  # of a time in ns: far above any real one


def us_text_to_ns(text: str) -> int:
    """Convert decimal microseconds, as vendors print them, to integer nanoseconds.

    Digits below one nanosecond are dropped. Raises ValueError if `text` is not a finite decimal
    number of less than 30 digits.
    """
    try:
        value = Decimal(text) * NS_PER_US
        if value.adjusted() > _MAX_EXPONENT:  # 1e999999 would be a number of a million digits
            raise ValueError
        return int(value)
    except (ArithmeticError, ValueError, OverflowError):
        raise ValueError(f"not a decimal number of microseconds: {text!r}") from None


def ms_to_ns(duration_ms: float) -> int:
    """Convert milliseconds to the nearest nanosecond."""
    return round(duration_ms * NS_PER_MS)


def scaled(value: float, units: tuple[tuple[int, str], ...]) -> str:
    """Format `value` with three digits, in the largest unit that gives a number of at least 1."""
    for index, (factor, name) in enumerate(units):
        last = index == len(units) - 1
        if abs(value) >= factor or last:
            # Halves are rounded up, as in the pages, and not to even digits.
            here = math.nextafter(value / factor, math.copysign(math.inf, value))
            digits = 0 if last and float(value).is_integer() else max(0, 2 - _magnitude(here))
            text = f"{here:,.{digits}f}"
            # 999.6 µs rounds to 1,000 µs: that is 1.00 ms.
            if index and float(text.replace(",", "")) * factor >= units[index - 1][0]:
                return scaled(units[index - 1][0], units)
            return f"{text} {name}"
    raise AssertionError("the last unit fits every value")


def _magnitude(value: float) -> int:
    """Return the number of digits before the decimal point, less one."""
    return len(str(int(abs(value)))) - 1


# Name of the fact about a trace beside the recording that is named as a capture of graphs.
CAPTURE_FACT = "capture_trace"


def shared_prefix(one: str, other: str) -> int:
    """Return the number of characters with which two names begin alike."""
    return len(commonprefix((one, other)))  # noqa: RUF071 - not paths


def some_of(texts: Iterable[str], most: int, rest: str = "more", separator: str = ", ") -> str:
    """Join up to `most` texts, and add how many others there are: `a, b and 3 more`."""
    every = [*texts]
    left = len(every) - most
    return separator.join(every[:most]) + (f" and {left:,} {rest}" if left > 0 else "")


def most_alike(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that begins like `name` for the most characters; None if two do."""
    by_prefix: dict[int, list[str]] = {}
    for one in candidates:
        by_prefix.setdefault(shared_prefix(name, one), []).append(one)
    best = by_prefix[max(by_prefix)] if by_prefix else []
    return best[0] if len(best) == 1 else None


T = TypeVar("T", dict[str, Any], list[Any], int)


def _integer_of_64_bits(text: str) -> int:
    if abs(value := int(text)) >= 2**63:
        raise ValueError(text)
    return value


def parsed_fact(facts: Mapping[str, str], name: str, kind: type[T]) -> T:
    """Return a fact that is JSON of a type; an empty value if it is unknown or damaged.

    Integers above 64 bits are damaged: no figure is, and arithmetic with floats fails.
    """
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(facts.get(name, ""), parse_int=_integer_of_64_bits)
    return found if isinstance(found, kind) else kind()


def part_lines(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the source line at which each part of an iteration begins."""
    lines = parsed_fact(facts, "part_lines", dict).items()
    return {part: line for part, line in lines if isinstance(line, str)}
