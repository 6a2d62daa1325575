"""A breakdown as CSV, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable
from io import StringIO

from unified_prof.analysis.load import Opened
from unified_prof.analysis.read.coverage import Missing
from unified_prof.report import words
from unified_prof.report.figures import Figures, gather, row_fields
from unified_prof.report.formats import Request

# A spreadsheet runs a cell that begins like this as a formula, and these are names out of other
# people's files: they get the apostrophe that makes a cell text.
_FORMULA = ("=", "+", "-", "@")


def produce(opened: Opened, request: Request) -> str:
    """Return the reports' breakdowns as one table; a missing report is a row of its own."""
    reports = gather(opened, request, details=False, headline=False)
    return render(reports, missing=opened.coverage.missing)


def render(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> str:
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
    text = words.neutral(value)
    # Full-width signs count for some programs; they normalise to the plain ones.
    begins = unicodedata.normalize("NFKC", text[:1])
    return f"'{text}" if begins in _FORMULA else text
