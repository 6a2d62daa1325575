"""Tables of a device comparison: device time of both sides by task class, operation, module, ...

Most operations have the same canonical name on both sides. Other operations are paired if they
launch tasks of one class in the same modules, in the same order; then if they launch tasks of one
class with the same shapes, and each side has as many of these operations; then if they launch the
same kernels.

The ratio that the peaks of two devices allow depends on the class: matrix products are limited by
the matrix units in their most used data type, collectives by the link, other tasks by memory
bandwidth. For small matrix products, which are also limited by memory, the ratio is between the
two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import Ints
from unified_prof.base.display import Displayed
from unified_prof.compare.device_leaves import Leaves, distinct
from unified_prof.compare.device_side import Side
from unified_prof.compare.statistics import Comparison
from unified_prof.explain.kernel_classes import CLASSES
from unified_prof.explain.roofline.peaks import Peak
from unified_prof.recording.calls import UNKNOWN, Labels
from unified_prof.recording.model import Finding
from unified_prof.recording.names import ATTENTION, COLLECTIVES, CONVOLUTION, COPIES, MATMUL, REST


class Amount(Struct, frozen=True):
    """Calls, tasks and device time of one side in one row."""

    calls: int  # Number of operations that launched it.
    # Number of kernels, copies and collectives.
    runs: int
    total_ns: int


Both = tuple[Amount | None, Amount | None]  # Baseline, candidate; None if a side has no such tasks.


class Line(Struct, frozen=True):
    """One row, with the corresponding figures of both sides."""

    name: str
    # None if the side has no such tasks.
    base: Amount | None
    new: Amount | None
    class_name: str = ""  # Task class; empty if there are several.
    # Name in the framework of this side.
    base_name: str | None = None
    new_name: str | None = None
    modules: tuple[str, ...] = ()  # Modules that take most of the time, without instance numbers.
    lines: tuple[str, ...] = ()  # Source lines that take most of the time.
    # Input shapes, or sizes of collectives, that take most of the time; empty if unknown.
    shapes: tuple[Line, ...] = ()
    # Number of the pair of operations; UNKNOWN for rows that are not operations.
    number: int = UNKNOWN

    @property
    def side(self) -> Literal["both", "base", "new"]:
        """Side or sides that have tasks in this row."""
        if self.base is None:
            return "new"
        return "base" if self.new is None else "both"


# Minimum share of the calls of the operation with fewer calls that must be in the same places.
_MIN_COMMON_SHARE = 0.5
# Places shared by more unpaired operations than this are not used for pairing.
_MAX_CANDIDATES = 32

Key = tuple[int, int]  # Class and operation, as numbers of labels.


class Pairing(Struct, frozen=True):
    """Operations of both sides; paired operations have the same number."""

    # Operation number of each row of the leaves of each side.
    base: Ints
    new: Ints
    # Class and operation on each side, by operation number; None if a side has no counterpart.
    keys: tuple[tuple[Key | None, Key | None], ...]


def pair(base: Side, new: Side) -> Pairing:
    """Pair the operations of both sides."""
    sides = [_Operations(side) for side in (base, new)]
    first, second = (dict.fromkeys(side.keys) for side in sides)
    keys: list[tuple[Key | None, Key | None]] = [(key, key) for key in first if key in second]
    left = [
        [key for key in first if key not in second],
        [key for key in second if key not in first],
    ]
    for column in ("module", "shape", "kernel"):
        found = _by_places(sides, left, column)
        keys += found
        paired = [{pair[side] for pair in found} for side in (0, 1)]
        left = [[key for key in left[side] if key not in paired[side]] for side in (0, 1)]
    keys += [(key, None) for key in left[0]] + [(None, key) for key in left[1]]
    numbers: list[dict[Key, int]] = [{}, {}]
    for number, pair_of_keys in enumerate(keys):
        for side, key in zip(numbers, pair_of_keys, strict=True):
            if key is not None:
                side[key] = number
    of_base, of_new = (
        np.array([known[key] for key in side.keys], np.int64)[side.of_row]
        if len(side.keys)
        else np.zeros(0, np.int64)
        for side, known in zip(sides, numbers, strict=True)
    )
    return Pairing(of_base, of_new, tuple(keys))


class _Operations:
    """Operations of one side in order of first use, and the places of their calls."""

    def __init__(self, side: Side) -> None:
        columns = side.leaves.columns
        self._leaves: Leaves = side.leaves
        self._shares = side.shares
        classes, operations = columns["class"], columns["operation"]
        number, first = distinct(classes, operations)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.of_row: Ints = rank[number]
        first = first[order]
        self.keys: list[Key] = list(
            zip(classes[first].tolist(), operations[first].tolist(), strict=True)
        )

    def places(self, wanted: Sequence[Key], column: str) -> dict[Key, dict[int, float]]:
        """Return the calls per step of each operation, by module, shape or kernel."""
        keep = set(wanted)
        result: dict[Key, dict[int, float]] = {key: {} for key in wanted}
        if not keep:
            return result
        chosen = np.array([key in keep for key in self.keys], bool)
        where = self._leaves.columns[column]
        rows = np.flatnonzero(chosen[self.of_row] & (where != UNKNOWN))
        for key, place, calls in zip(
            self.of_row[rows].tolist(),
            where[rows].tolist(),
            self._leaves.calls[rows].tolist(),
            strict=True,
        ):
            of_key = result[self.keys[key]]
            of_key[place] = of_key.get(place, 0.0) + calls / self._shares
        return result


def _by_places(
    sides: Sequence[_Operations], left: Sequence[Sequence[Key]], column: str
) -> list[tuple[Key | None, Key | None]]:
    """Return pairs of operations of one class called in the same places, most calls first."""
    places = [side.places(keys, column) for side, keys in zip(sides, left, strict=True)]
    at: tuple[defaultdict[Key, list[int]], ...] = (defaultdict(list), defaultdict(list))
    for side in (0, 1):
        for index, key in enumerate(left[side]):
            for place in places[side][key]:
                at[side][key[0], place].append(index)
    shared: defaultdict[tuple[int, int], float] = defaultdict(float)
    for where, first in at[0].items():
        second = at[1].get(where, [])
        if max(len(first), len(second)) > _MAX_CANDIDATES:
            continue
        # One operation for several with the same inputs may do the work of them all.
        if column == "shape" and len(first) != len(second):
            continue
        for one in first:
            for other in second:
                shared[one, other] += min(
                    places[0][left[0][one]][where[1]], places[1][left[1][other]][where[1]]
                )
    calls = [[sum(places[side][key].values()) for key in left[side]] for side in (0, 1)]
    ranked = sorted(
        (-common / min(calls[0][one], calls[1][other]), abs(one - other), one, other)
        for (one, other), common in shared.items()
        if common > 0
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    result: list[tuple[Key | None, Key | None]] = []
    for share, _, one, other in ranked:
        if -share >= _MIN_COMMON_SHARE and one not in taken[0] and other not in taken[1]:
            taken[0].add(one)
            taken[1].add(other)
            result.append((left[0][one], left[1][other]))
    return result


_MATRIX: Final = (MATMUL, CONVOLUTION, ATTENTION)
# Classes without a known limit: copies use host buses, the rest is unclassified.
_NOTHING_LIMITS: Final = (COPIES, REST)


class Allowed(Struct, frozen=True):
    """Limiting peaks of one task class on both devices."""

    base: Peak
    new: Peak

    @property
    def ratio(self) -> float:
        """Ratio of the candidate's to the baseline's time if each runs at its peak."""
        return self.base.rate / self.new.rate

    @property
    def uncertain(self) -> bool:
        """True if one of the peaks is uncertain."""
        return self.base.uncertain or self.new.uncertain


def _limit(side: Side, name: str, texts: Labels) -> Peak | None:
    device = side.limits
    if device is None or name in _NOTHING_LIMITS:
        return None
    if name == COLLECTIVES:
        return device.link_peak()
    if name not in _MATRIX:
        return device.memory_peak()
    dtype = _dtype(side, texts.number(name), texts)
    return None if dtype is None else device.matrix(dtype)


def _dtype(side: Side, class_number: int, texts: Labels) -> str | None:
    """Return the data type in which a class spends most of its time; None if not recorded."""
    leaves = side.leaves
    dtype = leaves.columns["dtype"]
    rows = np.flatnonzero((leaves.columns["class"] == class_number) & (dtype != UNKNOWN))
    if not len(rows):
        return None
    types, number = np.unique(dtype[rows], return_inverse=True)
    time = np.bincount(number, weights=leaves.total_ns[rows])
    return texts.text(int(types[time.argmax()]))


# Number of lines and modules shown per row.
_MAX_PLACES: Final = 3
_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")
_INSTANCE: Final = re.compile(r"_\d+(?=\.|$)")


class Tables:
    """Device time of two sides, grouped by any column."""

    def __init__(self, base: Side, new: Side, texts: Labels) -> None:
        self.base, self.new, self._texts = base, new, texts
        self.pairing: Pairing = pair(base, new)
        self._numbers = self.pairing.base, self.pairing.new
        self._sums = [
            np.stack((side.leaves.calls, side.leaves.runs, side.leaves.total_ns))
            for side in (base, new)
        ]

    def _rows(self, *columns: tuple[Ints, Ints]) -> tuple[Ints, list[Both]]:
        """Return the distinct combinations of the columns, and the sums of both sides for each."""
        both = [np.concatenate(column) for column in columns]
        number, first = distinct(*both)
        values = np.stack([column[first] for column in both])
        split = len(self.base.leaves)
        before, after = (
            _amounts(numbers, sums, len(first))
            for numbers, sums in zip((number[:split], number[split:]), self._sums, strict=True)
        )
        return values, list(zip(before, after, strict=True))

    def _column(self, name: str) -> tuple[Ints, Ints]:
        return self.base.leaves.columns[name], self.new.leaves.columns[name]

    def allowed(self) -> Mapping[str, Allowed]:
        """Return the limiting peaks by class, for classes whose peaks are known on both sides."""
        result = {}
        for name in CLASSES:
            before, after = (_limit(side, name, self._texts) for side in (self.base, self.new))
            if before is not None and after is not None:
                result[name] = Allowed(before, after)
        return result

    def by(self, *columns: str, unknown_name: str = "") -> tuple[Line, ...]:
        """Return one row per combination of columns; the last one has the names of the rows."""
        keys, amounts = self._rows(*map(self._column, columns))
        lines = [
            Line(
                unknown_name if key[-1] == UNKNOWN else self._text(key[-1]),
                *amount,
                class_name=self._text(key[0]) if columns[0] == "class" else "",
            )
            for key, amount in zip(keys.T.tolist(), amounts, strict=True)
        ]
        return self._sorted(lines)

    @cached_property
    def kernels_of_operations(self) -> dict[int, tuple[Line, ...]]:
        """Return the kernels of each pair of operations, by operation number."""
        return self._under(self._numbers, "kernel", "(unnamed)")

    def operations(self) -> tuple[Line, ...]:
        """Return one row per pair of operations, or per unpaired operation."""
        number = self._numbers
        shapes = self._under(number, "shape", "(shape not recorded)")
        modules = self._places(number, "module", _kind_of_module)
        lines = self._places(number, "line", str)
        called = self._called(number)
        keys, amounts = self._rows(number)
        result = []
        for key, amount in zip(keys[0].tolist(), amounts, strict=True):
            before, after = self.pairing.keys[key]
            either = after or before
            assert either is not None
            name = self._text(either[1])
            if before is not None and after is not None and before != after:
                name = f"{self._text(before[1])} -> {name}"
            below = shapes.get(key, ())
            result.append(
                Line(
                    name,
                    *amount,
                    class_name=self._text(either[0]),
                    base_name=called[0].get(key),
                    new_name=called[1].get(key),
                    modules=modules.get(key, ())[:_MAX_PLACES],
                    lines=lines.get(key, ())[:_MAX_PLACES],
                    shapes=below if any(not one.name.startswith("(") for one in below) else (),
                    number=key,
                )
            )
        return self._sorted(result)

    def _under(
        self, number: tuple[Ints, Ints], column: str, unknown_name: str
    ) -> dict[int, tuple[Line, ...]]:
        keys, amounts = self._rows(number, self._column(column))
        result: dict[int, list[Line]] = {}
        for (owner, key), amount in zip(keys.T.tolist(), amounts, strict=True):
            name = unknown_name if key == UNKNOWN else self._text(key)
            result.setdefault(owner, []).append(Line(name, *amount))
        return {owner: self._sorted(lines) for owner, lines in result.items()}

    def _places(
        self, number: tuple[Ints, Ints], column: str, shorten: Callable[[str], str]
    ) -> dict[int, tuple[str, ...]]:
        """Return the places where each operation spends its time, in descending order of time."""
        keys, amounts = self._rows(number, self._column(column))
        result: dict[int, dict[str, float]] = {}
        for (owner, key), (before, after) in zip(keys.T.tolist(), amounts, strict=True):
            if key != UNKNOWN:
                time = self.base.per_share(before.total_ns if before else 0)
                time += self.new.per_share(after.total_ns if after else 0)
                times, place = result.setdefault(owner, {}), shorten(self._text(key))
                times[place] = times.get(place, 0.0) + time
        return {
            owner: tuple(sorted(times, key=lambda place: (-times[place], place)))
            for owner, times in result.items()
        }

    def _called(self, number: tuple[Ints, Ints]) -> list[dict[int, str]]:
        """Return the names of operations in the framework of each side."""
        result: list[dict[int, str]] = []
        for numbers, side in zip(number, (self.base, self.new), strict=True):
            called: dict[int, dict[str, None]] = {}
            texts = side.leaves.columns["called"]
            _, first = distinct(numbers, texts)
            for key, text in zip(numbers[first].tolist(), texts[first].tolist(), strict=True):
                if text != UNKNOWN:
                    called.setdefault(key, {})[self._text(text)] = None
            result.append({key: ", ".join(texts) for key, texts in called.items()})
        return result

    def _sorted(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Return rows sorted by slowdown, largest first."""
        base, new = self.base, self.new

        def change(line: Line) -> float:
            after = 0.0 if line.new is None else new.per_share(line.new.total_ns)
            return after - (0.0 if line.base is None else base.per_share(line.base.total_ns))

        return tuple(sorted(lines, key=lambda line: (-change(line), line.class_name, line.name)))

    def _text(self, number: int) -> str:
        return self._texts.texts[number]


