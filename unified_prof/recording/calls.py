"""Table of operation calls in program order, used for both report families, and their statistics.

Breakdowns sum the rows of a table; comparisons match two tables call by call. `Calls` has plain
columns. `PackedCalls` packs them, which takes a third of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import AnyInts, Runs
from unified_prof.arrays.packed import BLOCK, Packed, Packing
from unified_prof.recording.model import Row

UNKNOWN = -1  # Value that was not measured or is unknown; all other values are at least 0.
KINDS = ("operation", "kernel", "communication", "copy", "weight", "other")
OPERATION, KERNEL, COMMUNICATION, COPY, WEIGHT, OTHER = range(len(KINDS))
SIZES = ("weight_bytes", "gradient_bytes", "activation_bytes", "allocated_bytes")
# The columns of `Calls` that are summed; they are fields of `Row` too.
SUMMED = ("total_ns", "forward_ns", "backward_ns", "recomputed_ns", *SIZES)
_LABELED = ("name", "module", "line", "stack", "region")  # Columns of numbers in the labels.


class Labels:
    """Texts, numbered in order of first use."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        for text in texts:
            self.number(text)

    def number(self, text: str | None) -> int:
        """Return the number of `text`, adding it if it is new; UNKNOWN for None."""
        if text is None:
            return UNKNOWN
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def numbers(self, texts: Iterable[str | None]) -> NDArray[np.int32]:
        """Return the numbers of many texts."""
        known, number = self._numbers, self._numbers.setdefault
        result = [UNKNOWN if text is None else number(text, len(known)) for text in texts]
        self.texts.extend(islice(known, len(self.texts), None))
        return np.array(result, np.int32)

    def text(self, number: int) -> str | None:
        """Return the text of a number, None for UNKNOWN."""
        return None if number == UNKNOWN else self.texts[number]


class Calls(Struct, frozen=True, eq=False):
    """Columns of equal length, one row per call.

    UNKNOWN is a value that was not measured, None a column without any measured value. `name`,
    `module`, `line`, `stack` and `region` are numbers in `labels`. A stack is the project's frames
    as `file:line`, outermost first, joined by newlines; `line` is its innermost frame. `region` has
    the names of all regions that enclose a call, in the same form (see `region_names`).
    """

    labels: Labels
    name: AnyInts
    kind: NDArray[np.int8]
    total_ns: AnyInts | None = None
    forward_ns: AnyInts | None = None
    backward_ns: AnyInts | None = None
    # Time of recomputing the call within the backward pass (activation checkpointing).
    recomputed_ns: AnyInts | None = None
    module: AnyInts | None = None
    line: AnyInts | None = None
    stack: AnyInts | None = None
    weight_bytes: AnyInts | None = None
    gradient_bytes: AnyInts | None = None
    activation_bytes: AnyInts | None = None
    allocated_bytes: AnyInts | None = None
    # Start of each call on the recording's clock; None if the report has no timestamps.
    start_ns: AnyInts | None = None
    # Module path -> class name, if the report has it.
    module_class: dict[str, str] = field(default_factory=dict)
    region: AnyInts | None = None

    def __len__(self) -> int:
        return len(self.name)

    def has(self, column: str) -> bool:
        """Return True if any value of a column was measured."""
        return getattr(self, column) is not None

    def windows(self, least: int = 0) -> Iterator[Calls]:
        """Yield all calls at once; see `PackedCalls.windows`."""
        yield self

    def to_calls(self) -> Calls:
        """Return all calls."""
        return self

    def count_measured(self, column: str) -> int:
        """Return the number of calls with a measured value in a column."""
        values: AnyInts | None = getattr(self, column)
        return 0 if values is None else int((values != UNKNOWN).sum())

    def sums(self) -> dict[str, int | None]:
        """Return the sum of each column of SUMMED, None if no value was measured."""
        return {column: known_sum(getattr(self, column)) for column in SUMMED}


def region_text(names: Sequence[str]) -> str:
    """Return the label text for nested regions, given outermost first."""
    return "\n".join(name.replace("\n", " ") for name in names)


def region_names(text: str) -> tuple[str, ...]:
    """Return the names of the regions in a text made by `region_text`."""
    return tuple(text.split("\n"))


