"""Encoding of column values as in SQLite's records: serial types, varints and bytes.

SQLite converts a value by the affinity of its column before storing it (sqlite.org/datatype3.html).
`field_of` does the same, so the stored values are the same as if they had been bound to a
statement.

Varints have seven bits per byte; all bytes but the last have the high bit set. The ninth byte has
eight bits; negative numbers always take nine bytes.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from enum import Enum, auto
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.sqlite.batches import Constant, Numbers, Objects, Plain, Source, is_null
from unified_prof.sqlite.pages import format as layout


class Affinity(Enum):
    """Type to which SQLite converts a value before storing it."""

    NUMERIC = auto()  # Whole real numbers become integers; treated like INTEGER here.
    REAL = auto()
    TEXT = auto()
    NONE = auto()


def affinity_of(declared: str) -> Affinity:
    """Return the affinity of a column from its declared type."""
    declared = declared.upper()
    if "INT" in declared:
        return Affinity.NUMERIC
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if not declared or "BLOB" in declared:
        return Affinity.NONE
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC


_AT_ONCE = 10_000
# The texts 0000 to 9999.
_FOUR_DIGITS = np.frombuffer(
    (np.indices((10, 10, 10, 10), np.uint8).reshape(4, -1).T + np.uint8(ord("0"))).tobytes(), "V4"
)
_MAX_DIGITS = 20
_WIDTH = 1 + _MAX_DIGITS
_POWERS = np.array([10**digits for digits in range(1, _MAX_DIGITS)], np.uint64)
_MINUS = ord("-")


def decimals(numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated digits of the numbers, and the number of bytes of each number.

    There is at least one number.
    """
    is_negative = numbers < 0
    left = np.where(is_negative, -numbers, numbers).view(np.uint64)
    lengths = np.searchsorted(_POWERS, left, side="right") + 1 + is_negative
    digits = np.empty((len(numbers), _WIDTH), np.uint8)
    # Only as many groups of four digits as the longest number needs; leading zeros are removed
    # below.
    groups = -(-int(lengths.max()) // 4)
    for place in range(_WIDTH - 4, _WIDTH - 4 - 4 * min(groups, _MAX_DIGITS // 4), -4):
        higher = left // np.uint64(_AT_ONCE)
        group = (left - higher * np.uint64(_AT_ONCE)).astype(np.intp)
        np.ndarray((len(numbers),), "V4", digits, place, (_WIDTH,))[:] = _FOUR_DIGITS[group]
        left = higher
    if is_negative.any():
        negative = np.flatnonzero(is_negative)
        digits[negative, _WIDTH - lengths[negative]] = _MINUS
    longest = int(lengths.max())
    if (lengths == longest).all():
        return digits[:, _WIDTH - longest :].reshape(-1), lengths
    return digits[np.arange(_WIDTH) >= (_WIDTH - lengths)[:, np.newaxis]], lengths


MAX_VARINT_BYTES = 9
_FIRST_OF_WIDTH = np.array([1 << 7 * width for width in range(1, MAX_VARINT_BYTES)], np.int64)


def encoded(value: int) -> bytes:
    """Return one number as a varint."""
    value &= 2**64 - 1
    width = width_of(value)
    if width == MAX_VARINT_BYTES:
        return encoded_in(value >> 8, 8)[:-1] + bytes([value >> 8 & 0x7F | 0x80, value & 0xFF])
    return encoded_in(value, width)


def encoded_in(value: int, width: int) -> bytes:
    """Return a number of at most 7 * `width` bits as a varint of `width` bytes."""
    groups = [value >> 7 * k & 0x7F | 0x80 for k in range(width - 1, -1, -1)]
    groups[-1] &= 0x7F
    return bytes(groups)


def width_of(value: int) -> int:
    """Return the size of the varint of a number."""
    value &= 2**64 - 1
    return min(max((value.bit_length() + 6) // 7, 1), MAX_VARINT_BYTES)


def widths_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of the varint of each number."""
    widths = np.searchsorted(_FIRST_OF_WIDTH, values, side="right") + 1
    return np.where(values < 0, MAX_VARINT_BYTES, widths)


def place(cells: NDArray[np.uint8], at: int, values: NDArray[np.int64], width: int) -> None:
    """Write a varint of `width` bytes into each row of `cells`, from byte `at` on.

    Each row of `cells` has the bytes of a cell; for `width` see `widths_of`.
    """
    rest = values
    if width == MAX_VARINT_BYTES:
        cells[:, at + MAX_VARINT_BYTES - 1] = values
        rest = values >> 8  # its high bits are those of the sign, and are cut off below
    low = MAX_VARINT_BYTES - 2 if width == MAX_VARINT_BYTES else width - 1
    for k in range(low, -1, -1):
        part = rest.astype(np.uint8)
        if k == low and width < MAX_VARINT_BYTES:
            part &= 0x7F
        else:
            part |= 0x80
        cells[:, at + k] = part
        if k:
            rest = rest >> 7


NULL = 0
NUMBER = 1  # Kind of a number: this plus the size of its value, 0 to 8.
# Kind of a text: this plus the size of its serial type, from 1.
TEXT = NUMBER + 8
_BEYOND = 2.0**63
# Integers have their own sizes if this saves as many bytes per row: each size is a shape of rows.
_SAVED = 0.25
_SAMPLE = 500  # Rows from which the saving is estimated.
_KINDS = (NUMBER + layout.WIDTHS).astype(np.uint8)  # Serial type of a number -> its kind.
# Exponent of a float as stored -> serial type of an integer with this exponent.
_TYPES = np.full(1023 + 64, 6, np.uint8)
for _kind, _width in reversed(layout.INTEGER_BYTES.items()):
    _TYPES[: 1023 + 8 * _width - 1] = _kind
_TYPES[0], _TYPES[1023] = layout.ZERO, layout.ONE


class Texts(Struct, frozen=True):
    """Concatenated texts in UTF-8."""

    flat: NDArray[np.uint8]
    lengths: NDArray[np.int64]  # Number of bytes of each text, 0 for rows without a text.


class Fixed(Struct, frozen=True):
    """The same value in every row."""

    type: int  # Serial type of the value.
    body: bytes


class Varying(Struct, frozen=True):
    """Values that differ from row to row."""

    kinds: NDArray[np.uint8] | int  # Kind of each row: NULL, or NUMBER or TEXT plus a size.
    # Serial type of every number; a single one if all are equal.
    types: NDArray[np.uint8] | int = layout.NULL
    # Integers, and the bits of floats; None if numbers take no bytes.
    bits: NDArray[np.int64] | None = None
    texts: Texts | None = None

    def kind_at(self, row: int) -> int:
        """Return the kind of the value of a row."""
        return self.kinds if isinstance(self.kinds, int) else int(self.kinds[row])


Field = Fixed | Varying  # One column of a block of rows.


def field_of(source: Source, affinity: Affinity) -> Field:
    """Convert a column to the affinity of its table column.

    Texts in NUMERIC and REAL columns, which SQLite would try to parse as numbers, are not
    supported.
    """
    if isinstance(source, Constant):
        return _fixed(_converted(source.value, affinity))
    if isinstance(source, Numbers):
        return _from_numbers(source.array, None, affinity)
    return _from_objects(source, affinity)


def _from_objects(source: Objects, affinity: Affinity) -> Field:
    values = source.values
    if isinstance(values, np.ma.MaskedArray):
        nulls = np.ma.getmaskarray(values)
        return _from_numbers(np.where(nulls, 0, np.ma.getdata(values)), nulls, affinity)
    types = set(map(type, values)) - {type(None)}
    if types <= {str}:
        return _from_texts(values)
    if types == {int} and affinity is not Affinity.TEXT:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        integers = np.fromiter((value or 0 for value in values), np.int64, len(values))
        return _from_numbers(integers, nulls, affinity)
    return _from_any([_converted(value, affinity) for value in values])


def _from_numbers(
    array: NDArray[Any], nulls: NDArray[np.bool_] | None, affinity: Affinity
) -> Field:
    if affinity is Affinity.TEXT:
        if array.dtype == np.int64:
            return _printed(array, nulls)
        return _from_texts([_converted(value, affinity) for value in array.tolist()])
    if array.dtype == np.int64:
        if affinity is Affinity.REAL:
            return _from_floats(array.astype(np.float64), nulls)
        return _from_integers(array, nulls)
    missing = np.isnan(array)
    nulls = missing if missing.any() else None
    if affinity is Affinity.REAL:
        return _from_floats(array + 0.0, nulls)  # -0.0 loses its sign
    if affinity is Affinity.NUMERIC:
        whole = (np.trunc(array) == array) & (np.abs(array) < _BEYOND)
        if whole.any():
            integers = np.where(whole, array, 0.0).astype(np.int64)
            if (whole if nulls is None else whole | nulls).all():
                return _from_integers(integers, nulls)
            types = np.where(whole, _types_of(integers), np.uint8(layout.FLOAT))
            bits = np.where(whole, integers, array.view(np.int64))
            return Varying(_kinds(nulls, types), types, bits)
    return _from_floats(array, nulls)


def _from_floats(array: NDArray[np.float64], nulls: NDArray[np.bool_] | None) -> Field:
    return Varying(_kinds(nulls, layout.FLOAT), layout.FLOAT, array.view(np.int64))


def _from_integers(array: NDArray[np.int64], nulls: NDArray[np.bool_] | None) -> Field:
    """Return integers, each with its size if that saves enough, else with that of the largest."""
    least, most = int(array.min()), int(array.max())
    if least == most and nulls is None:
        return _fixed(least)
    if least >= 0 and most <= 1:
        return Varying(_kinds(nulls, layout.ZERO), array.astype(np.uint8) + np.uint8(layout.ZERO))
    kind, width = integer_type(least, most)
    if (
        float(np.mean(layout.WIDTHS[_types_of(array[:: len(array) // _SAMPLE + 1])]))
        < width - _SAVED
    ):
        types = _types_of(array)
        return Varying(_kinds(nulls, types), types, array)
    return Varying(_kinds(nulls, kind), kind, array)


def _types_of(integers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the serial type of each integer."""
    # Converted to float, a number below 2**53 has its number of bits as exponent.
    positive = integers ^ integers >> 63
    types = _TYPES.take(positive.astype(np.float64).view(np.int64) >> 52)
    if (integers < 0).any():
        types[(integers < 0) & (types >= layout.ZERO)] = 1
    return types


def _from_texts(values: Sequence[Plain]) -> Field:
    """Return texts, which may include None, as a column."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        return Fixed(layout.NULL, b"")
    joined = "".join(texts).encode()
    flat = _bytes(joined)
    if len(joined) == sum(map(len, texts)):
        found = np.fromiter(map(len, texts), np.int64, len(texts))
    else:
        found = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    if len(texts) == len(values):
        return _texts(flat, found, None)
    return _texts(flat, found, np.fromiter((v is None for v in values), np.bool_, len(values)))


def _printed(array: NDArray[np.int64], nulls: NDArray[np.bool_] | None) -> Field:
    """Return integers as decimal texts."""
    if nulls is None or not nulls.any():
        return _texts(*decimals(array), None)
    if nulls.all():
        return Fixed(layout.NULL, b"")
    return _texts(*decimals(array[~nulls]), nulls)


def _texts(
    flat: NDArray[np.uint8], found: NDArray[np.int64], nulls: NDArray[np.bool_] | None
) -> Field:
    """Return texts of the given lengths for the rows that are not NULL."""
    kinds = (TEXT + widths_of(layout.FIRST_TEXT + 2 * found)).astype(np.uint8)
    if nulls is None:
        first = int(kinds[0])
        return Varying(first if (kinds == first).all() else kinds, texts=Texts(flat, found))
    lengths = np.zeros(len(nulls), np.int64)
    lengths[~nulls] = found
    all_kinds = np.full(len(nulls), NULL, np.uint8)
    all_kinds[~nulls] = kinds
    return Varying(all_kinds, texts=Texts(flat, lengths))


def _from_any(values: list[Plain]) -> Field:
    """Return converted values of mixed types; numbers take eight bytes each."""
    rows = len(values)
    kinds = np.zeros(rows, np.uint8)
    types = np.full(rows, layout.FLOAT, np.uint8)
    bits = np.zeros(rows, np.int64)
    lengths = np.zeros(rows, np.int64)
    texts = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            texts.append(text := value.encode())
            lengths[row] = len(text)
            kinds[row] = TEXT + width_of(layout.FIRST_TEXT + 2 * len(text))
        elif isinstance(value, int):
            kinds[row], types[row], bits[row] = NUMBER + 8, 6, value
        elif isinstance(value, float):
            kinds[row], bits[row] = NUMBER + 8, np.float64(value).view(np.int64)
    flat = _bytes(b"".join(texts))
    return Varying(kinds, types, bits, Texts(flat, lengths) if texts else None)


def _fixed(value: Plain) -> Fixed:
    """Return a converted value as a column with the same value in all rows."""
    if value is None:
        return Fixed(layout.NULL, b"")
    if isinstance(value, str):
        body = value.encode()
        return Fixed(layout.FIRST_TEXT + 2 * len(body), body)
    if isinstance(value, float):
        return Fixed(layout.FLOAT, struct.pack(">d", value))
    if value in (0, 1):
        return Fixed(layout.ZERO + value, b"")
    kind, width = integer_type(value, value)
    return Fixed(kind, value.to_bytes(width, "big", signed=True))


def _converted(value: Plain, affinity: Affinity) -> Plain:
    """Convert one value to an affinity."""
    if is_null(value):
        return None
    if affinity is Affinity.TEXT and isinstance(value, int | float):
        return str(value) if isinstance(value, int) else _as_sqlite_prints(value)
    if affinity is Affinity.REAL and isinstance(value, int | float):
        return float(value) + 0.0
    if affinity is Affinity.NUMERIC and isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _BEYOND else value
    return value


def _as_sqlite_prints(value: float) -> str:
    """Return a number as text, as this version of SQLite prints it."""
    with closing(sqlite3.connect(":memory:")) as db:
        return str(db.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone()[0])


def _kinds(
    nulls: NDArray[np.bool_] | None, types: NDArray[np.uint8] | int
) -> NDArray[np.uint8] | int:
    """Return the kinds of numbers of the given serial types, and of NULL."""
    kinds = _KINDS[types]
    if nulls is None or not nulls.any():
        return int(kinds) if isinstance(types, int) else kinds
    return np.where(nulls, np.uint8(NULL), kinds)


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)


def integer_type(least: int, most: int) -> tuple[int, int]:
    """Return the serial type for all integers from `least` to `most`, and its size in bytes."""
    bits = max((value if value >= 0 else ~value).bit_length() for value in (least, most))
    for kind, width in layout.INTEGER_BYTES.items():
        if bits < 8 * width:
            return kind, width
    raise OverflowError(f"{least} and {most} do not fit into 64 bits")
