"""One table of a run of many ranks as CSV, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from dataclasses import asdict
from io import StringIO
from typing import Any

from unified_prof.cluster.overview import Overview
from unified_prof.report.cluster import document
from unified_prof.report.cluster.detail import Detail
from unified_prof.report.cluster.formats import Request
from unified_prof.report.csv_text import cell


def produce(overview: Overview, request: Request) -> str:
    """Return the table that is asked for, of the ranks if none is; empty cells are not known."""
    rows = [_flat(row) for row in _rows(overview, request)]
    if request.top is not None:
        rows = rows[: request.top]
    output = StringIO()
    fields = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(output, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def _rows(overview: Overview, request: Request) -> list[dict[str, Any]]:
    if request.rank is not None:
        detail = Detail.of(overview, request.rank, request.step)
        if request.by == "operation":
            return [asdict(one) for one in detail.operations]
        if request.by == "link":
            return [document.link(row) for row in detail.links]
        return [
            {"rank": request.rank, "step": number} | document.rounded(parts)
            for number, parts in detail.steps
        ]
    if request.step is not None:
        return [document.rank(row) for row in overview.step(request.step)]
    if request.by == "operation":
        return [asdict(one) for one in overview.run.operations()]
    tables: dict[str | None, tuple[Any, Any]] = {
        "step": (document.step, overview.steps),
        "group": (document.group, overview.groups),
        "link": (document.link, overview.links),
    }
    show, found = tables.get(request.by, (document.rank, overview.ranks))
    return [show(row) for row in found]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of single values: what is nested gets names of two parts, lists are text."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": cell(one) for inner, one in value.items()}
        elif isinstance(value, list):
            flat[name] = " ".join(map(str, value))
        elif not (value is None and name in ("blame",)):
            flat[name] = cell(value)
    return flat
