"""What two devices (or one, before and after) took for the same work, from the step downwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN, Labels
from unified_prof.analysis.compare.between import Between, Noise, Sample
from unified_prof.analysis.compare.comparable import PEAK, TOTAL
from unified_prof.analysis.compare.device.allowed import Allowed, allowed
from unified_prof.analysis.compare.device.leaves import Naming, distinct
from unified_prof.analysis.compare.device.pairing import Pairing, pair
from unified_prof.analysis.compare.device.side import (
    PARTS,
    UNKNOWN_DEVICE,
    Side,
    has_framework,
    models,
    read,
)
from unified_prof.analysis.compare.doubts import differences
from unified_prof.analysis.compare.statistics import Comparison, compare
from unified_prof.analysis.explain.classes import CLASSES
from unified_prof.analysis.msprof import MsprofAnalysis
from unified_prof.displayed import Displayed
from unified_prof.units import NS_PER_MS

Ints = NDArray[np.int64]
By = Literal["operation", "shape", "module", "line", "kernel", "class"]

_PLACES: Final = 3
"""Lines and modules that a row names."""
_PLACE: Final = re.compile(r"\.\d+(?=\.|$)")
_INSTANCE: Final = re.compile(r"_\d+(?=\.|$)")
_FACTS_OF_DEVICES: Final = re.compile(
    r"the runs differ in (?:device|backend|cuda|cann|driver|torch)"
)


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


@dataclass(frozen=True, eq=False)
class DeviceDifference(Displayed):
    """Two runs of devices compared, in totals; `Side.per_share` makes them figures of a step.

    The rows of `classes`, `operations`, `modules`, `lines` and `kernels` each add up to
    `Side.work_ns` of both sides, to the nanosecond; PARTS add up to `Side.window_ns`. Each table is
    made when it is first asked for.
    """

    base: Side
    new: Side
    same_devices: bool
    """Whether both sides are of the same model of device."""
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]
    totals: dict[str, Comparison]
    """Steps and peak memory with their statistics, by metric."""
    identical: bool
    """Whether both sides hold the same figures throughout: one recording, given twice."""
    tables: Tables = field(repr=False)
    """The work of both sides, to be summed up."""

    @cached_property
    def allowed(self) -> Mapping[str, Allowed]:
        """What limits each class of work on two models of device, where their peaks are known."""
        return {} if self.same_devices or self.identical else self.tables.allowed()

    @cached_property
    def classes(self) -> tuple[Line, ...]:
        """Work by class, in the order of CLASSES."""
        return self.tables.classes()

    @cached_property
    def operations(self) -> tuple[Line, ...]:
        """Work by class and operation, the greatest loss first, as in all that follow."""
        return self.tables.operations()

    @cached_property
    def modules(self) -> tuple[Line, ...]:
        """Work by module."""
        return self.tables.by("module", "(outside any module)")

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Work by source line."""
        return self.tables.by("line", "(no source line)")

    @cached_property
    def kernels(self) -> tuple[Line, ...]:
        """Work by class and kernel."""
        return self.tables.kernels()

    def kernels_of(self, operation: Line) -> tuple[Line, ...]:
        """Return the kernels under one of `operations`."""
        return self._kernels_of.get(operation.number, ())

    @cached_property
    def _kernels_of(self) -> dict[int, tuple[Line, ...]]:
        return self.tables.kernels_of_operations()

    def change_ns(self, line: Line) -> float:
        """Return how much longer a step of the new side takes for a row."""
        before = 0.0 if line.base is None else self.base.per_share(line.base.total_ns)
        return (0.0 if line.new is None else self.new.per_share(line.new.total_ns)) - before

    def ratio(self, line: Line) -> float | None:
        """Return new over base of a row, None where a side has none of it."""
        if line.base is None or line.new is None or not line.base.total_ns:
            return None
        before = self.base.per_share(line.base.total_ns)
        return self.new.per_share(line.new.total_ns) / before

    def part_ns(self, name: str) -> tuple[float, float]:
        """Return one of PARTS of a step, on both sides."""
        return (
            self.base.per_share(self.base.parts_ns[name]),
            self.new.per_share(self.new.parts_ns[name]),
        )


