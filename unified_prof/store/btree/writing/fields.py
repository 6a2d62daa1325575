"""Columns of a block of rows as they stand in SQLite's records: serial types and bytes.

SQLite converts a value by the affinity of its column before it stores it; `Affinity` and what
follows from it do the same (sqlite.org/datatype3.html), so that a value reads back as if it had
been bound to a statement.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.store.batches import Constant, Numbers, Objects, Plain, Source, is_null
from unified_prof.store.btree import format as layout
from unified_prof.store.btree.writing import varints
from unified_prof.store.btree.writing.affinity import Affinity
from unified_prof.store.btree.writing.decimals import decimals

NULL = 0
NUMBER = 1
TEXT = 1
"""Kind of a text: this and the bytes of its serial type, 2 for short ones."""

_BEYOND = 2.0**63


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in UTF-8, one after the other."""

    flat: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    """Bytes of each, 0 where a row has none."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """One value in every row."""

    type: int
    """Its serial type."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Varying:
    """Values that differ from row to row."""

    kinds: NDArray[np.uint8] | int
    """NULL, NUMBER, or a text's: TEXT and the bytes that its serial type takes."""
    types: NDArray[np.uint8] | int = layout.NULL
    """Serial type of every number; one for all of them where it is the same."""
    width: int = 0
    """Bytes of every number: the most that any needs."""
    bits: NDArray[np.int64] | None = None
    """Integers, and the bits of floats; None where numbers take no bytes."""
    texts: Texts | None = None

    def kind_at(self, row: int) -> int:
        """Return the kind of one row's value."""
        return self.kinds if isinstance(self.kinds, int) else int(self.kinds[row])


Field = Fixed | Varying
"""One column of a block of rows."""


def field_of(source: Source, affinity: Affinity) -> Field:
    """Return a column as a column of that affinity holds it.

    Text under Affinity.NUMERIC and Affinity.REAL, which SQLite would try to read as a number, is
    no case of ours.
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
    array: NDArray[Any],
    nulls: NDArray[np.bool_] | None,
    affinity: Affinity,
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
        return _from_floats(array + 0.0, nulls)  # minus zero loses its sign
    if affinity is Affinity.NUMERIC:
        whole = (np.trunc(array) == array) & (np.abs(array) < _BEYOND)
        if whole.any():
            integers = np.where(whole, array, 0.0).astype(np.int64)
            if (whole if nulls is None else whole | nulls).all():
                return _from_integers(integers, nulls)
            bits = np.where(whole, integers, array.view(np.int64))
            integer, real = np.uint8(6), np.uint8(layout.FLOAT)
            return Varying(_kinds(nulls), np.where(whole, integer, real), 8, bits)
    return _from_floats(array, nulls)


def _from_floats(array: NDArray[np.float64], nulls: NDArray[np.bool_] | None) -> Field:
    return Varying(_kinds(nulls), layout.FLOAT, 8, array.view(np.int64))


def _from_integers(array: NDArray[np.int64], nulls: NDArray[np.bool_] | None) -> Field:
    """Return integers in as few bytes as the widest of them needs."""
    least, most = int(array.min()), int(array.max())
    if least == most and nulls is None:
        return _fixed(least)
    if least >= 0 and most <= 1:
        return Varying(_kinds(nulls), array.astype(np.uint8) + np.uint8(layout.ZERO))
    kind, width = integer_type(least, most)
    return Varying(_kinds(nulls), kind, width, array)


def _from_texts(values: Sequence[Plain]) -> Field:
    """Return texts, None among them."""
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
    """Return integers as texts of digits."""
    if nulls is None or not nulls.any():
        return _texts(*decimals(array), None)
    if nulls.all():
        return Fixed(layout.NULL, b"")
    return _texts(*decimals(array[~nulls]), nulls)


def _texts(
    flat: NDArray[np.uint8], found: NDArray[np.int64], nulls: NDArray[np.bool_] | None
) -> Field:
    """Return texts of those lengths, which stand where nothing is NULL."""
    kinds = (TEXT + varints.widths_of(layout.FIRST_TEXT + 2 * found)).astype(np.uint8)
    if nulls is None:
        first = int(kinds[0])
        return Varying(first if (kinds == first).all() else kinds, texts=Texts(flat, found))
    lengths = np.zeros(len(nulls), np.int64)
    lengths[~nulls] = found
    all_kinds = np.full(len(nulls), NULL, np.uint8)
    all_kinds[~nulls] = kinds
    return Varying(all_kinds, texts=Texts(flat, lengths))


def _from_any(values: list[Plain]) -> Field:
    """Return values of any types, converted already; numbers take eight bytes each."""
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
            kinds[row] = TEXT + varints.width_of(layout.FIRST_TEXT + 2 * len(text))
        elif isinstance(value, int):
            kinds[row], types[row], bits[row] = NUMBER, 6, value
        elif isinstance(value, float):
            kinds[row], bits[row] = NUMBER, np.float64(value).view(np.int64)
    flat = _bytes(b"".join(texts))
    return Varying(kinds, types, 8, bits, Texts(flat, lengths) if texts else None)


def _fixed(value: Plain) -> Fixed:
    """Return a value that has been converted."""
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
    """Return one value as a column of that affinity holds it."""
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
    """Return a number as SQLite of this process prints it."""
    with closing(sqlite3.connect(":memory:")) as db:
        return str(db.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone()[0])


def _kinds(nulls: NDArray[np.bool_] | None) -> NDArray[np.uint8] | int:
    if nulls is None or not nulls.any():
        return NUMBER
    return np.where(nulls, np.uint8(NULL), np.uint8(NUMBER))


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)


def integer_type(least: int, most: int) -> tuple[int, int]:
    """Return the serial type, and its bytes, that holds all integers from `least` to `most`."""
    bits = max((value if value >= 0 else ~value).bit_length() for value in (least, most))
    for kind, width in layout.INTEGER_BYTES.items():
        if bits < 8 * width:
            return kind, width
    raise OverflowError(f"{least} and {most} do not fit into 64 bits")
