"""Rendering of comparisons and gate verdicts as text, Markdown, JSON and JUnit XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from unified_prof.compare.comparable import PEAK, Run
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Check, Limits, Outcome, Unit, Verdict, Verdicts
from unified_prof.compare.operation_changes import Status
from unified_prof.compare.statistics import MIN_SAMPLES, SAME_WITHIN, Comparison
from unified_prof.report import names, renderers
from unified_prof.report import names as words
from unified_prof.report import operation_difference as shared
from unified_prof.report.tables import Column, SheetWriter
from unified_prof.report.terminal import TerminalPage

_HIDDEN_REASONS: dict[Status, str] = {
    "same": f"unchanged within {SAME_WITHIN * 100:g} %",
    "unclear": "inconclusive, within the run-to-run variation",
    "inconclusive": "with too few samples",
}
_SHOW_ALL_HINT: dict[Unit, Callable[[float], str]] = {
    "ns": names.format_duration,
    "B": names.format_size,
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
    """Render a comparison as text for a terminal of `width` columns, or None for a pipe."""
    page = TerminalPage(width=width, color=color, full_names=full_names)
    add_diff(page, found, top=top, everything=everything)
    return page.text()


def add_diff(page: SheetWriter, found: Difference, *, top: int, everything: bool) -> None:
    """Add a comparison to a page."""
    page.title(f"{names.neutral(found.base.label)} -> {names.neutral(found.new.label)}")
    for warning in found.warnings:
        page.remark("warning", names.neutral(warning))
    for what, line in shared.difference_headline(found):
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
    """Render a comparison as GitHub-flavored Markdown."""
    title = f"{found.base.label} -> {found.new.label}"
    lines = [f"## {renderers.escape_markdown(title)}", ""]
    lines += [f"- **warning**: {renderers.escape_markdown(warning)}" for warning in found.warnings]
    lines += [
        f"- **{what}**: {renderers.escape_markdown(line)}"
        for what, line in shared.difference_headline(found)
    ]
    for heading, columns, left_out in _tables(found, top, everything):
        lines += [
            "",
            f"### {heading}",
            "",
            *renderers.markdown_table(columns, full_names=full_names),
        ]
        if left_out:
            lines += ["", f"and {names.format_number(left_out)} more"]
    if remarks := _remarks(found, everything):
        lines += ["", *map(renderers.escape_markdown, remarks)]
    return "\n".join(lines) + "\n"


def _tables(
    found: Difference, top: int, everything: bool
) -> Iterable[tuple[str, list[Column], int]]:
    """Yield (heading, columns, rows left out) of the tables that have rows."""
    hidden = _hidden_statuses(found, everything)
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


def _hidden_statuses(found: Difference, everything: bool) -> tuple[Status, ...]:
    """Return the statuses that are hidden by default; none if nothing could be tested."""
    tested = any(change.status in _TESTED for change in found.changes)
    return _UNCHANGED if tested and not everything else ()


def _remarks(found: Difference, everything: bool) -> list[str]:
    lines = [names.neutral(line) for line in found.left_out]
    if found.identical:
        lines.insert(0, shared.IDENTICAL_SIDES)
        if found.changes and not everything:
            lines.append(
                f"{names.format_number(len(found.changes))} rows hidden (--all shows them)"
            )
        return lines
    if (line := shared.waiting_text(found.waiting)) is not None and found.totals:
        lines.append(line)
    hidden = _hidden_statuses(found, everything)
    count = Counter(change.status for change in found.changes)
    said = [
        f"{names.format_number(count[status])} {_HIDDEN_REASONS[status]}"
        for status in _UNCHANGED
        if status in hidden and count[status]
    ]
    if said:
        lines.append(f"hidden (--all shows them): {', '.join(said)}")
    if count["inconclusive"]:
        lines.append(
            f"comparing an operation needs {MIN_SAMPLES} samples per side: measure more "
            "iterations, or give several reports with --base and --new"
        )
    if any(total.of_one_run for metric, total in found.totals.items() if metric != PEAK):
        lines.append(MORE_RUNS)
    return lines


MORE_RUNS = (
    "the run-to-run variation is unknown with one run per side: give several with --base "
    "and --new, or measure it with `uprof gate --self-test`"
)


def gate_text(verdict: Verdict, *, width: int | None, color: bool) -> str:
    """Render a verdict as text."""
    page = TerminalPage(width=width, color=color)
    add_verdict(page, verdict)
    return page.text()


def add_verdict(page: SheetWriter, verdict: Verdict) -> None:
    """Add a verdict to a page."""
    page.table(check_columns(verdict.checks))
    page.title(f"{verdict.outcome} ({limits_text(verdict.limits)})")
    if (line := shared.waiting_text(verdict.waiting)) is not None:
        page.note(line)
    if any(check.of_one_run for check in verdict.checks):
        page.note(MORE_RUNS)


def gate_markdown(verdict: Verdict, base: str, new: str) -> str:
    """Render a verdict as GitHub-flavored Markdown."""
    limits = limits_text(verdict.limits)
    lines = [
        markdown_heading(verdict.outcome),
        "",
        f"{renderers.escape_markdown(base)} -> {renderers.escape_markdown(new)}; "
        f"{renderers.escape_markdown(limits)}",
        "",
        *renderers.markdown_table(check_columns(verdict.checks)),
    ]
    if (line := shared.waiting_text(verdict.waiting)) is not None:
        lines += ["", renderers.escape_markdown(line)]
    if any(check.of_one_run for check in verdict.checks):
        lines += ["", renderers.escape_markdown(MORE_RUNS)]
    return "\n".join(lines) + "\n"


def markdown_heading(outcome: Outcome) -> str:
    """Return the heading with the outcome."""
    marks = {"pass": "✅", "regression": "❌", "inconclusive": "⚠️"}
    return f"## {marks[outcome]} uprof gate: {outcome}"


def gate_document(verdict: Verdict, base: str, new: str) -> dict[str, Any]:
    """Return a verdict as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": shared.DIFFERENCE_FORMAT_VERSION,
        "base": base,
        "new": new,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "limits": asdict(verdict.limits),
        "waiting": shared.waiting_document(verdict.waiting),
        "checks": [asdict(check) for check in verdict.checks],
    }
    plain: dict[str, Any] = shared.finite_or_none(found)
    return plain


