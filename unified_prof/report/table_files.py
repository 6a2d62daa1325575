"""Breakdowns as a table of typed columns, in the Parquet or Arrow format.

Columns are the keys of a row in JSON, with the units in their names, and hold the same values; what
was not measured is null.

Breakdowns as an Arrow file.

Breakdowns as a Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unified_prof.base import arrow_files
from unified_prof.base.text import storable
from unified_prof.explain.api import Opened
from unified_prof.recording.source import Missing
from unified_prof.report.figures import Figures, gather, row_fields
from unified_prof.report.formats import Request

_TEXTS = ("report", "by", "name", "kind", "detail")
_FRACTIONS = ("percent", "average_ns", "stddev_ns")
"""Columns that hold fractions, even where all of one table are whole."""
_WHOLE = ("_ns", "_bytes", "count")
"""Endings of columns that are whole where none of them is known."""


def packed(opened: Opened, request: Request, kind: str) -> bytes:
    """Return the reports' breakdowns as one file; a missing report is a row of its own.

    Raises:
        UsageError: pyarrow is not installed; a report cannot be broken down or sorted as asked.
    """
    pyarrow = arrow_files.pyarrow()
    reports = gather(opened, request, details=False, headline=False)
    rows = table(reports, missing=opened.coverage.missing)
    sink = pyarrow.BufferOutputStream()
    with arrow_files.opened(kind, sink, rows.schema) as writer:
        writer.write(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def table(reports: Iterable[Figures], *, missing: Iterable[Missing] = ()) -> Any:
    """Return breakdowns as a `pyarrow.Table`; what is missing comes first, of kind `missing`.

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
    names = dict.fromkeys([*_TEXTS, *(name for row in rows for name in row)])
    columns = {name: [row.get(name) for row in (*lost, *rows)] for name in names}
    types = {"text": pyarrow.string(), "whole": pyarrow.int64(), "fraction": pyarrow.float64()}
    return pyarrow.table(
        {
            name: pyarrow.array(_values(kind, values), types[kind])
            for name, values in columns.items()
            for kind in (_type(name, values),)
        }
    )


def _type(name: str, values: Sequence[Any]) -> str:
    """Return what a column holds."""
    if name in _TEXTS:
        return "text"
    if name in _FRACTIONS:
        return "fraction"
    known = {type(value) for value in values if value is not None}
    if not known:
        return "whole" if name.endswith(_WHOLE) else "fraction"
    return "whole" if known <= {int} else "fraction"


def _values(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == "whole":
        return list(values)
    as_told = storable if kind == "text" else float
    return [None if value is None else as_told(value) for value in values]


def produce_arrow(opened: Opened, request: Request) -> bytes:
    """Return the reports' breakdowns as one table; a missing report is a row of its own."""
    return packed(opened, request, "arrow")


def produce_parquet(opened: Opened, request: Request) -> bytes:
    """Return the reports' breakdowns as one table; a missing report is a row of its own."""
    return packed(opened, request, "parquet")