def concatenate(parts: Sequence[Calls]) -> Calls:
    """Return the calls of several tables as one table with new labels."""
    if len(parts) == 1:
        return parts[0]
    labels = Labels()
    size = sum(len(part) for part in parts)

    def column(field_name: str, labeled: bool) -> AnyInts | None:
        columns = [getattr(part, field_name) for part in parts]
        if all(values is None for values in columns):
            return None
        result = np.full(size, UNKNOWN, np.int64)
        offset = 0
        for part, values in zip(parts, columns, strict=True):
            if values is not None:
                if labeled:
                    renumber = np.append(labels.numbers(part.labels.texts), UNKNOWN)
                    values = renumber[values]
                result[offset : offset + len(part)] = values
            offset += len(part)
        return result

    columns: dict[str, Any] = {name: column(name, labeled=True) for name in _LABELED}
    columns |= {name: column(name, labeled=False) for name in SUMMED}
    classes: dict[str, str] = {}
    for part in parts:
        classes.update(part.module_class)
    return Calls(
        labels=labels,
        kind=np.concatenate([part.kind for part in parts]),
        module_class=classes,
        **columns,
    )


def known_sum(values: AnyInts | None) -> int | None:
    """Return the sum of the measured values, None if there are none."""
    if values is None:
        return None
    known = values[values != UNKNOWN]
    return int(known.sum(dtype=np.int64)) if len(known) else None


def sums_by(key: AnyInts, groups: int, values: AnyInts | None) -> list[int | None]:
    """Return the sum of the measured values for each key 0..groups-1, None for keys without any.

    Exact below 2**53, which is 104 days in nanoseconds and 8 PiB in bytes.
    """
    if values is None:
        return [None] * groups
    column = _Column(groups)
    column.add(key, values)
    return column.sums


class _Column:
    """Sums of the measured values of one column by key."""

    def __init__(self, groups: int) -> None:
        self.counts = np.zeros(groups, np.int64)  # Number of measured values for each key.
        self._total = np.zeros(groups, np.int64)

    def add(self, key: AnyInts, values: AnyInts) -> None:
        known = values != UNKNOWN
        if not known.all():
            key, values = key[known], values[known]
        groups = len(self.counts)
        self.counts += np.bincount(key, minlength=groups)
        self._total += np.bincount(key, weights=values, minlength=groups).astype(np.int64)

    def grow(self, more: int) -> None:
        self.counts = np.append(self.counts, np.zeros(more, np.int64))
        self._total = np.append(self._total, np.zeros(more, np.int64))

    @property
    def sums(self) -> list[int | None]:
        """Sum for each key, None if it has no measured values."""
        pairs = zip(self._total.tolist(), self.counts.tolist(), strict=True)
        return [one if some else None for one, some in pairs]


class Sums:
    """Sums of calls by a key; calls are added window by window."""

    def __init__(self, groups: int) -> None:
        """Start with the keys 0..groups-1 and no calls."""
        self._entries = np.zeros(groups, np.int64)
        self._kind = np.full(groups, UNKNOWN, np.int8)
        self._columns: dict[str, _Column] = {}

    def add(self, calls: Calls, key: AnyInts) -> None:
        """Add calls, each to the group of its key; UNKNOWN leaves a call out."""
        inside: slice | NDArray[np.intp] = slice(None)
        if len(key) and key.min() == UNKNOWN:
            inside = np.flatnonzero(key != UNKNOWN)
        chosen = key[inside]
        groups = len(self._entries)
        self._entries += np.bincount(chosen, minlength=groups)
        # All calls of a group usually have the same kind; if not, the kind of the first call is
        # used.
        kind = np.full(groups, UNKNOWN, np.int8)
        kind[chosen[::-1]] = calls.kind[inside][::-1]
        self._kind = np.where(self._kind == UNKNOWN, kind, self._kind)
        for name in SUMMED:
            values = getattr(calls, name)
            if values is not None:
                self._columns.setdefault(name, _Column(groups)).add(chosen, values[inside])

    def grow(self, groups: int) -> None:
        """Extend the sums to `groups` keys."""
        more = groups - len(self._entries)
        self._entries = np.append(self._entries, np.zeros(more, np.int64))
        self._kind = np.append(self._kind, np.full(more, UNKNOWN, np.int8))
        for column in self._columns.values():
            column.grow(more)

    def rows(
        self,
        names: Sequence[str],
        details: Mapping[int, str] | None = None,
        order: Sequence[int] | None = None,
    ) -> list[Row]:
        """Return one row for each key that occurred, in descending order of time and size.

        `details` are those of groups that have one, by key; `order` is that of the keys for rows
        with equal time, size and name.
        """
        # If a row has times, only timed calls count: when a run time report and a memory report are
        # read together, each call occurs in both.
        timed = np.zeros_like(self._entries)
        if (times := self._columns.get("total_ns")) is not None:
            timed = times.counts
        sums = {
            name: self._columns[name].sums if name in self._columns else [None] * len(timed)
            for name in SUMMED
        }
        recomputed = sums.pop("recomputed_ns")
        rows = [
            Row(
                name=names[number],
                kind=KINDS[self._kind[number]],
                count=int(timed[number] or self._entries[number]),
                detail=details.get(number) if details else None,
                extra={"recomputed_ns": recomputed[number]}
                if "recomputed_ns" in self._columns
                else {},
                **{name: values[number] for name, values in sums.items()},
            )
            for number in (range(len(timed)) if order is None else order)
            if self._entries[number]
        ]
        return sort_rows(rows)


