"""Renderers of reports as JSON, CSV, Markdown, Parquet and Arrow.

Columns of tables are the keys of JSON rows, with units in their names; null means "not measured".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from unified_prof.base import arrow_files
from unified_prof.base.text import guard_formula, storable
from unified_prof.explain.api import Opened
from unified_prof.recording.source import Coverage, Missing
from unified_prof.report import heading, names, tables
from unified_prof.report import names as words
from unified_prof.report.figures import (
    DEFAULT_TEXT_ROWS,
    Figures,
    coverage_fields,
    dump_json,
    figures_document,
    gather_figures,
    row_fields,
)
from unified_prof.report.formats import ReportRequest
from unified_prof.report.tables import Column


def produce_json(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as one JSON document with all breakdowns and rows."""
    document = figures_document(gather_figures(opened, request, everything=True))
    return dump_json(document | {"coverage": coverage_fields(opened.coverage)})


def produce_csv(opened: Opened, request: ReportRequest) -> str:
    """Render the breakdowns of all reports as one CSV table; a missing report is a row."""
    reports = gather_figures(opened, request, details=False, headline=False)
    return render_csv(reports, missing=opened.coverage.missing)


def render_csv(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> str:
    """Render breakdowns as one CSV table; unknown values are empty.

    Missing reports come first, as rows of kind `missing`.
    """
    rows: list[dict[str, str | float | None]] = [
        {"report": csv_cell(figures.summary.path), "by": one.breakdown.by}
        | {name: csv_cell(value) for name, value in row_fields(one.breakdown, row).items()}
        for figures in reports
        for one in figures.selections
        for row in one.rows
    ]
    lost: list[dict[str, str | float | None]] = [
        {"report": csv_cell(one.what), "by": "", "name": csv_cell(one.what), "kind": "missing"}
        | {"detail": csv_cell(one.why)}
        for one in missing
    ]
    output = StringIO()
    fields = list(dict.fromkeys(["report", "by", *(name for row in rows or lost for name in row)]))
    writer = csv.DictWriter(output, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lost + rows)
    return output.getvalue()


def csv_cell(value: str | float | None) -> str | float | None:
    """Return a value as a cell that no spreadsheet executes."""
    return guard_formula(names.neutral(value)) if isinstance(value, str) else value


_WIDEST_NAME = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~^$:@-])")


