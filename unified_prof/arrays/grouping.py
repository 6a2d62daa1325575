"""Array types, and vectorized grouping of rows: lookup, runs, distinct rows, numbering, sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
AnyInts = NDArray[np.integer]  # Integers of any width, such as packed columns.

NOWHERE = -1  # Row number of a value that does not occur.
NO_VALUE = -1  # Marks unknown or missing values in columns of non-negative numbers.
MISSING = np.iinfo(np.int64).min  # Replaces NULL and other values in columns of integers.


def find(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Return the first position of each wanted value in ascending `keys`, or `NOWHERE`."""
    if not len(keys):
        return np.full(len(wanted), NOWHERE, np.int64)
    place = np.searchsorted(keys, wanted).astype(np.int64, copy=False)
    np.minimum(place, len(keys) - 1, out=place)
    place[keys[place] != wanted] = NOWHERE
    return place


def last_not_after(
    keys: Ints,
    values: Ints,
    wanted_keys: Ints,
    wanted: Ints,
    side: Literal["left", "right"] = "right",
) -> Ints:
    """Return the last row with each wanted key and a value up to the wanted one, or `NOWHERE`.

    Rows are sorted by key, then by value. If `side` is `left`, equal values do not count.
    """
    found = np.full(len(wanted), NOWHERE, np.int64)
    for key in np.unique(wanted_keys).tolist() if len(keys) else ():
        low, high = np.searchsorted(keys, [key, key + 1]).tolist()
        rows = np.flatnonzero(wanted_keys == key)
        slot = np.searchsorted(values[low:high], wanted[rows], side) - 1
        found[rows] = np.where(slot >= 0, low + slot, NOWHERE)
    return found


