"""Why two runs may not be comparable.

What changed from one run to another, operation by operation, and how much it explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from unified_prof.base.display import Displayed
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare.comparable import PEAK, Operations, Run, Waiting, alike, pair
from unified_prof.compare.confidence import Between, Noise
from unified_prof.compare.operation_changes import (
    By,
    Change,
    KernelChange,
    Regions,
    SizeChange,
    changes_of,
    kernel_changes,
    one_by_one,
    resized,
    summed_up,
)
from unified_prof.compare.statistics import Comparison, compare
from unified_prof.errors import UsageError

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
    "timeline_details",
)
_OF_DEVICE = (
    "device_runtime",
    "device_driver",
    "devices_used",
    "cudnn",
    "nccl",
    "compute_capability",
    "mig",
    "power_limit_w",
    "throttled",
    "tf32_matmul",
    "tf32_cudnn",
    "float32_matmul_precision",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "deterministic_algorithms",
    "environment",
)
"""First words of the names of facts; the number of a device may follow, or what was looked at."""


def doubts(base: Run, new: Run) -> list[str]:
    """Return what to warn of, in sentences; empty where the two ran alike."""
    found = differences(base.facts, new.facts)
    if base.clock != new.clock:
        found.append(f"the runs measured different times: {base.clock} time and {new.clock} time")
    if (doubt := step_doubt(base, new)) is not None:
        found.append(doubt)
    elif "msprof" in base.families & new.families and base.steps is None:
        found.append(
            "the recordings have no steps (`profiler.step()`): they are compared as a whole, "
            "whatever number of iterations each is of"
        )
    found += [
        f"{run.label} is of a run that ended early"
        for run in (base, new)
        if run.facts.get("complete") == "false"
    ]
    return found


def differences(base: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return in what that matters two runs differ, by the facts that both have of themselves."""
    return [
        f"the runs differ in {name}: {base[name]} and {new[name]}"
        for name in (*_CONTEXT, *sorted(_of_device(base) & _of_device(new)))
        if name in base and name in new and base[name] != new[name]
    ]


def _of_device(facts: Mapping[str, str]) -> set[str]:
    return {name for name in facts if name.partition(" ")[0] in _OF_DEVICE}


def left_out(base: Run, new: Run) -> list[str]:
    """Return what of the two was recorded but is not compared, in sentences."""
    return [
        f"{run.label} has {run.outside_steps_ns / NS_PER_MS:,.6g} ms of work outside its steps, "
        "which is not compared"
        for run in (base, new)
        if run.outside_steps_ns > 0
    ]


def of_different_families(base: Run, new: Run) -> UsageError:
    """Return what to raise where the reports of the two are of kinds that measure other things."""
    families = [" + ".join(sorted(run.families)) for run in (base, new)]
    return UsageError(
        f"{base.label} ({families[0]}) and {new.label} ({families[1]}) are reports of "
        "different families",
        hint="compare two run time reports, two memory reports or two msprof databases",
        slug="not-comparable",
    )


def on_different_clocks(base: Run, new: Run) -> bool:
    """Tell whether one is a recording of device work and the other one of the host alone."""
    recordings = "msprof" in base.families & new.families
    return recordings and {base.clock, new.clock} == {"device", "host"}


def of_different_clocks(base: Run, new: Run) -> UsageError:
    """Return what to raise where a recording of device work stands beside one of the host alone."""
    bare, device = (base, new) if new.clock == "device" else (new, base)
    return UsageError(
        f"{device.label} has device work and {bare.label} has none, only what ran on the host: "
        "their times are of different things",
        hint="compare two recordings with device work, or two of the host alone",
        slug="not-comparable",
    )


def step_doubt(base: Run, new: Run) -> str | None:
    """Return what to say where one side's times are of a step and the other's of something else."""
    if (base.steps is None) == (new.steps is None):
        return None
    stepped, whole = (base, new) if new.steps is None else (new, base)
    return (
        f"the times of {stepped.label} are of one step, those of {whole.label} of the whole "
        "recording, which has no steps"
    )


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
