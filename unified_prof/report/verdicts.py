"""Verdicts of the gate as documents, JSON and JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from xml.etree import ElementTree

from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Check, Limits, Outcome, Unit, Verdict, Verdicts
from unified_prof.report import names
from unified_prof.report.document import Document, columns_of
from unified_prof.report.operation_difference import (
    DIFFERENCE_FORMAT_VERSION,
    GEOMETRIC_MEAN,
    MORE_RUNS,
    add_increases,
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

_NO_OPERATION = "no operation explains the increase: `uprof diff BASE NEW` shows parts and findings"
_MAX_INCREASES = 3  # Rows of the tables that explain a regression.

# Workload -> names of baseline and candidate; the name of a single workload is empty.
Labels = Mapping[str, tuple[str, str]]


def verdict_document(
    verdict: Verdict | Verdicts,
    labels: Labels | None = None,
    causes: Mapping[str, Difference] | None = None,
) -> Document:
    """Return the document of a verdict on one workload or on several.

    `causes` are the differences of the workloads with a regression: their largest increases follow
    the checks.
    """
    several = isinstance(verdict, Verdicts)
    each = verdict.each if isinstance(verdict, Verdicts) else {"": verdict}
    document = Document()
    document.title(f"uprof gate: {verdict.outcome}", mark=_MARKS[verdict.outcome])
    if several:
        document.fact("compared", f"{len(each)} workloads")
    elif labels:
        document.fact("compared", " -> ".join(labels[""]))
    document.fact("limits", limits_text(verdict.limits))
    if (effort := verdict.effort) is not None:
        rounds = f"{effort.rounds} round{'s' * (effort.rounds > 1)}"
        document.fact("measured", f"{rounds} in {effort.seconds:.0f} s")
    rows = [(name, check) for name, one in each.items() for check in one.checks]
    if isinstance(verdict, Verdicts):
        rows += [(GEOMETRIC_MEAN, check) for check in verdict.together]
    workload, *columns = columns_of(
        rows,
        ("workload", lambda row: row[0], names.neutral, 10),
        ("metric", lambda row: row[1].metric, names.neutral, 10),
        ("outcome", lambda row: row[1].outcome, names.neutral, 10),
        ("base -> new", lambda row: check_values(row[1]), str, 10),
        ("why", lambda row: row[1].reason, names.neutral, 10),
    )
    columns[-1] = replace(columns[-1], is_prose=True)
    document.table([workload, *columns] if several else columns)
    for name, found in (causes or {}).items():
        if not add_increases(document, found, _MAX_INCREASES, f", {name}" if several else ""):
            document.note(_NO_OPERATION)
    for note in _waiting_notes(each):
        document.note(note)
    if any(check.lacks_runs for _, check in rows):
        document.note(MORE_RUNS)
    return document


def verdict_fields(verdict: Verdict | Verdicts, labels: Labels) -> dict[str, Any]:
    """Return a verdict on one workload or on several as plain data for JSON."""
    whole = {
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "limits": asdict(verdict.limits),
    }
    effort = verdict.effort and asdict(verdict.effort)
    found: dict[str, Any] = {"format_version": DIFFERENCE_FORMAT_VERSION}
    if isinstance(verdict, Verdicts):
        workloads = {
            name: {
                **_side_fields(labels[name]),
                "outcome": one.outcome,
                "waiting": waiting_fields(one.waiting),
                "checks": [asdict(check) for check in one.checks],
            }
            for name, one in verdict.each.items()
        }
        mean = [asdict(check) for check in verdict.together]
        found |= {**whole, "effort": effort, "workloads": workloads, "geometric_mean": mean}
    else:
        found |= {**_side_fields(labels[""]), **whole, "waiting": waiting_fields(verdict.waiting)}
        found |= {"effort": effort, "checks": [asdict(check) for check in verdict.checks]}
    plain: dict[str, Any] = finite_or_none(found)
    return plain


def _side_fields(sides: tuple[str, str]) -> dict[str, str]:
    return dict(zip(("base", "new"), sides, strict=True))


def verdict_junit(verdict: Verdict | Verdicts, labels: Labels) -> str:
    """Render a verdict as JUnit XML: a suite per workload, and one for all if there are several.

    An inconclusive check is an error, not a failure.
    """
    root = ElementTree.Element("testsuites")
    each = verdict.each if isinstance(verdict, Verdicts) else {"": verdict}
    for name, one in each.items():
        root.append(junit_suite(f"uprof gate {name}".rstrip(), one.checks, *labels[name]))
    if isinstance(verdict, Verdicts):
        sides = ", ".join(labels)
        root.append(junit_suite(f"uprof gate {GEOMETRIC_MEAN}", verdict.together, sides, sides))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


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


def _waiting_notes(each: Mapping[str, Verdict]) -> list[str]:
    """Return the notes on waiting, one for all workloads if they are equal."""
    found = [
        (name, line)
        for name, verdict in each.items()
        if (line := waiting_text(verdict.waiting)) is not None
    ]
    if len(found) == len(each) and len({line for _, line in found}) == 1:
        return [found[0][1]]
    return [f"{name}: {line}" for name, line in found]
