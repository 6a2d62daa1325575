"""Which rules there are, and all of them asked about a recording.

A rule is a function in a module of `rules`, and its entry here, which says what it needs: of a
recording that lacks it, the module is not imported.
"""

from __future__ import annotations

from dataclasses import replace

from unified_prof.analysis.explain.advice import lacking
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.lacking import both, npu, tables, told_by
from unified_prof.analysis.explain.advice.rule import Rule
from unified_prof.analysis.finding import Advice, Finding, NotJudged
from unified_prof.analysis.recording import Recording

_LAUNCHES = both(lacking.loop, lacking.launches)
_COLLECTIVES = tables("COMMUNICATION_OP", why="no collective was recorded")
_MESSAGES = tables("COMMUNICATION_TASK_INFO", why="no part of a collective was recorded")
_ORIGINS = tables("UPROF_GPU_TASKS", why="which memory copies came from was not recorded")
_GRIDS = tables("UPROF_GPU_TASKS", why="no grid of kernels was recorded")
_CLOCKS = tables("AICORE_FREQ", why="no clock of AI cores was recorded")
_COUNTERS = tables("TASK_PMU_INFO", why="no counter of the cores was recorded")
_NPU = npu("AI CPUs, cores and pipes are an NPU's")
_SHORT = npu("what it loses between short kernels is host_bound and small_kernels")
_MEMORY = both(lacking.device, lacking.memory, told_by("memory.lacks_size"))
_PEAKS = both(lacking.device, lacking.shapes, told_by("hardware.lacks_peaks"))

RULES: tuple[Rule, ...] = (
    Rule("host_bound", "host.host_bound", _LAUNCHES, cheap=True),
    Rule("small_kernels", "host.small_kernels", _LAUNCHES),
    Rule("input_wait", "input.input_wait", lacking.framework, cheap=True),
    Rule("late_work", "late.late_work", lacking.host, cheap=True),
    Rule("synchronising_calls", "synchronising.synchronising_calls", lacking.loop),
    Rule("blocking_launches", "synchronising.blocking_launches", lacking.loop),
    Rule("exposed_communication", "communication.exposed_communication", _COLLECTIVES, cheap=True),
    Rule("small_buckets", "communication.small_buckets", _COLLECTIVES, cheap=True),
    Rule("exposed_copies", "copies.exposed_copies"),
    Rule("pageable_copies", "copies.pageable_copies", _ORIGINS),
    Rule("casts_and_copies", "casts.casts_and_copies"),
    Rule("format_conversions", "casts.format_conversions"),
    Rule("unfused_attention", "attention.unfused_attention"),
    Rule("unfused_optimizer", "optimizer.unfused_optimizer", lacking.framework),
    Rule("fusible_sequences", "fusible.fusible_sequences", _SHORT),
    Rule("garbage_collection", "stalls.garbage_collection", lacking.collections, cheap=True),
    Rule(
        "allocation_stalls",
        "stalls.allocation_stalls",
        both(lacking.device, lacking.host_in_steps),
        cheap=True,
    ),
    Rule("compile_stalls", "stalls.compile_stalls", lacking.host_in_steps, cheap=True),
    Rule("slow_steps", "steps.slow_steps", lacking.steps, cheap=True),
    Rule("steps_grow", "steps.steps_grow", lacking.steps, cheap=True),
    Rule("low_occupancy", "occupancy.low_occupancy", _GRIDS),
    Rule("memory_pressure", "memory.memory_pressure", _MEMORY, cheap=True),
    Rule("memory_fragmentation", "memory.memory_fragmentation", _MEMORY, cheap=True),
    Rule("allocation_retries", "memory.allocation_retries", lacking.host),
    Rule("ai_cpu", "npu.ai_cpu", _NPU),
    Rule("frequency_drop", "npu.frequency_drop", _CLOCKS),
    Rule("idle_cores", "npu.idle_cores", both(_NPU, told_by("npu.lacks_cores"))),
    Rule("no_pipe_busy", "npu.no_pipe_busy", _COUNTERS),
    Rule("unaligned_messages", "links.unaligned_messages", _MESSAGES),
    Rule("link_contention", "links.link_contention", _MESSAGES),
    Rule("retransmission", "links.retransmission", _MESSAGES),
    Rule("inefficient_operation", "hardware.inefficient_operation", _PEAKS),
    Rule("full_precision", "hardware.full_precision", _PEAKS),
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
