"""The advice rules, the inputs that they require, and their evaluation.

A requirement returns what is missing as text, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from unified_prof.explain.advice import (
    communication_rules,
    fusion,
    host_rules,
    kernel_rules,
    memory_rules,
    npu_rules,
    wait_rules,
)
from unified_prof.explain.advice.device_context import DeviceContext
from unified_prof.recording.model import Advice, Finding, NotJudged
from unified_prof.recording.recording import Recording

# Requirement of a rule: returns what a recording lacks, or None.
Lacks = Callable[[DeviceContext], str | None]

MIN_TASKS = 50  # Fewer tasks without a step are not a loop, so idle time may be intended.


def device(context: DeviceContext) -> str | None:
    """Require device tasks."""
    return "no device tasks recorded" if context.device is None else None


def host(context: DeviceContext) -> str | None:
    """Require device tasks and host calls."""
    if (missing := device(context)) is not None:
        return missing
    return "no host calls recorded, so idle reasons are unknown" if _has_no_host(context) else None


def loop(context: DeviceContext) -> str | None:
    """Require device tasks, host calls, and steps or enough tasks."""
    if (missing := host(context)) is not None:
        return missing
    if not context.recording.steps and len(context.recording.tasks) < MIN_TASKS:
        return f"no steps and fewer than {MIN_TASKS} tasks recorded"
    return None


def launches(context: DeviceContext) -> str | None:
    """Require a loop with runtime calls."""
    if (missing := loop(context)) is not None:
        return missing
    if not len(context.recording.host_calls):
        return "no runtime calls recorded (table CANN_API)"
    return None


def framework(context: DeviceContext) -> str | None:
    """Require framework operations."""
    if context.recording.framework is None:
        return "no framework operations recorded (table PYTORCH_API)"
    return None


def steps(context: DeviceContext) -> str | None:
    """Require enough steps for a meaningful median."""
    if len(context.recording.steps) > memory_rules.MIN_STEPS:
        return None
    return f"fewer than {memory_rules.MIN_STEPS + 1} steps recorded"


def host_in_steps(context: DeviceContext) -> str | None:
    """Require host data and recorded steps."""
    if _has_no_host(context):
        return "no host data recorded"
    return None if context.steps else "no steps recorded, so warm-up cannot be distinguished"


def tables(*names: str, why: str) -> Lacks:
    """Return a requirement for at least one of several tables."""

    def lacks(context: DeviceContext) -> str | None:
        present = set(names) & set(context.recording.source.tables)
        return None if present else f"{why} (table {' or '.join(names)})"

    return lacks


def npu(why: str) -> Lacks:
    """Return a requirement for an NPU recording; `why` is the text for GPU recordings."""

    def lacks(context: DeviceContext) -> str | None:
        if "UPROF_GPU_TASKS" in context.recording.source.tables:
            return f"recorded on a GPU: {why}"
        return device(context)

    return lacks


def both(*requirements: Lacks) -> Lacks:
    """Return a requirement that combines several; the first missing one is reported."""

    def lacks(context: DeviceContext) -> str | None:
        return next(
            (why for requirement in requirements if (why := requirement(context)) is not None), None
        )

    return lacks


def _has_no_host(context: DeviceContext) -> bool:
    return not len(context.recording.host_calls) and context.recording.framework is None


@dataclass(frozen=True, slots=True)
class Rule:
    """An advice rule: a generator of at most a few findings of its kind, and what it requires."""

    evaluate: Callable[[DeviceContext], Iterator[Finding]]
    lacks: Lacks = device
    cheap: bool = False  # True if it only uses data that every report reads.

    @property
    def kind(self) -> str:
        """Slug of its findings, the name of the generator."""
        return self.evaluate.__name__


_COLLECTIVES = both(device, tables("COMMUNICATION_OP", why="no collectives recorded"))
_MESSAGES = both(device, tables("COMMUNICATION_TASK_INFO", why="no collective tasks recorded"))
_COPY_KINDS = both(device, tables("UPROF_GPU_TASKS", why="memory kind of copies not recorded"))
_GRIDS = both(device, tables("UPROF_GPU_TASKS", why="grid sizes not recorded"))
_CLOCKS = both(device, tables("AICORE_FREQ", why="AI core clocks not recorded"))
_COUNTERS = both(device, tables("TASK_PMU_INFO", why="core counters not recorded"))
_COLLECTIONS = tables("GC_RECORD", why="no garbage collections recorded")
_MEMORY = both(
    device,
    tables("MEMORY_RECORD", why="memory use not recorded, torch.profiler: profile_memory=True"),
    memory_rules.lacks_size,
)
_NPU = npu("only NPUs have AI CPUs, cores and pipes")
_SHORT = npu("host_bound and small_kernels cover short kernels there")

# Rules that explain idle time by a specific cause come before those for the rest of it.
# Skipped rules are listed in this order.
RULES: tuple[Rule, ...] = (
    Rule(wait_rules.garbage_collection, _COLLECTIONS, cheap=True),
    Rule(memory_rules.allocation_retries, host),
    Rule(wait_rules.allocation_stalls, both(device, host_in_steps), cheap=True),
    Rule(wait_rules.compile_stalls, host_in_steps, cheap=True),
    Rule(wait_rules.blocking_launches, loop),
    Rule(wait_rules.synchronising_calls, loop),
    Rule(host_rules.input_wait, framework, cheap=True),
    Rule(host_rules.host_bound, launches, cheap=True),
    Rule(host_rules.small_kernels, launches),
    Rule(host_rules.unrecorded_work, host, cheap=True),
    Rule(host_rules.late_work, host, cheap=True),
    Rule(communication_rules.exposed_communication, _COLLECTIVES, cheap=True),
    Rule(communication_rules.small_buckets, _COLLECTIVES, cheap=True),
    Rule(wait_rules.exposed_copies),
    Rule(wait_rules.pageable_copies, _COPY_KINDS),
    Rule(kernel_rules.casts_and_copies),
    Rule(kernel_rules.format_conversions),
    Rule(kernel_rules.unfused_attention),
    Rule(fusion.unfused_optimizer, framework),
    Rule(npu_rules.fusible_sequences, _SHORT),
    Rule(fusion.unfused_elementwise, both(device, framework)),
    Rule(memory_rules.slow_steps, steps, cheap=True),
    Rule(memory_rules.steps_grow, steps, cheap=True),
    Rule(kernel_rules.low_occupancy, _GRIDS),
    Rule(memory_rules.memory_pressure, _MEMORY, cheap=True),
    Rule(memory_rules.memory_fragmentation, _MEMORY, cheap=True),
    Rule(npu_rules.ai_cpu, _NPU),
    Rule(npu_rules.frequency_drop, _CLOCKS),
    Rule(npu_rules.idle_cores, both(_NPU, npu_rules.lacks_cores)),
    Rule(npu_rules.no_pipe_busy, _COUNTERS),
    Rule(communication_rules.unaligned_messages, _MESSAGES),
    Rule(communication_rules.link_contention, _MESSAGES),
    Rule(communication_rules.retransmission, _MESSAGES),
    Rule(kernel_rules.inefficient_operation, both(device, kernel_rules.lacks_roofline)),
    Rule(kernel_rules.full_precision, both(device, kernel_rules.lacks_precision)),
)

QUICK_TASKS = 200_000  # Up to this many tasks, all rules together take a tenth of a report's time.


def advise(recording: Recording, *, quick: bool = False) -> Advice:
    """Evaluate the rules and return the findings, most expensive first.

    Args:
        recording: Recording to analyze.
        quick: If True, evaluate only cheap rules for a large recording.
    """
    only_cheap = quick and len(recording.tasks) > QUICK_TASKS
    contexts = _contexts(recording)
    findings: list[Finding] = []
    skipped: list[NotJudged] = []
    silent: list[str] = []
    for rule in RULES:
        if only_cheap and not rule.cheap:
            continue
        missing = [rule.lacks(context) for context in contexts]
        by_device = [
            list(rule.evaluate(context))
            for context, why in zip(contexts, missing, strict=True)
            if why is None
        ]
        findings += _merge_devices(by_device)
        if not by_device:
            why = min(filter(None, missing), default="the recording is empty")
            skipped.append(NotJudged(rule.kind, why))
        elif not any(by_device):
            silent.append(rule.kind)
    steps = max((len(context.steps) for context in contexts), default=0)
    pauses = max(
        (context.pauses for context in contexts), key=lambda context: context.total_ns, default=None
    )
    step_ns = max((context.analyzed_ns / context.step_count for context in contexts), default=0.0)
    return Advice(
        findings=tuple(ranked(findings)),
        not_judged=tuple(skipped),
        judged=tuple(silent),
        steps=steps,
        step_ms=round(step_ns / 1e6, 6) if step_ns else None,
        pauses=0 if pauses is None else len(pauses),
        paused_ms=0.0 if pauses is None else round(pauses.total_ns / 1e6, 6),
        complete=not only_cheap,
    )


def ranked(findings: list[Finding]) -> list[Finding]:
    """Return findings, most expensive first."""
    return sorted(
        findings, key=lambda finding: (-finding.cost_ms_per_step, finding.kind, finding.text)
    )


def _contexts(recording: Recording) -> list[DeviceContext]:
    if recording.clock == "device":
        return [DeviceContext(recording, name) for name in recording.devices]
    return [DeviceContext(recording, None)] if recording.clock == "host" else []


def _merge_devices(by_device: list[list[Finding]]) -> list[Finding]:
    """Merge the findings of one rule on several devices, by kind."""
    if len(by_device) < 2:
        return [finding for findings in by_device for finding in findings]
    by_kind: dict[str, list[Finding]] = {}
    for findings in by_device:
        for kind in dict.fromkeys(finding.kind for finding in findings):
            same_kind = [finding for finding in findings if finding.kind == kind]
            by_kind.setdefault(kind, []).append(ranked(same_kind)[0])
    merged = []
    for findings in by_kind.values():
        first, others = ranked(findings)[0], len(findings) - 1
        if others:
            devices = "another device" if others == 1 else f"{others} other devices"
            first = replace(first, text=f"{first.text}; the same on {devices}")
        merged.append(replace(first, figures={**first.figures, "devices": len(findings)}))
    return merged
