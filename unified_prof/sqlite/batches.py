"""Conversion of decoder columns to values that SQLite stores correctly, and the string pool.

Python's SQLite driver stores a NumPy integer as an 8-byte BLOB without an error, so this module
returns only Python's int, float, str and None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.base.columns import Column
from unified_prof.base.text import storable
from unified_prof.errors import UsageError

# Types that the driver binds correctly.
Plain = int | float | str | None
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_PYTHON: dict[type, type] = {np.int64: int, np.float64: float}


class Constant(Struct, frozen=True):
    """One value for every row."""

    value: Plain

    def part(self, start: int, stop: int) -> list[Any]:
        """Return the value for the rows from `start` to `stop`."""
        return [self.value] * (stop - start)


class Numbers(Struct, frozen=True):
    """Signed 64-bit integers, or floats, without NULL; SQLite stores NaN as NULL."""

    array: NDArray[Any]  # int64 or float64.

    def __len__(self) -> int:
        return len(self.array)

    def part(self, start: int, stop: int) -> list[Any]:
        """Return the rows from `start` to `stop` as Python numbers."""
        return self.array[start:stop].tolist()  # type: ignore[no-any-return]


class Objects(Struct, frozen=True):
    """Plain values of any type, including None."""

    values: Sequence[Plain] | np.ma.MaskedArray[Any, Any]  # An array with masked integers.
    has_text: bool

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> list[Any]:
        """Return the rows from `start` to `stop` as plain values."""
        values = self.values[start:stop]
        return values.tolist() if isinstance(values, np.ma.MaskedArray) else list(values)


Source = Constant | Numbers | Objects  # Values of one column.


def read(columns: Mapping[str, Column], *, table: str) -> tuple[dict[str, Source], int]:
    """Return the columns of one batch, ready for SQLite, and its number of rows.

    A batch of scalars only is one row. Raises UsageError if lengths differ, or SQLite cannot store
    a value.
    """
    sources: dict[str, Source] = {}
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        try:
            source = sources[name] = _source(column)
        except (TypeError, ValueError, OverflowError) as err:
            raise UsageError(f"column {name} for table {table}: {err}", slug="wrong-table") from err
        if not isinstance(source, Constant):
            lengths[name] = len(source)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        message = f"columns for table {table} have different lengths: {found}"
        raise UsageError(message, slug="wrong-table")
    rows = next(iter(lengths.values())) if lengths else int(bool(columns))
    return sources, rows


def non_null(source: Source, rows: int) -> int:
    """Return the number of values that are not NULL in a batch of `rows` rows."""
    if isinstance(source, Constant):
        return 0 if is_null(source.value) else rows
    if isinstance(source, Numbers):
        if source.array.dtype == np.int64:
            return rows
        return rows - int(np.count_nonzero(np.isnan(source.array)))
    if isinstance(source.values, np.ma.MaskedArray):
        return int(source.values.count())
    return sum(not is_null(value) for value in source.values)


def is_null(value: object) -> bool:
    """Return True if SQLite stores `value` as NULL: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_text(source: Source) -> bool:
    """Return True if the column has any text."""
    if isinstance(source, Constant):
        return isinstance(source.value, str)
    return isinstance(source, Objects) and source.has_text


def selected(source: Source, rows: slice | NDArray[np.int64]) -> Source:
    """Return the selected rows of a column."""
    if isinstance(source, Constant):
        return source
    if isinstance(source, Numbers):
        return Numbers(source.array[rows])
    values = source.values
    if isinstance(rows, slice) or isinstance(values, np.ma.MaskedArray):
        return Objects(values[rows], source.has_text)  # type: ignore[index]
    return Objects([values[row] for row in rows.tolist()], source.has_text)


def kept(source: Source) -> Source:
    """Return a copy of a column that shares no memory with its source arrays."""
    if isinstance(source, Constant):
        return source
    if isinstance(source, Numbers):
        return Numbers(source.array.copy())
    if isinstance(source.values, np.ma.MaskedArray):
        return Objects(source.values.copy(), source.has_text)
    return Objects(list(source.values), source.has_text)


def concatenate(parts: Sequence[Source], lengths: Sequence[int]) -> Source:
    """Concatenate columns (at least one) with the given numbers of rows."""
    first = parts[0]
    if isinstance(first, Constant) and all(
        # Compare texts: 1 is not 1.0, and 0.0 is not -0.0.
        isinstance(part, Constant) and repr(part.value) == repr(first.value)
        for part in parts
    ):
        return first
    for kind in (np.int64, np.float64):
        arrays = [_array(part, length, kind) for part, length in zip(parts, lengths, strict=True)]
        known = [array for array in arrays if array is not None]
        if len(known) < len(parts):
            continue
        if any(isinstance(array, np.ma.MaskedArray) for array in known):
            mask = np.concatenate([np.ma.getmaskarray(array) for array in known])
            data = np.concatenate([np.ma.getdata(array) for array in known])
            return Objects(np.ma.MaskedArray(data, mask), has_text=False)
        return Numbers(np.concatenate(known))
    values: list[Any] = []
    for part, length in zip(parts, lengths, strict=True):
        values += part.part(0, length)
    return Objects(values, any(is_text(part) for part in parts))