def _amounts(number: Ints, sums: Ints, rows: int) -> list[Amount | None]:
    """Return calls, runs and time, summed by row number."""
    total = np.zeros((3, rows), np.int64)
    for row in range(3):
        np.add.at(total[row], number, sums[row])
    return [Amount(calls, runs, time) if runs else None for calls, runs, time in total.T.tolist()]


def _kind_of_module(path: str) -> str:
    """Return a module path without instance numbers, which is the same for all layers of a kind."""
    return _INSTANCE.sub("", _INDEX.sub(".*", path))


class FindingChange(NamedTuple):
    """A kind of finding whose cost differs.

    Costs are ns per step: 0 on a side without the finding, None if its rule lacks data there.
    """

    finding: Finding  # That of the new side, which its text describes; of base if only it has one.
    base_ns: float | None
    new_ns: float | None

    @property
    def change_ns(self) -> float:
        """Change of the cost; a side without a cost counts as 0."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


# Minimum change of a finding's cost, and of a row that counts as changed, as shares of the step.
MIN_FINDING_CHANGE, MIN_ROW_CHANGE = 0.01, 0.001


@dataclass(frozen=True, eq=False)
class DeviceDifference(Displayed):
    """Comparison of two device recordings.

    Figures are totals; `Side.per_share` converts them to one step of one device. The rows of each
    of `classes`, `operations`, `modules`, `lines` and `kernels` add up exactly to `Side.work_ns` of
    both sides; PARTS add up to `Side.window_ns`. Tables are computed on first access.
    """

    base: Side
    new: Side
    # True if both sides ran on the same device model.
    same_devices: bool
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]
    totals: dict[str, Comparison]  # Step time and peak memory, by metric.
    # True if all figures of both sides are equal, that is, one recording was given twice.
    identical: bool
    tables: Tables = field(repr=False)

    @cached_property
    def allowed(self) -> Mapping[str, Allowed]:
        """Limiting peak of each task class, if both device models and their peaks are known."""
        return {} if self.same_devices or self.identical else self.tables.allowed()

    @cached_property
    def findings(self) -> tuple[FindingChange, ...]:
        """Kinds of findings whose cost changed: first as the step did, largest change first."""
        if (self.base.steps is None) != (self.new.steps is None):
            return ()
        changes = []
        for kind in sorted({*self.base.findings, *self.new.findings}):
            sides = self.base, self.new
            # Findings that save time only together with others have no cost.
            found = [side.findings[kind] for side in sides if kind in side.findings]
            change = FindingChange(found[-1][1], *(side.finding_ns(kind) for side in sides))
            if abs(change.change_ns) >= MIN_FINDING_CHANGE * self.longest_ns:
                changes.append(change)
        before, after = (side.per_share(side.window_ns) for side in (self.base, self.new))
        changes.sort(key=lambda one: -abs(one.change_ns))
        return tuple(sorted(changes, key=lambda one: one.change_ns * (after - before) < 0))

    @property
    def longest_ns(self) -> float:
        """Time of one step of the slower side, ns."""
        return max(side.per_share(side.window_ns) for side in (self.base, self.new))

    @cached_property
    def classes(self) -> tuple[Line, ...]:
        """Device time by task class, in the order of CLASSES."""
        return tuple(sorted(self.tables.by("class"), key=lambda line: CLASSES.index(line.name)))

    @cached_property
    def operations(self) -> tuple[Line, ...]:
        """Device time by task class and operation, sorted by slowdown (as the following tables)."""
        return self.tables.operations()

    @cached_property
    def modules(self) -> tuple[Line, ...]:
        """Device time by module."""
        return self.tables.by("module", unknown_name="(outside any module)")

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Device time by source line."""
        return self.tables.by("line", unknown_name="(no source line)")

    @cached_property
    def kernels(self) -> tuple[Line, ...]:
        """Device time by task class and kernel."""
        return self.tables.by("class", "kernel")

    def kernels_of(self, operation: Line) -> tuple[Line, ...]:
        """Return the kernels of a row of `operations`."""
        return self.tables.kernels_of_operations.get(operation.number, ())

    def change_ns(self, line: Line) -> float:
        """Return the change of a row per step of one device."""
        before = 0.0 if line.base is None else self.base.per_share(line.base.total_ns)
        return (0.0 if line.new is None else self.new.per_share(line.new.total_ns)) - before

    def ratio(self, line: Line) -> float | None:
        """Return the ratio candidate over baseline of a row, None if a side lacks it."""
        if line.base is None or line.new is None or not line.base.total_ns:
            return None
        before = self.base.per_share(line.base.total_ns)
        return self.new.per_share(line.new.total_ns) / before

    def part_ns(self, name: str) -> tuple[float, float]:
        """Return one of PARTS per step of one device, for both sides."""
        return (
            self.base.per_share(self.base.parts_ns[name]),
            self.new.per_share(self.new.parts_ns[name]),
        )
