"""A report as GitHub-flavoured Markdown, for issues and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unified_prof.analysis.load import Opened
from unified_prof.analysis.read.coverage import Coverage
from unified_prof.report import heading, names, tables, words
from unified_prof.report.figures import ROWS_FOR_PEOPLE, Figures, gather
from unified_prof.report.formats import Request
from unified_prof.report.tables import Column

_WIDEST_NAME = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~^$:@-])")


def produce(opened: Opened, request: Request) -> str:
    """Return the reports as Markdown, what is missing first."""
    reports = gather(opened, request, rows=ROWS_FOR_PEOPLE)
    return render(reports, coverage=opened.coverage, full_names=request.full_names)


def render(
    reports: Iterable[Figures], *, coverage: Coverage | None = None, full_names: bool = False
) -> str:
    """Return the reports as Markdown."""
    parts = [_report(figures, full_names) for figures in reports]
    if coverage is not None and coverage.missing:
        parts.insert(0, _missing(coverage))
    return "\n".join(parts)


def _missing(coverage: Coverage) -> str:
    lines = [f"**{escape(coverage.headline)}**", ""]
    return "\n".join([*lines, *(f"- {escape(why)}" for why in coverage.reasons)]) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no link, no mention, no HTML."""
    text = words.neutral(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def _report(figures: Figures, full_names: bool) -> str:
    lines = [f"## {escape(heading.title(figures.summary))}", ""]
    if first := heading.first_to_do(figures):
        lines += ["### To do first", "", *(f"- {escape(line)}" for line in first), ""]
    lines += [f"- **{what}**: {escape(text)}" for what, text in heading.headline(figures)]
    if figures.summary.devices:
        lines += ["", *table(tables.device_columns(figures.summary.devices))]
    for selection in figures.selections:
        lines += ["", f"### By {selection.breakdown.by}", ""]
        if selection.rows:
            lines += table(tables.columns(selection), full_names=full_names)
        else:
            lines.append(f"No {selection.breakdown.by} was recorded.")
        if selection.left_out:
            lines += ["", f"and {words.number(selection.left_out)} more"]
    remarks = heading.remarks(figures)
    if remarks:
        lines += ["", "### Warnings", ""]
        lines += [f"- {escape(what)}: {escape(why)}" for what, why in remarks]
    return "\n".join(lines) + "\n"


def table(columns: Sequence[Column], *, full_names: bool = False) -> list[str]:
    """Return a table as lines, names as people read them."""
    if not full_names:
        columns = tables.readable(columns)
    columns = tables.without_repetition(columns)
    widest = None if full_names else _WIDEST_NAME
    lines = [
        _line(column.heading for column in columns),
        _line(":---" if column.is_name else "---:" for column in columns),
    ]
    lines += [
        _line(map(escape, cells))
        for cells in zip(*(_cells(column, widest) for column in columns), strict=True)
    ]
    return lines


def _cells(column: Column, widest: int | None) -> tuple[str, ...]:
    if widest is None or not column.is_cut:
        return column.cells
    return tuple(names.middle(cell, widest) for cell in column.cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