class Lookup:
    """Row numbers by key, for keys that are mostly dense from 0, such as globalTaskId."""

    def __init__(self, keys: NDArray[np.integer]) -> None:
        self._dense: NDArray[np.int32] | None = None
        if len(keys) and keys.min() >= 0 and keys.max() < 4 * len(keys) + 1024:
            # One entry before the first key and one after the last represent all other keys.
            self._dense = np.full(int(keys.max()) + 3, NOWHERE, np.int32)
            self._dense[1:][keys[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
        else:
            self._order = np.append(np.argsort(keys, kind="stable"), NOWHERE).astype(np.int32)
            self._sorted = keys[self._order[:-1]]

    def rows(self, keys: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the first row of each key; NOWHERE if there is none."""
        if self._dense is not None:
            # `take` clips keys outside the table to its ends, which are not rows.
            return self._dense.take(keys.astype(np.int64) + 1, mode="clip")
        return self._order[find(self._sorted, keys)]


class Runs:
    """Runs of consecutive rows that are equal in all given columns.

    Attributes:
        starts: First row of each run.
        sizes: Number of rows of each run.
    """

    def __init__(self, *columns: NDArray[Any]) -> None:
        self.rows = len(columns[0])
        changes = np.zeros(self.rows, bool)
        changes[:1] = True
        for column in columns:
            changes[1:] |= column[1:] != column[:-1]
        self.starts: NDArray[np.int64] = np.flatnonzero(changes)
        self.sizes: NDArray[np.int64] = np.diff(self.starts, append=self.rows)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last(self) -> NDArray[np.int64]:
        """Last row of each run."""
        return self.starts + self.sizes - 1

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each row the value of its run."""
        return np.repeat(values, self.sizes)

    def number(self) -> NDArray[np.int64]:
        """Return the run number of each row, from 0."""
        return self.spread(np.arange(len(self)))

    def rank(self) -> NDArray[np.int64]:
        """Return the position of each row in its run, from 0."""
        return np.asarray(np.arange(self.rows) - self.spread(self.starts))


class Frame:
    """Base of dataclasses whose fields are columns of equal length."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.__dataclass_fields__))))

    def take(self: AnyFrame, rows: slice | NDArray[Any]) -> AnyFrame:
        """Return selected rows, by slice, mask or index."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @classmethod
    def concatenate(cls: type[AnyFrame], parts: Sequence[AnyFrame]) -> AnyFrame:
        """Return the rows of at least one frame, one after another."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, name) for part in parts] for name in cls.__dataclass_fields__)
        return cls(*map(np.concatenate, columns))


AnyFrame = TypeVar("AnyFrame", bound=Frame)


def by_key(keys: NDArray[np.integer]) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct key in ascending order with its row indexes, in one pass."""
    order = np.argsort(keys, kind="stable").astype(np.int64)
    ordered = keys[order]
    heads = Runs(ordered).starts
    yield from zip(ordered[heads].tolist(), np.split(order, heads[1:]), strict=False)


def value_by_key(
    keys: NDArray[np.integer], values: NDArray[Any], wanted: NDArray[np.integer], default: int
) -> NDArray[Any]:
    """Return for each wanted key the value in its first row, `default` if there is no such row."""
    return np.append(values, default)[Lookup(keys).rows(wanted)]


def positions(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, ... size - 1 for each size, one after another."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)

_DENSE = 4  # Maximum table entries per value for a table over the whole range of values.


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values in ascending order, and the index of each value among them.

    Same as `np.unique`, but without sorting if values are close together, as ids are.
    """
    if not len(values):
        return values, np.empty(0, np.int64)
    least, greatest = int(values.min()), int(values.max())
    if least == greatest:
        return values[:1], np.zeros(len(values), np.int64)
    if greatest - least >= _DENSE * len(values):
        result, inverse = np.unique(values, return_inverse=True)
        return result, inverse
    places = values - least
    there = np.zeros(greatest - least + 1, np.bool_)
    there[places] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[places]


def rising(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct values in ascending order, by sorting.

    `np.unique` hashes first, which is several times slower if most values differ.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one row per distinct combination of int64 values, and for each row its representative.

    Rows are found by hash and verified, which is several times faster than sorting; if two
    combinations have the same hash, all are sorted.
    """
    keys = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        keys = (keys ^ (keys >> np.uint64(29)) ^ column.astype(np.uint64)) * _FACTOR
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    representative = first[inverse]
    if all((column == column[representative]).all() for column in columns):
        return first, inverse
    table = np.stack(columns, axis=1)
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def mapped(convert: Callable[..., int], *columns: Ints) -> Ints:
    """Return `convert` of each row's values; it is called once per distinct row."""
    if len(columns) == 1:
        values, inverse = distinct(columns[0])
        rows = zip(values.tolist(), strict=True)
    else:
        first, inverse = distinct_rows(*columns)
        rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([convert(*row) for row in rows], np.int64)[inverse]


class Pool:
    """Replaces repeated 64-bit values by dense indexes in order of first use."""

    _FEWEST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 18
    _SLOTS_EACH = 16

    def __init__(self) -> None:
        self.values = np.zeros(0, np.uint64)  # Values by index.
        self._sorted = np.zeros(0, np.uint64)
        self._index_of_sorted = np.zeros(0, np.uint32)
        # Index of the value in each slot. Most values are found there by comparison, several times
        # as fast as by bisection, which is used for the others.
        self._slots = np.zeros(self._FEWEST_SLOTS, np.uint32)

    def __len__(self) -> int:
        return len(self.values)

    def index_of(self, values: NDArray[Any]) -> NDArray[np.uint32]:
        """Return the index of each value; unseen ones get the next indexes."""
        wanted = np.asarray(values, np.uint64)
        if not len(self):
            if not len(wanted):
                return np.zeros(0, np.uint32)
            self._add(np.unique(wanted))
        index = self._slots[self._slots_of(wanted)]
        elsewhere = np.flatnonzero(self.values[index] != wanted)
        if len(elsewhere):
            index[elsewhere] = self._find_or_add(wanted[elsewhere])
        return index

    def _slots_of(self, values: NDArray[np.uint64]) -> NDArray[np.int64]:
        shift = np.uint64(65 - len(self._slots).bit_length())
        result = values * _FACTOR
        result >>= shift
        return result.view(np.int64)

    def _find_or_add(self, values: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the indexes of values that are not in their expected slots."""
        place, known = self._places(values)
        if not known.all():
            self._add(np.unique(values[~known]))
            place, _ = self._places(values)
        return self._index_of_sorted[place]

    def _places(self, values: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the positions of values among the sorted values, and a mask of those found."""
        place = np.searchsorted(self._sorted, values)
        place[place == len(self._sorted)] = 0
        return place, self._sorted[place] == values

    def _add(self, new: NDArray[np.uint64]) -> None:
        """Assign the next indexes to new values."""
        place = np.searchsorted(self._sorted, new)
        index = np.arange(len(self), len(self) + len(new), dtype=np.uint32)
        self._sorted = np.insert(self._sorted, place, new)
        self._index_of_sorted = np.insert(self._index_of_sorted, place, index)
        self.values = np.concatenate([self.values, new])
        wanted = min(self._SLOTS_EACH * len(self), self._MOST_SLOTS)
        if wanted > len(self._slots):
            self._slots = np.zeros(1 << (wanted - 1).bit_length(), np.uint32)
            new, index = self.values, np.arange(len(self), dtype=np.uint32)
        self._slots[self._slots_of(new)] = index


class FirstSeen:
    """Numbers values in order of first use across batches."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.int64)
        self._number = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def values(self) -> NDArray[np.int64]:
        """Values by number."""
        result = np.empty(len(self._sorted), np.int64)
        result[self._number] = self._sorted
        return result

    def numbers(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each value; unseen ones get the next numbers."""
        own, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        place = find(self._sorted, own)
        new = np.flatnonzero(place == NOWHERE)
        number = np.append(self._number, 0)[place]
        if len(new):
            number[new[np.argsort(first[new])]] = np.arange(len(self), len(self) + len(new))
            at = np.searchsorted(self._sorted, own[new])
            self._sorted = np.insert(self._sorted, at, own[new])
            self._number = np.insert(self._number, at, number[new])
        return number[inverse]


def are_in_order(columns: Sequence[NDArray[np.int64]]) -> bool:
    """Return True if the rows are sorted by the first column, then by the second, and so on."""
    undecided = np.ones(len(columns[0]) - 1, np.bool_)
    for column in columns:
        if bool(np.any(undecided & (column[1:] < column[:-1]))):
            return False
        undecided &= column[1:] == column[:-1]
        if not undecided.any():
            break
    return True


def order_of_keys(keys: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the stable order of 64-bit integers; None if they are sorted.

    Same as `np.argsort(keys, kind="stable")`. If keys differ in few bits, key and position are
    packed into one number: sorting numbers is several times as fast as an indirect sort.
    """
    count = len(keys)
    keys = np.ascontiguousarray(keys)
    if count < 2 or not (keys[1:] < keys[:-1]).any():
        return None
    packed = _with_places(keys, count.bit_length())
    if packed is None:
        return np.argsort(keys, kind="stable")
    packed.sort()
    packed &= np.uint64((1 << count.bit_length()) - 1)
    return packed.view(np.int64)


def _with_places(keys: NDArray[Any], place_bits: int) -> NDArray[np.uint64] | None:
    """Return the keys combined with their positions in the low bits; None if too long."""
    bits = keys.view(np.uint64)
    differing = int(np.bitwise_or.reduce(bits ^ bits[0]))
    if keys.dtype.kind == "i" and differing >> 63:  # negative keys sort first
        return None
    # The start and end of the longest run of bits that are equal in all keys.
    best = (0, 0)
    begin = 0
    for place in range(differing.bit_length()):
        if differing >> place & 1:
            if place - begin > best[1] - best[0]:
                best = (begin, place)
            begin = place + 1
    low, high = best
    width = differing.bit_length() - (high - low)
    if width + place_bits > 64:
        return None
    # Leading bits that are equal in all keys can be dropped.
    if high > low:
        packed = (bits >> np.uint64(high)) << np.uint64(low + place_bits)
        packed |= (bits & np.uint64((1 << low) - 1)) << np.uint64(place_bits)
    else:
        packed = bits << np.uint64(place_bits)
    packed |= np.arange(len(bits), dtype=np.uint64)
    return packed


def occurrence(keys: Ints) -> Ints:
    """Return the number of equal elements before each element."""
    order = np.argsort(keys, kind="stable")
    result = np.empty(len(keys), np.int64)
    result[order] = Runs(keys[order]).rank()
    return result
