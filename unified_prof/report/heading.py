"""What precedes and follows the tables of a report: title, headline figures, findings, anomalies.

Anomalies are stored under stable slugs; slugs that are hard to understand have a text here.
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
    "activations_of_another_sequence": (
        "activations taken from an iteration with different operations"
    ),
    "allocation_without_release": "allocations not freed within the recording",
    "ambiguous_forward_operation": "backward kernels with several candidate forward operations",
    "ambiguous_launch": "kernels with several candidate launch calls",
    "backward_not_followed": "backward passes without times per operation",
    "backward_nodes_not_of_this_iteration": "backward pass through the graph of another iteration",
    "backward_without_forward": "backward kernels without a forward operation",
    "compiled_functions_ran_eagerly": "compiled functions ran uncompiled during the measurement",
    "duplicate_correlation": "correlation ids used more than once",
    "first_iteration_reported": "only the first iteration was measured, including setup",
    "impossible_communication_time": "collectives with impossible times, ignored",
    "impossible_host_time": "host ranges with impossible times, ignored",
    "impossible_size": "impossible sizes, ignored",
    "impossible_step_time": "steps with impossible times, ignored",
    "impossible_task_time": "device tasks with impossible times, ignored",
    "impossible_time": "impossible times, ignored",
    "incomplete_file": "the file is incomplete",
    "loss_not_finite": "the loss was infinite or NaN",
    "loss_not_read": "the loss could not be checked for NaN",
    "measuring_failed": "a part of the measurement failed inside uprof",
    "odd_schema": "unusual schema",
    "path_clocks": "critical path: the clocks of host and device differ",
    "path_of_first_steps": "critical path of the first steps only",
    "path_without_device": "critical path of the host only",
    "path_without_events": "critical path without event dependencies",
    "path_without_host": "critical path of the devices only",
    "path_without_launches": "critical path with missing launches",
    "path_without_steps": "critical path of the whole recording",
    "peak_usage_not_measured": "peak memory could not be measured",
    "release_without_allocation": "frees of memory allocated before the recording",
    "replay_of_several_captures": "replayed graphs with several candidate captures",
    "replay_without_capture": "replayed graphs whose capture was not recorded",
    "replay_without_nodes": "replayed graphs whose kernels cannot be distinguished",
    "run_not_complete": "the run ended before all iterations were measured",
    "saved_bytes_of_no_operation": "tensors saved for backward outside any operation",
    "scope_widened": "more than the requested scope is shown",
    "task_without_launch": "kernels without a matching launch call",
    "unfinished_event": "events cut off by the end of the recording",
    "unmatched_iterations": "iterations with different operations, excluded from medians",
    "unpaired_event": "events with only a begin or an end",
    "weights_never_initialised": "lazy parameters that were never initialized",
    "weights_on_another_device": "parameters on another device",
}


def anomaly_name(anomaly_name: str) -> str:
    """Return the text of an anomaly."""
    return _ANOMALY_NAMES.get(anomaly_name, names.neutral(anomaly_name.replace("_", " ")))


def anomaly_case(anomaly: Anomaly) -> str:
    """Return the first case of an anomaly and its count."""
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

# Number of findings shown above the tables of a report.
_MAX_FINDINGS = 3
_WIDEST_FINDING = 180
# Share of kernel time with known shapes from which the rest is not mentioned.
_MAX_REMARKS = 0.99
# Share of an iteration from which waiting for a processor is mentioned.
_MIN_IDLE_SHARE = 0.02
# Recorded facts shown in the headline, by the names that profilers use.
_HEADLINE_FACTS = ("device", "backend", "torch", "cuda", "cann", "driver", "host", "uprof")


def report_title(summary: Summary) -> str:
    """Return the title of a report."""
    family = _FAMILIES.get(summary.family, summary.family)
    return f"{words.neutral(summary.path)}: {family}, revision {summary.revision}"


def top_findings(figures: Figures) -> list[str]:
    """Return the most expensive findings, one line each, and where to find the others."""
    if figures.advice is None or not figures.advice.findings:
        return []
    found = figures.advice.findings
    lines = [
        names.truncate_middle(f"{words.neutral(one.text)} ({one.sure})", _WIDEST_FINDING)
        for one in found[:_MAX_FINDINGS]
    ]
    left = len(found) - _MAX_FINDINGS
    more = f"{words.format_number(left)} more, " if left > 0 else ""
    return [*lines, f"`uprof advise` shows {more}evidence and what to try"]


def report_headline(figures: Figures) -> list[tuple[str, str]]:
    """Return the measured headline figures as (label, text)."""
    summary, totals = figures.summary, figures.summary.totals
    lines = []
    facts = dict(summary.facts)
    known = [f"{name} {facts[name]}" for name in _HEADLINE_FACTS if name in facts]
    known += [value for name, value in summary.facts if name.startswith("device ")][:1]
    if known:
        lines.append(("recorded on", words.neutral(", ".join(known))))
    if totals.total_ns is not None:
        passes = (
            ("forward", totals.forward_ns),
            ("backward", totals.backward_ns),
            ("recomputed", totals.recomputed_ns),
            (OTHER_TIME, totals.other_ns),
        )
        parts = [
            f"{name} {words.format_duration(value)} ({words.format_share(value, totals.total_ns)})"
            for name, value in passes
            if value is not None
        ]
        what = {"device": "device time", "host": "host time", "operation": "operations"}
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
    lines += [("idle", text) for text in _idle_reasons(figures.why_idle, summary.devices)]
    lines += [("compute", text) for text in _model_use(figures.model_use)]
    if (delay := figures.launch_delay) is not None:
        lines.append(("launch latency", _launch_latency(delay)))
    return lines


def _launch_latency(delay: Distribution) -> str:
    """Describe the time from launch calls to kernel starts, queueing included."""
    if delay.count == 1:
        after = words.format_duration(delay.max_ns)
        return f"{after} (1 launch)"
    return (
        f"median {words.format_duration(delay.median_ns)}, p90 "
        f"{words.format_duration(delay.p90_ns)}, max {words.format_duration(delay.max_ns)} "
        f"({words.format_number(delay.count)} launches)"
    )


def _step_traces(traces: Iterable[StepTrace]) -> list[str]:
    """Describe the vendor's step trace of each device."""
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
    """Describe FLOP/s of matrix kernels and MFU of each device."""
    lines = []
    for one in found:
        rate = one.flops / one.time_ns * 1e9
        length = words.format_duration(one.time_ns)
        if one.steps is None:
            where = f"a window of {length}"
        elif one.steps > 1:
            where = f"{words.format_number(one.steps)} steps, {length} in total"
        else:
            where = f"1 step of {length}"
        text = f"{words.format_flops(one.flops)} in {where}: {words.format_flops(rate)}/s"
        if one.share is not None:
            mark = " (sources disagree on this peak)" if one.uncertain else ""
            text += f", MFU {words.format_percent(100 * one.share)} of {one.peak} TFLOP/s{mark}"
        elif not one.peak:
            text += ", peak of this device unknown (see [tool.uprof.devices])"
        text += "; HFU: recomputed operations are counted"
        if one.told_share < _MAX_REMARKS:
            text += (
                f", {words.format_percent(100 * one.told_share)} of kernel time has known shapes"
            )
        lines.append(f"{words.neutral(one.device)}: {text}" if len(found) > 1 else text)
    return lines


