"""The advice rules, the inputs that they require, and their evaluation.

A requirement returns what is missing as text, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Literal

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import EMPTY
from unified_prof.explain.advice import (
    communication_rules,
    host_only,
    host_rules,
    kernel_rules,
    memory_rules,
    npu_rules,
    optimizer_rules,
    product_rules,
    roofline_rules,
    sequence_rules,
    tracked_operations,
    wait_rules,
)
from unified_prof.explain.advice.device_context import Cause, DeviceContext
from unified_prof.explain.advice.host_calls import before_tasks, longest_call
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MIN_SHARE,
    WARN_SHARE,
    duration,
    percent,
)
from unified_prof.explain.roofline import peaks
from unified_prof.explain.schedule.builder import Scheduled, schedule_of
from unified_prof.explain.schedule.selection import Selection, share_before
from unified_prof.explain.what_if import Replay
from unified_prof.recording.model import Advice, Finding, NotJudged
from unified_prof.recording.names import CALLS_GPU, LAUNCHES, LAUNCHES_GRAPH, USES_GPU
from unified_prof.recording.recording import Recording
from unified_prof.recording.steps import FOREVER

# Requirement of a rule: returns what a recording lacks, or None.
Lacks = Callable[[DeviceContext], str | None]

MIN_TASKS = 50  # Fewer tasks without a step are not a loop, so idle time may be intended.


def require(condition: Callable[[DeviceContext], object], why: str) -> Lacks:
    """Return a requirement that holds if a condition does; `why` says what is missing."""
    return lambda context: None if condition(context) else why


def tables(*names: str, why: str) -> Lacks:
    """Return a requirement for at least one of several tables."""
    return require(
        lambda context: set(names) & set(context.recording.source.tables),
        f"{why} (table {' or '.join(names)})",
    )


def both(*requirements: Lacks) -> Lacks:
    """Return a requirement that combines several; the first missing one is reported."""
    return lambda context: next(filter(None, (lacks(context) for lacks in requirements)), None)


def _has_host(context: DeviceContext) -> bool:
    return len(context.recording.host_calls) > 0 or context.recording.framework is not None


anything = require(lambda context: True, "")
device = require(lambda context: context.device is not None, "no device tasks recorded")
host = both(device, require(_has_host, "no host calls recorded, so idle reasons are unknown"))
loop = both(
    host,
    require(
        lambda context: context.recording.steps or len(context.recording.tasks) >= MIN_TASKS,
        f"no steps and fewer than {MIN_TASKS} tasks recorded",
    ),
)
launches = both(
    loop,
    require(
        lambda context: len(context.recording.host_calls),
        "no runtime calls recorded (table CANN_API)",
    ),
)
framework = require(
    lambda context: context.recording.framework is not None,
    "no framework operations recorded (table PYTORCH_API)",
)
steps = require(
    lambda context: len(context.recording.steps) > memory_rules.MIN_STEPS,
    f"fewer than {memory_rules.MIN_STEPS + 1} steps recorded",
)
host_in_steps = both(
    require(_has_host, "no host data recorded"),
    require(lambda context: context.steps, "no steps recorded, so warm-up cannot be distinguished"),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """An advice rule: a generator of at most a few findings of its kind, and what it requires."""

    evaluate: Callable[[DeviceContext], Iterator[Cause]]
    lacks: Lacks = device
    cheap: bool = False  # True if it only uses data that every report reads.
    only: Literal["GPU", "NPU"] | None = None  # The kind of device to which it applies.

    @property
    def kind(self) -> str:
        """Slug of its findings, the name of the generator."""
        return self.evaluate.__name__

    def causes(self, context: DeviceContext) -> list[Cause]:
        """Return its findings with their kinds; those about host time with profiler overhead."""
        result = []
        for cause in self.evaluate(context):
            finding = replace(cause.finding, kind=cause.finding.kind or self.kind)
            if context.device is None and context.profiler_overhead:
                sure = "likely" if finding.sure == "certain" else finding.sure
                finding = replace(finding, sure=sure, text=finding.text + context.slowed_host)
            if context.recording.cut_ns != FOREVER:  # Old traces lack events before the cut, too.
                finding = replace(finding, sure="possible")
            result.append(replace(cause, finding=finding))
        return result


def sampled_trace(context: DeviceContext) -> Iterator[Cause]:
    """Find traces from which most operations were removed after they were recorded."""
    if note := context.recording.sample_note:
        yield context.finding(
            0,
            f"{note}; host and device probably work where the file shows nothing",
            advice="analyze the trace as torch.profiler wrote it; times of steps, annotations and "
            "single kernels are right",
            sure="likely",
        )


MIN_RANGES = 10  # Minimum number of counter ranges: a program may profile a few kernels on purpose.


def kernel_replay(context: DeviceContext) -> Iterator[Cause]:
    """Find CUPTI range profiling, which serializes kernels and runs each of them repeatedly."""
    if (ranges := _counter_ranges(context)) < MIN_RANGES:
        return
    yield context.finding(
        0,
        f"counter profiling: times are not those of the program; for {ranges} ranges of counters, "
        "CUPTI runs kernels one at a time and repeatedly, while the host waits",
        advice="use this recording for its counters; record times without CUPTI range profiling "
        "(no CUPTI_PROFILER metrics in the configuration of torch.profiler)",
        sure="certain",
        figures={"ranges": ranges},
    )


def _counter_ranges(context: DeviceContext) -> int:
    if "UPROF_TRACE_EVENTS" not in context.recording.source.tables:
        return 0
    rows = context.recording.source.rows(
        "SELECT count(*) FROM UPROF_TRACE_EVENTS WHERE category IN "
        "(SELECT id FROM STRING_IDS WHERE value = 'cuda_profiler_range')"
    )
    return int(rows[0][0])


def gpu_not_recorded(context: DeviceContext) -> Iterator[Cause]:
    """Find programs that use a GPU in recordings without device activity."""
    recording, found = context.recording, list[str]()
    if context.device is not None or _counter_ranges(context):
        return
    if len(calls := recording.host_calls):
        called = recording.strings.texts(calls.names[0])
        found += [text for text in called if text and LAUNCHES(text) and CALLS_GPU(text)]
    if (framework := recording.framework) is not None:
        texts, number = framework.names(framework.matching(USES_GPU))
        found += [texts[one] for one in np.unique(number).tolist()]
    if not found:
        return
    yield context.finding(
        0,
        f"no GPU activity recorded: the program uses a GPU ({', '.join(found[:3])}), but kernels "
        "are missing; all times are those of the host, which may wait for the GPU",
        advice="record activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] of torch.profiler, "
        "or --trace=cuda,nvtx of nsys; a second profiler on the GPU, or missing rights to its "
        "counters, also suppress its activity",
        sure="certain",
        figures={"names": len(found)},
    )


def operations_of_steps(context: DeviceContext) -> Iterator[Cause]:
    """Find costly operations, chains, gaps and loops in recordings without a device."""
    rules = tracked_operations
    anywhere = (rules.unfused_chains, rules.costly_operations, rules.time_between_operations)
    yield from host_only.evaluate(context, anywhere, in_steps=(rules.loops,))
    yield from host_only.by_inputs(context)
    if context.device is None:
        yield from product_rules.repeated_sequences(context)


_COLLECTIVES = both(device, tables("COMMUNICATION_OP", why="no collectives recorded"))
_MESSAGES = both(device, tables("COMMUNICATION_TASK_INFO", why="no collective tasks recorded"))
_SHAPES = require(lambda context: peaks.is_available(context.recording), roofline_rules.NO_SHAPES)
_GRIDS = both(device, tables("UPROF_GPU_TASKS", why="grid sizes not recorded"))
_CLOCKS = both(device, tables("AICORE_FREQ", why="AI core clocks not recorded"))
_COUNTERS = both(
    device, tables("TASK_PMU_INFO", "UPROF_TASK_PMU_INFO", why="core counters not recorded")
)
_COLLECTIONS = tables("GC_RECORD", why="no garbage collections recorded")
_MEMORY = both(
    device,
    tables("MEMORY_RECORD", why="memory use not recorded, torch.profiler: profile_memory=True"),
    require(memory_rules.device_bytes, "memory size of the device not recorded"),
)

# Rules for a specific cause come before those for the rest of the same time: each cause costs what
# it gains after those before it. Skipped rules are listed in this order.
RULES: tuple[Rule, ...] = (
    Rule(sampled_trace, anything, cheap=True),
    Rule(kernel_replay, anything, cheap=True),
    Rule(gpu_not_recorded, anything, cheap=True),
    Rule(wait_rules.garbage_collection, _COLLECTIONS, cheap=True),
    Rule(memory_rules.allocation_retries, host),
    Rule(wait_rules.allocation_stalls, both(device, host_in_steps), cheap=True),
    Rule(wait_rules.compile_stalls, host_in_steps, cheap=True),
    Rule(host_rules.input_wait, framework, cheap=True),
    Rule(operations_of_steps, framework),
    Rule(kernel_rules.costly_operations, both(device, framework)),
    Rule(wait_rules.blocking_launches, loop),
    Rule(wait_rules.synchronising_calls, loop),
    Rule(wait_rules.exposed_copies),
    Rule(optimizer_rules.unfused_optimizer, framework),
    Rule(optimizer_rules.parameter_loop, both(device, framework)),
    Rule(npu_rules.unaligned_messages, _MESSAGES, only="NPU"),
    Rule(communication_rules.small_buckets, _COLLECTIVES, cheap=True),
    Rule(host_rules.host_bound, launches, cheap=True),
    Rule(host_rules.unrecorded_work, host, cheap=True),
    Rule(host_rules.late_work, host, cheap=True),
    Rule(npu_rules.retransmission, _MESSAGES, only="NPU"),
    Rule(npu_rules.link_contention, _MESSAGES, only="NPU"),
    Rule(communication_rules.repeated_reductions, both(_COLLECTIVES, framework)),
    Rule(communication_rules.exposed_communication, _COLLECTIVES, cheap=True),
    Rule(
        communication_rules.contention, both(_COLLECTIVES, _GRIDS, framework, _SHAPES), only="GPU"
    ),
    Rule(product_rules.avoidable_products, both(device, framework, _SHAPES)),
    Rule(product_rules.unfused_cross_entropy, both(device, framework, _SHAPES)),
    Rule(optimizer_rules.dense_embedding),
    Rule(kernel_rules.dequantization, both(device, framework)),
    Rule(kernel_rules.masks, both(device, framework)),
    Rule(kernel_rules.fills),
    Rule(npu_rules.unfused_operations, only="NPU"),
    Rule(kernel_rules.format_conversions),
    Rule(kernel_rules.unfused_attention),
    Rule(kernel_rules.recomputation, framework),
    Rule(npu_rules.frequency_drop, _CLOCKS, only="NPU"),
    Rule(memory_rules.kernels_slow_down, both(device, steps)),
    Rule(memory_rules.slow_steps, steps, cheap=True),
    Rule(memory_rules.steps_grow, steps, cheap=True),
    Rule(kernel_rules.serialized_streams, both(_GRIDS, host), only="GPU"),
    Rule(kernel_rules.low_occupancy, _GRIDS, only="GPU"),
    Rule(memory_rules.memory_pressure, _MEMORY, cheap=True),
    Rule(memory_rules.memory_fragmentation, _MEMORY, cheap=True),
    Rule(npu_rules.ai_cpu, only="NPU"),
    Rule(npu_rules.idle_cores, both(device, npu_rules.lacks_cores), only="NPU"),
    Rule(kernel_rules.unfused_elementwise, both(device, framework)),
    Rule(sequence_rules.fusible_sequences, only="NPU"),
    Rule(kernel_rules.casts_and_copies),
    Rule(npu_rules.no_pipe_busy, _COUNTERS, only="NPU"),
    Rule(roofline_rules.inefficient_operation, both(device, roofline_rules.lacks_roofline)),
    Rule(roofline_rules.full_precision, both(device, roofline_rules.lacks_precision)),
)

# Share of long gaps in idle time from which the host's work, not a synchronization, is the cause.
LONG_WORK_SHARE = 0.75
# The host is slow throughout if it alone gains at least this share of the gain of both, and the
# synchronizations alone a share between these.
SLOW_HOST_SHARE, MIN_WAITS_SHARE, MAX_WAITS_SHARE = 0.9, 0.1, 0.75
# Up to this many tasks, all rules together take a tenth of a report's time.
QUICK_TASKS = 200_000
# If there are more, only the first steps are replayed.
REPLAYED_TASKS = 50_000
# Minimum share of the time for a possible cause that saves time only together with others.
UNSURE_HIDDEN_SHARE = 0.10
# Minimum difference of two shares for both to be shown.
SHOWN_SHARE = 0.005
# Minimum share of the time for exposed communication to be mentioned if it saves no time.
MENTIONED_SHARE = 0.15
_AS_LONG = "the step is as long without it, because the host or another rank limits it"


def advise(recording: Recording, *, quick: bool = False) -> Advice:
    """Evaluate the rules and return the findings, most expensive first.

    Args:
        recording: Recording to analyze.
        quick: If True, evaluate only cheap rules for a large recording, and estimate costs.
    """
    only_cheap = quick and len(recording.tasks) > QUICK_TASKS
    devices = {"device": recording.devices, "host": (None,), "none": ()}[recording.clock]
    contexts = [DeviceContext(recording, name, quick=only_cheap) for name in devices]
    causes: list[Cause] = []
    skipped: list[NotJudged] = []
    evaluated: list[str] = []
    kind = "GPU" if "UPROF_GPU_TASKS" in recording.source.tables else "NPU"
    empty = "the recording is empty"
    if recording.has_memory_blocks:
        empty = "a memory snapshot has no times (`uprof report --by line` shows its memory)"
    for rule in RULES:
        if only_cheap and not rule.cheap:
            continue
        if rule.only not in (None, kind):
            why = f"only for {rule.only}s, recorded on {'a GPU' if kind == 'GPU' else 'an NPU'}"
            skipped.append(NotJudged(rule.kind, why, applies=False))
            continue
        if recording.sample and rule.evaluate is not sampled_trace:
            skipped.append(NotJudged(rule.kind, "most operations were removed from the trace"))
            continue
        missing = {context: rule.lacks(context) for context in contexts}
        if None in missing.values():
            evaluated.append(rule.kind)
            complete = [context for context, why in missing.items() if why is None]
            by_device = {str(context.device): rule.causes(context) for context in complete}
            causes += _merge_devices(by_device, of_several=len(contexts) > 1)
        else:
            why = min(filter(None, missing.values()), default=empty)
            skipped.append(NotJudged(rule.kind, why))
    longest = max(contexts, key=lambda context: context.analyzed_ns, default=None)
    findings: list[Finding] = []
    together_ms: float | None = None
    if longest is not None and causes:
        scheduled = None if only_cheap else schedule_of(recording, REPLAYED_TASKS)
        causes = _host_and_waits(causes, Replay(recording, scheduled) if scheduled else None)
        findings, together_ms = _priced(causes, longest, scheduled)
    pauses = max((one.pauses for one in contexts), key=lambda one: one.total_ns, default=EMPTY)
    step_ns = 0.0 if longest is None else longest.analyzed_ns / longest.step_count
    found = {finding.kind for finding in findings}
    before = before_tasks(recording, longest.device, longest.analyzed_ns) if longest else EMPTY
    return Advice(
        findings=tuple(ranked(findings, step_ns / 1e6)),
        not_judged=tuple(skipped),
        judged=tuple(kind for kind in evaluated if kind not in found),
        steps=max((len(context.steps) for context in contexts), default=0),
        recorded_steps=len(recording.steps),
        step_ms=round(step_ns / 1e6, 6) if step_ns else None,
        together_ms=together_ms,
        pauses=len(pauses),
        paused_ms=round(pauses.total_ns / 1e6, 6),
        paused_in=longest_call(recording, pauses),
        before_ms=round(before.total_ns / 1e6, 6) if len(before) else None,
        before_in=longest_call(recording, before),
        replayed_share=round(_replayed_share(recording), 4),
        complete=not only_cheap,
    )


def _host_and_waits(causes: list[Cause], replay: Replay | None) -> list[Cause]:
    """Return the causes so that the synchronizations before work of the host do not hide it.

    The device waits for long work after them whether the host waited for the device before it or
    not: both are one cause. A host that is slow throughout comes before the synchronizations.
    """
    kinds = [cause.finding.kind for cause in causes]
    if "host_bound" not in kinds or "synchronising_calls" not in kinds:
        return causes
    sync, work = (causes[kinds.index(kind)] for kind in ("synchronising_calls", "host_bound"))
    assert work.change is not None
    assert sync.change is not None
    joint = work.change | sync.change
    idle_ns = max(cause.finding.figures["idle_ns"] for cause in (sync, work))
    if work.finding.figures["long_gaps_ns"] >= LONG_WORK_SHARE * idle_ns:
        cost = work.finding.cost_ms_per_step + sync.finding.figures["copies_ns"] / 1e6
        evidence = (*work.finding.evidence, *sync.finding.evidence)[:EVIDENCE_ROWS]
        finding = replace(work.finding, cost_ms_per_step=cost, evidence=evidence)
        merged = replace(work, finding=finding, change=joint)
        return [merged if one is sync else one for one in causes if one is not work]
    if replay is None:
        return causes
    work_ns, sync_ns, both_ns = (
        replay.with_change(change).gain().gain_ns for change in (work.change, sync.change, joint)
    )
    is_slow = work_ns >= SLOW_HOST_SHARE * both_ns
    if not is_slow or not MIN_WAITS_SHARE * both_ns <= sync_ns <= MAX_WAITS_SHARE * both_ns:
        return causes
    rest = [one for one in causes if one is not sync]
    at = rest.index(work) + 1
    return [*rest[:at], sync, *rest[at:]]


def _replayed_share(recording: Recording) -> float:
    """Return the share of the device time in graph replays whose operations are not known."""
    calls = recording.host_calls
    if recording.framework is None or recording.captured_in is not None or not len(calls):
        return 0.0
    replays = np.append(calls.matching(recording.strings, LAUNCHES_GRAPH), False)
    if not replays.any():
        return 0.0
    total_ns = replayed_ns = 0
    for window in recording.work.windows():
        launched = replays[calls.launching(window.connection)]
        total_ns += int(window.duration_ns.sum())
        replayed_ns += int(window.duration_ns[launched].sum())
    return replayed_ns / total_ns if total_ns else 0.0


def _priced(
    causes: list[Cause], context: DeviceContext, scheduled: Scheduled | None
) -> tuple[list[Finding], float]:
    """Return the findings that save time, with their costs, and the gain of all together, ms.

    The cost of a finding is what the replayed schedule gains without its cause, alone or after
    the causes before it, whichever is less: costs never add up to more than the joint gain.
    """
    per_step, step_ms = 1e6 * context.step_count, context.analyzed_ns / context.step_count / 1e6
    findings = []
    joint = None if scheduled is None else Replay(context.recording, scheduled)
    is_per_step = bool(context.steps)
    has_launches = scheduled is not None and bool((scheduled.tasks.call >= 0).any())
    joint_ms = measured_ms = all_outside_ms = excess_ms = 0.0
    for cause in causes:
        cost = cause.finding.cost_ms_per_step
        change = cause.change
        if change is not None and change.work is None and not has_launches:
            change = None  # The recording does not show which tasks wait for the host.
        if change is not None and not _is_even(context, change, scheduled):
            change = None
        if scheduled is None or joint is None or change is None:
            left_ms = step_ms - joint_ms - measured_ms
            if cause.outside_ns is None:
                cost = min(cost, left_ms)
                measured_ms += cost
            else:
                # Other findings explain what makes an analyzed step long.
                outside_ms = cause.outside_ns / per_step
                inside_ms = min(max(cost - outside_ms - joint_ms, 0.0), left_ms)
                cost = inside_ms + outside_ms
                measured_ms, all_outside_ms = measured_ms + inside_ms, all_outside_ms + outside_ms
                if cost < MIN_SHARE * step_ms:
                    continue
        else:
            scale = context.analyzed_ns / max(_replayed_ns(context, scheduled), 1) / per_step
            least_ms, most_ms = cause.least * step_ms, step_ms - measured_ms
            if change.gaps and joint_ms:
                # Gaps of a device that does not wait for the host are not host-bound.
                without_gaps = replace(change, gaps=False)
                after_ms = joint.with_change(without_gaps).gain().gain_ns * scale
                change = change if after_ms - joint_ms > least_ms else without_gaps
            alone = Replay(context.recording, scheduled).with_change(change)
            alone_ms = alone.gain().gain_ns * scale
            joint.change(change)
            after_ms = min(max(joint.gain().gain_ns * scale, joint_ms), most_ms)
            added_ms, joint_ms = after_ms - joint_ms, after_ms
            cost = min(alone_ms, added_ms)
            if cause.finding.kind == "host_bound":
                # A faster host removes idle time; that streams overlap more is a guess.
                most_ms = max(cause.finding.cost_ms_per_step, context.idle_ns / per_step)
                excess_ms += max(cost - most_ms, 0.0)
                cost = min(cost, most_ms)
                named_ms = cause.finding.figures["idle_ns"] / per_step
                cause = _with_other_idle(cause, named_ms / step_ms, cost / step_ms)
            if cost <= least_ms:
                # Others explain this time, or hide it as long as they are not fixed.
                hidden = WARN_SHARE if cause.finding.sure != "possible" else UNSURE_HIDDEN_SHARE
                if alone_ms <= least_ms and added_ms > max(least_ms, hidden * step_ms):
                    findings.append(_only_together(cause.finding, added_ms, is_per_step))
                elif (
                    cause.finding.kind == "exposed_communication"
                    and cause.finding.cost_ms_per_step >= MENTIONED_SHARE * step_ms
                ):
                    text = f"{cause.finding.text}; saves time only together with others: {_AS_LONG}"
                    findings.append(
                        replace(cause.finding, cost_ms_per_step=0.0, text=text, sure="possible")
                    )
                continue
        saves = f"; saves up to {_saving(cost, is_per_step)}" if cost else ""
        if cause.outside_ns and saves:
            saves += " on average over all steps"
        elif saves and _frees_host(cause, cost):
            saves += ", as the host also launches later work earlier"
        text = cause.finding.text + saves
        findings.append(replace(cause.finding, cost_ms_per_step=round(cost, 6), text=text))
    together_ms = min(joint_ms - excess_ms + measured_ms, step_ms) + all_outside_ms
    return findings, round(together_ms, 6)


def _with_other_idle(cause: Cause, named_share: float, cost_share: float) -> Cause:
    """Name the share of the step by which the cost exceeds the idle time in a cause's text."""
    if cost_share - named_share < SHOWN_SHARE:
        return cause
    # The cost stays above: the replay also hides latencies and waits that follow late launches.
    named, *clauses = cause.finding.text.split("; ")
    # The parts of a list add up to the share before it.
    named = named.replace(
        f" {percent(named_share)} of the time: ", f" {percent(cost_share)} of the time: "
    )
    others = percent(cost_share - named_share)
    named += f", and {others} in other waits that a faster host shortens"
    return replace(cause, finding=replace(cause.finding, text="; ".join([named, *clauses])))