def gate_junit(verdict: Verdict, base: str, new: str) -> str:
    """Render a verdict as JUnit XML; an inconclusive check is an error, not a failure."""
    root = ElementTree.Element("testsuites")
    root.append(junit_suite("uprof gate", verdict.checks, base, new))
    return junit_text(root)


def junit_suite(name: str, checks: Sequence[Check], base: str, new: str) -> ElementTree.Element:
    """Return checks as a suite of test cases."""
    outcomes = [check.outcome for check in checks]
    suite = ElementTree.Element(
        "testsuite",
        name=names.neutral(name),
        tests=str(len(outcomes)),
        failures=str(outcomes.count("regression")),
        errors=str(outcomes.count("inconclusive")),
        skipped="0",
    )
    for check in checks:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=names.neutral(name).replace(" ", "."),
            name=names.neutral(check.metric),
        )
        message = f"{check_values(check)}: {check.reason}"
        if check.outcome == "regression":
            ElementTree.SubElement(case, "failure", message=message)
        elif check.outcome == "inconclusive":
            ElementTree.SubElement(case, "error", message=message)
        out = ElementTree.SubElement(case, "system-out")
        out.text = names.neutral(f"{base} -> {new}: {message}")
    return suite


def junit_text(root: ElementTree.Element) -> str:
    """Render suites as JUnit XML."""
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def check_columns(checks: Sequence[Check]) -> list[Column]:
    """Return the table of checks."""
    return [
        Column("metric", tuple(names.neutral(check.metric) for check in checks), is_name=True),
        Column("outcome", tuple(check.outcome for check in checks), is_name=True),
        Column("base -> new", tuple(check_values(check) for check in checks)),
        Column(
            "why",
            tuple(names.neutral(check.reason) for check in checks),
            is_name=True,
            is_prose=True,
        ),
    ]


def check_values(check: Check) -> str:
    """Return the medians that a check compared as text."""
    if check.comparison is None:
        return names.NOT_MEASURED
    show = _SHOW_ALL_HINT[check.unit]
    return f"{show(check.comparison.base_median)} -> {show(check.comparison.new_median)}"


def limits_text(limits: Limits) -> str:
    """Return the limits as text."""
    return (
        f"limits: {limits.max_regress * 100:g} % and "
        f"{names.format_duration(limits.min_abs_ns)} or "
        f"{names.format_size(limits.min_abs_bytes)}"
    )


