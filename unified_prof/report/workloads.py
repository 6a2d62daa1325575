"""Several workloads judged or compared at a time, in each format that people and CI read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from unified_prof.analysis.compare.comparable import PEAK, Run
from unified_prof.analysis.compare.gate import Check
from unified_prof.analysis.compare.statistics import Comparison
from unified_prof.analysis.compare.workloads import Verdicts
from unified_prof.report import comparison, markdown, words
from unified_prof.report import difference as shared
from unified_prof.report.tables import Column
from unified_prof.report.terminal import Page

TOGETHER = "geometric mean"
"""What the row of all workloads is called."""

Pairs = Mapping[str, tuple[Run, Run]]


def text(verdicts: Verdicts, *, width: int | None, color: bool) -> str:
    """Return the verdicts as text."""
    page = Page(width=width, color=color)
    page.table(_columns(verdicts))
    page.title(f"{verdicts.outcome} ({comparison.limits_words(verdicts.limits)})")
    for note in _notes(verdicts):
        page.note(note)
    return page.text()


def as_markdown(verdicts: Verdicts, pairs: Pairs) -> str:
    """Return the verdicts as GitHub-flavoured Markdown."""
    lines = [
        comparison.markdown_heading(verdicts.outcome),
        "",
        f"{len(pairs)} workloads; {markdown.escape(comparison.limits_words(verdicts.limits))}",
        "",
        *markdown.table(_columns(verdicts)),
    ]
    for note in _notes(verdicts):
        lines += ["", markdown.escape(note)]
    return "\n".join(lines) + "\n"


def document(verdicts: Verdicts, pairs: Pairs) -> dict[str, Any]:
    """Return the verdicts as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": shared.FORMAT_VERSION,
        "outcome": verdicts.outcome,
        "exit_code": verdicts.exit_code,
        "limits": asdict(verdicts.limits),
        "workloads": {
            name: {
                "base": pairs[name][0].label,
                "new": pairs[name][1].label,
                "outcome": verdict.outcome,
                "waiting": shared.waiting_document(verdict.waiting),
                "checks": [asdict(check) for check in verdict.checks],
            }
            for name, verdict in verdicts.each.items()
        },
        "geometric_mean": [asdict(check) for check in verdicts.together],
    }
    plain: dict[str, Any] = shared.finite(found)
    return plain


def junit(verdicts: Verdicts, pairs: Pairs) -> str:
    """Return the verdicts as a JUnit report, a suite for each workload and one for all."""
    root = ElementTree.Element("testsuites")
    for name, verdict in verdicts.each.items():
        base, new = pairs[name]
        root.append(
            comparison.junit_suite(f"uprof gate {name}", verdict.checks, base.label, new.label)
        )
    sides = ", ".join(pairs)
    root.append(comparison.junit_suite(f"uprof gate {TOGETHER}", verdicts.together, sides, sides))
    return comparison.junit_text(root)


def diff_document(
    found: Mapping[str, dict[str, Any]], together: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return several comparisons, each as plain data for JSON, and their geometric mean."""
    means = {metric: {**asdict(one), "verdict": one.verdict()} for metric, one in together.items()}
    plain: dict[str, Any] = {
        "format_version": shared.FORMAT_VERSION,
        "workloads": dict(found),
        "geometric_mean": shared.finite(means),
    }
    return plain


def diff_words(
    found: Mapping[str, str], together: Mapping[str, Comparison], *, as_markdown: bool
) -> str:
    """Return the changes of the geometric means, then each comparison, in words."""
    changes = [
        (metric, shared.comparison_words(one, is_size=metric == PEAK))
        for metric, one in together.items()
    ]
    mark, gap = ("# ", [""]) if as_markdown else ("", [])
    lines = [f"{mark}{TOGETHER} of {', '.join(map(words.neutral, found))}"]
    if as_markdown:
        lines += ["", *(f"- **{metric}**: {markdown.escape(change)}" for metric, change in changes)]
    else:
        lines += [f"{metric:<12}  {change}" for metric, change in changes]
    if not changes:
        lines.append("no figure that all of them have")
    for name, one in found.items():
        lines += ["", f"{mark}{words.neutral(name)}", *gap, one.rstrip()]
    return "\n".join(lines) + "\n"


def _checks(verdicts: Verdicts) -> Iterator[tuple[str, Check]]:
    for name, verdict in verdicts.each.items():
        for check in verdict.checks:
            yield name, check
    for check in verdicts.together:
        yield TOGETHER, check


def _columns(verdicts: Verdicts) -> list[Column]:
    rows = list(_checks(verdicts))
    columns = comparison.check_columns([check for _, check in rows])
    names = Column("workload", tuple(words.neutral(name) for name, _ in rows), is_name=True)
    return [names, *columns]


def _notes(verdicts: Verdicts) -> list[str]:
    found = [
        (name, line)
        for name, verdict in verdicts.each.items()
        if (line := shared.waiting_words(verdict.waiting)) is not None
    ]
    alike = len({line for _, line in found}) == 1 and len(found) == len(verdicts.each)
    notes = [found[0][1]] if alike else [f"{words.neutral(name)}: {line}" for name, line in found]
    if any(check.of_one_run for _, check in _checks(verdicts)):
        notes.append(comparison.MORE_RUNS)
    return notes
