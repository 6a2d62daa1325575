"""Rows of a comparison of devices: the same work on both sides.

Which operations of two recordings are the same, whatever each backend calls them.

Most have one name on both sides (`names.canonical`). Of the others those are paired that do work of
one class in the same modules, in the same order; then those of one class with the same shapes.

How the times of two devices would compare if each worked at its peak.

Matrix work is limited by the matrix units in the type that most of it calculates in, collectives by
the link, and what moves more than it calculates by memory. A small matmul is limited by memory too:
the ratio that the peaks allow lies between the two then.

The work of two sides summed up: by class, operation, shape, module, line or kernel.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from unified_prof.arrays.types import Ints
from unified_prof.compare.device_leaves import Leaves, distinct
from unified_prof.compare.device_side import Side
from unified_prof.explain.kernel_classes import (
    ATTENTION,
    CLASSES,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    MATMUL,
    REST,
)
from unified_prof.explain.roofline.peaks import Peak
from unified_prof.recording.calls import UNKNOWN, Labels


@dataclass(frozen=True, slots=True)
class Amount:
    """Work of one side under one row."""

    calls: int
    """Operations that launched it."""
    runs: int
    """Kernels, copies and collectives."""
    total_ns: int


Both = tuple[Amount | None, Amount | None]
"""Base and new."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row: the same work on both sides."""

    name: str
    base: Amount | None
    """None: the side has none of it."""
    new: Amount | None
    class_name: str = ""
    """Class of its work; empty: of several."""
    base_name: str | None = None
    """What the side's own framework calls it, where that is another name."""
    new_name: str | None = None
    modules: tuple[str, ...] = ()
    """The modules that spend most of it, without the numbers that tell those of a kind apart."""
    lines: tuple[str, ...] = ()
    """The source lines that spend most of it."""
    shapes: tuple[Line, ...] = ()
    """The same by input shape (of collectives: by size); empty: not known."""
    number: int = UNKNOWN
    """Which pair of operations it is of; UNKNOWN: of none."""

    @property
    def side(self) -> Literal["both", "base", "new"]:
        """Which side has it."""
        if self.base is None:
            return "new"
        return "base" if self.new is None else "both"


_ALIKE = 0.5
"""Part of the fewer of two operations' calls that has to be in the same places."""
_CANDIDATES = 32
"""Operations without a counterpart that may share a place: where more do, it tells nothing."""

Key = tuple[int, int]
"""Class and operation, as numbers in the labels."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The operations of both sides, numbered so that counterparts have one number."""

    base: Ints
    """The number of each row of the base's leaves."""
    new: Ints
    keys: tuple[tuple[Key | None, Key | None], ...]
    """Class and operation on each side, by number; None: the side has no counterpart."""


def pair(base: Side, new: Side) -> Pairing:
    """Find the counterpart of each operation."""
    sides = [_Operations(side) for side in (base, new)]
    mine, theirs = (dict.fromkeys(side.keys) for side in sides)
    keys: list[tuple[Key | None, Key | None]] = [(key, key) for key in mine if key in theirs]
    left = [[key for key in mine if key not in theirs], [key for key in theirs if key not in mine]]
    for column in ("module", "shape"):
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
    """The operations of one side, in order of first use, and where they were called."""

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
        """Return how often a step calls each of the operations, by module (or shape)."""
        keep = set(wanted)
        found: dict[Key, dict[int, float]] = {key: {} for key in wanted}
        if not keep:
            return found
        chosen = np.array([key in keep for key in self.keys], bool)
        where = self._leaves.columns[column]
        rows = np.flatnonzero(chosen[self.of_row] & (where != UNKNOWN))
        for key, place, calls in zip(
            self.of_row[rows].tolist(),
            where[rows].tolist(),
            self._leaves.calls[rows].tolist(),
            strict=True,
        ):
            own = found[self.keys[key]]
            own[place] = own.get(place, 0.0) + calls / self._shares
        return found


def _by_places(
    sides: Sequence[_Operations], left: Sequence[Sequence[Key]], column: str
) -> list[tuple[Key | None, Key | None]]:
    """Pair operations of one class that are called in the same places, the most alike first."""
    places = [side.places(keys, column) for side, keys in zip(sides, left, strict=True)]
    at: tuple[defaultdict[Key, list[int]], ...] = (defaultdict(list), defaultdict(list))
    for side in (0, 1):
        for index, key in enumerate(left[side]):
            for place in places[side][key]:
                at[side][key[0], place].append(index)
    shared: defaultdict[tuple[int, int], float] = defaultdict(float)
    for where, mine in at[0].items():
        theirs = at[1].get(where, [])
        if max(len(mine), len(theirs)) > _CANDIDATES:
            continue
        for one in mine:
            for other in theirs:
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
    found: list[tuple[Key | None, Key | None]] = []
    for share, _, one, other in ranked:
        if -share >= _ALIKE and one not in taken[0] and other not in taken[1]:
            taken[0].add(one)
            taken[1].add(other)
            found.append((left[0][one], left[1][other]))
    return found


