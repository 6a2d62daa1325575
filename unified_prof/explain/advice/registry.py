"""What rules need of a recording, told of it before a rule is imported.

A condition returns what is missing, in words; None: nothing is.

A rule: what it looks for, what it needs, and where it is judged.

Which rules there are, and all of them asked about a recording.

A rule is a function in a module of `rules`, and its entry here, which says what it needs: of a
recording that lacks it, the module is not imported.
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
    if not peaks.offered(case.recording):
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
        import_module(f"unified_prof.explain.advice.{module}"), function
    )
    return found


def _has_no_host(case: Case) -> bool:
    return not len(case.recording.host_calls) and case.recording.framework is None


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause to look for."""

    kind: str
    """Kind of its findings."""
    name: str
    """What judges, `module.function` of `rules`: imported where a recording has what it needs."""
    lacks: Lacks = device
    cheap: bool = False
    """Whether it asks only for what a report joins anyway."""

    def judge(self, case: Case) -> Iterator[Finding]:
        """Yield what it finds; the case lacks nothing."""
        found: Iterator[Finding] = of_rules(self.name)(case)
        yield from found


_LAUNCHES = both(loop, launches)
_COLLECTIVES = tables("COMMUNICATION_OP", why="no collective was recorded")
_MESSAGES = tables("COMMUNICATION_TASK_INFO", why="no part of a collective was recorded")
_ORIGINS = tables("UPROF_GPU_TASKS", why="which memory copies came from was not recorded")
_GRIDS = tables("UPROF_GPU_TASKS", why="no grid of kernels was recorded")
_CLOCKS = tables("AICORE_FREQ", why="no clock of AI cores was recorded")
_COUNTERS = tables("TASK_PMU_INFO", why="no counter of the cores was recorded")
_NPU = npu("AI CPUs, cores and pipes are an NPU's")
_SHORT = npu("what it loses between short kernels is host_bound and small_kernels")
_MEMORY = both(device, memory, told_by("memory_rules.lacks_size"))
_PEAKS = both(device, shapes, told_by("kernel_rules.lacks_peaks"))

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
"""In the order in which what cannot be judged is told."""


QUICK_TASKS = 200_000
"""Up to so many tasks all rules together take a tenth of what a report of them takes."""


def advise(recording: Recording, *, quick: bool = False) -> Advice:
    """Ask the rules what could be better, the costliest first.

    Args:
        recording: what to judge.
        quick: whether to ask of a large recording only the rules that are cheap.
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
    """Return findings, the costliest first."""
    return sorted(found, key=lambda one: (-one.cost_ms_per_step, one.kind, one.text))


def _cases(recording: Recording) -> list[Case]:
    if recording.clock == "device":
        return [Case(recording, name) for name in recording.devices]
    return [Case(recording, None)] if recording.clock == "host" else []


def _merged(of_devices: list[list[Finding]]) -> list[Finding]:
    """Return what one rule found; what several devices have in common is said once."""
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