def sort_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows in descending order of time, then size, then count; ties are sorted by name."""
    return sorted(
        rows, key=lambda row: (-(row.total_ns or 0), -(row.size_bytes or 0), -row.count, row.name)
    )


Columns = dict[str, Packed]
WINDOW = 2 * BLOCK  # Calls per window.
_DTYPES = {"kind": np.int8, "name": np.int32, "module": np.int32, "line": np.int32}
_DTYPES["stack"] = np.int32


class PackedCalls:
    """Calls with packed columns, which `windows` unpacks in parts.

    Attributes:
        labels: texts of names, modules, lines and stacks.
        module_class: module path -> class name.
    """

    def __init__(self, labels: Labels, columns: Columns, module_class: Mapping[str, str]) -> None:
        self.labels, self.module_class = labels, module_class
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["name"])

    def has(self, column: str) -> bool:
        """Return True if any value of a column was measured."""
        return column in self._columns

    def windows(self, least: int = 0) -> Iterator[Calls]:
        """Yield all calls in order, in windows.

        `least` is the minimum number of calls per window, for callers with a high cost per window.
        """
        size = max(WINDOW, least)
        for low in range(0, len(self), size):
            yield self._between(low, low + size)

    def to_calls(self) -> Calls:
        """Return all calls at once."""
        return self._between(0, len(self))

    def count_measured(self, column: str) -> int:
        """Return the number of calls with a measured value in a column."""
        if column not in self._columns:
            return 0
        return sum(int((values != UNKNOWN).sum()) for values in self._columns[column].blocks())

    def sums(self) -> dict[str, int | None]:
        """Return the sum of each column of SUMMED, None if no value was measured."""
        return {name: self._sum(name) for name in SUMMED}

    def _sum(self, column: str) -> int | None:
        if not self.count_measured(column):
            return None
        blocks = self._columns[column].blocks()
        return sum(int(values[values != UNKNOWN].sum(dtype=np.int64)) for values in blocks)

    def _between(self, low: int, high: int) -> Calls:
        columns: dict[str, Any] = {
            name: column[low:high].astype(_DTYPES.get(name, np.int64), copy=False)
            for name, column in self._columns.items()
        }
        return Calls(labels=self.labels, module_class=dict(self.module_class), **columns)


AnyCalls: TypeAlias = Calls | PackedCalls


def empty_column(column: str) -> Packing:
    """Return an empty packed column with the integer type for `column`."""
    dtype = _DTYPES.get(column)
    return Packing(hole=UNKNOWN) if dtype is None else Packing(dtype, hole=UNKNOWN)


def packed(columns: Mapping[str, Any]) -> Columns:
    """Pack plain columns."""
    result = {}
    for name, values in columns.items():
        packing = empty_column(name)
        packing.add(values)
        result[name] = packing.done()
    return result


def merge_parts(parts: Sequence[Columns], by: str) -> Columns:
    """Concatenate parts and sort the rows by a column; equal rows keep their order.

    Columns that a part lacks are UNKNOWN for its rows. Columns are removed from the parts as they
    are merged, so that only one column is in memory twice.
    """
    filled = [part for part in parts if len(part[by])] or [*parts[:1]]
    sizes = [len(part[by]) for part in filled]
    key = np.concatenate([part[by].to_array() for part in filled])
    order = None
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable").astype(np.int32)
    del key
    result: Columns = {}
    for name in dict.fromkeys(name for part in filled for name in part):
        column = _concatenate_column(name, [part.pop(name, None) for part in filled], sizes)
        result[name] = column if order is None else _in_order(column, order)
    return result


def _concatenate_column(
    name: str, columns: Sequence[Packed | None], sizes: Sequence[int]
) -> Packed:
    """Concatenate a column of several parts."""
    if len(columns) == 1 and columns[0] is not None:
        return columns[0]
    packing = empty_column(name)
    for column, size in zip(columns, sizes, strict=True):
        if column is None:
            for low in range(0, size, WINDOW):
                packing.add(np.full(min(WINDOW, size - low), UNKNOWN))
        else:
            for values in column.blocks():
                packing.add(values)
    return packing.done()


def _in_order(column: Packed, order: NDArray[np.int32]) -> Packed:
    packing = column.empty_builder()
    for low in range(0, len(order), WINDOW):
        packing.add(column.at(order[low : low + WINDOW]))
    return packing.done()


Figures = dict[tuple[str, str], Mapping[str, float | None]]


def operation_statistics(calls: Calls) -> Figures:
    """Return the time statistics of each operation's calls, by name and kind."""
    if calls.total_ns is None:
        return {}
    texts = calls.labels.texts
    result = _by_key(calls.name.astype(np.int64) * len(KINDS) + calls.kind, calls.total_ns)
    return {(texts[key // len(KINDS)], KINDS[key % len(KINDS)]): one for key, one in result.items()}


def kernel_statistics(calls: Calls) -> Figures:
    """Return the time statistics of each kernel, by name and by the kind of its first execution."""
    if calls.total_ns is None:
        return {}
    texts = calls.labels.texts
    kind = np.zeros(len(texts), np.int8)
    kind[calls.name[::-1]] = calls.kind[::-1]
    result = _by_key(calls.name.astype(np.int64), calls.total_ns)
    return {(texts[key], KINDS[kind[key]]): one for key, one in result.items()}


def _by_key(key: AnyInts, times_ns: AnyInts) -> dict[int, Mapping[str, float | None]]:
    """Return minimum, median, p99, maximum and standard deviation of the times of each key."""
    known = np.flatnonzero(times_ns != UNKNOWN)
    key, times = key[known], times_ns[known]
    order = np.lexsort((times, key))
    key, times = key[order], times[order].astype(np.int64)
    runs = Runs(key)
    first, count = runs.starts, runs.sizes
    columns = {
        "min_ns": times[first].tolist(),
        "median_ns": _percentiles(times, first, count, 50),
        "p99_ns": _percentiles(times, first, count, 99),
        "max_ns": times[first + count - 1].tolist(),
        "stddev_ns": _deviations(times, first, count),
    }
    return {
        one: dict(zip(columns, values, strict=True))
        for one, values in zip(
            key[first].tolist(), zip(*columns.values(), strict=True), strict=True
        )
    }


def _percentiles(times: AnyInts, first: AnyInts, count: AnyInts, percent: int) -> list[int]:
    """Return a percentile of each group, interpolated linearly between two times.

    Without interpolation, the p99 of two times would be the smaller one.
    """
    if not len(first):
        return []
    place, hundredths = np.divmod((count - 1) * percent, 100)
    low, high = times[first + place], times[first + np.minimum(place + 1, count - 1)]
    between: AnyInts = low + np.rint((high - low) * hundredths / 100).astype(np.int64)
    return [int(one) for one in between]


def _deviations(times: AnyInts, first: AnyInts, count: AnyInts) -> list[float | None]:
    """Return the sample standard deviation of each group, None for a single time."""
    if not len(first):
        return []
    mean = np.add.reduceat(times, first) / count
    away = np.add.reduceat((times - np.repeat(mean, count)) ** 2, first)
    deviation = np.sqrt(away / np.maximum(count - 1, 1)).tolist()
    return [
        value if number > 1 else None
        for value, number in zip(deviation, count.tolist(), strict=True)
    ]