_MATRIX: Final = (MATMUL, CONVOLUTION, ATTENTION)
_NOTHING_LIMITS: Final = (COPIES, REST)
"""Copies go over buses of hosts, and of the rest nobody knows what it does."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What limits one class of work on both devices."""

    base: Peak
    new: Peak

    @property
    def ratio(self) -> float:
        """Time of the new side over that of the base, each at its peak."""
        return self.base.rate / self.new.rate

    @property
    def uncertain(self) -> bool:
        """Whether one of the peaks is."""
        return self.base.uncertain or self.new.uncertain


def allowed(base: Side, new: Side, texts: Labels) -> Mapping[str, Allowed]:
    """Return the limits by class; a class is missing where a side's peak is not known."""
    found = {}
    for name in CLASSES:
        before, after = (_limit(side, name, texts) for side in (base, new))
        if before is not None and after is not None:
            found[name] = Allowed(before, after)
    return found


def _limit(side: Side, name: str, texts: Labels) -> Peak | None:
    device = side.limits
    if device is None or name in _NOTHING_LIMITS:
        return None
    if name == COLLECTIVES:
        return device.of_link()
    if name not in _MATRIX:
        return device.of_memory()
    dtype = _dtype(side, texts.number(name), texts)
    return None if dtype is None else device.matrix(dtype)


def _dtype(side: Side, class_number: int, texts: Labels) -> str | None:
    """Return the type that a class spends most of its time in, None where it is not recorded."""
    leaves = side.leaves
    dtype = leaves.columns["dtype"]
    rows = np.flatnonzero((leaves.columns["class"] == class_number) & (dtype != UNKNOWN))
    if not len(rows):
        return None
    types, number = np.unique(dtype[rows], return_inverse=True)
    time = np.bincount(number, weights=leaves.total_ns[rows])
    return texts.text(int(types[time.argmax()]))


_PLACES: Final = 3
"""Lines and modules that a row names."""
_PLACE: Final = re.compile(r"\.\d+(?=\.|$)")
_INSTANCE: Final = re.compile(r"_\d+(?=\.|$)")