# Minimum ratio of a cost to the time that a finding names for the difference to be explained.
_MORE_THAN_NAMED = 1.05


def _frees_host(cause: Cause, cost_ms: float) -> bool:
    """Return True if a cost exceeds its estimate because less work of the host shifts later one."""
    change = cause.change
    if change is None or cause.finding.kind == "host_bound":
        return False
    on_host = len(change.ranges) or len(change.calls) or len(change.host)
    return bool(on_host) and cost_ms > _MORE_THAN_NAMED * cause.finding.cost_ms_per_step


def _is_even(context: DeviceContext, change: Selection, scheduled: Scheduled | None) -> bool:
    """Return False if the replayed first steps of a long recording do not represent a change."""
    if scheduled is None or not scheduled.is_partial:
        return True
    expected = _replayed_ns(context, scheduled) / context.analyzed_ns
    inside = share_before(context.recording, change, int(scheduled.step_end_ns[-1]))
    return expected / 2 <= inside <= 2 * expected


def _replayed_ns(context: DeviceContext, scheduled: Scheduled) -> int:
    """Return the length of the analyzed time that is in the schedule."""
    until = int(scheduled.step_end_ns[-1])
    return intervals.clip(context.window, int(context.window.start_ns[0]), until).total_ns


def _only_together(finding: Finding, added_ms: float, is_per_step: bool) -> Finding:
    """Return a finding that saves time only if the causes of others are removed as well."""
    saves = f"saves time only together with others, then up to {_saving(added_ms, is_per_step)}"
    figures = {**finding.figures, "together_ms_per_step": round(added_ms, 6)}
    return replace(finding, cost_ms_per_step=0.0, text=f"{finding.text}; {saves}", figures=figures)


