"""A breakdown as CSV, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable
from io import StringIO

from unified_prof.report import words
from unified_prof.report.figures import Figures, row_fields

# A spreadsheet runs a cell that begins like this as a formula, and these are names out of other
# people's files: they get the apostrophe that makes a cell text.
_FORMULA = ("=", "+", "-", "@")


def render(reports: Iterable[Figures]) -> str:
    """Return the reports' breakdowns as one table; empty cells were not measured."""
    rows: list[dict[str, str | float | None]] = [
        {"report": _cell(figures.summary.path), "by": one.breakdown.by}
        | {name: _cell(value) for name, value in row_fields(one.breakdown, row).items()}
        for figures in reports
        for one in figures.selections
        for row in one.rows
    ]
    output = StringIO()
    fields = list(dict.fromkeys(["report", "by", *(name for row in rows for name in row)]))
    writer = csv.DictWriter(output, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def _cell(value: str | float | None) -> str | float | None:
    if not isinstance(value, str):
        return value
    text = words.neutral(value)
    # Full-width signs count for some programs; they normalise to the plain ones.
    begins = unicodedata.normalize("NFKC", text[:1])
    return f"'{text}" if begins in _FORMULA else text
