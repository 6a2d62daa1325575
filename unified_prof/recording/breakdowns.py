"""Breakdowns of calls by operation, module and line, with statistics of the times of calls.

The module also sums times by key, and builds the calls of framework operations with their modules,
source lines and allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Runs
from unified_prof.arrays.packed import Packed, Values
from unified_prof.recording import calls
from unified_prof.recording.breakdown_kinds import By
from unified_prof.recording.calls import (
    KINDS,
    OPERATION,
    UNKNOWN,
    AnyCalls,
    Calls,
    Columns,
    Labels,
    PackedCalls,
    Sums,
)
from unified_prof.recording.collectives import device_name
from unified_prof.recording.counters import Allocations, blocks_at_peak
from unified_prof.recording.framework import (
    BACKWARD,
    FORWARD,
    NONE,
    NOT_ATTRIBUTED,
    Framework,
    module_class,
)
from unified_prof.recording.model import THEN, Breakdown, Row
from unified_prof.recording.python_frames import user_stacks
from unified_prof.recording.source import Source, Strings

NO_MODULE = "(outside any module)"
NO_LINE = "(no source line)"
ROOT_MODULE = "(root)"


def module_parts(path: str) -> list[str]:
    """Return the names of the modules in a path."""
    return path.split(".") if path else [ROOT_MODULE]


def available(calls: Calls, *, steps: bool, regions: bool = False) -> tuple[By, ...]:
    """Return the breakdowns that can be computed from the calls of a tracked workload."""
    result: list[By] = []
    if len(calls):
        result.append("operation")
        if calls.module is not None:
            result.append("module")
        if calls.line is not None:
            result.append("line")
    if regions:
        result.append("annotation")
    if steps:
        result.append("step")
    return tuple(result)


def by_label(calls: AnyCalls, by: By) -> Breakdown:
    """Return the breakdown of calls by operation, module, line or call stack.

    The detail of an operation is the source line with most of its time, that of a line or stack is
    the operation with most of its time, and that of a module is its class.
    """
    texts = calls.labels.texts
    if by == "operation":
        # The kind is part of the key: a weight may have the name of an operation.
        names = [text for text in texts for _ in KINDS]
        return finish(
            by,
            _rows(
                calls,
                names,
                lambda some: some.name.astype(np.int64) * len(KINDS) + some.kind,
                _MainLabels(texts, "line"),
            ),
        )
    assert calls.has(by), f"{by} is not in the result of `available`"

    # Labels may be added while summing: paths of classes without calls.
    no_label = len(texts)

    def label(some: Calls) -> Ints:
        own: Ints = getattr(some, by)
        return np.where(own == UNKNOWN, no_label, own)

    if by in ("line", "stack"):
        names = [*(text.replace("\n", THEN) for text in texts), NO_LINE]
        rows = _rows(calls, names, label, _MainLabels(texts, "name"))
    else:
        names = [*(text or ROOT_MODULE for text in texts), NO_MODULE]
        classes = {calls.labels.number(path): name for path, name in calls.module_class.items()}
        rows = _rows(calls, names, label, classes)
    return finish(by, [replace(row, kind=by) for row in rows])


def _rows(
    calls: AnyCalls,
    names: Sequence[str],
    key_of: Callable[[Calls], Ints],
    details: _MainLabels | Mapping[int, str],
) -> list[Row]:
    """Return one row for each key in 0..len(names)-1 that occurs."""
    sums = Sums(len(names))
    for some in calls.windows(least=len(names)):
        key = key_of(some)
        sums.add(some, key)
        if isinstance(details, _MainLabels):
            details.add(some, key)
    return sums.rows(names, details.found() if isinstance(details, _MainLabels) else details)


def finish(by: By, rows: Iterable[Row]) -> Breakdown:
    """Return the rows as a breakdown with percentages of their sum."""
    rows = tuple(rows)
    times = [row.total_ns for row in rows if row.total_ns is not None]
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    return Breakdown(by, rows, sum(times) if times else None, sum(sizes) if sizes else None)


def memory_at_peak(source: Source, strings: Strings, by: By) -> Breakdown:
    """Return the memory blocks in use at the peak of a snapshot, by source line or call stack."""
    stacks = user_stacks(source, strings)
    blocks = blocks_at_peak(source, strings)
    found: dict[str, tuple[int, int]] = {}
    for chain, size in zip(blocks.chain.tolist(), blocks.size_bytes.tolist(), strict=True):
        frames = stacks.get(chain, (NO_LINE,))
        name = frames[-1] if by == "line" else THEN.join(frames)
        count, total = found.get(name, (0, 0))
        found[name] = count + 1, total + size
    rows = [
        Row(name=name, kind=by, count=count, allocated_bytes=total)
        for name, (count, total) in found.items()
    ]
    return finish(by, calls.sort_rows(rows))


def memory_segments(source: Source, strings: Strings) -> Breakdown:
    """Return the segments of a memory snapshot, those with most unused memory first.

    The row of a segment has the blocks in use, and how much of the reserved memory is unused and
    fits into one allocation.
    """
    columns = {"device": "deviceId", "address": "address", "size": "sizeBytes", "kind": "kind"}
    columns |= {"used": "allocatedBytes", "free": "freeBytes", "largest": "largestFreeBytes"}
    table = source.integers("UPROF_MEMORY_SEGMENTS", columns | {"blocks": "blocks"})
    several = len(np.unique(table["device"])) > 1
    rows = []
    for number in np.lexsort((table["address"], -table["free"])).tolist():
        one = {name: int(values[number]) for name, values in table.items()}
        name = f"{one['address']:#x}" if one["address"] >= 0 else "(no address)"
        rows.append(
            Row(
                name=f"{device_name(one['device'])} {name}" if several else name,
                kind="segment",
                count=one["blocks"],
                allocated_bytes=one["used"],
                detail=strings.get(one["kind"]),
                extra={
                    "reserved_bytes": one["size"],
                    "awaiting_free_bytes": one["size"] - one["used"] - one["free"],
                    "unused_bytes": one["free"],
                    "largest_unused_bytes": one["largest"],
                },
            )
        )
    return finish("segment", rows)


class _MainLabels:
    """For each key, the label with most weight and the number of other labels."""

    def __init__(self, texts: Sequence[str], column: str) -> None:
        self._texts, self._column = texts, column
        self._size = len(texts) + 1
        self._pairs: list[Ints] = []
        self._weights: list[NDArray[np.float64]] = []

    def add(self, calls: Calls, key: Ints) -> None:
        """Add calls with their keys."""
        label: Ints | None = getattr(calls, self._column)
        if label is None:
            return
        pairs, number = np.unique(
            key.astype(np.int64) * self._size + label + 1, return_inverse=True
        )
        weight = np.zeros(len(pairs))
        for column in ("total_ns", "activation_bytes", "weight_bytes"):
            values = getattr(calls, column)
            if values is not None:
                weight += np.bincount(number, weights=np.maximum(values, 0), minlength=len(pairs))
        self._pairs.append(pairs)
        self._weights.append(weight)

    def found(self) -> dict[int, str]:
        """Return key -> label, such as `train.py:5 (+2)`."""
        if not self._pairs:
            return {}
        (pairs, *more), weight = self._pairs, self._weights[0]
        if more:
            pairs, number = np.unique(np.concatenate(self._pairs), return_inverse=True)
            weight = np.bincount(number, np.concatenate(self._weights)).astype(np.float64)
        weight = weight + 1
        found: dict[int, list[tuple[float, int]]] = {}
        for pair, heavy in zip(pairs.tolist(), weight.tolist(), strict=True):
            if pair % self._size:
                found.setdefault(pair // self._size, []).append((heavy, pair % self._size - 1))
        details = {}
        for key, labels in found.items():
            text = self._texts[max(labels)[1]]
            details[key] = f"{text} (+{len(labels) - 1})" if len(labels) > 1 else text
        return details


# If the range of the keys exceeds this multiple of their number, sums are kept by distinct key.
_SPARSE = 8


class TimeSums:
    """Sums of times for keys 0..size-1, in four bytes each while these are sufficient."""

    def __init__(self, size: int) -> None:
        self._sums: NDArray[np.integer] = np.zeros(size, np.uint32)
        self._known = np.zeros(size, bool)

    def add(self, key: Ints, times_ns: NDArray[np.integer]) -> None:
        """Add each time to the sum of its key."""
        if not len(key):
            return
        self._known[key] = True
        first, behind = int(key.min()), int(key.max()) + 1
        if behind - first > _SPARSE * len(key):
            keys, place = np.unique(key, return_inverse=True)
        else:
            keys, place = np.arange(first, behind), key - first
        more = np.bincount(place, weights=times_ns, minlength=len(keys)).astype(np.int64)
        more += self._sums[keys]
        if more.max() > np.iinfo(self._sums.dtype).max:
            self._sums = self._sums.astype(np.int64)
        self._sums[keys] = more

    def total_ns(self, rows: slice) -> Ints:
        """Return the sums of some keys."""
        return self._sums[rows].astype(np.int64)

    def known_ns(self, rows: slice) -> Ints:
        """Return the sums of some keys, UNKNOWN if nothing was added."""
        return np.where(self._known[rows], self.total_ns(rows), UNKNOWN)


StatisticsInts = NDArray[np.integer]
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


def _by_key(key: StatisticsInts, times_ns: StatisticsInts) -> dict[int, Mapping[str, float | None]]:
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


def _percentiles(
    times: StatisticsInts, first: StatisticsInts, count: StatisticsInts, percent: int
) -> list[int]:
    """Return a percentile of each group, interpolated linearly between two times.

    Without interpolation, the p99 of two times would be the smaller one.
    """
    if not len(first):
        return []
    place, hundredths = np.divmod((count - 1) * percent, 100)
    low, high = times[first + place], times[first + np.minimum(place + 1, count - 1)]
    between: StatisticsInts = low + np.rint((high - low) * hundredths / 100).astype(np.int64)
    return [int(one) for one in between]


def _deviations(
    times: StatisticsInts, first: StatisticsInts, count: StatisticsInts
) -> list[float | None]:
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


def allocated(framework: Framework, labels: Labels, allocations: Allocations) -> Columns:
    """Return one row per allocation, with its operation."""
    call = framework.calls_at(allocations.names, allocations.at_ns)
    owners = np.where(
        call != NONE, names_of(framework, labels, call), labels.numbers(allocations.names)
    )
    columns = {
        "when": allocations.at_ns,
        "name": owners,
        "kind": np.full(len(call), OPERATION, np.int8),
        "allocated_bytes": allocations.size_bytes,
    }
    return calls.packed(columns) | origin_of(framework, labels, call)


def host_calls(framework: Framework) -> PackedCalls:
    """Return one row per framework operation with its host time (no device tasks recorded).

    The backward time of an operation is that of its autograd nodes. Nodes without a recorded
    forward operation, and ranges around operations, are rows of their own.
    """
    labels = Labels()
    times = framework.host_time()
    chosen, key = np.unique(times.call, return_inverse=True)

    def total_ns(which: NDArray[np.bool_]) -> Ints:
        total = np.bincount(key[which], times.time_ns[which], len(chosen)).astype(np.int64)
        return np.where(np.bincount(key[which], minlength=len(chosen)) > 0, total, UNKNOWN)

    columns = {
        "when": framework.start_ns[chosen],
        "name": names_of(framework, labels, chosen),
        "kind": np.full(len(chosen), OPERATION, np.int8),
        "total_ns": total_ns(np.ones(len(key), bool)),
    }
    if (times.passes == BACKWARD).any():
        columns["forward_ns"] = total_ns(times.passes == FORWARD)
        columns["backward_ns"] = total_ns(times.passes == BACKWARD)
    return merge_calls(labels, [calls.packed(columns) | origin_of(framework, labels, chosen)])


def names_of(
    framework: Framework, labels: Labels, chosen: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return the names of the chosen operations, as numbers in `labels`."""
    names, number = framework.operation_names(chosen)
    return labels.numbers(names)[number]


