"""Comparison of two runs, operation by operation, and reasons why they may not be comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from unified_prof.base.display import Displayed
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare.comparable import (
    PEAK,
    Operations,
    Run,
    Waiting,
    alike,
    pair,
    program_times,
)
from unified_prof.compare.confidence import Noise, NoiseModel
from unified_prof.compare.operation_changes import (
    By,
    Change,
    KernelChange,
    PartChange,
    Regions,
    SizeChange,
    changes_of,
    group_by,
    kernel_changes,
    pair_groups,
    part_changes,
    size_changes,
    with_types,
)
from unified_prof.compare.statistics import Comparison, compare
from unified_prof.errors import UsageError

# Facts that make two runs incomparable or explain a difference.
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
# Facts of this kind whose name may be followed by a device number or a setting.
_DEVICE_CONTEXT = (
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


def comparability_warnings(base: Run, new: Run) -> list[str]:
    """Return sentences about why the runs may not be comparable; empty if they are."""
    result = differences(base.facts, new.facts)
    if base.clock != new.clock:
        result.append(f"the runs were timed by different clocks: {base.clock} and {new.clock}")
    if (problem := step_mismatch(base, new)) is not None:
        result.append(problem)
    elif "msprof" in base.families & new.families and base.steps is None and base.clock != "none":
        result.append(
            "the recordings have no steps (`profiler.step()`) and are compared as a whole, "
            "regardless of their number of iterations"
        )
    result += [
        f"the script of {run.label} ended before the measurement was complete"
        for run in (base, new)
        if run.facts.get("complete") == "false"
    ]
    return result


def differences(base: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return sentences about relevant facts that were recorded in both runs and differ."""
    return [
        f"the runs differ in {name}: {base[name]} and {new[name]}"
        for name in (*_CONTEXT, *sorted(_device_facts(base) & _device_facts(new)))
        if name in base and name in new and base[name] != new[name]
    ]


def _device_facts(facts: Mapping[str, str]) -> set[str]:
    return {name for name in facts if name.partition(" ")[0] in _DEVICE_CONTEXT}


def left_out(*sides: tuple[str, float]) -> tuple[str, ...]:
    """Return sentences about work that is not compared, from label and work outside steps, ns."""
    return tuple(
        f"{label} has {outside_ns / NS_PER_MS:,.6g} ms of work outside its steps, which is not "
        "compared"
        for label, outside_ns in sides
        if outside_ns > 0
    )


def different_families_error(base: Run, new: Run) -> UsageError:
    """Return the error for reports of different families."""
    families = [" + ".join(sorted(run.families)) for run in (base, new)]
    return UsageError(
        f"{base.label} ({families[0]}) and {new.label} ({families[1]}) are reports of "
        "different families",
        hint="compare two run time reports, two memory reports or two msprof databases",
        slug="not-comparable",
    )


def has_different_clocks(base: Run, new: Run) -> bool:
    """Return True if one is a device recording and the other is host-only."""
    recordings = "msprof" in base.families & new.families
    return recordings and {base.clock, new.clock} == {"device", "host"}


def different_clocks_error(base: Run, new: Run) -> UsageError:
    """Return the error for a device recording and a host-only recording."""
    host_only, device = (base, new) if new.clock == "device" else (new, base)
    return UsageError(
        f"{device.label} has device work, {host_only.label} has host work only: their times "
        "cannot be compared",
        hint="compare two recordings with device tasks, or two without",
        slug="not-comparable",
    )


def step_mismatch(base: Run, new: Run) -> str | None:
    """Return a sentence if only one side has steps, else None."""
    if (base.steps is None) == (new.steps is None):
        return None
    stepped, whole = (base, new) if new.steps is None else (new, base)
    return (
        f"the times of {stepped.label} are per step, those of {whole.label} are for the whole "
        "recording, which has no steps"
    )


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """Comparison of two runs."""

    base: Run
    new: Run
    warnings: tuple[str, ...]  # Sentences about why the two runs may not be comparable.
    left_out: tuple[str, ...]  # Recorded data that is not compared.
    totals: dict[str, Comparison]  # Whole iterations by metric, for metrics of both sides.
    # How waiting for a processor was treated in `totals`; None if neither side recorded it. Times
    # of single operations always include it.
    waiting: Waiting | None
    # All operations: certain changes first, then by size of the change.
    changes: tuple[Change, ...]
    size_changes: tuple[SizeChange, ...]  # Weights and activations, by size of the change.
    # Kernels of operations that both runs have, grouped by operation, largest change first.
    kernel_changes: tuple[KernelChange, ...] = ()
    # True if all figures of both sides are equal, that is, one measurement was given twice.
    identical: bool = False
    # Parts of the median iteration, largest change first; they add up to it.
    iteration_parts: tuple[PartChange, ...] = ()
    # Single operations, if `changes` overlap because regions contain others.
    parts: tuple[Change, ...] = ()

    @property
    def _parts(self) -> tuple[Change, ...]:
        return self.parts or self.changes

    @property
    def base_ns(self) -> float:
        """Sum of all operations of the baseline."""
        return sum(change.base_ns or 0.0 for change in self._parts)

    @property
    def new_ns(self) -> float:
        """Sum of all operations of the candidate."""
        return sum(change.new_ns or 0.0 for change in self._parts)

    @property
    def slower_ns(self) -> float:
        """Sum of the increases of operations that became slower or are new."""
        return sum(max(0.0, change.delta_ns) for change in self._parts)

    @property
    def faster_ns(self) -> float:
        """Sum of the decreases of operations that became faster or were removed (positive)."""
        return sum(max(0.0, -change.delta_ns) for change in self._parts)


