"""What could be better in a run: as text, Markdown and JSON, and in short above a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.finding import Advice, Finding
from unified_prof.analysis.load import Opened
from unified_prof.report import markdown, names, words
from unified_prof.report.documents import dumped
from unified_prof.report.figures import advice_fields, answers, coverage_fields
from unified_prof.report.heading import title
from unified_prof.report.sheet import Sheet
from unified_prof.report.tables import Column
from unified_prof.report.terminal import Page

FORMAT_VERSION = 1
"""Of the JSON: raised when a key changes its meaning or goes away."""

SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}
_KINDS_SHOWN = 4
"""Rules that are named where many lack the same."""
_HEALTHY = "nothing found that would save time"


@dataclass(frozen=True, slots=True)
class Advised:
    """One report and what could be better in it."""

    path: str
    family: str
    title: str
    advice: Advice


def gather(opened: Opened) -> list[Advised]:
    """Ask every report.

    Raises:
        StoreError: none could be read to its end.
    """

    def ask(analysis: Analysis) -> Advised:
        advice, summary = analysis.advice(), analysis.summary
        return Advised(summary.path, summary.family, title(summary), advice)

    return answers(opened, ask)


def json_text(
    reports: Iterable[Advised], opened: Opened | None, of_run: Sequence[Finding], *, top: int | None
) -> str:
    """Return all of it as JSON."""
    return dumped(
        {
            "format": "uprof-advice",
            "version": FORMAT_VERSION,
            "run": [one.document() for one in of_run],
            "reports": [
                {
                    "path": one.path,
                    "family": one.family,
                    **advice_fields(_first(one.advice, top)),
                    "findings_left_out": len(one.advice.findings[top:]) if top else 0,
                }
                for one in reports
            ],
            "coverage": None if opened is None else coverage_fields(opened.coverage),
        }
    )


def text(
    reports: Iterable[Advised],
    of_run: Sequence[Finding],
    *,
    top: int | None,
    width: int | None,
    color: bool,
    full_names: bool,
    is_run: bool = False,
) -> str:
    """Return all of it for a terminal; of a run of many ranks also that nothing was found."""
    page = Page(width=width, color=color, full_names=full_names)
    if of_run or is_run:
        page.title("what costs the run of all ranks time")
        if not of_run:
            page.plain(f"  {_HEALTHY}")
        for cause in of_run[:top]:
            page.plain(f"  {words.neutral(cause.text)}")
    for number, one in enumerate(reports):
        if number or of_run:
            page.gap()
        page.title(one.title)
        add(page, one.advice, top=top)
    return page.text()


def add(page: Sheet, advice: Advice, *, top: int | None) -> None:
    """Add what could be better in one report to a page."""
    page.fact("judged", _judged(advice))
    for place, found in enumerate(advice.findings[:top], start=1):
        page.heading(f"{place}. {_heading(found, advice)}")
        page.plain(f"   {words.neutral(found.text)}")
        if found.advice:
            page.plain(f"   try: {found.advice}")
        if found.evidence:
            page.table(_evidence(found))
    if not advice.findings:
        page.fact("found", _HEALTHY)
    elif top is not None and len(advice.findings) > top:
        page.left_out(len(advice.findings) - top)
    for line in _not_judged(advice):
        page.note(line)


def as_markdown(reports: Iterable[Advised], of_run: Sequence[Finding], *, top: int | None) -> str:
    """Return all of it as Markdown."""
    parts = []
    if of_run:
        lines = [f"- {markdown.escape(cause.text)}" for cause in of_run[:top]]
        parts.append("\n".join(["## What costs the run of all ranks time", "", *lines]))
    for one in reports:
        lines = [f"## {markdown.escape(one.title)}", "", markdown.escape(_judged(one.advice)), ""]
        for place, found in enumerate(one.advice.findings[:top], start=1):
            lines += [f"### {place}. {markdown.escape(_heading(found, one.advice))}", ""]
            lines += [markdown.escape(found.text), ""]
            if found.advice:
                lines += [f"Try: {markdown.escape(found.advice)}", ""]
            if found.evidence:
                lines += [*markdown.table(_evidence(found)), ""]
        if not one.advice.findings:
            lines += [markdown.escape(_HEALTHY), ""]
        lines += [f"- {markdown.escape(line)}" for line in _not_judged(one.advice)]
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts or [markdown.escape(_HEALTHY)]) + "\n"


def _first(advice: Advice, top: int | None) -> Advice:
    return replace(advice, findings=advice.findings[:top])


def _judged(advice: Advice) -> str:
    if advice.step_ms is None:
        return "nothing was timed"
    length = words.duration(advice.step_ms * 1e6)
    if not advice.steps:
        return f"{length}, no step is known{_paused(advice)}"
    many = "1 step" if advice.steps == 1 else f"{advice.steps} steps"
    return f"{many} of {length}" + (" on average" if advice.steps > 1 else "")


def _paused(advice: Advice) -> str:
    """Say how much of a recording without steps was left out of judging."""
    if not advice.pauses:
        return ""
    many = "a gap" if advice.pauses == 1 else f"{advice.pauses} gaps"
    length = words.duration(advice.paused_ms * 1e6)
    return (
        f"; {many} of {length}{' in all' if advice.pauses > 1 else ''} left out, in which the "
        "device idles: without steps nobody can tell a pause from a slow host"
    )


def _heading(found: Finding, advice: Advice) -> str:
    cost = ""
    if found.cost_ms_per_step:
        a_step = " a step" if advice.steps else " of the recorded time"
        cost = f"{words.duration(found.cost_ms_per_step * 1e6)}{a_step}, "
    return f"{found.kind}: {cost}{found.sure}"


def _not_judged(advice: Advice) -> list[str]:
    """Return the rules that could not be asked, by what was missing."""
    by_reason: dict[str, list[str]] = {}
    for one in advice.not_judged:
        by_reason.setdefault(one.why, []).append(one.kind)
    return [f"not judged: {_some(kinds)}: {why}" for why, kinds in by_reason.items()]


def _some(kinds: Sequence[str]) -> str:
    """Return the names of rules, of many the first ones."""
    if len(kinds) <= _KINDS_SHOWN + 1:
        return ", ".join(kinds)
    return f"{', '.join(kinds[:_KINDS_SHOWN])} and {len(kinds) - _KINDS_SHOWN} more (--json)"


_SHOWN = (("count", "count"), ("total_ns", "total"), ("operation", "operation"), ("line", "line"))


def _evidence(found: Finding) -> list[Column]:
    rows = found.evidence
    columns = [Column("evidence", tuple(_named(str(row["name"])) for row in rows), True)]
    for key, heading in _SHOWN:
        if any(key in row for row in rows):
            cells = tuple(_cell(key, row.get(key)) for row in rows)
            columns.append(Column(heading, cells, is_name=key in ("operation", "line")))
    return columns


def _named(name: str) -> str:
    """Return what a row is called; a kernel behind other words as people read it."""
    before = "before "
    if name.startswith(before):
        return f"{before}{words.neutral(names.shown([name.removeprefix(before)])[0])}"
    return words.neutral(name)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.endswith("_ns"):
        return words.duration(value)
    return words.number(value) if isinstance(value, int) else words.neutral(str(value))