def origin_of(framework: Framework, labels: Labels, ranges: Values) -> Columns:
    """Return the module, source line and stack of host ranges; the index -1 is an unknown range."""
    columns: Columns = {}
    modules, number = framework.modules(ranges)
    columns["module"] = _of_numbers("module", labels.numbers(modules), number)
    stacks, number = framework.stacks(ranges)
    innermost = [None if stack is None else stack.rpartition("\n")[2] for stack in stacks]
    columns["line"] = _of_numbers("line", labels.numbers(innermost), number)
    columns["stack"] = _of_numbers("stack", labels.numbers(stacks), number)
    return columns


def _of_numbers(column: str, labels: NDArray[np.int32], number: NDArray[np.int32]) -> Packed:
    packing = calls.empty_column(column)
    for low in range(0, len(number), calls.WINDOW):
        packing.add(labels[number[low : low + calls.WINDOW]])
    return packing.done()


def merge_calls(labels: Labels, parts: list[Columns]) -> PackedCalls:
    """Merge call tables in order of time; their columns may differ."""
    columns = calls.merge_parts(parts, by="when")
    columns["start_ns"] = columns.pop("when")
    if "module" in columns:
        # Without any known module, "not attributed" is redundant.
        in_none = {UNKNOWN, labels.number(NOT_ATTRIBUTED)}
        if in_none.issuperset(columns["module"].distinct().tolist()):
            del columns["module"]
    for name in ("total_ns", "forward_ns", "backward_ns", "line", "stack"):
        if name in columns and not columns[name].knows_any:
            del columns[name]
    classes = {}
    if "module" in columns:
        used = columns["module"].distinct().tolist()
        paths = {labels.texts[number] for number in used if number != UNKNOWN}
        classes = {path: module_class(path) for path in paths - {NOT_ATTRIBUTED}}
    return PackedCalls(labels, columns, classes)
