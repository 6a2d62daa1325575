"""Rendering of baseline histories as terminal chart, HTML page, JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from unified_prof.compare.gate import Limits
from unified_prof.compare.history import Change, History, Point
from unified_prof.report import names
from unified_prof.report.document import Column, Document, columns_of, csv_text, fill_page
from unified_prof.report.verdicts import limits_text

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


@dataclass(frozen=True, slots=True)
class BaselineSeries:
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
