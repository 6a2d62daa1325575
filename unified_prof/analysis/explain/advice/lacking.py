"""What rules need of a recording, told of it before a rule is imported.

A condition returns what is missing, in words; None: nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.roofline import offered

Lacks = Callable[[Case], str | None]
"""Returns what a recording lacks to be judged; None: nothing."""

FEW_TASKS = 50
"""Fewer of them without a step are no loop: nobody can tell what waits there on purpose."""
FEW_STEPS = 4
"""Steps behind the first one: of fewer none is usual."""


def device(case: Case) -> str | None:
    """Say that no device is known."""
    return "no device work was recorded" if case.device is None else None


def host(case: Case) -> str | None:
    """Say that device or host is not known."""
    if (lacking := device(case)) is not None:
        return lacking
    if _has_no_host(case):
        return "nothing of the host was recorded (its calls tell what the device waited for)"
    return None


def loop(case: Case) -> str | None:
    """Say that host or device is not known, or that there is too little to tell how they work."""
    if (lacking := host(case)) is not None:
        return lacking
    if not case.recording.steps and len(case.recording.tasks) < FEW_TASKS:
        return f"no step is known, and fewer than {FEW_TASKS} tasks are no loop"
    return None


def launches(case: Case) -> str | None:
    """Say that no call of the runtime is known."""
    if not len(case.recording.host_calls):
        return "no call of the runtime was recorded (table CANN_API)"
    return None


def framework(case: Case) -> str | None:
    """Say that the operations of the framework are not known."""
    if case.recording.framework is None:
        return "no framework operation was recorded (table PYTORCH_API)"
    return None


def steps(case: Case) -> str | None:
    """Say that there are too few steps to tell what is usual."""
    if len(case.recording.steps) > FEW_STEPS:
        return None
    return f"it has no more than {FEW_STEPS} steps"


def host_in_steps(case: Case) -> str | None:
    """Say that nothing of the host is known, or no step."""
    if _has_no_host(case):
        return "nothing of the host was recorded"
    return None if case.steps else "no step is known, so neither is what only warms up"


def collections(case: Case) -> str | None:
    """Say that no garbage collection is known."""
    if "GC_RECORD" not in case.recording.source.tables:
        return "no garbage collection was recorded (table GC_RECORD)"
    return None


def memory(case: Case) -> str | None:
    """Say that no use of memory is known."""
    if "MEMORY_RECORD" not in case.recording.source.tables:
        return "no memory use was recorded (torch.profiler needs profile_memory)"
    return None


def shapes(case: Case) -> str | None:
    """Say that the shapes of what a device ran are not known."""
    if not offered.offered(case.recording):
        return "shapes of operations were not recorded (torch.profiler needs record_shapes)"
    return None


def npu(why: str) -> Lacks:
    """Return what says that a device is a GPU, and why that matters, or that there is none."""

    def lacks(case: Case) -> str | None:
        if "UPROF_GPU_TASKS" in case.recording.source.tables:
            return f"it is of a GPU: {why}"
        return device(case)

    return lacks


def tables(*names: str, why: str) -> Lacks:
    """Return what says that a device or none of some tables is there."""

    def lacks(case: Case) -> str | None:
        if (lacking := device(case)) is not None:
            return lacking
        there = set(names) & set(case.recording.source.tables)
        return None if there else f"{why} (table {' or '.join(names)})"

    return lacks


def both(*all_of: Lacks) -> Lacks:
    """Return what says which of several things is missing first; the later need the earlier."""

    def lacks(case: Case) -> str | None:
        return next((why for one in all_of if (why := one(case)) is not None), None)

    return lacks


def told_by(name: str) -> Lacks:
    """Return the condition `module.function` of `rules`, for what only a rule's module can tell."""

    def lacks(case: Case) -> str | None:
        found: str | None = of_rules(name)(case)
        return found

    return lacks


def of_rules(name: str) -> Callable[[Case], Any]:
    """Return the function `module.function` of `rules`; the module is imported now."""
    module, _, function = name.partition(".")
    found: Callable[[Case], Any] = getattr(
        import_module(f"unified_prof.analysis.explain.advice.rules.{module}"), function
    )
    return found


def _has_no_host(case: Case) -> bool:
    return not len(case.recording.host_calls) and case.recording.framework is None