def _saving(time_ms: float, is_per_step: bool) -> str:
    return f"{duration(time_ms * 1e6)} {'per step' if is_per_step else 'of the recorded time'}"


# Kinds that question all times, and those whose idle time ranks them if they have no cost.
_OF_RECORDING = ("sampled_trace", "kernel_replay", "gpu_not_recorded")
_OF_IDLE_TIME = ("late_work", "unrecorded_work")


def ranked(findings: list[Finding], step_ms: float = 0.0) -> list[Finding]:
    """Return findings, most expensive first; evidence ranks those of unknown cost."""

    def order(finding: Finding) -> tuple[bool, float, int, str, str]:
        shown_ns = sum(int(row.get("total_ns") or 0) for row in finding.evidence)
        cost = finding.cost_ms_per_step
        if not cost and finding.kind in _OF_IDLE_TIME:
            cost = finding.figures["idle_share"] * step_ms
        is_first = finding.kind in _OF_RECORDING
        return not is_first, -cost, -shown_ns, finding.kind, finding.text

    return sorted(findings, key=order)


def _merge_devices(by_device: dict[str, list[Cause]], *, of_several: bool) -> list[Cause]:
    """Merge the findings of one rule on several devices, by kind, and name the devices."""
    by_kind: dict[str, dict[str, list[Cause]]] = {}
    for device, causes in by_device.items():
        for cause in causes:
            by_kind.setdefault(cause.finding.kind, {}).setdefault(device, []).append(cause)
    if not of_several:
        return [cause for causes in by_device.values() for cause in causes]
    merged = []
    for devices in by_kind.values():
        each = [(name, cause) for name, found in devices.items() for cause in found]
        most, first = max(each, key=lambda one: one[1].finding.cost_ms_per_step)
        others = [name for name in devices if name != most]
        also = f"{len(others)} other devices" if len(others) > 2 else " and ".join(others)
        text = f"{first.finding.text}; on {most}" + (f", also on {also}" if also else "")
        figures = {**first.finding.figures, "devices": len(devices)}
        finding = replace(first.finding, text=text, figures=figures)
        changes = [cause.change for _, cause in each if cause.change is not None]
        change = reduce(or_, changes) if changes else None
        merged.append(replace(first, finding=finding, change=change))
    return merged
