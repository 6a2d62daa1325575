"""Exact conversion of the numbers in a trace, whole columns at a time.

Times are decimal microseconds of any number of digits. They never pass through a float: a
float64 of microseconds since 1970 is wrong by up to 256 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.gpu.numbers import MISSING, Int64s, ints
from unified_prof.units import NS_PER_US, us_text_to_ns

_COMMA, _DOT = ord(","), ord(".")
_PLAIN = np.zeros(256, dtype=bool)
_PLAIN[np.frombuffer(b"0123456789.,-", dtype=np.uint8)] = True
_POWERS = 10 ** np.arange(19, dtype=np.int64)
_MAX_DIGITS = 18  # every such number fits into int64
_ZERO = np.uint8(ord("0"))
_LOW_DIGITS = 9
_FLOAT_POWERS = 10.0 ** np.arange(_LOW_DIGITS - 1, -1, -1)
_MAX_US = (2**63 - 1) // NS_PER_US
_NS_DIGITS = 3  # decimals of a microsecond that are whole nanoseconds


def us_to_ns(raw: Sequence[msgspec.Raw]) -> tuple[Int64s, NDArray[np.bool_]]:
    """Convert JSON numbers of microseconds to nanoseconds, cutting off digits beyond them.

    Args:
        raw: The numbers as they stand in the file; numbers inside quotes are understood.

    Returns:
        The times in ns, and which of them are valid. An absent, null or unreadable number is
        invalid, and so is one that int64 nanoseconds cannot hold.
    """
    count = len(raw)
    if not count:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    converted = _convert_plain(b",".join(raw), count)
    if converted is not None:
        return converted, np.ones(count, dtype=bool)
    times, valid = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for index, token in enumerate(raw):
        time = _us_token_to_ns(bytes(token))
        if time is not None:
            times[index], valid[index] = time, True
    return times, valid


def _convert_plain(text: bytes, count: int) -> Int64s | None:
    """Convert comma-joined plain decimals; None where any of them needs a closer look."""
    chars = np.frombuffer(text, dtype=np.uint8)
    same_length = _convert_same_length(chars, count)
    if same_length is not None:
        return same_length
    if not _PLAIN[chars].all():
        return None
    ends = np.append(np.flatnonzero(chars == _COMMA), len(chars))
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    if len(ends) != count or lengths.min() == 0 or lengths.max() > _MAX_DIGITS + 1:
        return None
    dots = np.flatnonzero(chars == _DOT)
    decimals = np.zeros(count, dtype=np.int64)
    if len(dots):
        owners = np.searchsorted(ends, dots)
        if len(dots) > 1 and (owners[1:] == owners[:-1]).any():
            return None
        decimals[owners] = ends[owners] - dots - 1
        text = text.replace(b".", b"")
    digits = np.fromstring(text, dtype=np.int64, sep=",")
    if len(digits) != count:
        return None
    if (decimals == _NS_DIGITS).all():
        return digits
    if (np.abs(digits) > _MAX_US)[decimals < _NS_DIGITS].any():
        return None
    scaled = digits * _POWERS[np.clip(_NS_DIGITS - decimals, 0, None)]
    divisors = _POWERS[np.clip(decimals - _NS_DIGITS, 0, None)]
    return np.where(decimals > _NS_DIGITS, np.sign(digits) * (np.abs(digits) // divisors), scaled)


def _convert_same_length(chars: NDArray[np.uint8], count: int) -> Int64s | None:
    """Convert positive decimals that all have the same length and three decimals: most have."""
    width, rest = divmod(len(chars) + 1, count)
    if rest or not _NS_DIGITS + 3 <= width <= _MAX_DIGITS + 2:
        return None
    table = np.append(chars, np.uint8(_COMMA)).reshape(count, width)
    dot = width - _NS_DIGITS - 2
    if (table[:, -1] != _COMMA).any() or (table[:, dot] != _DOT).any():
        return None
    digits = np.delete(table, (dot, width - 1), axis=1) - _ZERO
    if digits.max() > 9:  # an unsigned difference: anything but a digit is beyond 9
        return None
    # Two products of floats, exact because neither exceeds 2**53, are faster than one of int64.
    low = digits[:, -_LOW_DIGITS:].astype(np.float64) @ _FLOAT_POWERS[-digits.shape[1] :]
    if digits.shape[1] <= _LOW_DIGITS:
        return low.astype(np.int64)
    high_digits = digits[:, :-_LOW_DIGITS].astype(np.float64)
    high = high_digits @ _FLOAT_POWERS[-high_digits.shape[1] :]
    whole: Int64s = high.astype(np.int64) * 10**_LOW_DIGITS + low.astype(np.int64)
    return whole


def _us_token_to_ns(token: bytes) -> int | None:
    try:
        time_ns = us_text_to_ns(token.strip(b'" \t').decode("ascii"))
    except ValueError:
        return None
    return time_ns if -(2**63) <= time_ns < 2**63 else None


def to_int64(values: Sequence[Any], missing: int = MISSING) -> tuple[Int64s, int]:
    """Convert ids and counts to int64, understanding numbers inside quotes and hexadecimals.

    Unsigned 64-bit values wrap to signed ones, so that they stay distinct.

    Returns:
        The column, with `missing` for null and unreadable values, and how many were unreadable.
    """
    try:
        return ints(values), 0
    except (OverflowError, TypeError):
        pass  # one at least is not a plain number
    parsed = [_wrapped(value) for value in values]
    bad = sum(p is None and v is not None for p, v in zip(parsed, values, strict=True))
    return np.array([missing if p is None else p for p in parsed], dtype=np.int64), bad


def to_int(value: Any) -> int | None:
    """Return a number of JSON, or a text of one, if it is whole; None if not."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value, 0) if value.lower().startswith(("0x", "-0x")) else int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _wrapped(value: Any) -> int | None:
    number = to_int(value)
    if number is None or not -(2**63) <= number < 2**64:
        return None
    return number - 2**64 if number >= 2**63 else number


def to_float64(values: Sequence[Any]) -> NDArray[np.float64]:
    """Convert measurements to float64; what is absent or unreadable becomes NaN."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_to_float(value) for value in values], dtype=np.float64)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
