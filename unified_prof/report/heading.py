"""Anomalies as people read them.

Their names in a report's file are for programs and never change; where a name alone is hard to
understand, the words for it stand here.

What stands above a report's tables: what it is of, figures in a line each, what to heed.

What a whole report for the terminal and the brief one at the end of a run have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unified_prof.recording.collectives import device_name
from unified_prof.recording.idle import IN_WORDS, REASONS, WhyIdle
from unified_prof.recording.model import (
    Anomaly,
    DeviceTime,
    Distribution,
    ModelUse,
    Summary,
    Totals,
)
from unified_prof.recording.steps import StepTrace
from unified_prof.report import names, tables
from unified_prof.report import names as words
from unified_prof.report.figures import Figures, Selection
from unified_prof.report.tables import OTHER_TIME, SheetWriter

_ANOMALY_NAMES = {
    "activations_of_another_sequence": "activations come from an iteration with other operations",
    "allocation_without_release": "memory not released before the recording ended",
    "ambiguous_forward_operation": "backward work with several possible forward operations",
    "ambiguous_launch": "device work with several possible launching calls",
    "backward_not_followed": "backward passes without times by operation",
    "backward_nodes_not_of_this_iteration": "backward pass through the graph of another iteration",
    "backward_without_forward": "backward work without a forward operation",
    "compiled_functions_ran_eagerly": "compiled functions ran uncompiled while measured",
    "duplicate_correlation": "correlation ids used more than once",
    "first_iteration_reported": "only the first iteration was measured, set-up included",
    "impossible_communication_time": "collectives with impossible times, left out",
    "impossible_host_time": "host ranges with impossible times, left out",
    "impossible_size": "impossible sizes, left out",
    "impossible_step_time": "steps with impossible times, left out",
    "impossible_task_time": "device tasks with impossible times, left out",
    "impossible_time": "impossible times, left out",
    "incomplete_file": "the file is incomplete",
    "loss_not_finite": "the loss was infinite or not a number",
    "loss_not_read": "whether the loss is finite could not be looked at",
    "measuring_failed": "a part of the measurement failed in uprof itself",
    "odd_schema": "unusual schema",
    "path_clocks": "critical path: the clocks of host and device differ",
    "path_of_first_steps": "critical path of the first steps",
    "path_without_device": "critical path of the host alone",
    "path_without_events": "critical path without events",
    "path_without_host": "critical path of the devices alone",
    "path_without_launches": "critical path with launches missing",
    "path_without_steps": "critical path of the whole recording",
    "peak_usage_not_measured": "peak memory could not be measured",
    "release_without_allocation": "memory released that was allocated before the recording began",
    "replay_of_several_captures": "replayed graphs that may be of several captures",
    "replay_without_capture": "replayed graphs whose capture was not recorded",
    "replay_without_nodes": "replayed graphs whose kernels cannot be told apart",
    "run_not_complete": "the run ended before all iterations were measured",
    "saved_bytes_of_no_operation": "memory kept for the backward pass outside any operation",
    "scope_widened": "more than the scope that was asked for is shown",
    "task_without_launch": "device work whose launching call was not recorded",
    "unfinished_event": "events that the recording ended in the middle of",
    "unmatched_iterations": "iterations with other operations, left out of the medians",
    "unpaired_event": "events with a beginning or an end only",
    "weights_never_initialised": "lazy parameters that were never initialised",
    "weights_on_another_device": "parameters on another device",
}


def anomaly_name(anomaly_name: str) -> str:
    """Return what kind of anomaly it is, in words."""
    return _ANOMALY_NAMES.get(anomaly_name, names.neutral(anomaly_name.replace("_", " ")))


def anomaly_case(anomaly: Anomaly) -> str:
    """Return its first case and how often it occurred."""
    times = "once" if anomaly.count == 1 else f"{names.format_number(anomaly.count)} times"
    if anomaly.detail is None or not anomaly.detail:
        return times
    detail = names.neutral(anomaly.detail)
    return detail if anomaly.count == 1 else f"{detail} ({times})"


_FAMILIES = {
    "skyline-run-time": "Skyline run time report",
    "skyline-memory": "Skyline memory report",
    "skyline-run-time + skyline-memory": "Skyline run time and memory reports",
    "msprof": "msprof database",
}

_FIRST = 3
"""Findings that stand above the figures of a report."""
_WIDEST_FINDING = 180
_ALL_TOLD = 0.99
"""Share of the time of kernels from which what is not known of the rest is not worth a word."""
_WORTH_A_WORD = 0.02
"""Share of an iteration from which its waiting for a processor is told."""
# Facts worth a place in the headline, by the names their makers use.
_HEADLINE_FACTS = ("device", "backend", "torch", "cuda", "cann", "driver", "host", "uprof")


def report_title(summary: Summary) -> str:
    """Return what the report is."""
    family = _FAMILIES.get(summary.family, summary.family)
    return f"{words.neutral(summary.path)}: {family}, revision {summary.revision}"


def top_findings(figures: Figures) -> list[str]:
    """Return the costliest findings, a line each, and where the others stand; none: healthy."""
    if figures.advice is None or not figures.advice.findings:
        return []
    found = figures.advice.findings
    lines = [
        names.truncate_middle(f"{words.neutral(one.text)} ({one.sure})", _WIDEST_FINDING)
        for one in found[:_FIRST]
    ]
    left = len(found) - _FIRST
    more = f"{words.format_number(left)} more, " if left > 0 else ""
    return [*lines, f"uprof advise shows {more}the evidence and what to try"]


def report_headline(figures: Figures) -> list[tuple[str, str]]:
    """Return the headline figures as (what, figure in words), those that were measured."""
    summary, totals = figures.summary, figures.summary.totals
    lines = []
    facts = dict(summary.facts)
    known = [f"{name} {facts[name]}" for name in _HEADLINE_FACTS if name in facts]
    known += [value for name, value in summary.facts if name.startswith("device ")][:1]
    if known:
        lines.append(("made with", words.neutral(", ".join(known))))
    if totals.total_ns is not None:
        passes = (
            ("forward", totals.forward_ns),
            ("backward", totals.backward_ns),
            (OTHER_TIME, totals.other_ns),
        )
        parts = [
            f"{name} {words.format_duration(value)} ({words.format_share(value, totals.total_ns)})"
            for name, value in passes
            if value is not None
        ]
        what = {"device": "device work", "host": "host time", "operation": "operations"}
        text = (
            f"{words.format_duration(totals.total_ns)} in {words.format_number(totals.count)} calls"
        )
        lines.append((what[summary.clock], "; ".join((text, ", ".join(parts))).rstrip("; ")))
    if totals.iteration_ns is not None:
        lines.append(("iteration", _iteration(totals)))
    sizes = (
        ("peak", totals.peak_bytes),
        ("weights", totals.weight_bytes),
        ("gradients", totals.gradient_bytes),
        ("activations", totals.activation_bytes),
    )
    known = [f"{name} {words.format_size(value)}" for name, value in sizes if value is not None]
    if known:
        lines.append(("memory", ", ".join(known)))
    lines += [("torch_npu", text) for text in _step_traces(figures.step_traces)]
    lines += [("idle", text) for text in _why_idle(figures.why_idle, summary.devices)]
    lines += [("matrix work", text) for text in _model_use(figures.model_use)]
    if (delay := figures.launch_delay) is not None:
        lines.append(("launch delay", _launch_delay(delay)))
    return lines


def _launch_delay(delay: Distribution) -> str:
    """Say how long after the host had called for it work began: waiting its turn is included."""
    if delay.count == 1:
        after = words.format_duration(delay.max_ns)
        return f"the only launch began {after} after its call on the host"
    return (
        f"half of {words.format_number(delay.count)} launches began within "
        f"{words.format_duration(delay.median_ns)} of their call on the host, 90 % within "
        f"{words.format_duration(delay.p90_ns)}, the latest after "
        f"{words.format_duration(delay.max_ns)}"
    )


def _step_traces(traces: Iterable[StepTrace]) -> list[str]:
    """Say for each device what the vendor's own analysis says of its steps together."""
    of_device: dict[int, list[StepTrace]] = {}
    for trace in traces:
        of_device.setdefault(trace.device_id, []).append(trace)
    lines = []
    for device, found in of_device.items():
        free, stage, preparing, bubble = (
            sum(getattr(one, figure) for one in found)
            for figure in ("free_ns", "stage_ns", "preparing_ns", "bubble_ns")
        )
        steps = (
            f"{words.format_number(len(found))} steps"
            if len(found) > 1
            else f"step {found[0].step}"
        )
        if found[0].step is None:
            steps = "the recording"
        lines.append(
            f"{device_name(device)}, {steps}: free {words.format_duration(free)}, stage "
            f"{words.format_duration(stage)}, preparing {words.format_duration(preparing)}, bubble "
            f"{words.format_duration(bubble)}"
        )
    return lines