def diff(base: Run, new: Run, *, by: By = "operation", noise: Noise | None = None) -> Difference:
    """Compare two runs.

    Operations are aligned one by one and then grouped by `by`. If `by` is `annotation`, an
    operation counts for each region that encloses it in the candidate. Data of only one side, such
    as memory, is left out. Raises UsageError if the runs have no report family in common, only one
    has device work, or `by` is `annotation` and no region was recorded.
    """
    common = base.families & new.families
    if not common:
        raise different_families_error(base, new)
    base, new = alike([_only(base, common), _only(new, common)])
    if has_different_clocks(base, new):
        raise different_clocks_error(base, new)
    identical = _identical(base, new)
    pairs = pair(base.operations.places, new.operations.places)
    unmatched = []
    paired = any(base.operations.places[i].kind != "between" for i in pairs[0].tolist())
    if len(base.operations) and len(new.operations) and not paired:
        unmatched.append(f"no operation of {new.label} has a counterpart in {base.label}")
    if step_mismatch(base, new) is not None:
        base, new = replace(base, totals={}), replace(new, totals={})
    model = NoiseModel.for_clock(new.clock, noise)
    single = pair_groups(base.operations, new.operations, pairs)
    if by == "annotation" and not (base.operations.regions or new.operations.regions):
        raise UsageError(
            f"neither {base.label} nor {new.label} has an operation in a region",
            hint="mark regions in the program with torch.profiler.record_function",
            slug="no-breakdown",
        )
    parts: list[Change] = []
    if by == "annotation":
        parts = changes_of(base, new, single, model)
        regions = Regions(single, base.operations, new.operations)
        changes = changes_of(base, new, regions.groups, model, regions.explained_ns)
    else:
        changes = changes_of(base, new, group_by(single, by), model)
    changes = with_types(changes, base, new)
    if identical:
        changes = [replace(change, status="same") for change in changes]
    base, new, waiting = program_times(base, new)
    return Difference(
        base=base,
        new=new,
        warnings=(*comparability_warnings(base, new), *unmatched),
        left_out=left_out(*((run.label, run.outside_steps_ns) for run in (base, new))),
        totals={
            metric: compare(before, after, model)
            for metric in base.totals
            if len(before := base.sample(metric)) and len(after := new.sample(metric))
        },
        waiting=waiting,
        changes=tuple(changes),
        size_changes=tuple(size_changes(base.sizes, new.sizes)),
        kernel_changes=tuple(kernel_changes(base.kernels, new.kernels)),
        identical=identical,
        iteration_parts=() if identical else tuple(part_changes(base, new)),
        parts=tuple(parts),
    )


def _identical(base: Run, new: Run) -> bool:
    """Return True if all figures of two runs are equal, including every sample.

    Two measurements are practically never equal, so the same measurement was given twice.
    """
    before, after = base.operations, new.operations
    return (
        before.places == after.places
        and np.array_equal(before.forward_ns, after.forward_ns, equal_nan=True)
        and np.array_equal(before.backward_ns, after.backward_ns, equal_nan=True)
        and base.sizes == new.sizes
        and base.kernels == new.kernels
        and base.totals.keys() == new.totals.keys()
        and all(np.array_equal(base.totals[name], new.totals[name]) for name in base.totals)
    )


def _only(run: Run, families: frozenset[str]) -> Run:
    """Return a copy of a run with only the data of the given families."""
    timed, sized = "skyline-run-time", "skyline-memory"
    if "msprof" in families:
        return run
    return replace(
        run,
        operations=run.operations if timed in families else Operations.none(),
        sizes=run.sizes if sized in families else (),
        parts_ns=run.parts_ns if timed in families else {},
        totals={
            metric: samples
            for metric, samples in run.totals.items()
            if (sized if metric == PEAK else timed) in families
        },
    )
