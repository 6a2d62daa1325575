"""Rendering of baseline histories as terminal chart, HTML page, JSON and CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from io import StringIO
from typing import Any, Protocol

from unified_prof.compare.gate import Limits
from unified_prof.compare.history import Change, History, Point
from unified_prof.report import html_page as page_file
from unified_prof.report import names as words
from unified_prof.report import renderers
from unified_prof.report.tables import Column
from unified_prof.report.terminal import TerminalPage

FORMAT_VERSION = 1
_CHART, _NARROW_CHART = 40, 24
"""Columns of the chart in a terminal, and in one of less than _WIDE columns."""
_WIDE = 110
_COMMIT = 10
_STYLES = ("page.css", "history.css")
_SCRIPTS = ("base.js", "frame.js", "table.js", "history.js")
_STATUS_TEXTS = {"worse": "slower", "better": "faster", "restarted": "not comparable"}
_SIZE_STATUS_TEXTS = {"worse": "bigger", "better": "smaller", "restarted": "not comparable"}


class BaselineVersion(Protocol):
    """Facts about a version besides its measurements."""

    @property
    def version(self) -> int:
        """Version number, from 1."""

    @property
    def saved_at(self) -> datetime:
        """Time of saving, UTC."""

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

    def in_words(self, value: float | None) -> str:
        """Format a value."""
        return (
            words.format_size(value) if self.history.unit == "B" else words.format_duration(value)
        )

    def change_in_words(self, change: Change | None) -> str:
        """Format a change; empty if there is none."""
        if change is None:
            return ""
        said = (_SIZE_STATUS_TEXTS if self.history.unit == "B" else _STATUS_TEXTS)[change.kind]
        return said if change.ratio is None else f"{said} {(change.ratio - 1) * 100:+.1f} %"


def history_text(
    series: Sequence[BaselineSeries], limits: Limits, *, width: int | None, color: bool
) -> str:
    """Render charts for a terminal of `width` columns (None for a pipe), a row per version."""
    page = TerminalPage(width=width, color=color)
    columns = _CHART if width is None or width >= _WIDE else _NARROW_CHART
    for number, one in enumerate(series):
        if number:
            page.gap()
        page.title(words.neutral(one.title))
        rows = list(one.rows())
        page.table(
            [
                Column("version", tuple(f"@{entry.version}" for entry, _ in rows)),
                Column(
                    "saved (UTC)",
                    tuple(f"{entry.saved_at:%Y-%m-%d %H:%M}" for entry, _ in rows),
                    importance=6,
                ),
                Column(
                    "commit",
                    tuple(words.neutral(_commit(entry)) for entry, _ in rows),
                    is_name=True,
                    importance=7,
                ),
                Column(
                    "runs",
                    tuple(words.format_number(point.runs) for _, point in rows),
                    importance=5,
                ),
                Column("median", tuple(one.in_words(point.value) for _, point in rows)),
                Column(_scale(one, columns), tuple(_chart(one, columns))),
                Column(
                    "change",
                    tuple(one.change_in_words(point.change) for _, point in rows),
                    is_name=True,
                ),
            ]
        )
        for entry, point in rows:
            if point.change is not None and point.change.kind == "restarted":
                page.note(f"@{entry.version}: {words.neutral(point.change.reason)}")
    page.note(series_remarks(limits))
    if any(
        point.low is None and point.value is not None for one in series for _, point in one.rows()
    ):
        page.note(
            "no confidence interval: one run, and the run-to-run variation is unknown "
            "(`uprof gate --self-test`)"
        )
    return page.text()


def series_remarks(limits: Limits) -> str:
    """Return notes on how changes are detected."""
    return (
        "changes are marked by the gate's rule against the versions since the last "
        f"change; limits: {limits.max_regress * 100:g} % and "
        f"{words.format_duration(limits.min_abs_ns)} or "
        f"{words.format_size(limits.min_abs_bytes)}"
    )


def history_document(series: Sequence[BaselineSeries], limits: Limits) -> dict[str, Any]:
    """Return the histories as plain data for JSON."""
    return {
        "format_version": FORMAT_VERSION,
        "limits": asdict(limits),
        "series": [
            {
                "name": one.name,
                "metric": one.history.metric,
                "unit": one.history.unit,
                "waiting_left_out": one.history.waiting_left_out,
                "points": [_row(entry, point) for entry, point in one.rows()],
            }
            for one in series
        ],
    }


def history_csv(series: Sequence[BaselineSeries]) -> str:
    """Render the histories as one CSV table; unknown values are empty."""
    output = StringIO()
    rows = [
        {"name": one.name, "metric": one.history.metric, "unit": one.history.unit}
        | _row(entry, point)
        for one in series
        for entry, point in one.rows()
    ]
    writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: renderers.csv_cell(value) for name, value in row.items()})
    return output.getvalue()


def history_page(series: Sequence[BaselineSeries], limits: Limits) -> str:
    """Render the histories as one HTML page."""
    names = list(dict.fromkeys(one.name for one in series))
    title = f"History of {', '.join(names[:3])}" + (" and others" if len(names) > 3 else "")
    data = history_document(series, limits)
    for found, one in zip(data["series"], series, strict=True):
        found["title"] = one.title
        for point, (_, known) in zip(found["points"], one.rows(), strict=True):
            point["said"] = one.change_in_words(known.change)
    return page_file.fill_page(
        title,
        _STYLES,
        _SCRIPTS,
        {
            **data,
            "title": title,
            "told": series_remarks(limits),
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


def _commit(entry: BaselineVersion) -> str:
    return (entry.commit or "-")[:_COMMIT]


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
        return words.NOT_MEASURED
    low, high = (series.in_words(one) for one in _range(series))
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
