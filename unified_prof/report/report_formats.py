"""Formats of `uprof report` other than HTML.

Columns of CSV, Parquet and Arrow tables are the keys of JSON rows, with units in their names; null
means "not measured".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unified_prof.base.text import storable
from unified_prof.explain.api import Opened
from unified_prof.recording.source import Missing
from unified_prof.report.document import csv_text, dump_json
from unified_prof.report.figures import (
    DEFAULT_TEXT_ROWS,
    Figures,
    coverage_fields,
    figures_document,
    gather_figures,
    row_fields,
)
from unified_prof.report.formats import ReportRequest
from unified_prof.report.report_document import report_document
from unified_prof.report.terminal import render_document


def produce_text(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as text."""
    reports = gather_figures(opened, request, rows=DEFAULT_TEXT_ROWS, details=False)
    return render_document(report_document(reports, opened.coverage), "text", request)


def produce_markdown(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as Markdown."""
    reports = gather_figures(opened, request, rows=DEFAULT_TEXT_ROWS, details=False)
    return render_document(report_document(reports, opened.coverage), "markdown", request)


def produce_json(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as one JSON document with all breakdowns and rows."""
    document = figures_document(gather_figures(opened, request, everything=True))
    return dump_json(document | {"coverage": coverage_fields(opened.coverage)})


def produce_csv(opened: Opened, request: ReportRequest) -> str:
    """Render the breakdowns of all reports as one CSV table; a missing report is a row."""
    reports = gather_figures(opened, request, details=False, headline=False)
    return breakdowns_csv(reports, missing=opened.coverage.missing)


def produce_parquet(opened: Opened, request: ReportRequest) -> bytes:
    """Render the breakdowns of all reports as one Parquet file; a missing report is a row."""
    return _arrow_file(opened, request, "parquet")


def produce_arrow(opened: Opened, request: ReportRequest) -> bytes:
    """Render the breakdowns of all reports as one Arrow file; a missing report is a row."""
    return _arrow_file(opened, request, "arrow")


def breakdowns_csv(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> str:
    """Render breakdowns as one CSV table; missing reports come first, as rows of kind `missing`."""
    return csv_text(_breakdown_rows(reports, missing), ("report", "by"))


def _breakdown_rows(reports: Iterable[Figures], missing: Iterable[Missing]) -> list[dict[str, Any]]:
    """Return the rows of all breakdowns, missing reports first."""
    rows: list[dict[str, Any]] = [
        {"report": one.what, "name": one.what, "kind": "missing", "detail": one.why}
        for one in missing
    ]
    return rows + [
        {"report": figures.summary.path, "by": one.breakdown.by, **row_fields(one.breakdown, row)}
        for figures in reports
        for one in figures.selections
        for row in one.rows
    ]


_TEXT_COLUMNS = ("report", "by", "name", "kind", "detail")
# Columns that hold fractions even if all values of one table are whole.
_FLOAT_COLUMNS = ("percent", "average_ns", "stddev_ns")
# Endings of columns that hold integers if no value is known.
_INTEGER_ENDINGS = ("_ns", "_bytes", "count")


def _arrow_file(opened: Opened, request: ReportRequest, kind: str) -> bytes:
    """Return the breakdowns of all reports as one file.

    Raises UsageError if pyarrow is not installed, or a report does not have the breakdown or sort
    key.
    """
    from unified_prof.base import arrow_files

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

    Raises UsageError if pyarrow is not installed.
    """
    from unified_prof.base import arrow_files

    pyarrow = arrow_files.pyarrow()
    rows = _breakdown_rows(reports, missing)
    names = dict.fromkeys([*_TEXT_COLUMNS, *(name for row in rows for name in row)])
    types = {"text": pyarrow.string(), "whole": pyarrow.int64(), "fraction": pyarrow.float64()}
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = _arrow_type(name, values)
        columns[name] = pyarrow.array(_arrow_values(kind, values), types[kind])
    return pyarrow.table(columns)


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


def _arrow_values(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == "whole":
        return list(values)
    convert = storable if kind == "text" else float
    return [None if value is None else convert(value) for value in values]
