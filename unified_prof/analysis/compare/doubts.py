"""Why two runs may not be comparable."""

from __future__ import annotations

from collections.abc import Mapping

from unified_prof.analysis.compare.comparable import Run
from unified_prof.errors import UsageError
from unified_prof.units import NS_PER_MS

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
