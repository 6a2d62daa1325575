"""What two devices (or one, before and after) took for the same work, from the step downwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from unified_prof.analysis.calls import Labels
from unified_prof.analysis.compare.between import Between, Noise, Sample
from unified_prof.analysis.compare.comparable import PEAK, TOTAL
from unified_prof.analysis.compare.device.allowed import Allowed
from unified_prof.analysis.compare.device.doubts import doubts_of
from unified_prof.analysis.compare.device.leaves import Naming
from unified_prof.analysis.compare.device.lines import Line
from unified_prof.analysis.compare.device.side import (
    UNKNOWN_DEVICE,
    Side,
    has_framework,
    models,
    read,
)
from unified_prof.analysis.compare.device.tables import Tables
from unified_prof.analysis.compare.statistics import Comparison, compare
from unified_prof.analysis.msprof import MsprofAnalysis
from unified_prof.displayed import Displayed
from unified_prof.units import NS_PER_MS

By = Literal["operation", "shape", "module", "line", "kernel", "class"]


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
        warnings=tuple(doubts_of(tables, same=same, by_framework=naming.by_framework)),
        left_out=tuple(_left_out(before, after)),
        totals=_totals(before, after, Between.of("device", noise)),
        identical=before.same_figures(after),
        tables=tables,
    )


def _left_out(base: Side, new: Side) -> list[str]:
    return [
        f"{side.label} has {side.outside_ns / NS_PER_MS:,.6g} ms of work outside its steps, "
        "which is not compared"
        for side in (base, new)
        if side.outside_ns > 0
    ]


def _totals(base: Side, new: Side, between: Between) -> dict[str, Comparison]:
    """Compare how long steps took, and peak memory."""
    found = {}
    for metric, before, after in (
        (TOTAL, base.step_ns, new.step_ns),
        (PEAK, Sample.of(base.peak_bytes), Sample.of(new.peak_bytes)),
    ):
        if len(before) and len(after):
            found[metric] = compare(before, after, between)
    return found