class Tables:
    """The work of two sides, summed up by whatever identifies it."""

    def __init__(self, base: Side, new: Side, texts: Labels) -> None:
        self.base, self.new, self._texts = base, new, texts
        self.pairing: Pairing = pair(base, new)
        self._numbers = self.pairing.base, self.pairing.new
        self._sums = [
            np.stack((side.leaves.calls, side.leaves.runs, side.leaves.total_ns))
            for side in (base, new)
        ]

    def _rows(self, *columns: tuple[Ints, Ints]) -> tuple[Ints, list[Both]]:
        """Sum both sides up by some columns; return their values, and the sums, row by row."""
        joined = [np.concatenate(column) for column in columns]
        number, first = distinct(*joined)
        values = np.stack([column[first] for column in joined])
        split = len(self.base.leaves)
        before, after = (
            _amounts(own, sums, len(first))
            for own, sums in zip((number[:split], number[split:]), self._sums, strict=True)
        )
        return values, list(zip(before, after, strict=True))

    def _column(self, name: str) -> tuple[Ints, Ints]:
        return self.base.leaves.columns[name], self.new.leaves.columns[name]

    def allowed(self) -> Mapping[str, Allowed]:
        """Return what limits each class of work on both devices."""
        return allowed(self.base, self.new, self._texts)

    def classes(self) -> tuple[Line, ...]:
        """Return one row for each class, in the order of CLASSES."""
        keys, amounts = self._rows(self._column("class"))
        lines = [
            Line(self._text(key), *amount, class_name=self._text(key))
            for key, amount in zip(keys[0].tolist(), amounts, strict=True)
        ]
        return tuple(sorted(lines, key=lambda line: CLASSES.index(line.name)))

    def by(self, column: str, untold: str) -> tuple[Line, ...]:
        """Return one row for each value of a column; `untold` is what UNKNOWN is called."""
        keys, amounts = self._rows(self._column(column))
        lines = [
            Line(untold if key == UNKNOWN else self._text(key), *amount)
            for key, amount in zip(keys[0].tolist(), amounts, strict=True)
        ]
        return self._sorted(lines)

    def kernels(self) -> tuple[Line, ...]:
        """Return one row for each kernel of each class."""
        keys, amounts = self._rows(self._column("class"), self._column("kernel"))
        lines = [
            Line(self._text(kernel), *amount, class_name=self._text(class_number))
            for (class_number, kernel), amount in zip(keys.T.tolist(), amounts, strict=True)
        ]
        return self._sorted(lines)

    def kernels_of_operations(self) -> dict[int, tuple[Line, ...]]:
        """Return the kernels of each pair of operations, by its number."""
        return self._under(self._numbers, "kernel", "(unnamed)")

    def operations(self) -> tuple[Line, ...]:
        """Return one row for each pair of operations, or operation alone."""
        number = self._numbers
        shapes = self._under(number, "shape", "(shape not recorded)")
        modules = self._places(number, "module", _kind_of_module)
        lines = self._places(number, "line", str)
        called = self._called(number)
        keys, amounts = self._rows(number)
        found = []
        for key, amount in zip(keys[0].tolist(), amounts, strict=True):
            own, theirs = self.pairing.keys[key]
            either = theirs or own
            assert either is not None
            name = self._text(either[1])
            if own is not None and theirs is not None and own != theirs:
                name = f"{self._text(own[1])} -> {name}"
            below = shapes.get(key, ())
            found.append(
                Line(
                    name,
                    *amount,
                    class_name=self._text(either[0]),
                    base_name=called[0].get(key),
                    new_name=called[1].get(key),
                    modules=modules.get(key, ())[:_PLACES],
                    lines=lines.get(key, ())[:_PLACES],
                    shapes=below if any(_is_told(one) for one in below) else (),
                    number=key,
                )
            )
        return self._sorted(found)

    def _under(
        self, number: tuple[Ints, Ints], column: str, untold: str
    ) -> dict[int, tuple[Line, ...]]:
        keys, amounts = self._rows(number, self._column(column))
        found: dict[int, list[Line]] = {}
        for (owner, key), amount in zip(keys.T.tolist(), amounts, strict=True):
            name = untold if key == UNKNOWN else self._text(key)
            found.setdefault(owner, []).append(Line(name, *amount))
        return {owner: self._sorted(lines) for owner, lines in found.items()}

    def _places(
        self, number: tuple[Ints, Ints], column: str, said: Callable[[str], str]
    ) -> dict[int, tuple[str, ...]]:
        """Return where each operation spends its time, most first."""
        keys, amounts = self._rows(number, self._column(column))
        found: dict[int, dict[str, float]] = {}
        for (owner, key), (before, after) in zip(keys.T.tolist(), amounts, strict=True):
            if key != UNKNOWN:
                time = self.base.per_share(before.total_ns if before else 0)
                time += self.new.per_share(after.total_ns if after else 0)
                own, place = found.setdefault(owner, {}), said(self._text(key))
                own[place] = own.get(place, 0.0) + time
        return {
            owner: tuple(sorted(own, key=lambda place: (-own[place], place)))
            for owner, own in found.items()
        }

    def _called(self, number: tuple[Ints, Ints]) -> list[dict[int, str]]:
        """Return what each side's own framework calls its operations."""
        found: list[dict[int, str]] = []
        for own, side in zip(number, (self.base, self.new), strict=True):
            called: dict[int, dict[str, None]] = {}
            texts = side.leaves.columns["called"]
            _, first = distinct(own, texts)
            for key, text in zip(own[first].tolist(), texts[first].tolist(), strict=True):
                if text != UNKNOWN:
                    called.setdefault(key, {})[self._text(text)] = None
            found.append({key: ", ".join(texts) for key, texts in called.items()})
        return found

    def _sorted(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Return rows with the greatest loss first."""
        base, new = self.base, self.new

        def change(line: Line) -> float:
            after = 0.0 if line.new is None else new.per_share(line.new.total_ns)
            return after - (0.0 if line.base is None else base.per_share(line.base.total_ns))

        return tuple(sorted(lines, key=lambda line: (-change(line), line.class_name, line.name)))

    def _text(self, number: int) -> str:
        return self._texts.texts[number]


def _amounts(number: Ints, sums: Ints, rows: int) -> list[Amount | None]:
    """Return what a side has of each row: its calls, runs and time, summed up by number."""
    total = np.zeros((3, rows), np.int64)
    for row in range(3):
        np.add.at(total[row], number, sums[row])
    return [Amount(calls, runs, time) if runs else None for calls, runs, time in total.T.tolist()]


def _kind_of_module(path: str) -> str:
    """Return a module's path without the numbers of instances: all layers of a kind are one."""
    return _INSTANCE.sub("", _PLACE.sub(".*", path))


def _is_told(line: Line) -> bool:
    return not line.name.startswith("(")
