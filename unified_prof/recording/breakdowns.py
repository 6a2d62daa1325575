"""Breakdowns of calls by operation, module and line, and weighted call stacks.

The module also sums times by key, builds the calls of framework operations with their modules,
source lines and allocations, and computes call stacks for flame graphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints
from unified_prof.arrays.packed import Packed, Values
from unified_prof.errors import UsageError
from unified_prof.recording import calls
from unified_prof.recording.calls import (
    KINDS,
    OPERATION,
    SIZES,
    UNKNOWN,
    AnyCalls,
    Calls,
    Columns,
    Labels,
    PackedCalls,
    Sums,
    sums_by,
)
from unified_prof.recording.counters import Allocations, blocks_at_peak
from unified_prof.recording.framework import BACKWARD, FORWARD, NONE, NOT_ATTRIBUTED, Framework
from unified_prof.recording.model import MEASURES, PLACES, THEN, Breakdown, By, Measure, Place, Row
from unified_prof.recording.python_frames import user_stacks
from unified_prof.recording.source import Source, Strings, device_name

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
        self._weights: list[Floats] = []

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

    def total_ns(which: Bools) -> Ints:
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
        # A module path ends in `Class_0`.
        classes = {
            path: re.sub(r"_\d+$", "", path.rpartition(".")[2]) for path in paths - {NOT_ATTRIBUTED}
        }
    return PackedCalls(labels, columns, classes)


What = Literal[
    "report", "thread", "module", "line", "function", "range", "operation", "kernel", "pass"
]


class Frame(Struct, frozen=True):
    """One level of a stack."""

    name: str
    what: What
    file: str | None = None
    line: int | None = None


class Sample(Struct, frozen=True):
    """One stack, outermost frame first, with its weight."""

    frames: tuple[Frame, ...]
    weight: int
    count: int  # Number of tasks, calls or entries in the sum.


class Stacks(Struct, frozen=True):
    """Distinct stacks with their weights by one measure; all weights are positive."""

    measure: Measure
    samples: tuple[Sample, ...]

    @property
    def total(self) -> int:
        """The sum of all weights."""
        return sum(sample.weight for sample in self.samples)


class StackSums:
    """Sums samples by their frames."""

    def __init__(self) -> None:
        self._found: dict[tuple[Frame, ...], list[int]] = {}

    def add(self, frames: tuple[Frame, ...], weight: int, count: int) -> None:
        """Add a sample; one with weight 0 is left out."""
        if weight > 0:
            own = self._found.setdefault(frames, [0, 0])
            own[0] += weight
            own[1] += count

    def stacks(self, measure: str) -> Stacks:
        """Return the sums, the heaviest first."""
        result = [Sample(frames, *sums) for frames, sums in self._found.items()]
        result.sort(key=lambda one: -one.weight)
        return Stacks(MEASURES[measure], tuple(result))


def below(first: Frame, stacks: Stacks) -> Stacks:
    """Return stacks with an additional outermost frame."""
    samples = [
        Sample((first, *sample.frames), sample.weight, sample.count) for sample in stacks.samples
    ]
    return Stacks(stacks.measure, tuple(samples))


def merge(parts: Iterable[Stacks]) -> Stacks:
    """Merge stacks of one measure."""
    parts = list(parts)
    gathering = StackSums()
    for part in parts:
        for sample in part.samples:
            gathering.add(sample.frames, sample.weight, sample.count)
    return gathering.stacks(parts[0].measure.name)


def place_of(calls: Calls, wanted: Place | None, path: str) -> Place | None:
    """Return the kind of frames to use above operations: as requested, else modules, else lines.

    Raises UsageError if the requested kind was not recorded.
    """
    have: list[Place] = [one for one in PLACES if getattr(calls, _COLUMNS[one]) is not None]
    if wanted is None:
        return have[0] if have else None
    if wanted not in have:
        raise UsageError(
            f"{path} has no stacks by {wanted}: not recorded",
            hint=f"it has stacks by {have[0]}" if have else "omit --by for stacks by operation",
            slug="no-stacks",
        )
    return wanted


_COLUMNS: dict[Place, str] = {"module": "module", "line": "stack"}


def frames_of_place(place: Place, text: str | None) -> tuple[Frame, ...]:
    """Return the frames of a module path, or of lines joined by newlines; no frames for None."""
    if place == "module":
        if text is None or text == NOT_ATTRIBUTED:
            return (Frame(text or NO_MODULE, "module"),)
        return tuple(Frame(part, "module") for part in module_parts(text))
    if text is None:
        return (Frame(NO_LINE, "line"),)
    return tuple(map(_line, text.split("\n")))


def _line(text: str) -> Frame:
    file, _, number = text.rpartition(":")
    return Frame(text, "line", file, int(number)) if number.isdecimal() else Frame(text, "line")


def stacks_of_calls(calls: Calls, measure: str, place: Place | None) -> Stacks:
    """Return stacks of modules or lines, weighted by a measure of the calls."""
    texts = calls.labels.texts
    label = None if place is None else getattr(calls, _COLUMNS[place])
    key = calls.name.astype(np.int64)
    if label is not None:
        key = (label.astype(np.int64) + 1) * len(texts) + key
    distinct, number = np.unique(key, return_inverse=True)
    gathering = StackSums()
    for column in _columns(calls, measure):
        known = column != UNKNOWN
        count = np.bincount(number[known], minlength=len(distinct)).tolist()
        sums = sums_by(number, len(distinct), column)
        for pair, weight, entries in zip(distinct.tolist(), sums, count, strict=True):
            above: tuple[Frame, ...] = ()
            if place is not None:
                above = frames_of_place(place, calls.labels.text(pair // len(texts) - 1))
            operation = Frame(texts[pair % len(texts)], "operation")
            gathering.add((*above, operation), weight or 0, entries)
    return gathering.stacks(measure)


def measured(calls: Calls, measure: str) -> bool:
    """Return True if any call has a value of a measure."""
    return any(bool((column != UNKNOWN).any()) for column in _columns(calls, measure))


def _columns(calls: Calls, measure: str) -> list[Ints]:
    columns: dict[str, tuple[str, ...]] = {
        "time": ("total_ns",),
        "forward": ("forward_ns",),
        "backward": ("backward_ns",),
        "memory": SIZES,
    }
    result = (getattr(calls, name) for name in columns[measure])
    return [one for one in result if one is not None]


def path_samples(
    number: Ints,
    above: Ints,
    own: Ints,
    weight: Ints,
    frame: Callable[[int], Frame],
    *,
    begin: Callable[[int], tuple[Frame, ...]] = lambda _: (),
    beginning: Ints | None = None,
) -> Iterator[Sample]:
    """Yield samples of nested ranges, from the result of `arrays.intervals.paths`.

    `above` is the path above each path, `own` its last label. `weight` is that of each range
    without nested ones, and `frame` returns the frame of a label. `begin` returns the outer frames
    of a group of ranges from its number in `beginning`, such as a thread; by default, all have
    number 0.
    """
    first = np.zeros(len(number), np.int64) if beginning is None else beginning
    some = weight > 0
    pairs, which = np.unique(first[some] * len(above) + number[some], return_inverse=True)
    sums = np.bincount(which, weight[some], minlength=len(pairs)).astype(np.int64).tolist()
    counts = np.bincount(which, minlength=len(pairs)).tolist()
    known: dict[int, tuple[Frame, ...]] = {}
    labels: dict[int, Frame] = {}

    def path(node: int) -> tuple[Frame, ...]:
        missing = []
        while node >= 0 and node not in known:
            missing.append(node)
            node = int(above[node])
        for each in reversed(missing):
            label, up = int(own[each]), int(above[each])
            if label not in labels:
                labels[label] = frame(label)
            known[each] = (*(known[up] if up >= 0 else ()), labels[label])
            node = each
        return known[node]

    for pair, total, count in zip(pairs.tolist(), sums, counts, strict=True):
        yield Sample((*begin(pair // len(above)), *path(pair % len(above))), total, count)
