"""Compressed integer columns, for tables of tens of millions of rows.

A column is divided into blocks. A block stores its minimum and the offset of each value in as few
bytes as necessary, or the differences between neighbors (`Steps`) if that takes fewer bytes: times
of consecutive tasks take two bytes per row, consecutive ids and constants none. The few steps that
are far larger than the others are stored separately.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Ints, Lookup, distinct


def narrow(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Convert to int32 if all values fit."""
    limits = np.iinfo(np.int32)
    fits = limits.min <= values.min(initial=0) and values.max(initial=0) <= limits.max
    return values.astype(np.int32) if fits else values


def narrowest(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return a copy in the smallest signed type that holds all values."""
    extent = max(-int(values.min(initial=0)), int(values.max(initial=0)) + 1, 1)
    return values.astype(np.min_scalar_type(-extent))


# Sampling interval of the steps that determine the width; odd, because alternating patterns often
# have an even period.
_ASKED: Final = 61
_FAR: Final = 64  # Maximum share of steps stored separately, in twelve bytes each: 1 / _FAR.
# (maximum distance of steps, type) of each width.
_LIMITS: Final = ((0, None), (255, np.uint8), (65_535, np.uint16))
_WIDEST: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Values as the first value and the steps between neighbors."""

    first: int
    least: int  # Minimum step, added to each.
    above: NDArray[Any] | None  # Distance of each step from the minimum; None if all are equal.
    far: NDArray[np.int32]  # Indexes of the steps that are stored separately.
    far_steps: Ints  # These steps.

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return (0 if self.above is None else self.above.nbytes) + 12 * len(self.far)

    def into(self, result: NDArray[Any], low: int, high: int) -> None:
        """Write the values of rows low to high to `result`."""
        if self.above is None and not len(self.far):
            begin = self.first + low * self.least
            if self.least:
                result[:] = np.arange(begin, begin + (high - low) * self.least, self.least)
            else:
                result[:] = begin
            return
        whole = low == 0 and result.dtype == np.int64
        steps = result if whole else np.empty(high, np.int64)
        steps[0] = self.first
        if self.above is None:
            steps[1:] = self.least
        else:
            above = self.above[: high - 1]
            np.add(above, self.least, out=steps[1:], dtype=np.int64, casting="unsafe")
        near = int(np.searchsorted(self.far, high - 1))
        steps[1:][self.far[:near]] = self.far_steps[:near]
        np.cumsum(steps, out=steps)
        if not whole:
            result[:] = steps[low:]


def in_steps(values: Ints, span: int, below: int) -> Steps | None:
    """Encode values as steps; return None unless this takes fewer than `below` bytes per value.

    `span` is the difference of maximum and minimum.
    """
    if len(values) < _FAR or span > _WIDEST:
        return None
    step = np.diff(values)
    some = np.sort(step[::_ASKED])
    edge = len(some) // _FAR // 2
    least, most = int(some[edge]), int(some[-1 - edge])
    for limit, width in _LIMITS:
        size = 0 if width is None else np.dtype(width).itemsize
        if size >= below:
            return None
        if most - least > limit:
            continue
        # Steps that were not sampled may be outside the sampled range.
        low = least - (limit - (most - least)) // 2
        # As unsigned numbers, smaller steps are beyond all limits.
        beyond = (step - low).view(np.uint64)
        far = np.flatnonzero(beyond > limit)
        if len(far) * _FAR > len(step):
            continue
        above = None if width is None else beyond.astype(width)
        return Steps(int(values[0]), low, above, far.astype(np.int32), step[far])
    return None


_SHIFT: Final = 16
# Rows per block; values that rise by one differ by less than two bytes within a block.
BLOCK: Final = 1 << _SHIFT
_WIDTHS: Final = (np.uint8, np.uint16, np.uint32)
_FEW_BYTES: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Block of a column."""

    base: int  # Offset of the values.
    # Distance of each value from `base`, or steps; None if all are `base`.
    above: NDArray[Any] | Steps | None
    has_holes: bool  # True if 0 represents the column's hole.
    # Minimum of the values that are not holes.
    least: int
    most: int

    def into(self, result: NDArray[Any], hole: int, low: int, high: int) -> None:
        """Write the values of rows low to high of the block to `result`."""
        if self.above is None:
            result[:] = self.base
            return
        if isinstance(self.above, Steps):
            self.above.into(result, low, high)
            return
        above = self.above[low:high]
        np.add(above, self.base, out=result, dtype=result.dtype, casting="unsafe")
        if self.has_holes:
            result[above == 0] = hole


class Column(NDArrayOperatorsMixin):
    """Base class of columns that can be indexed like arrays without being stored as one."""

    def to_array(self) -> NDArray[Any]:
        """Return all values."""
        return self._between(0, len(self))

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, rows: int | np.integer) -> Any: ...

    def __getitem__(self, rows: slice | NDArray[Any] | int | np.integer) -> Any:
        """Return the values at an index, slice or array of rows, as for an array."""
        if isinstance(rows, slice):
            return self._between(*rows.indices(len(self))[:2])
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if (rows < 0).any():
            rows = np.where(rows < 0, rows + len(self), rows)
        result = self.at(rows.reshape(-1))
        return result if rows.ndim else result[0]

    def __len__(self) -> int:
        raise NotImplementedError

    def at(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return the values of any rows."""
        raise NotImplementedError

    def _between(self, low: int, high: int) -> NDArray[Any]:
        """Return the values of consecutive rows."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.to_array()
        return values if dtype is None else values.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [one.to_array() if isinstance(one, Column) else one for one in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def tolist(self) -> list[Any]:
        """Return all values as a list."""
        result: list[Any] = self.to_array().tolist()
        return result


Values = NDArray[np.integer] | Column  # Integers that are read in parts.


class Narrow(Column):
    """Array in a narrow type whose values are read as int64, so that sums do not overflow."""

    def __init__(self, values: NDArray[np.integer], base: int = 0) -> None:
        """Take the distances of all values from `base`."""
        self._above, self.base = values, base
        self.stored = values.dtype

    def __len__(self) -> int:
        return len(self._above)

    def __getitem__(self, rows: Any) -> Any:
        """Return values, as for an array."""
        return np.add(self._above[rows], self.base, dtype=np.int64)

    def to_array(self) -> Ints:
        """Return all values."""
        return np.asarray(self[:])

    def count(self, value: int) -> int:
        """Return how often a value occurs."""
        return int(np.count_nonzero(self._above == value - self.base))


class Packed(Column):
    """Finished packed column, built by `Packing`.

    Attributes:
        dtype: Type of its values.
        least: Minimum of the values that are not holes; 0 if there are none.
        most: Maximum.
    """

    def __init__(self, blocks: list[_Block], rows: int, hole: int, dtypes: tuple[Any, ...]) -> None:
        self._blocks, self._rows, self._hole, self._dtypes = blocks, rows, hole, dtypes
        self.least = min((block.least for block in blocks), default=0)
        self.most = max((block.most for block in blocks), default=0)
        lowest = self.least
        if any(block.has_holes or block.base == hole for block in blocks):
            lowest = min(hole, lowest)
        self.dtype = np.dtype(np.int64)
        for dtype in dtypes:
            limits = np.iinfo(dtype)
            if limits.min <= lowest and self.most <= limits.max:
                self.dtype = np.dtype(dtype)
                break

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return sum(0 if block.above is None else block.above.nbytes for block in self._blocks)

    @property
    def knows_any(self) -> bool:
        """True if any value is not a hole."""
        return any(block.most != self._hole for block in self._blocks)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        """Minimum and maximum of each block, holes included."""
        least = [
            min(block.least, self._hole) if block.has_holes else block.least
            for block in self._blocks
        ]
        return np.array(least, np.int64), np.array([block.most for block in self._blocks], np.int64)

    def empty_builder(self) -> Packing:
        """Return an empty builder with the same types and hole."""
        return Packing(*self._dtypes, hole=self._hole)

    def _between(self, low: int, high: int) -> NDArray[Any]:
        result = np.empty(max(high - low, 0), self.dtype)
        at = low
        while at < high:
            number = at >> _SHIFT
            first = number << _SHIFT
            end = min(high, first + BLOCK)
            part = result[at - low : end - low]
            self._blocks[number].into(part, self._hole, at - first, end - first)
            at = end
        return result

    def at(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return the values of any rows."""
        if len(self._blocks) == 1 and rows.size and rows.min() >= 0:
            values: NDArray[Any] = self._between(0, self._rows)[rows]
            return values
        number = rows >> _SHIFT
        result = np.empty(len(rows), self.dtype)
        if not len(rows):
            return result
        order = None
        if (number[1:] < number[:-1]).any():
            order = np.argsort(number, kind="stable")
            rows, number = rows[order], number[order]
        heads = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(rows)]
        found = result if order is None else np.empty_like(result)
        for low, high in pairwise(heads):
            block = int(number[low])
            values = self[block << _SHIFT : (block + 1) << _SHIFT]
            found[low:high] = values[rows[low:high] & (BLOCK - 1)]
        if order is not None:
            result[order] = found
        return result

    def last_not_after(self, wanted: Ints, low: int, high: int) -> Ints:
        """Return, for each wanted value, the last row with a value not above it; `low - 1` if none.

        The wanted values, and the values of the rows from `low` to `high`, must ascend.
        """
        result = np.full(len(wanted), low - 1, np.int64)
        if low >= high:
            return result
        edges = [low, *range(((low >> _SHIFT) + 1) << _SHIFT, high, BLOCK)]
        firsts = np.array([self[edge : edge + 1][0] for edge in edges], np.int64)
        which = np.searchsorted(firsts, wanted, side="right") - 1
        for number in np.unique(which[which >= 0]).tolist():
            begin, end = np.searchsorted(which, [number, number + 1])
            first = edges[number]
            behind = edges[number + 1] if number + 1 < len(edges) else high
            found = np.searchsorted(self[first:behind], wanted[begin:end], side="right")
            result[begin:end] = first + found - 1
        return result

    def distinct(self) -> Ints:
        """Return the distinct values in ascending order."""
        result = [np.zeros(0, np.int64)]
        for number, block in enumerate(self._blocks):
            if block.above is None:
                result.append(np.array([block.base], np.int64))
            elif isinstance(block.above, np.ndarray) and block.above.dtype.itemsize <= _FEW_BYTES:
                there = np.flatnonzero(np.bincount(block.above))
                holes = block.has_holes and there[0] == 0
                result.append(there[int(holes) :] + block.base)
                if holes:
                    result.append(np.array([self._hole], np.int64))
            else:
                result.append(np.unique(self[number << _SHIFT : (number + 1) << _SHIFT]))
        return np.unique(np.concatenate(result)).astype(np.int64)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the values block by block."""
        for low in range(0, self._rows, BLOCK):
            yield self[low : low + BLOCK]


class Packing:
    """Builder of a packed column."""

    def __init__(self, *dtypes: Any, hole: int = NOWHERE) -> None:
        """Begin a column.

        Args:
            dtypes: Preferred types of its values, if all fit; else int64.
            hole: Value that is lower than all others and may be far below them.
        """
        self._dtypes, self._hole = dtypes, hole
        self._blocks: list[_Block] = []
        self._buffer = np.empty(BLOCK, np.int64)
        self._filled = 0
        self._rows = 0

    def add(self, values: NDArray[Any]) -> None:
        """Append rows."""
        at = 0
        while at < len(values):
            some = min(len(values) - at, BLOCK - self._filled)
            self._buffer[self._filled : self._filled + some] = values[at : at + some]
            self._filled += some
            at += some
            if self._filled == BLOCK:
                self._close()
        self._rows += len(values)

    def done(self) -> Packed:
        """Return the finished column."""
        if self._filled:
            self._close()
        return Packed(self._blocks, self._rows, self._hole, self._dtypes)

    def _close(self) -> None:
        self._blocks.append(_packed(self._buffer[: self._filled], self._hole))
        self._filled = 0


def pack(values: NDArray[Any], *dtypes: Any, hole: int = NOWHERE) -> Packed:
    """Pack existing values; for the arguments, see `Packing`."""
    packing = Packing(*dtypes, hole=hole)
    packing.add(values)
    return packing.done()


def _packed(values: Ints, hole: int) -> _Block:
    least, most = int(values.min()), int(values.max())
    if least == most:
        return _Block(least, None, False, least, most)
    base, has_holes = least, least == hole
    if has_holes:
        least = int(values[values != hole].min())
        base = least - 1
    for width in _WIDTHS:
        if most - base <= np.iinfo(width).max:
            steps = None if has_holes else in_steps(values, most - base, np.dtype(width).itemsize)
            if steps is not None:
                return _Block(base, steps, has_holes, least, most)
            above = values - base
            if has_holes:
                above[values == hole] = 0
            return _Block(base, above.astype(width), has_holes, least, most)
    steps = None if has_holes else in_steps(values, most - base, values.itemsize)
    if steps is not None:
        return _Block(base, steps, has_holes, least, most)
    return _Block(0, values.copy(), False, hole if has_holes else least, most)


class PackedLookup:
    """Row numbers by key, like `Lookup`, for packed keys that are mostly sorted.

    For sorted keys, the keys of one query are close together, so a table of a few blocks suffices;
    otherwise, a table of all keys is built.
    """

    _BLOCKS = 4  # Minimum number of blocks searched before a table of all keys is built.

    def __init__(self, keys: Packed) -> None:
        self._keys = keys
        self._least, self._most = keys.bounds
        self._of_all: Lookup | None = None

    def rows(self, keys: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the first row of each key; NOWHERE if there is none."""
        if not len(keys) or not len(self._keys):
            return np.full(len(keys), NOWHERE, np.int32)
        if self._of_all is not None:
            return self._of_all.rows(keys)
        low, high = int(keys.min()), int(keys.max())
        near = np.flatnonzero((self._most >= low) & (self._least <= high))
        if not len(near):
            return np.full(len(keys), NOWHERE, np.int32)
        first = min(low, int(self._least[near].min()))
        if len(near) > self._BLOCKS + 2 * (len(keys) >> _SHIFT) or first < 0:
            self._of_all = Lookup(self._keys.to_array())
            return self._of_all.rows(keys)
        parts = [self._keys[block << _SHIFT : (block + 1) << _SHIFT] for block in near.tolist()]
        there = parts[0] if len(parts) == 1 else np.concatenate(parts)
        found = Lookup(there - first).rows(keys - first)
        # All blocks but the last are full, and the last one stays last.
        block = near.astype(np.int32)[found >> _SHIFT]
        result: NDArray[np.int32] = np.where(
            found >= 0, (block << _SHIFT) | (found & (BLOCK - 1)), NOWHERE
        ).astype(np.int32)
        return result


