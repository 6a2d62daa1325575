"""A comparison, or a gate's verdict, in each format that people and CI systems read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from unified_prof.analysis.compare.comparable import PEAK
from unified_prof.analysis.compare.diff import Difference
from unified_prof.analysis.compare.gate import Check, Limits, Outcome, Unit, Verdict
from unified_prof.analysis.compare.judging import Status
from unified_prof.analysis.compare.statistics import MIN_SAMPLES, SAME_WITHIN
from unified_prof.report import difference as shared
from unified_prof.report import markdown, words
from unified_prof.report.sheet import Sheet
from unified_prof.report.tables import Column
from unified_prof.report.terminal import Page

_WHY_NOT_SHOWN: dict[Status, str] = {
    "same": f"the same within {SAME_WITHIN * 100:g} %",
    "unclear": "unclear, as runs may differ by so much",
    "inconclusive": "with too few samples",
}
_SHOW: dict[Unit, Callable[[float], str]] = {
    "ns": words.duration,
    "B": words.size,
    "x": "{:.3f} x".format,
}
_TESTED = ("same", "unclear", "slower", "faster")
_UNCHANGED: tuple[Status, ...] = ("same", "unclear", "inconclusive")


def diff_text(
    found: Difference,
    *,
    top: int,
    everything: bool,
    width: int | None,
    color: bool,
    full_names: bool = False,
) -> str:
    """Return a comparison as text for a terminal of `width` columns (None: for a pipe)."""
    page = Page(width=width, color=color, full_names=full_names)
    add_diff(page, found, top=top, everything=everything)
    return page.text()


def add_diff(page: Sheet, found: Difference, *, top: int, everything: bool) -> None:
    """Add a comparison to a page."""
    page.title(f"{words.neutral(found.base.label)} -> {words.neutral(found.new.label)}")
    for warning in found.warnings:
        page.remark("warning", words.neutral(warning))
    for what, line in shared.headline(found):
        page.fact(what, line)
    for heading, columns, left_out in _tables(found, top, everything):
        page.heading(heading)
        page.table(columns)
        if left_out:
            page.left_out(left_out)
    for line in _remarks(found, everything):
        page.note(line)


def diff_markdown(
    found: Difference, *, top: int, everything: bool, full_names: bool = False
) -> str:
    """Return a comparison as GitHub-flavoured Markdown."""
    title = f"{found.base.label} -> {found.new.label}"
    lines = [f"## {markdown.escape(title)}", ""]
    lines += [f"- **warning**: {markdown.escape(warning)}" for warning in found.warnings]
    lines += [f"- **{what}**: {markdown.escape(line)}" for what, line in shared.headline(found)]
    for heading, columns, left_out in _tables(found, top, everything):
        lines += ["", f"### {heading}", "", *markdown.table(columns, full_names=full_names)]
        if left_out:
            lines += ["", f"and {words.number(left_out)} more"]
    if remarks := _remarks(found, everything):
        lines += ["", *map(markdown.escape, remarks)]
    return "\n".join(lines) + "\n"


def _tables(
    found: Difference, top: int, everything: bool
) -> Iterable[tuple[str, list[Column], int]]:
    """Yield (heading, columns, rows left out) of the tables that have rows."""
    hidden = _hidden(found, everything)
    changes = tuple(change for change in found.changes if change.status not in hidden)
    if changes:
        net_ns = found.new_ns - found.base_ns
        columns = shared.change_columns(changes[:top], net_ns)
        yield "Time", columns, max(0, len(changes) - top)
    sizes = found.size_changes
    if sizes:
        yield "Memory", shared.size_columns(sizes[:top]), max(0, len(sizes) - top)
    kernels = found.kernel_changes
    if kernels:
        columns = shared.kernel_columns(kernels[:top])
        yield "Kernels under each operation", columns, max(0, len(kernels) - top)


def _hidden(found: Difference, everything: bool) -> tuple[Status, ...]:
    """Return the statuses not worth a row; where nothing could be tested, all is worth one."""
    tested = any(change.status in _TESTED for change in found.changes)
    return _UNCHANGED if tested and not everything else ()


def _remarks(found: Difference, everything: bool) -> list[str]:
    lines = [words.neutral(line) for line in found.left_out]
    if found.identical:
        lines.insert(0, shared.IDENTICAL)
        if found.changes and not everything:
            lines.append(f"{words.number(len(found.changes))} rows are not shown without --all")
        return lines
    if (line := shared.waiting_words(found.waiting)) is not None and found.totals:
        lines.append(line)
    hidden = _hidden(found, everything)
    count = Counter(change.status for change in found.changes)
    said = [
        f"{words.number(count[status])} {_WHY_NOT_SHOWN[status]}"
        for status in _UNCHANGED
        if status in hidden and count[status]
    ]
    if said:
        lines.append(f"not shown without --all: {', '.join(said)}")
    if count["inconclusive"]:
        lines.append(
            f"to compare an operation takes {MIN_SAMPLES} samples on each side: measure more "
            "iterations, or give several reports with --base and --new"
        )
    if any(total.of_one_run for metric, total in found.totals.items() if metric != PEAK):
        lines.append(MORE_RUNS)
    return lines


MORE_RUNS = (
    "one run a side does not tell how runs differ on this machine: give several of each with "
    "--base and --new, or let `uprof gate --self-test` learn it"
)


def gate_text(verdict: Verdict, *, width: int | None, color: bool) -> str:
    """Return a verdict as text."""
    page = Page(width=width, color=color)
    add_verdict(page, verdict)
    return page.text()


def add_verdict(page: Sheet, verdict: Verdict) -> None:
    """Add a verdict to a page."""
    page.table(check_columns(verdict.checks))
    page.title(f"{verdict.outcome} ({limits_words(verdict.limits)})")
    if (line := shared.waiting_words(verdict.waiting)) is not None:
        page.note(line)
    if any(check.of_one_run for check in verdict.checks):
        page.note(MORE_RUNS)


def gate_markdown(verdict: Verdict, base: str, new: str) -> str:
    """Return a verdict as GitHub-flavoured Markdown."""
    limits = limits_words(verdict.limits)
    lines = [
        markdown_heading(verdict.outcome),
        "",
        f"{markdown.escape(base)} -> {markdown.escape(new)}; {markdown.escape(limits)}",
        "",
        *markdown.table(check_columns(verdict.checks)),
    ]
    if (line := shared.waiting_words(verdict.waiting)) is not None:
        lines += ["", markdown.escape(line)]
    if any(check.of_one_run for check in verdict.checks):
        lines += ["", markdown.escape(MORE_RUNS)]
    return "\n".join(lines) + "\n"


def markdown_heading(outcome: Outcome) -> str:
    """Return the line that says how it went."""
    marks = {"pass": "✅", "regression": "❌", "inconclusive": "⚠️"}
    return f"## {marks[outcome]} uprof gate: {outcome}"


def gate_document(verdict: Verdict, base: str, new: str) -> dict[str, Any]:
    """Return a verdict as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": shared.FORMAT_VERSION,
        "base": base,
        "new": new,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "limits": asdict(verdict.limits),
        "waiting": shared.waiting_document(verdict.waiting),
        "checks": [asdict(check) for check in verdict.checks],
    }
    plain: dict[str, Any] = shared.finite(found)
    return plain


