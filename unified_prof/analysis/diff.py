"""What changed from one run to another, operation by operation, and how much it explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.alignment import Pair, align
from unified_prof.analysis.comparable import PEAK, Kernels, Operations, Place, Run, Sized
from unified_prof.analysis.statistics import (
    MIN_SAMPLES,
    Comparison,
    Verdict,
    compare,
    correct_for_many,
    mann_whitney_rows,
)
from unified_prof.errors import UsageError

Floats = NDArray[np.float64]
Status = Literal["new", "gone", "slower", "faster", "same", "inconclusive"]
SizeStatus = Literal["new", "gone", "bigger", "smaller"]
By = Literal["operation", "line", "module"]

# Intervals are drawn for so many of the largest changes; the smaller ones are judged by their
# corrected p-value alone. Two thousand resamples of each of ten thousand rows take a minute.
_INTERVALS = 200

# Facts that make two runs incomparable, or at least explain a difference.
_CONTEXT = (
    "backend",
    "device",
    "driver",
    "torch",
    "torch_threads",
    "cuda",
    "cann",
    "workload",
    "arguments",
    "mode",
    "options",
)


@dataclass(frozen=True, slots=True)
class KernelChange:
    """What became of one kernel under the operations of one name."""

    operation: str
    name: str
    base_ns: float | None
    """None: it did not run there."""
    new_ns: float | None

    @property
    def delta_ns(self) -> float:
        """New time less base time."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one operation (or of all operations of one line or module)."""

    place: Place
    """As in the new run, or as in the base run where it is gone."""
    base_place: Place | None
    """As in the base run; None where it is new."""
    status: Status
    base_ns: float | None
    """Median over the samples; None where it is new."""
    new_ns: float | None
    """Median over the samples; None where it is gone."""
    forward_delta_ns: float | None
    """Change of the forward time; None where one side did not measure any."""
    backward_delta_ns: float | None
    explained_ns: float
    """Its part of the change of all operations together; never more than that change."""
    comparison: Comparison | None
    """Statistics; None for a new or gone one, and for small changes among very many."""
    moved: bool = False
    """Whether it stands in another order than in the base run."""
    count: int = 1
    """Operations it sums up."""

    @property
    def delta_ns(self) -> float:
        """New time less base time; a new operation counts whole, a gone one negative."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A weight or an activation whose size changed."""

    place: Place
    status: SizeStatus
    base_bytes: int | None
    new_bytes: int | None

    @property
    def delta_bytes(self) -> int:
        """New size less base size."""
        return (self.new_bytes or 0) - (self.base_bytes or 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs compared."""

    base: Run
    new: Run
    warnings: tuple[str, ...]
    """Why the two may not be comparable."""
    totals: dict[str, Comparison]
    """Whole iterations by metric, where both sides have it."""
    changes: tuple[Change, ...]
    """All operations: those that surely changed first, then by the size of the change."""
    size_changes: tuple[SizeChange, ...]
    """By the size of the change."""
    kernel_changes: tuple[KernelChange, ...] = ()
    """Kernels under the operations that both runs have, where a recording shows them; together
    by operation, those with the largest change first."""

    @property
    def base_ns(self) -> float:
        """All operations of the base run together."""
        return sum(change.base_ns or 0.0 for change in self.changes)

    @property
    def new_ns(self) -> float:
        """All operations of the new run together."""
        return sum(change.new_ns or 0.0 for change in self.changes)

    @property
    def slower_ns(self) -> float:
        """Sum of all that became slower or is new."""
        return sum(max(0.0, change.delta_ns) for change in self.changes)

    @property
    def faster_ns(self) -> float:
        """Sum of all that became faster or is gone, as a positive number."""
        return sum(max(0.0, -change.delta_ns) for change in self.changes)


def diff(base: Run, new: Run, *, by: By = "operation") -> Difference:
    """Compare two runs.

    The operations are aligned one by one, whatever `by` is; `line` and `module` then sum them up.
    What only one side has measured at all (a memory report beside a run time report) is left out.

    Raises:
        UsageError: the runs are of different families of reports, or have nothing in common.
    """
    common = base.families & new.families
    if not common:
        families = [" + ".join(sorted(run.families)) for run in (base, new)]
        raise UsageError(
            f"{base.label} ({families[0]}) and {new.label} ({families[1]}) are reports of "
            "different families",
            hint="compare two run time reports, two memory reports or two msprof databases",
        )
    base, new = _only(base, common), _only(new, common)
    pairs = align(
        [place.keys for place in base.operations.places],
        [place.keys for place in new.operations.places],
    )
    changes = _changes(base.operations, new.operations, pairs, by)
    return Difference(
        base=base,
        new=new,
        warnings=tuple(_warnings(base, new)),
        totals={
            metric: compare(samples, new.totals[metric])
            for metric, samples in base.totals.items()
            if len(samples) and len(new.totals.get(metric, ()))
        },
        changes=tuple(_explain(changes)),
        size_changes=tuple(_size_changes(base.sizes, new.sizes)),
        kernel_changes=tuple(_kernel_changes(base.kernels, new.kernels)),
    )


def _only(run: Run, families: frozenset[str]) -> Run:
    """Return what a run has of these families."""
    timed, sized = "skyline-run-time", "skyline-memory"
    if "msprof" in families:
        return run
    return replace(
        run,
        operations=run.operations if timed in families else Operations.none(),
        sizes=run.sizes if sized in families else (),
        totals={
            metric: samples
            for metric, samples in run.totals.items()
            if (sized if metric == PEAK else timed) in families
        },
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Operations of both sides that are compared as one."""

    place: Place
    base_place: Place | None
    base_rows: tuple[int, ...]
    new_rows: tuple[int, ...]
    moved: bool


def _groups(base: Operations, new: Operations, pairs: Sequence[Pair], by: By) -> list[_Group]:
    paired_base = {i for i, _ in pairs}
    paired_new = {j for _, j in pairs}
    out_of_order = _out_of_order(pairs)
    single = [
        _Group(new.places[j], base.places[i], (i,), (j,), (i, j) in out_of_order) for i, j in pairs
    ]
    single += [
        _Group(place, None, (), (j,), False)
        for j, place in enumerate(new.places)
        if j not in paired_new
    ]
    single += [
        _Group(place, place, (i,), (), False)
        for i, place in enumerate(base.places)
        if i not in paired_base
    ]
    if by == "operation":
        return single
    summed: dict[str | None, list[_Group]] = {}
    for group in single:
        summed.setdefault(group.place.line if by == "line" else group.place.module, []).append(
            group
        )
    return [_sum(key, members, by) for key, members in summed.items()]


def _sum(key: str | None, members: Sequence[_Group], by: By) -> _Group:
    names = list(dict.fromkeys(member.place.name for member in members))
    name = names[0] if len(names) == 1 else ", ".join(names[:3]) + (", ..." if names[3:] else "")
    module = key if by == "module" else members[0].place.module
    line = key if by == "line" else None
    place = Place(name=name, module=module, line=line, kind=by)
    base_places = [member.base_place for member in members if member.base_place is not None]
    base_line = base_places[0].line if by == "line" and base_places else None
    return _Group(
        place=place,
        base_place=replace(place, line=base_line) if base_places else None,
        base_rows=tuple(row for member in members for row in member.base_rows),
        new_rows=tuple(row for member in members for row in member.new_rows),
        moved=False,
    )


def _out_of_order(pairs: Sequence[Pair]) -> set[Pair]:
    """Return pairs that stand before one that precedes them on the other side."""
    late: set[Pair] = set()
    highest = -1
    for i, j in pairs:
        if j < highest:
            late.add((i, j))
        highest = max(highest, j)
    return late


def _changes(base: Operations, new: Operations, pairs: Sequence[Pair], by: By) -> list[Change]:
    groups = _groups(base, new, pairs, by)
    base_total, new_total = base.total_ns, new.total_ns
    rows = [
        (_summed(base_total, group.base_rows), _summed(new_total, group.new_rows))
        for group in groups
    ]
    p_values = correct_for_many(_p_values(rows))
    changes = []
    for group, (base_row, new_row) in zip(groups, rows, strict=True):
        base_ns, new_ns = _median(base_row), _median(new_row)
        status: Status = "inconclusive"
        if base_row is None:
            status = "new"
        elif new_row is None:
            status = "gone"
        changes.append(
            Change(
                place=group.place,
                base_place=group.base_place,
                status=status,
                base_ns=base_ns,
                new_ns=new_ns,
                forward_delta_ns=_delta(base.forward_ns, new.forward_ns, group),
                backward_delta_ns=_delta(base.backward_ns, new.backward_ns, group),
                explained_ns=0.0,
                comparison=None,
                moved=group.moved,
                count=max(len(group.base_rows), len(group.new_rows)),
            )
        )
    largest = sorted(range(len(changes)), key=lambda index: -abs(changes[index].delta_ns))
    for rank, index in enumerate(largest):
        base_row, new_row = rows[index]
        if changes[index].status == "inconclusive" and base_row is not None and new_row is not None:
            changes[index] = _judged(
                changes[index], base_row, new_row, float(p_values[index]), rank < _INTERVALS
            )
    certain = {"slower": 0, "faster": 0, "new": 0, "gone": 0}
    return sorted(
        changes, key=lambda change: (certain.get(change.status, 1), -abs(change.delta_ns))
    )


def _judged(
    change: Change, base_row: Floats, new_row: Floats, p_value: float, interval: bool
) -> Change:
    base_row, new_row = base_row[~np.isnan(base_row)], new_row[~np.isnan(new_row)]
    if not len(base_row) or not len(new_row) or np.isnan(p_value):
        return change
    if interval:
        comparison = compare(base_row, new_row)
        return replace(change, comparison=comparison, status=comparison.verdict(p_value))
    status: Verdict = "same"
    if p_value < 0.05:
        status = "slower" if change.delta_ns > 0 else "faster"
    return replace(change, status=status)


def _summed(matrix: Floats, rows: Sequence[int]) -> Floats | None:
    """Return the samples of several operations together, None for no operation."""
    if not rows:
        return None
    chosen = matrix[list(rows)]
    summed: Floats = np.nansum(chosen, axis=0)
    summed[np.isnan(chosen).all(axis=0)] = np.nan
    return summed


def _median(row: Floats | None) -> float | None:
    if row is None or np.isnan(row).all():
        return None
    return float(np.nanmedian(row))


def _delta(base: Floats, new: Floats, group: _Group) -> float | None:
    before = _median(_summed(base, group.base_rows))
    after = _median(_summed(new, group.new_rows))
    return None if before is None or after is None else after - before


def _p_values(rows: Sequence[tuple[Floats | None, Floats | None]]) -> Floats:
    """Test each pair of rows; NaN where there are too few samples."""
    p_values = np.full(len(rows), np.nan)
    by_shape: dict[tuple[int, int], list[tuple[int, Floats, Floats]]] = {}
    for index, (a, b) in enumerate(rows):
        if a is None or b is None:
            continue
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if min(len(a), len(b)) >= MIN_SAMPLES:
            by_shape.setdefault((len(a), len(b)), []).append((index, a, b))
    for members in by_shape.values():
        tested = mann_whitney_rows(
            np.stack([a for _, a, _ in members]), np.stack([b for _, _, b in members])
        )
        p_values[[index for index, _, _ in members]] = tested
    return p_values


def _explain(changes: Sequence[Change]) -> list[Change]:
    """Divide the net change among those that went its way, in proportion to their size.

    Where some became slower and some faster, single changes can be larger than the net change;
    their share of it cannot.
    """
    net = sum(change.delta_ns for change in changes)
    same_way = sum(abs(change.delta_ns) for change in changes if change.delta_ns * net > 0)
    return [
        replace(change, explained_ns=net * abs(change.delta_ns) / same_way)
        if change.delta_ns * net > 0
        else change
        for change in changes
    ]


def _size_changes(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    pairs = align([one.place.keys for one in base], [one.place.keys for one in new])
    paired_base, paired_new = {i for i, _ in pairs}, {j for _, j in pairs}
    changes = []
    for i, j in pairs:
        before, after = base[i].size_bytes, new[j].size_bytes
        if before != after:
            status: SizeStatus = "bigger" if after > before else "smaller"
            changes.append(SizeChange(new[j].place, status, before, after))
    changes += [
        SizeChange(one.place, "new", None, one.size_bytes)
        for j, one in enumerate(new)
        if j not in paired_new
    ]
    changes += [
        SizeChange(one.place, "gone", one.size_bytes, None)
        for i, one in enumerate(base)
        if i not in paired_base
    ]
    return sorted(changes, key=lambda change: -abs(change.delta_bytes))


def _kernel_changes(base: Kernels, new: Kernels) -> list[KernelChange]:
    """Put the kernels of both sides under each operation; another device has other kernels."""
    found: list[list[KernelChange]] = []
    for operation in base.keys() | new.keys():
        before, after = base.get(operation, {}), new.get(operation, {})
        changes = [
            KernelChange(operation, name, before.get(name), after.get(name))
            for name in before.keys() | after.keys()
        ]
        found.append(sorted(changes, key=lambda one: (-abs(one.delta_ns), one.name)))
    found.sort(key=lambda ones: (-abs(sum(one.delta_ns for one in ones)), ones[0].operation))
    return [change for changes in found for change in changes]


def _warnings(base: Run, new: Run) -> list[str]:
    found = [
        f"the runs differ in {name}: {base.facts[name]} and {new.facts[name]}"
        for name in _CONTEXT
        if name in base.facts and name in new.facts and base.facts[name] != new.facts[name]
    ]
    if base.clock != new.clock:
        found.append(f"the runs measured different times: {base.clock} time and {new.clock} time")
    found += [
        f"{run.label} is of a run that ended early"
        for run in (base, new)
        if run.facts.get("complete") == "false"
    ]
    return found