def diff(
    base: Sequence[MsprofAnalysis],
    new: Sequence[MsprofAnalysis],
    *,
    labels: tuple[str, str],
    noise: Noise | None = None,
) -> DeviceDifference:
    """Compare recordings of device work, one side against the other.

    Args:
        base: The recordings of one run: one, several of it, or one of each rank.
        new: Those of the other.
        labels: What to call the sides.
        noise: How much runs of such a workload differ on this machine, where it was learned.
    """
    texts = Labels()
    naming = Naming(
        by_framework=has_framework(base) and has_framework(new),
        by_kernel=models(base) == models(new),
    )
    before, after = (
        read(label, side, texts, naming) for label, side in zip(labels, (base, new), strict=True)
    )
    tables = Tables(before, after, texts)
    same = set(before.devices) == set(after.devices) and UNKNOWN_DEVICE not in before.devices
    return DeviceDifference(
        base=before,
        new=after,
        same_devices=same,
        warnings=tuple(_warnings(tables, same=same, by_framework=naming.by_framework)),
        left_out=tuple(_left_out(before, after)),
        totals=_totals(before, after, Between.of("host", noise)),
        identical=before.same_figures(after),
        tables=tables,
    )


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


def _warnings(tables: Tables, *, same: bool, by_framework: bool) -> list[str]:
    base, new = tables.base, tables.new
    found = [
        said
        for said in differences(base.facts, new.facts)
        if same or not _FACTS_OF_DEVICES.match(said)
    ]
    if (base.steps is None) != (new.steps is None):
        stepped, whole = (base, new) if new.steps is None else (new, base)
        found.append(
            f"the times of {stepped.label} are of one step, those of {whole.label} of the "
            f"whole recording, which has no steps{_guess(tables, stepped, whole)}"
        )
    elif base.steps is None:
        found.append(
            "the recordings have no steps (`profiler.step()`): they are compared as a whole, "
            f"whatever number of iterations each is of{_guess(tables, base, new)}"
        )
    if not by_framework:
        bare = [
            name
            for name, side in (("base", base), ("new", new))
            if not (side.leaves.columns["called"] != UNKNOWN).any()
        ]
        who = f"{bare[0]} has no" if len(bare) == 1 else "neither side has"
        found.append(
            f"{who} framework operations: work is compared by class, kind of kernel and shape"
        )
    return [*found, *base.remarks, *new.remarks]


def _guess(tables: Tables, one: Side, other: Side) -> str:
    """Say how many times as often as in the one the operations of both occur in the other."""
    first, second = (
        (tables.pairing.base, tables.pairing.new)
        if one is tables.base
        else (tables.pairing.new, tables.pairing.base)
    )
    size = len(tables.pairing.keys)
    mine = np.bincount(first, weights=one.leaves.calls, minlength=size) / one.shares
    theirs = np.bincount(second, weights=other.leaves.calls, minlength=size) / other.shares
    both = (mine > 0) & (theirs > 0)
    if not both.any():
        return ""
    times = float(np.median(theirs[both] / mine[both]))
    if times == 1:
        return "; their operations occur equally often"
    return f"; its operations occur {times:.3g} times as often as those of {one.label}"


def _kind_of_module(path: str) -> str:
    """Return a module's path without the numbers of instances: all layers of a kind are one."""
    return _INSTANCE.sub("", _PLACE.sub(".*", path))


def _is_told(line: Line) -> bool:
    return not line.name.startswith("(")


def _left_out(base: Side, new: Side) -> list[str]:
    return [
        f"{side.label} has {side.outside_ns / NS_PER_MS:,.6g} ms of work outside its steps, "
        "which is not compared"
        for side in (base, new)
        if side.outside_ns > 0
    ]


def _totals(base: Side, new: Side, between: Between) -> dict[str, Comparison]:
    """Compare steps, on the host's clock, and peak memory."""
    found = {}
    for metric, before, after in (
        (TOTAL, base.step_ns, new.step_ns),
        (PEAK, Sample.of(base.peak_bytes), Sample.of(new.peak_bytes)),
    ):
        if len(before) and len(after):
            found[metric] = compare(before, after, between)
    return found


__all__ = ["PARTS", "Amount", "By", "DeviceDifference", "Line", "diff"]