_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)


def recoded(column: Packed, values: Sequence[int] | Ints) -> Packed:
    """Return a column with the index of each value in `values`, which are in ascending order."""
    ordered = np.array(values, np.int64)
    packing = Packing(_INT16, _INT32)
    for block in column.blocks():
        packing.add(np.searchsorted(ordered, block))
    return packing.done()


def codes(values: Ints) -> tuple[list[int], NDArray[np.int32]]:
    """Return the distinct values and the index of each value; does not sort if they are close."""
    known, number = distinct(values)
    return known.tolist(), number.astype(np.int32)


def encode_varints(values: NDArray[np.integer]) -> str:
    """Return non-negative numbers in base64, seven bits per byte, lowest first (LEB128).

    The highest bit of a byte means that more bytes follow. Most durations and gaps take two or
    three bytes, a quarter of their decimal text. Raises ValueError if a number is negative.
    """
    if len(values) and values.min() < 0:
        raise ValueError("negative numbers cannot be encoded")
    left = values.astype(np.uint64)
    lengths = np.ones(len(left), np.int64)
    rest = left >> np.uint64(7)
    while rest.any():
        lengths += rest > 0
        rest >>= np.uint64(7)
    offsets = np.cumsum(lengths) - lengths
    result = np.zeros(int(lengths.sum()), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        byte = (left[has] & np.uint64(127)).astype(np.uint8)
        byte[lengths[has] > place + 1] |= 128
        result[offsets[has] + place] = byte
        left >>= np.uint64(7)
    return base64.b64encode(result.tobytes()).decode("ascii")
