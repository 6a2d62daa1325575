"""Documents of reports: title, findings, headline figures, breakdowns, anomalies; footer of runs.

Anomalies are stored under stable slugs; slugs that are hard to understand have a text here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unified_prof.base.columns import EXPECTED_ANOMALIES, coverage_text
from unified_prof.base.text import part_lines
from unified_prof.errors import UprofError
from unified_prof.explain.api import open_files
from unified_prof.recording.idle import IN_WORDS, REASONS, IdleReasons
from unified_prof.recording.model import (
    Anomaly,
    DeviceTime,
    Distribution,
    Finding,
    ModelUse,
    Summary,
    Totals,
)
from unified_prof.recording.source import Coverage, device_name
from unified_prof.recording.steps import StepTrace
from unified_prof.report import names
from unified_prof.report.columns import breakdown_columns, device_columns, step_parts
from unified_prof.report.composition import composition, unexplained
from unified_prof.report.document import Column, Document, name_column
from unified_prof.report.figures import Figures, Selection, collect_figures, peak_parts
from unified_prof.report.names import (
    analysis_notes,
    finding_cost,
    finding_summary,
)
from unified_prof.report.terminal import render_text

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_OTHER_TIME = "optimizer and other"
_COUNTED_IN_TEXT = {"sampled_trace"}  # Anomalies whose details have their counts.
_MIN_REST_SHARE = 0.001  # Minimum share of idle time, or of time outside passes, to be mentioned.
# If the shapes of this share of kernel time are known, the share is not mentioned.
_KNOWN_SHAPES_SHARE = 0.99
_RATED_SHARE = 0.5  # Below this share, no rate is shown.
# Minimum share of an iteration from which waiting for a processor is mentioned.
_MIN_WAITING_SHARE = 0.02
# Recorded facts shown in the headline, by the names that profilers use.
_HEADLINE_FACTS = ("device", "backend", "torch", "cuda", "cann", "driver", "host", "uprof")


def report_document(reports: Iterable[Figures], coverage: Coverage | None = None) -> Document:
    """Return the document of one or more reports, missing reports first."""
    document = Document()
    if coverage is not None and coverage.missing:
        document.warning(coverage.headline, *coverage.reasons)
    for figures in reports:
        document.title(names.report_title(figures.summary))
        _add_not_tracked(document, figures.summary)
        add_findings(document, figures)
        _add_headline(document, figures)
        for selection in figures.selections:
            _add_breakdown(document, selection)
            if selection.breakdown.by == "line" and _has_functions(figures.summary):
                document.note(
                    "torch.profiler records functions: a line is the first of the function that "
                    "called the operation, or the one at which it was when recording began"
                )
        for label, reason in (
            *_failure(figures.summary),
            *anomaly_warnings(figures.summary),
            *((f"{one.what} not measured", one.why) for one in figures.summary.not_measured),
        ):
            document.warning(label, reason)
    return document


MORE_IN_REPORT = " (see `uprof report`)"


def run_footer(files: Mapping[str, Iterable[Path]]) -> str:
    """Return the footer of `uprof run` about the reports just written, by kind in display order."""
    document = Document(more=MORE_IN_REPORT)
    add_run_footer(document, files, top=10)
    return render_text(document)


def add_run_footer(document: Document, files: Mapping[str, Iterable[Path]], *, top: int) -> str:
    """Add findings, figures and paths of the reports just written.

    A report that cannot be read is listed; no error is raised, because the run has ended.

    Returns:
        The most useful command for the reports, without their path.
    """
    best = "uprof report"
    try:
        with open_files(path for paths in files.values() for path in paths) as analyses:
            known = {by for analysis in analyses for by in analysis.summary.available}
            by = next((by for by in ("line", "module") if by in known), None)
            best += f" --by {by}" if by else ""
            for analysis in analyses:
                bys = analysis.summary.available[:1]
                figures = collect_figures(analysis, bys, top=top, details=False)
                if analysis.summary.family == "msprof":
                    best = "uprof advise"
                if not _add_not_tracked(document, figures.summary):
                    if figures.advice is not None and figures.advice.findings:
                        add_findings(document, figures)
                        best = "uprof advise"
                    _add_headline(document, figures)
                for selection in figures.selections:
                    if selection.rows and "not_tracked" not in dict(figures.summary.facts):
                        _add_breakdown(document, selection)
                for label, reason in anomaly_warnings(figures.summary):
                    document.warning(label, reason)
    except UprofError as err:
        document.warning("warning", str(err))
    for kind, paths in files.items():
        for path in paths:
            document.fact(f"{kind} report", str(path))
    return best


def anomaly_warnings(summary: Summary) -> list[tuple[str, str]]:
    """Return the anomalies of a report as (label, first case and count)."""
    return [
        (names.anomaly_name(one.name), _anomaly_case(one))
        for one in summary.anomalies
        if one.name not in EXPECTED_ANOMALIES
    ]


def _anomaly_case(anomaly: Anomaly) -> str:
    times = "once" if anomaly.count == 1 else f"{names.format_number(anomaly.count)} times"
    if not anomaly.detail:
        return times
    if anomaly.count == 1 or anomaly.name in _COUNTED_IN_TEXT:
        return anomaly.detail
    return f"{anomaly.detail} ({times})"


def _failure(summary: Summary) -> list[tuple[str, str]]:
    """Return why the recording of a run may be incomplete; Skyline reports have an anomaly."""
    reason = dict(summary.facts).get("failure") if summary.family == "msprof" else None
    return [("the recording may be incomplete", names.neutral(reason))] if reason else []


def _add_not_tracked(document: Document, summary: Summary) -> bool:
    """Warn that the report lacks the workload, and return True, if it ran in another thread."""
    reason = dict(summary.facts).get("not_tracked")
    if reason is not None:
        document.warning("the workload was not tracked", reason)
    return reason is not None


def _add_headline(document: Document, figures: Figures) -> None:
    """Add the headline figures, and the table of devices if there are any."""
    summary, devices = figures.summary, figures.summary.devices
    parts = (
        step_parts(devices[0], figures.why_idle)
        if len(devices) == 1
        else iteration_parts(summary.totals)
    )
    for label, text in report_headline(figures):
        bar = parts if label in ("step", "iteration", "window") else ()
        document.fact(
            label, text, list(peak_parts(summary.totals).items()) if label == "memory" else bar
        )
    if parts and not devices:
        document.table(_part_columns(summary), caption="Parts of the median iteration")
    if devices:
        document.table(device_columns(devices, figures.why_idle))


def _has_functions(summary: Summary) -> bool:
    """Return True if source lines come from the Python functions of a trace of torch.profiler."""
    facts = dict(summary.facts)
    return facts.get("decoder") == "kineto" and '"python_function"' in facts.get("events", "")


def _add_breakdown(document: Document, selection: Selection) -> None:
    by = selection.breakdown.by
    if not selection.rows:
        document.heading(f"by {by}")
        document.line(f"no {by} was recorded")
        return
    columns = breakdown_columns(selection)
    document.table(columns, caption=f"By {by}", left_out=selection.left_out)


def report_headline(figures: Figures) -> list[tuple[str, str]]:
    """Return the measured headline figures as (label, text)."""
    summary, totals = figures.summary, figures.summary.totals
    facts = dict(summary.facts)
    lines = _step_line(totals, summary.devices, facts, figures.why_idle)
    if totals.total_ns is not None:
        label = {"device": "device work", "host": "host time", "operation": "operations"}
        wholes = [one.breakdown.whole_ns or 0 for one in figures.selections]
        stepped = summary.clock == "device" and any(one.steps for one in summary.devices)
        several = len(summary.devices) > 1 and summary.clock == "device"
        within = " of the whole recording" * stepped
        within += f" on {len(summary.devices)} devices" * several
        text = _time_of_passes(totals, *wholes[:1], within=within)
        lines.append((label[summary.clock], text))
    sizes = list(peak_parts(totals).items()) or [
        (name, value)
        for name, value in (
            ("weights", totals.weight_bytes),
            ("gradients", totals.gradient_bytes),
            ("activations", totals.activation_bytes),
        )
        if value is not None
    ]
    known = [f"{name} {names.format_size(value)}" for name, value in sizes]
    if totals.peak_bytes is not None:
        peak = f"peak {names.format_size(totals.peak_bytes)}"
        known = [": ".join((peak, ", ".join(known))) if known else peak]
    if known:
        lines.append(("memory", ", ".join(known)))
    lines += [("torch_npu", text) for text in _step_traces(figures.step_traces)]
    lines += [("idle", text) for text in _idle_reasons(figures.why_idle, summary.devices)]
    lines += [("compute", text) for text in _model_use(figures.model_use)]
    if (latency := figures.launch_delay) is not None:
        lines.append(("launch to start", _launch_to_start(latency)))
    known = [f"{name} {facts[name]}" for name in _HEADLINE_FACTS if name in facts]
    known += [value for name, value in summary.facts if name.startswith("device ")][:1]
    if known:
        lines.append(("recorded on", ", ".join(known)))
    if any(part.decoded < part.total for part in summary.coverage):
        lines.append(("decoded", names.neutral(coverage_text(summary.coverage))))
    return lines


def _time_of_passes(totals: Totals, whole_ns: int = 0, *, within: str = "") -> str:
    """Describe the total time of all operations, its share of `whole_ns`, and its parts."""
    passes = [
        ("forward", totals.forward_ns),
        ("backward", totals.backward_ns),
        ("recomputed", totals.recomputed_ns),
        (_OTHER_TIME, totals.other_ns),
    ]
    if totals.total_ns and any(value is not None for _, value in passes):
        rest_ns = totals.total_ns - sum(value or 0 for _, value in passes)
        if rest_ns >= _MIN_REST_SHARE * totals.total_ns:
            passes.append(("unattributed", rest_ns))
    parts = [
        f"{name} {names.format_duration(value)} ({names.format_share(value, totals.total_ns)})"
        for name, value in passes
        if value is not None
    ]
    calls = "1 call" if totals.count == 1 else f"{names.format_number(totals.count)} calls"
    text = f"{names.format_duration(totals.total_ns)} in {calls}{within}"
    if whole_ns > (totals.total_ns or 0):
        of = "an iteration without waits" if totals.iteration_waited_ns else "an iteration"
        share = names.format_share(totals.total_ns, whole_ns)
        text += f", {share} of {of} ({names.format_duration(whole_ns)})"
    return "; ".join((text, ", ".join(parts))) if parts else text


def iteration_parts(totals: Totals) -> list[tuple[str, int]]:
    """Return the parts of the median iteration, which add up to it; empty if not measured."""
    return [
        (names.part_name(name), ns)
        for name, ns in totals.iteration_parts_ns.items()
        if ns or name == "other"
    ]


def _part_columns(summary: Summary) -> list[Column]:
    """Return the table of the parts of the median iteration and the lines where they begin."""
    parts, whole_ns = iteration_parts(summary.totals), summary.totals.iteration_ns
    lines = part_lines(dict(summary.facts))
    return [
        name_column("part", (name for name, _ in parts)),
        Column("time", tuple(names.format_duration(ns) for _, ns in parts)),
        Column("share", tuple(names.format_share(ns, whole_ns) for _, ns in parts)),
        name_column(
            "line", (lines.get(name.replace(" ", "_"), "") for name, _ in parts), importance=2
        ),
    ]


def _step_line(
    totals: Totals,
    devices: Sequence[DeviceTime],
    facts: Mapping[str, str],
    why_idle: Sequence[IdleReasons],
) -> list[tuple[str, str]]:
    """Describe the length of a step or iteration and its parts; empty if it is unknown."""
    text = ""
    if totals.iteration_ns is not None:
        text = names.format_duration(totals.iteration_ns)
        if totals.iterations != 1:
            text = f"median {text}"
            if totals.iteration_p90_ns is not None:
                quantile = "max" if (totals.iterations or 0) <= _FEW_STEPS else "p90"
                text += f", {quantile} {names.format_duration(totals.iteration_p90_ns)}"
            text += f" (n = {names.format_number(totals.iterations)})"
        if totals.iteration_ns and _NUMBER.fullmatch(facts.get("samples_per_iteration", "")):
            per_second = float(facts["samples_per_iteration"]) / totals.iteration_ns * 1e9
            text += f", {names.format_number(round(per_second))} samples/s"
    if len(devices) == 1:
        whole_ns = devices[0].share_basis.window_ns
        shares = [
            f"{name} {names.format_share(ns, whole_ns)}"
            for name, ns in step_parts(devices[0], why_idle)
        ]
        label = "step" if devices[0].steps is not None else "window"
        if label == "window":
            text = names.format_duration(whole_ns)
        return [(label, "; ".join(part for part in (text, ", ".join(shares)) if part))]
    if not text:
        return []
    waited_ns = totals.iteration_waited_ns
    if waited_ns is not None and waited_ns > _MIN_WAITING_SHARE * (totals.iteration_ns or 0):
        waited = names.format_duration(waited_ns)
        known = (facts.get(name) or "" for name in ("torch_threads", "processors"))
        threads, cores = (int(text) if text.isdecimal() else 0 for text in known)
        cause = f"{threads} threads on {cores} cores" if threads > cores > 0 else "busy machine"
        text += f"; {waited} of it waiting for a CPU ({cause})"
    return [("step" if devices else "iteration", text)]


def _launch_to_start(delay: Distribution) -> str:
    """Describe the time from launch calls to kernel starts, including queueing."""
    if delay.count == 1:
        after = names.format_duration(delay.max_ns)
        return f"{after} (1 launch)"
    return (
        f"median {names.format_duration(delay.median_ns)}, p90 "
        f"{names.format_duration(delay.p90_ns)}, max {names.format_duration(delay.max_ns)} "
        f"({names.format_number(delay.count)} launches)"
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
            f"{names.format_number(len(found))} steps"
            if len(found) > 1
            else f"step {found[0].step}"
        )
        if found[0].step is None:
            steps = "the recording"
        lines.append(
            f"{device_name(device)}, {steps}: free {names.format_duration(free)}, stage "
            f"{names.format_duration(stage)}, preparing {names.format_duration(preparing)}, bubble "
            f"{names.format_duration(bubble)}"
        )
    return lines


def _model_use(found: Sequence[ModelUse]) -> list[str]:
    """Describe the FLOP/s of matrix kernels and the MFU of each device."""
    lines = []
    for one in found:
        length = names.format_duration(one.time_ns)
        if one.steps is None:
            where = f"a window of {length}"
        elif one.steps > 1:
            where = f"{names.format_number(one.steps)} steps, {length} in total"
        else:
            where = f"1 step of {length}"
        known = f"{names.format_percent(100 * one.known_share)} of kernel time"
        if one.known_share < _RATED_SHARE:
            # A rate over the whole time would be that of the part with known shapes only.
            text = f"{names.format_flops(one.flops)} in the {known} with known shapes"
            lines.append(f"{names.neutral(one.device)}: {text}" if len(found) > 1 else text)
            continue
        rate = names.format_flops(one.flops / one.time_ns * 1e9)
        text = f"{names.format_flops(one.flops)} in {where}: {rate}/s"
        if one.share is not None:
            mark = " (sources disagree on this peak)" if one.uncertain else ""
            text += f", MFU {names.format_percent(100 * one.share)} of {one.peak} TFLOP/s{mark}"
        elif not one.peak:
            text += ", peak of this device unknown (see [tool.uprof.devices])"
        text += ", recomputation included"
        if one.known_share < _KNOWN_SHAPES_SHARE:
            text += f", {known} has known shapes"
        lines.append(f"{names.neutral(one.device)}: {text}" if len(found) > 1 else text)
    return lines


def _idle_reasons(found: Iterable[IdleReasons], devices: Sequence[DeviceTime]) -> list[str]:
    """Describe the idle time of each device by reason."""
    stepped = {one.device for one in devices if one.steps is not None}
    least_ns = {one.device: _MIN_REST_SHARE * one.share_basis.window_ns for one in devices}
    whole = [one for one in found if one.step is None and one.idle_ns > least_ns[one.device]]
    lines = []
    for one in whole:
        # Work that was probably not recorded is no idle time.
        parts = [(one.reason_ns(reason), reason) for reason in REASONS if reason != "unrecorded"]
        idle_ns = one.idle_ns - one.unrecorded_ns
        told = "; ".join(
            f"{IN_WORDS[reason]} {names.format_duration(ns)} ({names.format_share(ns, idle_ns)})"
            for ns, reason in sorted(parts, reverse=True)
            if ns
        )
        within = "steps" if one.device in stepped else "window"
        told = f"{names.format_duration(idle_ns)} in {within}" + f": {told}" * bool(told)
        lines.append(f"{names.neutral(one.device)}, {told}" if len(whole) > 1 else told)
    return lines


_FEW_STEPS = 9  # The 90th percentile of so few steps is their maximum, and is named so.
_MAX_FINDINGS = 3  # Number of findings shown above the figures of a report.


def add_findings(document: Document, figures: Figures) -> None:
    """Add the most expensive findings in one line each; without findings, what takes the time."""
    advice = figures.advice
    if advice is None:
        return
    shown = [selection.breakdown for selection in figures.selections[:1]]
    composed = composition(figures.summary, shown, advice)
    notes, before = analysis_notes(advice, figures.summary.path), []
    first = unexplained(figures.summary, shown, advice)
    if not first and advice.findings and names.is_mostly_excluded(advice):
        before = [line for line in notes if line.startswith(names.EXCLUDED)]
    for line in first or before:
        document.finding(names.NOT_MEASURED, line)
    for finding in advice.findings[:_MAX_FINDINGS]:
        document.finding(finding_cost(finding, advice), finding_summary(finding))
    if not advice.findings:
        if advice.judged:
            rules = f"none ({names.format_number(len(advice.judged))} rules)"
            document.fact("findings", "; ".join([rules, *composed]))
    else:
        left_out = len(advice.findings) - _MAX_FINDINGS
        more = f"{names.format_number(left_out)} more, " if left_out > 0 else ""
        document.note(f"`uprof advise` shows {more}evidence and what to try")
        if all(map(_is_of_machine, advice.findings)):
            document.note("; ".join(["the program itself: no findings", *composed]))
    for line in notes[len(before) :]:
        document.note(line)


def _is_of_machine(finding: Finding) -> bool:
    """Return True for a finding about other programs, which says nothing about the program."""
    return finding.kind == "waiting_for_processor" and "threads" not in finding.figures