def _model_use(found: Sequence[ModelUse]) -> list[str]:
    """Say for each device what its matrix units did, against their peak (MFU) where it is known."""
    lines = []
    for one in found:
        rate = one.flops / one.time_ns * 1e9
        length = words.format_duration(one.time_ns)
        if one.steps is None:
            where = f"a window of {length}"
        elif one.steps > 1:
            where = f"{words.format_number(one.steps)} steps, {length} in all"
        else:
            where = f"1 step of {length}"
        text = f"{words.format_flops(one.flops)} in {where}: {words.format_flops(rate)}/s"
        if one.share is not None:
            mark = ", a peak that sources disagree on" if one.uncertain else ""
            text += f", MFU {words.format_percent(100 * one.share)} of {one.peak} TFLOP/s{mark}"
        elif not one.peak:
            text += ", for which no peak of this device is known ([tool.uprof.devices])"
        text += "; counted from recorded operations, those run again too"
        if one.told_share < _ALL_TOLD:
            text += (
                f", shapes known for {words.format_percent(100 * one.told_share)} of kernel time"
            )
        lines.append(f"{words.neutral(one.device)}: {text}" if len(found) > 1 else text)
    return lines


def _why_idle(found: Iterable[WhyIdle], devices: Iterable[DeviceTime]) -> list[str]:
    """Say of each device how long it was idle, of what, and what it was waiting for."""
    stepped = {one.device for one in devices if one.steps is not None}
    whole = [one for one in found if one.step is None and one.idle_ns]
    lines = []
    for one in whole:
        parts = sorted(((one.of(reason), reason) for reason in REASONS), reverse=True)
        told = "; ".join(
            f"{IN_WORDS[reason]} {words.format_duration(ns)} "
            f"({words.format_share(ns, one.idle_ns)})"
            for ns, reason in parts
            if ns
        )
        within = "the steps" if one.device in stepped else "the window"
        told = f"{words.format_duration(one.idle_ns)} of {within}: {told}"
        lines.append(f"{words.neutral(one.device)}, {told}" if len(whole) > 1 else told)
    return lines


