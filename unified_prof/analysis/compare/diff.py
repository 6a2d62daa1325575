"""What changed from one run to another, operation by operation, and how much it explains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unified_prof.analysis.compare.between import Between, Noise
from unified_prof.analysis.compare.by_region import Regions
from unified_prof.analysis.compare.changes import Change, changes_of
from unified_prof.analysis.compare.comparable import PEAK, Operations, Run, pair
from unified_prof.analysis.compare.doubts import (
    doubts,
    left_out,
    of_different_clocks,
    of_different_families,
    on_different_clocks,
    step_doubt,
)
from unified_prof.analysis.compare.grouped import By, one_by_one, summed_up
from unified_prof.analysis.compare.kernels import KernelChange, kernel_changes
from unified_prof.analysis.compare.sizes import SizeChange, resized
from unified_prof.analysis.compare.statistics import Comparison, compare
from unified_prof.analysis.compare.waiting import Waiting, alike
from unified_prof.displayed import Displayed
from unified_prof.errors import UsageError


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """Two runs compared."""

    base: Run
    new: Run
    warnings: tuple[str, ...]
    """Why the two may not be comparable."""
    left_out: tuple[str, ...]
    """What was recorded but is not compared."""
    totals: dict[str, Comparison]
    """Whole iterations by metric, where both sides have it."""
    waiting: Waiting | None
    """Whether their times are without waiting for a processor; None: no side knows its waiting.
    The times of single operations always are as the clock measured."""
    changes: tuple[Change, ...]
    """All operations: those that surely changed first, then by the size of the change."""
    size_changes: tuple[SizeChange, ...]
    """By the size of the change."""
    kernel_changes: tuple[KernelChange, ...] = ()
    """Kernels under the operations that both runs have, where a recording shows them; together
    by operation, those with the largest change first."""
    identical: bool = False
    """Whether both sides hold the same figures throughout: one measurement, given twice."""
    parts: tuple[Change, ...] = ()
    """The single operations, where `changes` overlap: regions are part of those around them."""

    @property
    def _parts(self) -> tuple[Change, ...]:
        return self.parts or self.changes

    @property
    def base_ns(self) -> float:
        """All operations of the base run together."""
        return sum(change.base_ns or 0.0 for change in self._parts)

    @property
    def new_ns(self) -> float:
        """All operations of the new run together."""
        return sum(change.new_ns or 0.0 for change in self._parts)

    @property
    def slower_ns(self) -> float:
        """Sum of all that became slower or is new."""
        return sum(max(0.0, change.delta_ns) for change in self._parts)

    @property
    def faster_ns(self) -> float:
        """Sum of all that became faster or is gone, as a positive number."""
        return sum(max(0.0, -change.delta_ns) for change in self._parts)


def diff(base: Run, new: Run, *, by: By = "operation", noise: Noise | None = None) -> Difference:
    """Compare two runs.

    The operations are aligned one by one, whatever `by` is; the others then sum them up. By
    annotation an operation counts for every region around it, as in the new run.
    `noise` is how much runs of such a workload differ on this machine, where it was learned.
    What only one side has measured at all (a memory report beside a run time report) is left out.

    Raises:
        UsageError: the runs are of different families of reports, or have nothing in common; one
            is of a device and the other of the host alone; neither knows of a region.
    """
    common = base.families & new.families
    if not common:
        raise of_different_families(base, new)
    base, new = _only(base, common), _only(new, common)
    if on_different_clocks(base, new):
        raise of_different_clocks(base, new)
    identical = _identical(base, new)
    pairs = pair(base.operations.places, new.operations.places)
    unmatched = []
    paired = any(base.operations.places[i].kind != "between" for i in pairs[0].tolist())
    if len(base.operations) and len(new.operations) and not paired:
        unmatched.append(f"no operation of {new.label} has a counterpart in {base.label}")
    if step_doubt(base, new) is not None:
        base, new = replace(base, totals={}), replace(new, totals={})
    between = Between.of(new.clock, noise)
    single = one_by_one(base.operations, new.operations, pairs)
    if by == "annotation" and not (base.operations.regions or new.operations.regions):
        raise UsageError(
            f"neither {base.label} nor {new.label} has an operation in a region",
            hint="mark some in the program, with torch.profiler.record_function",
            slug="no-breakdown",
        )
    parts: list[Change] = []
    if by == "annotation":
        parts = changes_of(base, new, single, between)
        regions = Regions(single, base.operations, new.operations)
        changes = changes_of(base, new, regions.groups, between, regions.explained_ns)
    else:
        changes = changes_of(base, new, summed_up(single, by), between)
    if identical:
        changes = [replace(change, status="same") for change in changes]
    base, new, waiting = alike(base, new)
    return Difference(
        base=base,
        new=new,
        warnings=(*doubts(base, new), *unmatched),
        left_out=tuple(left_out(base, new)),
        totals={
            metric: compare(before, after, between)
            for metric in base.totals
            if len(before := base.sample(metric)) and len(after := new.sample(metric))
        },
        waiting=waiting,
        changes=tuple(changes),
        size_changes=tuple(resized(base.sizes, new.sizes)),
        kernel_changes=tuple(kernel_changes(base.kernels, new.kernels)),
        identical=identical,
        parts=tuple(parts),
    )


def _identical(base: Run, new: Run) -> bool:
    """Tell whether two runs hold the same figures, each sample of every operation among them.

    No two measurements of more than an operation or two do: it is one, given twice.
    """
    mine, theirs = base.operations, new.operations
    return (
        mine.places == theirs.places
        and np.array_equal(mine.forward_ns, theirs.forward_ns, equal_nan=True)
        and np.array_equal(mine.backward_ns, theirs.backward_ns, equal_nan=True)
        and base.sizes == new.sizes
        and base.kernels == new.kernels
        and base.totals.keys() == new.totals.keys()
        and all(np.array_equal(base.totals[name], new.totals[name]) for name in base.totals)
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
