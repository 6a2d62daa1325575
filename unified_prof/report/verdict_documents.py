"""Documents, JSON and JUnit XML of gate verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from unified_prof.compare.comparable import Run
from unified_prof.compare.gate import Check, Effort, Limits, Outcome, Unit, Verdict, Verdicts
from unified_prof.report import names
from unified_prof.report.document import Column, Document
from unified_prof.report.operation_difference import (
    DIFFERENCE_FORMAT_VERSION,
    GEOMETRIC_MEAN,
    MORE_RUNS,
    finite_or_none,
    waiting_fields,
    waiting_text,
)

_FORMATTERS: dict[Unit, Callable[[float], str]] = {
    "ns": names.format_duration,
    "B": names.format_size,
    "n": "{:,.0f}".format,
    "x": "{:.3f} x".format,
}
_MARKS: dict[Outcome, str] = {"pass": "✅", "regression": "❌", "inconclusive": "⚠️"}

# Workload -> (baseline, candidate).
Pairs = Mapping[str, tuple[Run, Run]]


def gate_document(verdict: Verdict, base: str = "", new: str = "") -> Document:
    """Return the document of a verdict on two labeled runs."""
    document = Document()
    _add_title(document, verdict.outcome)
    if base:
        document.fact("compared", f"{base} -> {new}")
    document.fact("limits", limits_text(verdict.limits))
    _add_effort(document, verdict.effort)
    document.table(check_columns(verdict.checks))
    if (line := waiting_text(verdict.waiting)) is not None:
        document.note(line)
    if any(check.lacks_runs for check in verdict.checks):
        document.note(MORE_RUNS)
    return document


def verdicts_document(verdicts: Verdicts) -> Document:
    """Return the document of verdicts on several workloads."""
    document = Document()
    _add_title(document, verdicts.outcome)
    document.fact("compared", f"{len(verdicts.each)} workloads")
    document.fact("limits", limits_text(verdicts.limits))
    _add_effort(document, verdicts.effort)
    rows = list(_all_checks(verdicts))
    workloads = Column("workload", tuple(names.neutral(name) for name, _ in rows), is_name=True)
    document.table([workloads, *check_columns([check for _, check in rows])])
    for note in _waiting_notes(verdicts):
        document.note(note)
    if any(check.lacks_runs for _, check in rows):
        document.note(MORE_RUNS)
    return document


def _add_title(document: Document, outcome: Outcome) -> None:
    document.title(f"uprof gate: {outcome}", mark=_MARKS[outcome])


def _add_effort(document: Document, effort: Effort | None) -> None:
    if effort is not None:
        rounds = f"{effort.rounds} round{'s' * (effort.rounds > 1)}"
        document.fact("measured", f"{rounds} in {effort.seconds:.0f} s")


def gate_fields(verdict: Verdict, base: str, new: str) -> dict[str, Any]:
    """Return a verdict as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": DIFFERENCE_FORMAT_VERSION,
        "base": base,
        "new": new,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "limits": asdict(verdict.limits),
        "waiting": waiting_fields(verdict.waiting),
        "effort": verdict.effort and asdict(verdict.effort),
        "checks": [asdict(check) for check in verdict.checks],
    }
    plain: dict[str, Any] = finite_or_none(found)
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
    show = _FORMATTERS[check.unit]
    return f"{show(check.comparison.base_median)} -> {show(check.comparison.new_median)}"


def limits_text(limits: Limits) -> str:
    """Return the limits as text."""
    return (
        f"{limits.max_regress * 100:g} % and "
        f"{names.format_duration(limits.min_abs_ns)} or "
        f"{names.format_size(limits.min_abs_bytes)}"
    )


def verdicts_fields(verdicts: Verdicts, pairs: Pairs) -> dict[str, Any]:
    """Return several verdicts as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": DIFFERENCE_FORMAT_VERSION,
        "outcome": verdicts.outcome,
        "exit_code": verdicts.exit_code,
        "limits": asdict(verdicts.limits),
        "effort": verdicts.effort and asdict(verdicts.effort),
        "workloads": {
            name: {
                "base": pairs[name][0].label,
                "new": pairs[name][1].label,
                "outcome": verdict.outcome,
                "waiting": waiting_fields(verdict.waiting),
                "checks": [asdict(check) for check in verdict.checks],
            }
            for name, verdict in verdicts.each.items()
        },
        "geometric_mean": [asdict(check) for check in verdicts.together],
    }
    plain: dict[str, Any] = finite_or_none(found)
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


def _all_checks(verdicts: Verdicts) -> Iterator[tuple[str, Check]]:
    for name, verdict in verdicts.each.items():
        for check in verdict.checks:
            yield name, check
    for check in verdicts.together:
        yield GEOMETRIC_MEAN, check


def _waiting_notes(verdicts: Verdicts) -> list[str]:
    """Return the notes on waiting, one for all workloads if they are equal."""
    found = [
        (name, line)
        for name, verdict in verdicts.each.items()
        if (line := waiting_text(verdict.waiting)) is not None
    ]
    if len(found) == len(verdicts.each) and len({line for _, line in found}) == 1:
        return [found[0][1]]
    return [f"{name}: {line}" for name, line in found]
