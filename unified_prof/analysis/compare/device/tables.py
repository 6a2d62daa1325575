"""The work of two sides summed up: by class, operation, shape, module, line or kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN, Labels
from unified_prof.analysis.compare.device.allowed import Allowed, allowed
from unified_prof.analysis.compare.device.leaves import distinct
from unified_prof.analysis.compare.device.lines import Amount, Both, Line
from unified_prof.analysis.compare.device.pairing import Pairing, pair
from unified_prof.analysis.compare.device.side import Side
from unified_prof.analysis.explain.classes import CLASSES

Ints = NDArray[np.int64]

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
