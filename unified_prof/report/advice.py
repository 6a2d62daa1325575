"""Rendering of findings (`uprof advise`) and of estimated step times (`uprof advise --what-if`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isinf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from unified_prof.base.records import asdict
from unified_prof.explain.api import Opened
from unified_prof.explain.critical_path import DISPLAY_NAMES
from unified_prof.explain.report_questions import Analysis, Change, WhatIfResult
from unified_prof.explain.what_if import DeviceEstimate
from unified_prof.recording.model import Advice, Finding
from unified_prof.report import names
from unified_prof.report.composition import composition, unexplained
from unified_prof.report.document import Column, Document, columns_of
from unified_prof.report.figures import advice_fields, coverage_fields, readable_answers
from unified_prof.report.names import excluded_part, replay_notes

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview

# Version of the JSON document; raised when a key changes its meaning or is removed.
FORMAT_VERSION = 1

_MAX_RULES_PER_REASON = 4  # Number of rules to name if many are skipped for the same reason.
_MAX_REASONS = 3  # Maximum number of reasons in text.
_NO_FINDINGS, _NOTHING_ANALYZED = "no findings", "nothing analyzed: no rule has the data it needs"
# Minimum ratio of the joint saving to the sum of the findings for it to be explained.
_MORE_TOGETHER = 1.05
_OF_STEPS = ("slow_steps", "steps_grow", "kernels_slow_down")  # Findings about single steps.
# Beginning of a text that is its title, as in `findingRow` of page/main.js.
_TITLE = re.compile(r"([a-z][\w -]{2,30}): (.*)", re.DOTALL)
_BYTES = re.compile(r"(?<![\w.])(\d[\d,]*) bytes\b")


class ReportAdvice(Struct, frozen=True):
    """A report and its findings."""

    path: str
    family: str
    title: str
    advice: Advice
    composition: tuple[str, ...] = ()  # If findings do not explain it, what takes the time.


def gather_advice(opened: Opened) -> list[ReportAdvice]:
    """Evaluate the rules for every report.

    Raises StoreError if no report could be read to its end.
    """

    def ask(analysis: Analysis) -> ReportAdvice:
        advice, summary = analysis.advice(), analysis.summary
        by = next((by for by in ("operation", "kernel") if by in summary.available), None)
        shown = [] if advice.findings or by is None else [analysis.breakdown(by)]
        say = unexplained if advice.findings else composition
        said = tuple(say(summary, shown, advice))
        return ReportAdvice(summary.path, summary.family, names.report_title(summary), advice, said)

    return readable_answers(opened, ask)


def run_findings(overview: Overview) -> tuple[Finding, ...]:
    """Return the findings of a multi-rank run, each with a command that shows details."""
    return tuple(
        Finding(
            kind=one.kind,
            ranks=tuple(one.ranks),
            hosts=tuple(one.hosts),
            links=tuple((pair[0], pair[1]) for pair in one.links),
            steps=tuple(one.steps),
            cost_ms_per_step=one.cost_ms_per_step,
            text=one.text,
            figures=dict(one.figures),
            advice=f"uprof cluster report {overview.run.path}",
        )
        for one in overview.run.findings
    )


def advice_record(
    reports: Iterable[ReportAdvice],
    opened: Opened | None,
    of_run: Sequence[Finding],
    *,
    top: int | None,
) -> dict[str, Any]:
    """Return findings as plain data for JSON."""
    return {
        "format": "uprof-advice",
        "version": FORMAT_VERSION,
        "run": [one.document() for one in of_run],
        "reports": [
            {
                "path": one.path,
                "family": one.family,
                **advice_fields(replace(one.advice, findings=one.advice.findings[:top])),
                "findings_left_out": len(one.advice.findings[top:]) if top else 0,
            }
            for one in reports
        ],
        "coverage": None if opened is None else coverage_fields(opened.coverage),
    }


def advice_document(
    reports: Iterable[ReportAdvice],
    of_run: Sequence[Finding],
    *,
    top: int | None,
    is_run: bool = False,
) -> Document:
    """Return the document of findings: of each report, and of the multi-rank run.

    `top` limits the findings per report, and of the run. If `is_run`, also state that a multi-rank
    run has no findings.
    """
    document = Document()
    if of_run or is_run:
        document.title("Findings of the multi-rank run")
        for number, finding in enumerate(of_run[:top], start=1):
            document.line(f"{number}. {finding.text}")
        if not of_run:
            document.line(_NO_FINDINGS)
    for one in reports:
        document.title(one.title)
        add_advice(document, one.advice, top=top, said=one.composition, path=one.path)
    if not document.blocks:
        document.line(_NO_FINDINGS)
    return document


def add_advice(
    document: Document,
    advice: Advice,
    *,
    top: int | None,
    said: Sequence[str] = (),
    path: str = "REPLAY",
) -> None:
    """Add the findings of the report at `path`, after what they do not explain (`said`)."""
    document.fact("analyzed", _analyzed_part(advice))
    if advice.together_ms and sum(bool(one.cost_ms_per_step) for one in advice.findings) > 1:
        saved = names.format_duration(advice.together_ms * 1e6)
        step_ms = advice.step_ms or 0.0
        # Steps that are not analyzed, such as slow ones, may cost more than an analyzed step.
        share = names.format_share(advice.together_ms, step_ms)
        shown = f" ({share})" if advice.together_ms <= step_ms else ""
        costs_ms = sum(one.cost_ms_per_step or 0.0 for one in advice.findings)
        if advice.together_ms > _MORE_TOGETHER * costs_ms:
            shown += ", more than the sum of the findings: one cause hides what another would save"
        document.fact("all together", f"save up to {saved}{_unit(advice)}{shown}")
    if not advice.findings:
        document.line("; ".join([_NO_FINDINGS if advice.judged else _NOTHING_ANALYZED, *said]))
    elif said:
        document.line("; ".join(said))
    for place, found in enumerate(advice.findings[:top], start=1):
        title, text = _split_title(found)
        document.heading(f"{place}. {title}: {_cost(found, advice)}{found.sure}")
        document.line(f"   {text}")
        if found.advice:
            document.line(f"   try: {found.advice}")
        if found.evidence:
            document.table(_evidence(found, advice))
    if top is not None and len(advice.findings) > top:
        document.note(f"and {names.format_number(len(advice.findings) - top)} more (--top)")
    for line in replay_notes(advice, path):
        document.note(line)
    if skipped := _skipped_by_reason(advice):
        more = len(skipped) - _MAX_REASONS
        listed = [
            *skipped[:_MAX_REASONS],
            *([f"{more} more reason{'s' * (more > 1)} (--json)"] * (more > 0)),
        ]
        document.note(f"skipped: {'; '.join(listed)}")


def _analyzed_part(advice: Advice) -> str:
    if advice.step_ms is None:
        return "no times recorded"
    length = names.format_duration(advice.step_ms * 1e6)
    if not advice.steps:
        excluded = excluded_part(advice)
        if advice.pauses and not advice.paused_in:
            excluded[-1] += " (without steps, a pause cannot be distinguished from a slow host)"
        return "; ".join([f"{length}, no steps recorded", *excluded])
    many = "1 step" if advice.steps == 1 else f"{advice.steps} steps"
    several = f"{many}, {advice.statistic} {length}"
    return (
        "; ".join([several, *excluded_part(advice)]) if advice.steps > 1 else f"{many} of {length}"
    )


def _split_title(found: Finding) -> tuple[str, str]:
    """Return the title of a finding, with its id if they differ, and the text below it."""
    match = _TITLE.fullmatch(found.text)
    title, text = match.groups() if match else (found.kind.replace("_", " "), found.text)
    return title if title == found.kind else f"{title} [{found.kind}]", text


def _cost(found: Finding, advice: Advice) -> str:
    if not found.cost_ms_per_step:
        return ""
    return f"{names.format_duration(found.cost_ms_per_step * 1e6)}{_unit(advice)}, "


def _unit(advice: Advice) -> str:
    return " per step" if advice.steps else " of the recorded time"


def _skipped_by_reason(advice: Advice) -> list[str]:
    """Return the skipped rules that apply to the device by reason, the most frequent one first."""
    by_reason: dict[str, list[str]] = {}
    for one in advice.not_judged:
        if one.applies:
            by_reason.setdefault(one.why, []).append(one.kind)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    return [f"{_join_rule_names(kinds)}: {why}" for why, kinds in ordered]


def _join_rule_names(kinds: Sequence[str]) -> str:
    """Join rule names; if there are many, list the first ones and count the others."""
    if len(kinds) <= _MAX_RULES_PER_REASON + 1:
        return ", ".join(kinds)
    first, more = kinds[:_MAX_RULES_PER_REASON], len(kinds) - _MAX_RULES_PER_REASON
    return f"{', '.join(first)} and {more} more (--json)"


# Key of an evidence row, heading of its column and importance; names have less than figures.
_EVIDENCE_COLUMNS = (
    ("count", "count", 10),
    ("total_ns", "total", 10),
    ("operation", "operation", 4),
    ("line", "line", 9),
    ("next", "next", 3),
)


def _evidence(found: Finding, advice: Advice) -> list[Column]:
    """Return the evidence: sums over the analyzed steps, or single steps."""
    rows = found.evidence
    is_sum = advice.steps > 1 and advice.statistic == "average" and found.kind not in _OF_STEPS
    heading = f"evidence in {advice.steps} steps" if is_sum else "evidence"
    columns = [Column(heading, tuple(_evidence_name(str(row["name"])) for row in rows), True)]
    for key, heading, importance in _EVIDENCE_COLUMNS:
        if any(key in row for row in rows):
            cells = tuple(_cell(key, row.get(key)) for row in rows)
            columns.append(Column(heading, cells, importance < 10, importance=importance))
    return columns


def _evidence_name(name: str) -> str:
    """Return the display name of an evidence row."""
    name = _BYTES.sub(lambda match: names.format_size(int(match[1].replace(",", ""))), name)
    return names.neutral(names.short_symbol(name))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.endswith("_ns"):
        return names.format_duration(value)
    if isinstance(value, int):
        return names.format_number(value)
    return names.neutral(names.readable_names([str(value)])[0])


_MAX_STEPS = 10


class WhatIfAnswer(Struct, frozen=True):
    """A report and its estimated step times."""

    path: str
    family: str
    title: str
    supposed: WhatIfResult


def gather_what_if(
    opened: Opened, changes: Sequence[Change], *, top: int, device: str | None = None
) -> list[WhatIfAnswer]:
    """Estimate the step time of every report.

    Raises StoreError if no report could be read to its end, and UsageError if a report has no data
    for an estimate.
    """

    def ask(analysis: Analysis) -> WhatIfAnswer:
        supposed, summary = analysis.what_if(changes, top=top, device=device), analysis.summary
        return WhatIfAnswer(summary.path, summary.family, names.report_title(summary), supposed)

    return readable_answers(opened, ask)


def what_if_record(
    reports: Iterable[WhatIfAnswer], changes: Sequence[Change], opened: Opened
) -> dict[str, Any]:
    """Return estimates as plain data for JSON; times are ns."""
    return {
        "format": "uprof-what-if",
        "version": FORMAT_VERSION,
        "changes": [
            {"name": one.name, "factor": None if isinf(one.factor) else one.factor}
            for one in changes
        ],
        "reports": [
            {"path": one.path, "family": one.family, **what_if_fields(one.supposed)}
            for one in reports
        ],
        "coverage": coverage_fields(opened.coverage),
    }


def what_if_fields(one: WhatIfResult) -> dict[str, Any]:
    """Return an estimate as plain data; times are ns."""
    gain = one.gain
    return {
        "steps": one.steps,
        "before_ns": one.before_ns,
        "after_ns": None if gain is None else gain.after_ns,
        "gain_ns": None if gain is None else gain.gain_ns,
        "gain_per_step_ns": None if gain is None else gain.per_step_ns,
        "changed_ns": None if gain is None else gain.changed_ns,
        "by_step": []
        if gain is None
        else [
            {"step": name or None, "before_ns": before, "after_ns": after}
            for name, before, after in gain.by_step_ns
        ],
        "worth": [
            {
                "name": found.name,
                "kind": found.kind,
                "on_path_ns": found.on_path_ns,
                "gain_ns": found.gain_ns,
                "gain_per_step_ns": found.gain_ns / one.steps,
            }
            for found in one.candidates
        ],
        "limits": list(one.limits),
        "device": None if one.device is None else asdict(one.device),
    }


def what_if_document(reports: Iterable[WhatIfAnswer], changes: Sequence[Change]) -> Document:
    """Return the document of estimates."""
    document = Document()
    for one in reports:
        document.title(one.title)
        supposed = one.supposed
        document.fact("analyzed", _step_time(supposed))
        if supposed.gain is None:
            document.table(_candidate_columns(supposed))
            if any(found.kind == "synchronising" for found in supposed.candidates):
                document.note(
                    "removed: the host does not wait and runs ahead, which may save more than the "
                    "time of the calls on the path"
                )
        else:
            _add_gain(document, supposed, changes)
        for limit in supposed.limits:
            document.note(limit)
    return document


def _gain_unit(one: WhatIfResult) -> str:
    """Return the unit that a gain refers to: step or recording."""
    return "step" if one.stepped else "recording"


def _step_time(one: WhatIfResult) -> str:
    length = names.format_duration(one.before_ns / one.steps)
    if not one.stepped:
        return f"{length}, no steps recorded"
    many = f"{names.format_number(one.steps)} steps, average" if one.steps > 1 else "1 step of"
    return f"{many} {length}"


def _add_gain(document: Document, one: WhatIfResult, changes: Sequence[Change]) -> None:
    gain = one.gain
    assert gain is not None
    a_step = gain.before_ns / gain.steps
    for change in changes:
        how = "gone" if isinf(change.factor) else f"{change.factor:g}x faster"
        document.fact("if", f"{names.neutral(change.name)} is {how}")
    if one.device is not None:
        low, high = one.device.least_ns / gain.steps, one.device.most_ns / gain.steps
        same = one.device.target == one.device.source
        instead = ", the recorded device" if same else f" instead of {one.device.source}"
        document.fact("if", f"kernels ran on {one.device.target}{instead}")
        document.fact(
            "then",
            f"{names.format_duration(gain.after_ns / gain.steps)} per {_gain_unit(one)} instead of "
            f"{names.format_duration(a_step)} ({names.format_duration(low)} to "
            f"{names.format_duration(high)} with kernels {one.device.spread:g} times faster or "
            "slower than estimated); same host, copies and network",
        )
        document.table(_class_columns(one.device))
        return
    document.fact(
        "then",
        f"saves {names.format_duration(gain.per_step_ns)} of "
        f"{names.format_duration(a_step)} per {_gain_unit(one)} "
        f"({names.format_share(gain.per_step_ns, a_step)}), "
        f"new time {names.format_duration(gain.after_ns / gain.steps)}",
    )
    changed = gain.changed_ns / gain.steps
    if changed > 1.01 * max(gain.per_step_ns, 0):
        rest = "the rest is not" if gain.per_step_ns > 0 else "none of it is"
        less = f"the changed work itself takes {names.format_duration(changed)} less"
        document.fact("hidden", f"{less}; {rest} on the critical path")
    if 1 < gain.steps <= _MAX_STEPS:
        document.table(
            columns_of(
                gain.by_step_ns,
                ("step", lambda row: row[0], names.neutral, 10),
                ("recorded", lambda row: row[1], names.format_duration, 10),
                ("new time", lambda row: row[2], names.format_duration, 10),
                ("gain", lambda row: row[1] - row[2], names.format_duration, 10),
                ("share", lambda row: names.format_share(row[1] - row[2], row[1]), str, 10),
            )
        )


def _class_columns(one: DeviceEstimate) -> list[Column]:
    return columns_of(
        one.classes,
        ("class", lambda row: row.name, names.neutral, 10),
        ("recorded", lambda row: row.total_ns, names.format_duration, 10),
        ("new time", lambda row: row.total_ns * row.factor, names.format_duration, 10),
        (
            "efficiency",
            lambda row: None if row.efficiency is None else 100 * row.efficiency,
            names.format_percent,
            10,
        ),
    )


def _candidate_columns(one: WhatIfResult) -> list[Column]:
    saved = f"saved per {_gain_unit(one)}"
    return columns_of(
        one.candidates,
        (
            "2x faster",
            lambda row: row.name + " (removed)" * (row.kind == "synchronising"),
            names.neutral,
            10,
        ),
        (saved, lambda row: row.gain_ns / one.steps, names.format_duration, 10),
        ("share", lambda row: names.format_share(row.gain_ns, one.before_ns), str, 10),
        ("on critical path", lambda row: row.on_path_ns / one.steps, names.format_duration, 5),
        ("what", lambda row: DISPLAY_NAMES[row.kind], names.neutral, 2),
    )
