"""The HTML page of reports, and the page that opens a trace in Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unified_prof.explain.api import Opened
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.breakdown_kinds import KINDS
from unified_prof.recording.idle import IN_WORDS
from unified_prof.recording.source import Coverage
from unified_prof.report import names, page_data
from unified_prof.report.figures import (
    collect_figures,
    coverage_fields,
    figures_document,
    readable_answers,
)
from unified_prof.report.formats import ReportRequest
from unified_prof.report.html_parts import fill_page
from unified_prof.report.names import anomaly_name
from unified_prof.report.page_data import SourceLines

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
# Names longer than this are shortened in tables.
_NAME_LENGTH = 120
# Maximum rows of a breakdown on the page, largest first.
_ROWS_HTML = 1000


def produce_page(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as an HTML page, missing reports first."""
    reports = readable_answers(opened, lambda analysis: _report(analysis, request, _blocks(opened)))
    return _page(reports, opened.coverage)


def _blocks(opened: Opened) -> int:
    """Return the maximum number of timeline blocks per report: its share, or a minimum."""
    return max(page_data.MAX_TIMELINE_BLOCKS // max(1, len(opened.analyses)), _FEWEST_BLOCKS)


def _page(reports: Sequence[dict[str, Any]], coverage: Coverage) -> str:
    data = {
        "coverage": coverage_fields(coverage) | {"headline": coverage.headline},
        "reports": reports,
    }
    return fill_page(
        reports[0]["title"] if reports else "uprof report", ("page.css",), _SCRIPTS, data
    )


def _report(analysis: Analysis, request: ReportRequest, blocks: int) -> dict[str, Any]:
    """Return the page data of one report."""
    bys = None if request.by is None else [request.by]
    shown = collect_figures(
        analysis,
        bys,
        sort=request.sort,
        top=request.top or _ROWS_HTML,
        statistics=request.statistics,
    )
    (figures,) = figures_document([shown])["reports"]
    for breakdown in figures["breakdowns"].values():
        rows = breakdown["rows"]
        shown_names = names.truncate_names(
            names.readable_names([row["name"] for row in rows]), _NAME_LENGTH
        )
        breakdown["rows"] = [
            {name: value for name, value in row.items() if value is not None}
            | ({"short": short} if short != row["name"] else {})
            for row, short in zip(rows, shown_names, strict=True)
        ]
    for anomaly, found in zip(figures["anomalies"], shown.summary.anomalies, strict=True):
        anomaly["words"] = anomaly_name(found.name)
    trees = page_data.page_trees(analysis)
    over_time = page_data.page_timeline(analysis, blocks)
    words = {by: {"title": KINDS[by].title, "detail": KINDS[by].detailed} for by in KINDS}
    report = {
        "figures": figures,
        "idle_words": dict(IN_WORDS),
        "title": page_data.page_title(figures, over_time["began"]),
        "words": words,
        "units": page_data.counter_units(one["counter"] for one in figures["pmu"]),
        "trees": trees,
        **over_time,
    }
    if request.source_root is not None:
        lines = SourceLines(request.source_root)
        report["source"] = lines.texts(_source_lines(figures, trees))
    return report


def _source_lines(figures: dict[str, Any], trees: list[dict[str, Any]]) -> set[str]:
    shown = {row["name"] for row in figures["breakdowns"].get("line", {"rows": []})["rows"]}
    return shown.union(*(tree["names"] for tree in trees if tree["kind"] == "line"))


PERFETTO_URL = "https://ui.perfetto.dev"


def perfetto_opener_page(title: str, trace: str, size_bytes: int) -> str:
    """Return the page that opens a trace beside it in Perfetto.

    Args:
        title: Title of the trace.
        trace: File name, in the directory of the page.
        size_bytes: Size of the trace.
    """
    return fill_page(
        f"{title} - uprof",
        ("page.css",),
        ("base.js", "frame.js", "perfetto.js", "opener.js"),
        {"trace": {"title": title, "name": trace, "bytes": size_bytes}},
        allows_fetch=True,
    )
