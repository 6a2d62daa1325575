"""Verdicts of the gate as documents, JSON and JUnit XML, and histories of baselines as charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from xml.etree import ElementTree

from msgspec import Struct
from msgspec.structs import replace

from unified_prof.base.records import asdict
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Check, Limits, Outcome, Unit, Verdict, Verdicts
from unified_prof.compare.history import Change, History, Point
from unified_prof.report import names
from unified_prof.report.document import Column, Document, columns_of, csv_text, fill_page
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


FORMAT_VERSION = 1
# Width of the chart in a terminal, and in a terminal narrower than _WIDE.
_CHART_WIDTH, _NARROW_CHART_WIDTH = 40, 24
_WIDE = 110
# Characters of a commit id that are shown.
_COMMIT = 10
_STYLES = ("page.css", "history.css")
_SCRIPTS = ("base.js", "frame.js", "table.js", "history.js")
_STATUS_TEXTS = {"worse": "slower", "better": "faster", "restarted": "not comparable"}
_SIZE_STATUS_TEXTS = {"worse": "bigger", "better": "smaller", "restarted": "not comparable"}


class BaselineVersion(Protocol):
    """Metadata of one baseline version."""

    @property
    def version(self) -> int:
        """Version number, from 1."""

    @property
    def saved_at(self) -> datetime:
        """Time at which the version was saved, in UTC."""

    @property
    def commit(self) -> str | None:
        """Commit of the measured project."""

    @property
    def device(self) -> str | None:
        """Device of the measurement."""


class BaselineSeries(Struct, frozen=True):
    """History of one baseline and one metric."""

    name: str
    entries: tuple[BaselineVersion, ...]
    history: History

    @property
    def title(self) -> str:
        """Return the title."""
        return f"{self.name}, {self.history.metric}"

    def rows(self) -> Iterator[tuple[BaselineVersion, Point]]:
        """Yield each version with its point, oldest first."""
        yield from zip(self.entries, self.history.points, strict=True)

    def format_value(self, value: float | None) -> str:
        """Format a value of this metric."""
        return (
            names.format_size(value) if self.history.unit == "B" else names.format_duration(value)
        )

    def describe_change(self, change: Change | None) -> str:
        """Format a change; empty if there is none."""
        if change is None:
            return ""
        said = (_SIZE_STATUS_TEXTS if self.history.unit == "B" else _STATUS_TEXTS)[change.kind]
        return said if change.ratio is None else f"{said} {(change.ratio - 1) * 100:+.1f} %"


def history_document(
    series: Sequence[BaselineSeries], limits: Limits, *, width: int | None
) -> Document:
    """Return the document of the histories, with charts for a terminal of `width` columns."""
    document = Document()
    chart_width = _CHART_WIDTH if width is None or width >= _WIDE else _NARROW_CHART_WIDTH
    for one in series:
        document.title(one.title)
        document.table(_version_columns(one, chart_width))
        for entry, point in one.rows():
            if point.change is not None and point.change.kind == "restarted":
                document.note(f"@{entry.version}: {point.change.reason}")
    document.note(series_remarks(series, limits))
    if any(
        point.low is None and point.value is not None for one in series for _, point in one.rows()
    ):
        document.note(
            "no confidence interval: one run, and the run-to-run variation is unknown "
            "(`uprof gate --self-test`)"
        )
    return document


def _version_columns(series: BaselineSeries, chart_width: int) -> list[Column]:
    """Return the table of versions with a chart row each."""
    rows = zip(series.rows(), _chart(series, chart_width), strict=True)
    return columns_of(
        [(entry, point, chart) for (entry, point), chart in rows],
        ("version", lambda row: f"@{row[0].version}", str, 10),
        ("saved (UTC)", lambda row: f"{row[0].saved_at:%Y-%m-%d %H:%M}", str, 6),
        ("commit", lambda row: (row[0].commit or "-")[:_COMMIT], names.neutral, 7),
        ("runs", lambda row: row[1].runs, names.format_number, 5),
        ("median", lambda row: row[1].value, series.format_value, 10),
        (_scale(series, chart_width), lambda row: row[2], str, 10),
        ("change", lambda row: series.describe_change(row[1].change), names.neutral, 10),
    )


_CLOCKS = {
    "cpu": "; times are CPU times, without waiting for a processor",
    "wall": "; times exclude waiting for a processor",
}


def series_remarks(series: Sequence[BaselineSeries], limits: Limits) -> str:
    """Return notes on how changes are detected, and on the clock of times."""
    clocks = {one.history.clock or "" for one in series if one.history.unit == "ns"}
    return (
        "changes are detected with the gate's rule against the versions since the last "
        f"change; limits: {limits_text(limits)}{_CLOCKS.get(''.join(clocks), '')}"
    )


def history_fields(series: Sequence[BaselineSeries], limits: Limits) -> dict[str, Any]:
    """Return the histories as plain data for JSON."""
    return {
        "format_version": FORMAT_VERSION,
        "limits": asdict(limits),
        "series": [
            {
                "name": one.name,
                "metric": one.history.metric,
                "unit": one.history.unit,
                "waiting_left_out": one.history.clock is not None,
                "points": [_row(entry, point) for entry, point in one.rows()],
            }
            for one in series
        ],
    }


def history_csv(series: Sequence[BaselineSeries]) -> str:
    """Render the histories as one CSV table; unknown values are empty."""
    return csv_text(
        {"name": one.name, "metric": one.history.metric, "unit": one.history.unit}
        | _row(entry, point)
        for one in series
        for entry, point in one.rows()
    )


def history_page(series: Sequence[BaselineSeries], limits: Limits) -> str:
    """Render the histories as one HTML page."""
    baselines = list(dict.fromkeys(one.name for one in series))
    others = " and others" if len(baselines) > 3 else ""
    title = f"History of {', '.join(baselines[:3])}{others}"
    data = history_fields(series, limits)
    for found, one in zip(data["series"], series, strict=True):
        found["title"] = one.title
        for point, (_, known) in zip(found["points"], one.rows(), strict=True):
            point["said"] = one.describe_change(known.change)
    return fill_page(
        title,
        _STYLES,
        _SCRIPTS,
        {
            **data,
            "title": title,
            "remarks": series_remarks(series, limits),
            "coverage": {"headline": "", "missing": []},
        },
    )


def _row(entry: BaselineVersion, point: Point) -> dict[str, Any]:
    change = point.change
    return {
        "version": entry.version,
        "saved_at": entry.saved_at.isoformat(),
        "commit": entry.commit,
        "device": entry.device,
        "value": point.value,
        "low": point.low,
        "high": point.high,
        "runs": point.runs,
        "change": None if change is None else change.kind,
        "ratio": None if change is None else change.ratio,
        "reason": None if change is None else change.reason,
    }


def _range(series: BaselineSeries) -> tuple[float, float]:
    known = [
        value
        for point in series.history.points
        for value in (point.value, point.low, point.high)
        if value is not None
    ]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _scale(series: BaselineSeries, columns: int) -> str:
    if all(point.value is None for point in series.history.points):
        return names.NOT_MEASURED
    low, high = (series.format_value(one) for one in _range(series))
    return f"{low}{high:>{max(1, columns - len(low))}}"


def _chart(series: BaselineSeries, columns: int) -> Iterator[str]:
    """Yield a chart row per version: its interval and its median."""
    low, high = _range(series)

    def column(value: float) -> int:
        if high <= low:
            return 0
        return min(columns - 1, math.floor((value - low) / (high - low) * (columns - 1) + 0.5))

    for point in series.history.points:
        cells = ["·"] * columns
        if point.value is not None:
            if point.low is not None and point.high is not None:
                first, last = column(point.low), column(point.high)
                cells[first : last + 1] = "─" * (last + 1 - first)
                cells[first], cells[last] = "├", "┤"
            cells[column(point.value)] = "●"
        yield "".join(cells)