# Name of the row of all workloads.
GEOMETRIC_MEAN = "geometric mean"

Pairs = Mapping[str, tuple[Run, Run]]


def verdicts_text(verdicts: Verdicts, *, width: int | None, color: bool) -> str:
    """Render several verdicts as text."""
    page = TerminalPage(width=width, color=color)
    page.table(_verdicts_columns(verdicts))
    page.title(f"{verdicts.outcome} ({limits_text(verdicts.limits)})")
    for note in _notes(verdicts):
        page.note(note)
    return page.text()


def verdicts_markdown(verdicts: Verdicts, pairs: Pairs) -> str:
    """Render several verdicts as GitHub-flavored Markdown."""
    lines = [
        markdown_heading(verdicts.outcome),
        "",
        f"{len(pairs)} workloads; {renderers.escape_markdown(limits_text(verdicts.limits))}",
        "",
        *renderers.markdown_table(_verdicts_columns(verdicts)),
    ]
    for note in _notes(verdicts):
        lines += ["", renderers.escape_markdown(note)]
    return "\n".join(lines) + "\n"


def verdicts_document(verdicts: Verdicts, pairs: Pairs) -> dict[str, Any]:
    """Return several verdicts as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": shared.DIFFERENCE_FORMAT_VERSION,
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
    plain: dict[str, Any] = shared.finite_or_none(found)
    return plain


def verdicts_junit(verdicts: Verdicts, pairs: Pairs) -> str:
    """Render several verdicts as JUnit XML, a suite per workload and one for all."""
    root = ElementTree.Element("testsuites")
    for name, verdict in verdicts.each.items():
        base, new = pairs[name]
        root.append(junit_suite(f"uprof gate {name}", verdict.checks, base.label, new.label))
    sides = ", ".join(pairs)
    root.append(junit_suite(f"uprof gate {GEOMETRIC_MEAN}", verdicts.together, sides, sides))
    return junit_text(root)


def diff_document(
    found: Mapping[str, dict[str, Any]], together: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return several comparisons and their geometric mean as plain data for JSON."""
    means = {metric: {**asdict(one), "verdict": one.verdict()} for metric, one in together.items()}
    plain: dict[str, Any] = {
        "format_version": shared.DIFFERENCE_FORMAT_VERSION,
        "workloads": dict(found),
        "geometric_mean": shared.finite_or_none(means),
    }
    return plain


def diffs_text(
    found: Mapping[str, str], together: Mapping[str, Comparison], *, as_markdown: bool
) -> str:
    """Return the changes of the geometric means, then each comparison, as text."""
    changes = [
        (metric, shared.comparison_text(one, is_size=metric == PEAK))
        for metric, one in together.items()
    ]
    mark, gap = ("# ", [""]) if as_markdown else ("", [])
    lines = [f"{mark}{GEOMETRIC_MEAN} of {', '.join(map(words.neutral, found))}"]
    if as_markdown:
        lines += [
            "",
            *(f"- **{metric}**: {renderers.escape_markdown(change)}" for metric, change in changes),
        ]
    else:
        lines += [f"{metric:<12}  {change}" for metric, change in changes]
    if not changes:
        lines.append("no figure that all workloads have")
    for name, one in found.items():
        lines += ["", f"{mark}{words.neutral(name)}", *gap, one.rstrip()]
    return "\n".join(lines) + "\n"


def _checks(verdicts: Verdicts) -> Iterator[tuple[str, Check]]:
    for name, verdict in verdicts.each.items():
        for check in verdict.checks:
            yield name, check
    for check in verdicts.together:
        yield GEOMETRIC_MEAN, check


def _verdicts_columns(verdicts: Verdicts) -> list[Column]:
    rows = list(_checks(verdicts))
    columns = check_columns([check for _, check in rows])
    names = Column("workload", tuple(words.neutral(name) for name, _ in rows), is_name=True)
    return [names, *columns]


def _notes(verdicts: Verdicts) -> list[str]:
    found = [
        (name, line)
        for name, verdict in verdicts.each.items()
        if (line := shared.waiting_text(verdict.waiting)) is not None
    ]
    alike = len({line for _, line in found}) == 1 and len(found) == len(verdicts.each)
    notes = [found[0][1]] if alike else [f"{words.neutral(name)}: {line}" for name, line in found]
    if any(check.of_one_run for _, check in _checks(verdicts)):
        notes.append(MORE_RUNS)
    return notes
