"""The advice rules, the inputs that they require, and their evaluation.

A requirement returns what is missing as text, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from unified_prof.explain.advice.device_context import Case
from unified_prof.explain.roofline import peaks
from unified_prof.recording.model import Advice, Finding, NotJudged
from unified_prof.recording.recording import Recording

# Requirement of a rule: returns what a recording lacks, or None.
Lacks = Callable[[Case], str | None]

# Fewer tasks without a step are not a loop, so idle time may be intended.
FEW_TASKS = 50
# Minimum steps after the first for a meaningful median.
FEW_STEPS = 4


def device(case: Case) -> str | None:
    """Require device tasks."""
    return "no device work was recorded" if case.device is None else None


def host(case: Case) -> str | None:
    """Require device tasks and host calls."""
    if (lacking := device(case)) is not None:
        return lacking
    if _has_no_host(case):
        return "no host calls recorded, so idle reasons are unknown"
    return None


def loop(case: Case) -> str | None:
    """Require device tasks, host calls, and steps or enough tasks."""
    if (lacking := host(case)) is not None:
        return lacking
    if not case.recording.steps and len(case.recording.tasks) < FEW_TASKS:
        return f"no steps and fewer than {FEW_TASKS} tasks recorded"
    return None


def launches(case: Case) -> str | None:
    """Require runtime calls."""
    if not len(case.recording.host_calls):
        return "no runtime calls recorded (table CANN_API)"
    return None


def framework(case: Case) -> str | None:
    """Require framework operations."""
    if case.recording.framework is None:
        return "no framework operations recorded (table PYTORCH_API)"
    return None


def steps(case: Case) -> str | None:
    """Require enough steps for a meaningful median."""
    if len(case.recording.steps) > FEW_STEPS:
        return None
    return f"no more than {FEW_STEPS} steps recorded"


def host_in_steps(case: Case) -> str | None:
    """Require host data and steps."""
    if _has_no_host(case):
        return "nothing of the host was recorded"
    return None if case.steps else "no steps recorded, so warm-up cannot be distinguished"


def collections(case: Case) -> str | None:
    """Require garbage collections."""
    if "GC_RECORD" not in case.recording.source.tables:
        return "no garbage collections recorded (table GC_RECORD)"
    return None


def memory(case: Case) -> str | None:
    """Require memory use."""
    if "MEMORY_RECORD" not in case.recording.source.tables:
        return "memory use not recorded (torch.profiler: profile_memory=True)"
    return None


def shapes(case: Case) -> str | None:
    """Require operation shapes."""
    if not peaks.offered(case.recording):
        return "operation shapes not recorded (torch.profiler: record_shapes=True)"
    return None


def npu(why: str) -> Lacks:
    """Return a requirement of an NPU recording; `why` is the reason on GPUs."""

    def lacks(case: Case) -> str | None:
        if "UPROF_GPU_TASKS" in case.recording.source.tables:
            return f"it is of a GPU: {why}"
        return device(case)

    return lacks


def tables(*names: str, why: str) -> Lacks:
    """Return a requirement of a device and at least one of some tables."""

    def lacks(case: Case) -> str | None:
        if (lacking := device(case)) is not None:
            return lacking
        there = set(names) & set(case.recording.source.tables)
        return None if there else f"{why} (table {' or '.join(names)})"

    return lacks


def both(*all_of: Lacks) -> Lacks:
    """Return a requirement that combines several; the first missing one is reported."""

    def lacks(case: Case) -> str | None:
        return next((why for one in all_of if (why := one(case)) is not None), None)

    return lacks


def told_by(name: str) -> Lacks:
    """Return the requirement `module.function` of this package."""

    def lacks(case: Case) -> str | None:
        found: str | None = of_rules(name)(case)
        return found

    return lacks


def of_rules(name: str) -> Callable[[Case], Any]:
    """Import and return the function `module.function` of this package."""
    module, _, function = name.partition(".")
    found: Callable[[Case], Any] = getattr(
        import_module(f"unified_prof.explain.advice.{module}"), function
    )
    return found


def _has_no_host(case: Case) -> bool:
    return not len(case.recording.host_calls) and case.recording.framework is None


@dataclass(frozen=True, slots=True)
class Rule:
    """An advice rule."""

    # Slug of its findings.
    kind: str
    # Generator of findings as `module.function`, imported if the requirements are met.
    name: str
    lacks: Lacks = device
    # True if it only uses data that every report reads.
    cheap: bool = False

    def judge(self, case: Case) -> Iterator[Finding]:
        """Yield the findings of a device that meets the requirements."""
        found: Iterator[Finding] = of_rules(self.name)(case)
        yield from found


_LAUNCHES = both(loop, launches)
_COLLECTIVES = tables("COMMUNICATION_OP", why="no collectives recorded")
_MESSAGES = tables("COMMUNICATION_TASK_INFO", why="no collective tasks recorded")
_ORIGINS = tables("UPROF_GPU_TASKS", why="memory kind of copies not recorded")
_GRIDS = tables("UPROF_GPU_TASKS", why="grid sizes not recorded")
_CLOCKS = tables("AICORE_FREQ", why="AI core clocks not recorded")
_COUNTERS = tables("TASK_PMU_INFO", why="core counters not recorded")
_NPU = npu("only NPUs have AI CPUs, cores and pipes")
_SHORT = npu("host_bound and small_kernels cover short kernels there")
_MEMORY = both(device, memory, told_by("memory_rules.lacks_size"))
_PEAKS = both(device, shapes, told_by("kernel_rules.lacks_peaks"))

# In the order in which skipped rules are listed.
RULES: tuple[Rule, ...] = (
    Rule("host_bound", "host_rules.host_bound", _LAUNCHES, cheap=True),
    Rule("small_kernels", "host_rules.small_kernels", _LAUNCHES),
    Rule("input_wait", "host_rules.input_wait", framework, cheap=True),
    Rule("late_work", "host_rules.late_work", host, cheap=True),
    Rule("synchronising_calls", "wait_rules.synchronising_calls", loop),
    Rule("blocking_launches", "wait_rules.blocking_launches", loop),
    Rule(
        "exposed_communication",
        "communication_rules.exposed_communication",
        _COLLECTIVES,
        cheap=True,
    ),
    Rule("small_buckets", "communication_rules.small_buckets", _COLLECTIVES, cheap=True),
    Rule("exposed_copies", "wait_rules.exposed_copies"),
    Rule("pageable_copies", "wait_rules.pageable_copies", _ORIGINS),
    Rule("casts_and_copies", "kernel_rules.casts_and_copies"),
    Rule("format_conversions", "kernel_rules.format_conversions"),
    Rule("unfused_attention", "kernel_rules.unfused_attention"),
    Rule("unfused_optimizer", "fusion.unfused_optimizer", framework),
    Rule("fusible_sequences", "fusion.fusible_sequences", _SHORT),
    Rule("garbage_collection", "wait_rules.garbage_collection", collections, cheap=True),
    Rule(
        "allocation_stalls",
        "wait_rules.allocation_stalls",
        both(device, host_in_steps),
        cheap=True,
    ),
    Rule("compile_stalls", "wait_rules.compile_stalls", host_in_steps, cheap=True),
    Rule("slow_steps", "memory_rules.slow_steps", steps, cheap=True),
    Rule("steps_grow", "memory_rules.steps_grow", steps, cheap=True),
    Rule("low_occupancy", "kernel_rules.low_occupancy", _GRIDS),
    Rule("memory_pressure", "memory_rules.memory_pressure", _MEMORY, cheap=True),
    Rule("memory_fragmentation", "memory_rules.memory_fragmentation", _MEMORY, cheap=True),
    Rule("allocation_retries", "memory_rules.allocation_retries", host),
    Rule("ai_cpu", "npu_rules.ai_cpu", _NPU),
    Rule("frequency_drop", "npu_rules.frequency_drop", _CLOCKS),
    Rule("idle_cores", "npu_rules.idle_cores", both(_NPU, told_by("npu_rules.lacks_cores"))),
    Rule("no_pipe_busy", "npu_rules.no_pipe_busy", _COUNTERS),
    Rule("unaligned_messages", "communication_rules.unaligned_messages", _MESSAGES),
    Rule("link_contention", "communication_rules.link_contention", _MESSAGES),
    Rule("retransmission", "communication_rules.retransmission", _MESSAGES),
    Rule("inefficient_operation", "kernel_rules.inefficient_operation", _PEAKS),
    Rule("full_precision", "kernel_rules.full_precision", _PEAKS),
)


# Up to this many tasks, all rules together take a tenth of a report's time.
QUICK_TASKS = 200_000


def advise(recording: Recording, *, quick: bool = False) -> Advice:
    """Evaluate the rules and return the findings, most expensive first.

    Args:
        recording: Recording to analyze.
        quick: If True, evaluate only cheap rules for a large recording.
    """
    only_cheap = quick and len(recording.tasks) > QUICK_TASKS
    cases = _cases(recording)
    found: list[Finding] = []
    missing: list[NotJudged] = []
    silent: list[str] = []
    for rule in RULES:
        if only_cheap and not rule.cheap:
            continue
        lacks = [rule.lacks(case) for case in cases]
        able = [case for case, why in zip(cases, lacks, strict=True) if why is None]
        own = [list(rule.judge(case)) for case in able]
        found += _merged(own)
        if not able:
            why = min(filter(None, lacks), default="the recording is empty")
            missing.append(NotJudged(rule.kind, why))
        elif not any(own):
            silent.append(rule.kind)
    steps = max((len(case.steps) for case in cases), default=0)
    paused = max((case.pauses for case in cases), key=lambda one: one.total_ns, default=None)
    whole = max((case.whole_ns / case.step_count for case in cases), default=0.0)
    return Advice(
        findings=tuple(ranked(found)),
        not_judged=tuple(missing),
        judged=tuple(silent),
        steps=steps,
        step_ms=round(whole / 1e6, 6) if whole else None,
        pauses=0 if paused is None else len(paused),
        paused_ms=0.0 if paused is None else round(paused.total_ns / 1e6, 6),
        complete=not only_cheap,
    )


def ranked(found: list[Finding]) -> list[Finding]:
    """Return findings, most expensive first."""
    return sorted(found, key=lambda one: (-one.cost_ms_per_step, one.kind, one.text))


def _cases(recording: Recording) -> list[Case]:
    if recording.clock == "device":
        return [Case(recording, name) for name in recording.devices]
    return [Case(recording, None)] if recording.clock == "host" else []


def _merged(of_devices: list[list[Finding]]) -> list[Finding]:
    """Merge the findings of one rule on several devices."""
    if len(of_devices) < 2:
        return [one for own in of_devices for one in own]
    by_kind: dict[str, list[Finding]] = {}
    for own in of_devices:
        for kind in dict.fromkeys(one.kind for one in own):
            alike = [one for one in own if one.kind == kind]
            by_kind.setdefault(kind, []).append(ranked(alike)[0])
    merged = []
    for alike in by_kind.values():
        first = ranked(alike)[0]
        others = len(alike) - 1
        if others:
            words = "another device" if others == 1 else f"{others} other devices"
            first = replace(first, text=f"{first.text}; the same on {words}")
        merged.append(replace(first, figures={**first.figures, "devices": len(alike)}))
    return merged
