"""A rule: what it looks for, what it needs, and how it judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.finding import Finding

Lacks = Callable[[Case], str | None]
"""Returns what a recording lacks to be judged; None: nothing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause to look for."""

    kind: str
    """Kind of its findings."""
    judge: Callable[[Case], Iterator[Finding]]
    lacks: Lacks
    cheap: bool = True
    """Whether it asks only for what a report joins anyway."""


def device(case: Case) -> str | None:
    """Say that no device is known."""
    return "no device work was recorded" if case.device is None else None


def host(case: Case) -> str | None:
    """Say that device or host is not known."""
    if (lacking := device(case)) is not None:
        return lacking
    if not len(case.recording.host_calls) and case.recording.framework is None:
        return "nothing of the host was recorded (its calls tell what the device waited for)"
    return None


FEW_TASKS = 50
"""Fewer of them without a step are no loop: nobody can tell what waits there on purpose."""


def loop(case: Case) -> str | None:
    """Say that host or device is not known, or that there is too little to tell how they work."""
    if (lacking := host(case)) is not None:
        return lacking
    if not case.recording.steps and len(case.recording.tasks) < FEW_TASKS:
        return f"no step is known, and fewer than {FEW_TASKS} tasks are no loop"
    return None


def framework(case: Case) -> str | None:
    """Say that the operations of the framework are not known."""
    if case.recording.framework is None:
        return "no framework operation was recorded (table PYTORCH_API)"
    return None


def tables(*names: str, why: str) -> Lacks:
    """Return what says that a device or none of some tables is there."""

    def lacks(case: Case) -> str | None:
        if (lacking := device(case)) is not None:
            return lacking
        there = set(names) & set(case.recording.source.tables)
        return None if there else f"{why} (table {' or '.join(names)})"

    return lacks


def both(*all_of: Lacks) -> Lacks:
    """Return what says which of several things is missing first."""

    def lacks(case: Case) -> str | None:
        return next((why for one in all_of if (why := one(case)) is not None), None)

    return lacks