def produce_markdown(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as Markdown, missing reports first."""
    reports = gather_figures(opened, request, rows=DEFAULT_TEXT_ROWS)
    return render_markdown(reports, coverage=opened.coverage, full_names=request.full_names)


def render_markdown(
    reports: Iterable[Figures], *, coverage: Coverage | None = None, full_names: bool = False
) -> str:
    """Render figures as Markdown."""
    parts = [_report(figures, full_names) for figures in reports]
    if coverage is not None and coverage.missing:
        parts.insert(0, _missing(coverage))
    return "\n".join(parts)


def _missing(coverage: Coverage) -> str:
    lines = [f"**{escape_markdown(coverage.headline)}**", ""]
    return "\n".join([*lines, *(f"- {escape_markdown(why)}" for why in coverage.reasons)]) + "\n"


def escape_markdown(text: str) -> str:
    """Escape text for Markdown: no markup, links, mentions or HTML."""
    text = words.neutral(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def _report(figures: Figures, full_names: bool) -> str:
    lines = [f"## {escape_markdown(heading.report_title(figures.summary))}", ""]
    if first := heading.top_findings(figures):
        lines += ["### Findings", "", *(f"- {escape_markdown(line)}" for line in first), ""]
    lines += [
        f"- **{what}**: {escape_markdown(text)}" for what, text in heading.report_headline(figures)
    ]
    if figures.summary.devices:
        lines += ["", *markdown_table(tables.device_columns(figures.summary.devices))]
    for selection in figures.selections:
        lines += ["", f"### By {selection.breakdown.by}", ""]
        if selection.rows:
            lines += markdown_table(tables.breakdown_columns(selection), full_names=full_names)
        else:
            lines.append(f"No {selection.breakdown.by} was recorded.")
        if selection.left_out:
            lines += ["", f"and {words.format_number(selection.left_out)} more"]
    remarks = heading.report_remarks(figures)
    if remarks:
        lines += ["", "### Warnings", ""]
        lines += [f"- {escape_markdown(what)}: {escape_markdown(why)}" for what, why in remarks]
    return "\n".join(lines) + "\n"


def markdown_table(columns: Sequence[Column], *, full_names: bool = False) -> list[str]:
    """Return a table as lines, with display names."""
    if not full_names:
        columns = tables.with_readable_names(columns)
    columns = tables.collapse_equal_rows(columns)
    widest = None if full_names else _WIDEST_NAME
    lines = [
        _line(column.heading for column in columns),
        _line(":---" if column.is_name else "---:" for column in columns),
    ]
    lines += [
        _line(map(escape_markdown, cells))
        for cells in zip(*(_cells(column, widest) for column in columns), strict=True)
    ]
    return lines


def _cells(column: Column, widest: int | None) -> tuple[str, ...]:
    if widest is None or not column.is_cut:
        return column.cells
    return tuple(names.truncate_middle(cell, widest) for cell in column.cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_TEXT_COLUMNS = ("report", "by", "name", "kind", "detail")
# Columns that hold fractions even if all values of one table are whole.
_FLOAT_COLUMNS = ("percent", "average_ns", "stddev_ns")
# Endings of columns that hold integers if no value is known.
_INTEGER_ENDINGS = ("_ns", "_bytes", "count")


def pack_columns(opened: Opened, request: ReportRequest, kind: str) -> bytes:
    """Return the breakdowns of all reports as one file; a missing report is a row.

    Raises:
        UsageError: pyarrow is not installed, or a report does not have the breakdown or sort key.
    """
    pyarrow = arrow_files.pyarrow()
    reports = gather_figures(opened, request, details=False, headline=False)
    rows = arrow_table(reports, missing=opened.coverage.missing)
    sink = pyarrow.BufferOutputStream()
    with arrow_files.opened(kind, sink, rows.schema) as writer:
        writer.write(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def arrow_table(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> Any:
    """Return breakdowns as a `pyarrow.Table`; missing reports come first, of kind `missing`.

    Raises:
        UsageError: pyarrow is not installed.
    """
    pyarrow = arrow_files.pyarrow()
    lost: list[dict[str, Any]] = [
        {"report": one.what, "name": one.what, "kind": "missing", "detail": one.why}
        for one in missing
    ]
    rows: list[dict[str, Any]] = [
        {"report": figures.summary.path, "by": one.breakdown.by} | row_fields(one.breakdown, row)
        for figures in reports
        for one in figures.selections
        for row in one.rows
    ]
    names = dict.fromkeys([*_TEXT_COLUMNS, *(name for row in rows for name in row)])
    columns = {name: [row.get(name) for row in (*lost, *rows)] for name in names}
    types = {"text": pyarrow.string(), "whole": pyarrow.int64(), "fraction": pyarrow.float64()}
    return pyarrow.table(
        {
            name: pyarrow.array(_values(kind, values), types[kind])
            for name, values in columns.items()
            for kind in (_arrow_type(name, values),)
        }
    )


def _arrow_type(name: str, values: Sequence[Any]) -> str:
    """Return the type of a column."""
    if name in _TEXT_COLUMNS:
        return "text"
    if name in _FLOAT_COLUMNS:
        return "fraction"
    known = {type(value) for value in values if value is not None}
    if not known:
        return "whole" if name.endswith(_INTEGER_ENDINGS) else "fraction"
    return "whole" if known <= {int} else "fraction"


def _values(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == "whole":
        return list(values)
    as_told = storable if kind == "text" else float
    return [None if value is None else as_told(value) for value in values]


def produce_arrow(opened: Opened, request: ReportRequest) -> bytes:
    """Render the breakdowns of all reports as one CSV table; a missing report is a row."""
    return pack_columns(opened, request, "arrow")


def produce_parquet(opened: Opened, request: ReportRequest) -> bytes:
    """Render the breakdowns of all reports as one CSV table; a missing report is a row."""
    return pack_columns(opened, request, "parquet")