def _iteration(totals: Totals) -> str:
    """Say how long an iteration took, what it is made of, and whether the machine was busy."""
    whole_ns = totals.iteration_ns
    assert whole_ns is not None
    text = words.format_duration(whole_ns)
    if totals.iterations != 1:
        text += f", median of {words.format_number(totals.iterations)}"
    forward_ns, backward_ns = totals.iteration_forward_ns, totals.iteration_backward_ns
    if forward_ns is not None:
        other_ns = max(0, whole_ns - forward_ns - (backward_ns or 0))
        parts = [("forward", forward_ns), ("backward", backward_ns), (OTHER_TIME, other_ns)]
        text += "; " + ", ".join(
            f"{name} {words.format_duration(value)}" for name, value in parts if value is not None
        )
    waited_ns = totals.iteration_waited_ns
    if waited_ns is not None and waited_ns > _WORTH_A_WORD * whole_ns:
        waited = words.format_duration(waited_ns)
        text += f"; {waited} of it waiting for a processor: the machine was busy"
    return text


def report_remarks(figures: Figures) -> list[tuple[str, str]]:
    """Return what was odd and what was not measured, as (what, why)."""
    missing = [
        (f"{words.neutral(one.what)} not measured", words.neutral(one.why))
        for one in figures.summary.not_measured
    ]
    return anomaly_warnings(figures) + missing


def anomaly_warnings(figures: Figures) -> list[tuple[str, str]]:
    """Return what was odd about the report, as (what, the first case and how often)."""
    return [(anomaly_name(one.name), anomaly_case(one)) for one in figures.summary.anomalies]


def add_findings(page: SheetWriter, figures: Figures) -> None:
    """Add what to do first, if anything was found, and an empty line."""
    lines = top_findings(figures)
    for number, line in enumerate(lines):
        page.fact("" if number else "to do first", line)
    if lines:
        page.gap()


def add_headline(page: SheetWriter, figures: Figures) -> None:
    """Add the headline figures, and a table of the devices if there are any."""
    for what, text in report_headline(figures):
        page.fact(what, text)
    if figures.summary.devices:
        page.gap()
        page.table(tables.device_columns(figures.summary.devices))


def add_rows(page: SheetWriter, selection: Selection, *, more: str) -> None:
    """Add the rows of a breakdown; `more` says where those that were left out are."""
    if selection.rows:
        page.gap()
        page.table(tables.breakdown_columns(selection))
    if selection.left_out:
        page.note(f"and {names.format_number(selection.left_out)} more{more}")


def add_remarks(page: SheetWriter, found: Iterable[tuple[str, str]]) -> None:
    """Add what was odd, after an empty line if anything was."""
    for number, (what, why) in enumerate(found):
        if not number:
            page.gap()
        page.remark(what, why)
