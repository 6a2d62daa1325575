"""A report as JSON, for programs: every figure, nothing shortened.

A breakdown as CSV, for spreadsheets and scripts.

A report as GitHub-flavoured Markdown, for issues and job summaries.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from io import StringIO

from unified_prof.explain.api import Opened
from unified_prof.recording.source import Coverage, Missing
from unified_prof.report import heading, names, tables
from unified_prof.report import names as words
from unified_prof.report.figures import (
    ROWS_FOR_PEOPLE,
    Figures,
    as_document,
    coverage_fields,
    dumped,
    gather,
    row_fields,
)
from unified_prof.report.formats import Request
from unified_prof.report.tables import Column


def produce_json(opened: Opened, request: Request) -> str:
    """Return the reports as one document with every breakdown; nothing is shortened."""
    document = as_document(gather(opened, request, everything=True))
    return dumped(document | {"coverage": coverage_fields(opened.coverage)})


# A spreadsheet runs a cell that begins like this as a formula, and these are names out of other
# people's files: they get the apostrophe that makes a cell text.
_FORMULA = ("=", "+", "-", "@")


def produce_csv(opened: Opened, request: Request) -> str:
    """Return the reports' breakdowns as one table; a missing report is a row of its own."""
    reports = gather(opened, request, details=False, headline=False)
    return render_csv(reports, missing=opened.coverage.missing)


def render_csv(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> str:
    """Return the reports' breakdowns as one table; empty cells were not measured.

    What is missing comes first, as rows of kind `missing` that have no figures.
    """
    rows: list[dict[str, str | float | None]] = [
        {"report": cell(figures.summary.path), "by": one.breakdown.by}
        | {name: cell(value) for name, value in row_fields(one.breakdown, row).items()}
        for figures in reports
        for one in figures.selections
        for row in one.rows
    ]
    lost: list[dict[str, str | float | None]] = [
        {"report": cell(one.what), "by": "", "name": cell(one.what), "kind": "missing"}
        | {"detail": cell(one.why)}
        for one in missing
    ]
    output = StringIO()
    fields = list(dict.fromkeys(["report", "by", *(name for row in rows or lost for name in row)]))
    writer = csv.DictWriter(output, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lost + rows)
    return output.getvalue()


def cell(value: str | float | None) -> str | float | None:
    """Return a value as a cell that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = names.neutral(value)
    # Full-width signs count for some programs; they normalise to the plain ones.
    begins = unicodedata.normalize("NFKC", text[:1])
    return f"'{text}" if begins in _FORMULA else text


_WIDEST_NAME = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~^$:@-])")


def produce_markdown(opened: Opened, request: Request) -> str:
    """Return the reports as Markdown, what is missing first."""
    reports = gather(opened, request, rows=ROWS_FOR_PEOPLE)
    return render_markdown(reports, coverage=opened.coverage, full_names=request.full_names)


def render_markdown(
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
