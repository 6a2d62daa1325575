"""A report as one HTML file: no network, no framework, every name shown and none executed.

The page's style and script stand beside this module in `page/`; `page_file` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.kinds import KINDS
from unified_prof.analysis.load import Opened
from unified_prof.analysis.read.coverage import Coverage
from unified_prof.analysis.views.idle import IN_WORDS
from unified_prof.report import names, oddities, page_data, page_file
from unified_prof.report.figures import answers, as_document, collect, coverage_fields
from unified_prof.report.formats import Request
from unified_prof.report.source_lines import SourceLines

_SCRIPTS = (
    "base.js",
    "frame.js",
    "icicle.js",
    "table.js",
    "host.js",
    "timeline.js",
    "chart.js",
    "steps.js",
    "perfetto.js",
    "roofline.js",
    "main.js",
)
_FEWEST_BLOCKS = 10_000
_NAME_LENGTH = 120
"""Longer names are cut inside in tables: some libraries name a kernel by all of its traits."""
_ROWS = 1000
"""Rows of a breakdown on the page; those beyond are the smallest."""


def produce(opened: Opened, request: Request) -> str:
    """Return the reports as a page, what is missing first."""
    reports = answers(opened, lambda analysis: _report(analysis, request, _blocks(opened)))
    return _page(reports, opened.coverage)


def _blocks(opened: Opened) -> int:
    """Return the room of a timeline: ranks share what one report would have, down to a least."""
    return max(page_data.BLOCKS // max(1, len(opened.analyses)), _FEWEST_BLOCKS)


def _page(reports: Sequence[dict[str, Any]], coverage: Coverage) -> str:
    data = {
        "coverage": coverage_fields(coverage) | {"headline": coverage.headline},
        "reports": reports,
    }
    return page_file.filled(
        reports[0]["title"] if reports else "uprof report", ("page.css",), _SCRIPTS, data
    )


def _report(analysis: Analysis, request: Request, blocks: int) -> dict[str, Any]:
    """Return all that the page shows of one report."""
    bys = None if request.by is None else [request.by]
    shown = collect(
        analysis,
        bys,
        sort=request.sort,
        top=request.top or _ROWS,
        statistics=request.statistics,
    )
    (figures,) = as_document([shown])["reports"]
    for breakdown in figures["breakdowns"].values():
        rows = breakdown["rows"]
        shown_names = names.within(names.shown([row["name"] for row in rows]), _NAME_LENGTH)
        breakdown["rows"] = [
            {name: value for name, value in row.items() if value is not None}
            | ({"short": short} if short != row["name"] else {})
            for row, short in zip(rows, shown_names, strict=True)
        ]
    for anomaly, found in zip(figures["anomalies"], shown.summary.anomalies, strict=True):
        anomaly["words"] = oddities.name(found.name)
    trees = page_data.trees(analysis)
    over_time = page_data.over_time(analysis, blocks)
    words = {by: {"title": KINDS[by].title, "detail": KINDS[by].detailed} for by in KINDS}
    report = {
        "figures": figures,
        "idle_words": dict(IN_WORDS),
        "title": page_data.title(figures, over_time["began"]),
        "words": words,
        "units": page_data.units(one["counter"] for one in figures["pmu"]),
        "trees": trees,
        **over_time,
    }
    if request.source_root is not None:
        lines = SourceLines(request.source_root)
        report["source"] = lines.of(_lines_shown(figures, trees))
    return report


def _lines_shown(figures: dict[str, Any], trees: list[dict[str, Any]]) -> set[str]:
    shown = {row["name"] for row in figures["breakdowns"].get("line", {"rows": []})["rows"]}
    return shown.union(*(tree["names"] for tree in trees if tree["kind"] == "line"))