def _array(source: Source, rows: int, kind: type) -> NDArray[Any] | None:
    """Return a column with numbers of one type as an array; integers may be masked."""
    if isinstance(source, Numbers):
        return source.array if source.array.dtype == kind else None
    if isinstance(source, Objects):
        is_array = isinstance(source.values, np.ma.MaskedArray)
        return source.values if is_array and kind is np.int64 else None  # type: ignore[return-value]
    if is_null(source.value):
        if kind is np.float64:
            return np.full(rows, np.nan)
        return np.ma.MaskedArray(np.zeros(rows, np.int64), mask=True)
    return np.full(rows, source.value, kind) if type(source.value) is _PYTHON[kind] else None


def _source(column: Column) -> Source:
    if column is None or isinstance(column, str | int | float | np.generic):
        return Constant(plain(column))
    if isinstance(column, np.ndarray):
        return _from_array(column) if column.ndim else Constant(plain(column[()]))
    if isinstance(column, Sequence) and not isinstance(column, bytes | bytearray):
        return from_sequence(column)
    raise TypeError(f"expected an array, a sequence or one value, found {type(column).__name__}")


def _from_array(array: NDArray[Any]) -> Source:
    if array.ndim != 1:
        raise TypeError(f"expected one dimension, found {array.ndim}")
    kind = array.dtype.kind
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    data = np.ma.getdata(array)
    if kind in "ib":
        data = data.astype(np.int64, copy=False)
    elif kind == "u":
        data = data.astype(np.uint64, copy=False).view(np.int64)  # UINT64_MAX becomes -1
    elif kind == "f":
        data = data.astype(np.float64, copy=False)
    elif kind not in "OUT":
        raise TypeError(f"no NumPy {array.dtype} in a report, only numbers and text")
    if mask is not None and mask.any():
        if kind in "ibu":
            return Objects(np.ma.MaskedArray(data, mask), has_text=False)
        if kind == "f":
            return Numbers(np.where(mask, np.nan, data))
        return from_sequence(np.ma.MaskedArray(data, mask).tolist())
    if kind in "OUT":
        return from_sequence(data.tolist())
    return Numbers(data)


def from_sequence(values: Sequence[Any]) -> Source:
    """Return a column of Python or NumPy values of any type, including None.

    Raises TypeError if a value is neither a number nor text, and OverflowError if an integer does
    not fit into 64 bits.
    """
    types = set(map(type, values))
    if types == {int}:
        try:
            return Numbers(np.fromiter(values, np.int64, len(values)))
        except OverflowError:  # including unsigned ones
            return Numbers(np.array([_integer(value) for value in values], np.int64))
    if types == {float}:
        return Numbers(np.fromiter(values, np.float64, len(values)))
    return Objects([plain(v) for v in values], any(issubclass(kind, str) for kind in types))


def plain(value: Any) -> Plain:
    """Return `value` as a plain int, float, str or None.

    Raises TypeError if it is neither a number nor text, and OverflowError if it is an integer that
    does not fit into 64 bits.
    """
    if convert := _CONVERSIONS.get(type(value)):
        return convert(value)
    if value is np.ma.masked:
        return None
    if isinstance(value, int | np.integer | np.bool_):  # bool and IntEnum as well
        return _integer(int(value))
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        return storable(str(value))
    raise TypeError(f"no {type(value).__name__} in a report, only numbers and text")


def _integer(value: int) -> int:
    """Return `value` as a signed 64-bit integer; larger unsigned values wrap."""
    if value in _INT64:
        return value
    if value in _UINT64:
        return value - 2**64
    raise OverflowError(f"{value} does not fit into 64 bits")


_CONVERSIONS: dict[type, Callable[[Any], Plain]] = {
    int: _integer,
    float: lambda value: value,
    str: storable,
    type(None): lambda value: value,
}


class StringPool:
    """Ids of distinct texts: 0, 1, 2, ... in order of first use."""

    def __init__(self) -> None:
        # A new text gets the next number, without Python code.
        self._ids: defaultdict[str, int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        return len(self._ids)

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one on first use."""
        return self._ids[text]

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts`."""
        return np.fromiter(map(self._ids.__getitem__, texts), np.int64)

    def batches(self, size: int) -> Iterator[tuple[list[int], list[str]]]:
        """Yield ids and texts in order of id, at most `size` at a time, with secrets masked."""
        from unified_prof.base.redaction import redact_name  # only writers need its patterns

        texts = map(redact_name, self._ids)
        first = 0
        while batch := list(islice(texts, size)):
            yield list(range(first, first + len(batch))), batch
            first += len(batch)