def gate_junit(verdict: Verdict, base: str, new: str) -> str:
    """Return a verdict as a JUnit report: an inconclusive check is an error, not a failure."""
    root = ElementTree.Element("testsuites")
    root.append(junit_suite("uprof gate", verdict.checks, base, new))
    return junit_text(root)


def junit_suite(name: str, checks: Sequence[Check], base: str, new: str) -> ElementTree.Element:
    """Return checks as a suite of test cases."""
    outcomes = [check.outcome for check in checks]
    suite = ElementTree.Element(
        "testsuite",
        name=words.neutral(name),
        tests=str(len(outcomes)),
        failures=str(outcomes.count("regression")),
        errors=str(outcomes.count("inconclusive")),
        skipped="0",
    )
    for check in checks:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=words.neutral(name).replace(" ", "."),
            name=words.neutral(check.metric),
        )
        message = f"{values(check)}: {check.reason}"
        if check.outcome == "regression":
            ElementTree.SubElement(case, "failure", message=message)
        elif check.outcome == "inconclusive":
            ElementTree.SubElement(case, "error", message=message)
        out = ElementTree.SubElement(case, "system-out")
        out.text = words.neutral(f"{base} -> {new}: {message}")
    return suite


def junit_text(root: ElementTree.Element) -> str:
    """Return suites as a file."""
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def check_columns(checks: Sequence[Check]) -> list[Column]:
    """Return the table of checks."""
    return [
        Column("metric", tuple(words.neutral(check.metric) for check in checks), is_name=True),
        Column("outcome", tuple(check.outcome for check in checks), is_name=True),
        Column("base -> new", tuple(values(check) for check in checks)),
        Column(
            "why",
            tuple(words.neutral(check.reason) for check in checks),
            is_name=True,
            is_prose=True,
        ),
    ]


def values(check: Check) -> str:
    """Return the medians that a check compared, in words."""
    if check.comparison is None:
        return words.NOT_MEASURED
    show = _SHOW[check.unit]
    return f"{show(check.comparison.base_median)} -> {show(check.comparison.new_median)}"


def limits_words(limits: Limits) -> str:
    """Return in words how much worse is too much."""
    return (
        f"a regression is more than {limits.max_regress * 100:g} % worse, and by more than "
        f"{words.duration(limits.min_abs_ns)} or {words.size(limits.min_abs_bytes)}"
    )