def _idle_reasons(found: Iterable[WhyIdle], devices: Iterable[DeviceTime]) -> list[str]:
    """Describe the idle time of each device by reason."""
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
        within = "steps" if one.device in stepped else "window"
        told = f"{words.format_duration(one.idle_ns)} of {within}: {told}"
        lines.append(f"{words.neutral(one.device)}, {told}" if len(whole) > 1 else told)
    return lines


def _iteration(totals: Totals) -> str:
    """Describe the length of an iteration, its parts, and waiting for a processor."""
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
    if waited_ns is not None and waited_ns > _MIN_IDLE_SHARE * whole_ns:
        waited = words.format_duration(waited_ns)
        text += f"; {waited} of it waiting for a processor (busy machine)"
    return text


def report_remarks(figures: Figures) -> list[tuple[str, str]]:
    """Return anomalies and what was not measured as (label, reason)."""
    missing = [
        (f"{words.neutral(one.what)} not measured", words.neutral(one.why))
        for one in figures.summary.not_measured
    ]
    return anomaly_warnings(figures) + missing


def anomaly_warnings(figures: Figures) -> list[tuple[str, str]]:
    """Return the anomalies of a report as (label, first case and count)."""
    return [(anomaly_name(one.name), anomaly_case(one)) for one in figures.summary.anomalies]


def add_findings(page: SheetWriter, figures: Figures) -> None:
    """Add the findings, if any, and an empty line."""
    lines = top_findings(figures)
    for number, line in enumerate(lines):
        page.fact("" if number else "findings", line)
    if lines:
        page.gap()


def add_headline(page: SheetWriter, figures: Figures) -> None:
    """Add the headline figures, and the table of devices if there are any."""
    for what, text in report_headline(figures):
        page.fact(what, text)
    if figures.summary.devices:
        page.gap()
        page.table(tables.device_columns(figures.summary.devices))


def add_rows(page: SheetWriter, selection: Selection, *, more: str) -> None:
    """Add the rows of a breakdown; `more` says how to show the rows left out."""
    if selection.rows:
        page.gap()
        page.table(tables.breakdown_columns(selection))
    if selection.left_out:
        page.note(f"and {names.format_number(selection.left_out)} more{more}")


def add_remarks(page: SheetWriter, found: Iterable[tuple[str, str]]) -> None:
    """Add an empty line and the anomalies, if any."""
    for number, (what, why) in enumerate(found):
        if not number:
            page.gap()
        page.remark(what, why)
