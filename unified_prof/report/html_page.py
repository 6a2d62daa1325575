"""HTML pages: self-contained report pages, inert fragments for notebooks, the Perfetto opener.

Pages use no network and execute nothing from the data: styles and scripts of `page/` are inlined,
data is JSON in a data-only script element, and a content security policy allows our scripts only.
Fragments for notebooks have no scripts, style sheets or links, because notebook servers strip them;
they have inline styles with half-transparent colors for light and dark themes, escaped text and a
size limit.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from unified_prof.base.text import printable
from unified_prof.explain.api import Opened
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.breakdown_kinds import KINDS
from unified_prof.recording.idle import IN_WORDS
from unified_prof.recording.source import Coverage
from unified_prof.report import heading, names, page_data, tables
from unified_prof.report import names as words
from unified_prof.report.figures import (
    collect_figures,
    coverage_fields,
    figures_document,
    readable_answers,
)
from unified_prof.report.formats import ReportRequest
from unified_prof.report.page_data import SourceLines
from unified_prof.report.tables import Column
from unified_prof.version import VERSION

# Maximum rows of a table in a fragment.
_ROWS = 25
_WIDEST_NAME = 90
_LONGEST_LINE = 600
# Maximum characters of a fragment, without its last line.
_LARGEST = 96 * 1024
_LINE = "1px solid rgba(128,128,128,.35)"
_SMALL = "padding:2px 10px 2px 0;border:none"
_PERCENT = re.compile(r"<?(\d+(?:\.\d+)?) %$")


class InertPage:
    """HTML fragment that stops growing before it is too large."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._cut = 0

    def title(self, text: str) -> None:
        """Add a title."""
        self._add(f'<div style="font-weight:600;margin:0 0 4px">{_line(text)}</div>')

    def heading(self, text: str) -> None:
        """Add the heading of a table."""
        self._add(f'<div style="font-weight:600;margin:10px 0 2px">{_line(text)}</div>')

    def gap(self) -> None:
        """Add vertical space."""
        self._add('<div style="height:8px"></div>')

    def fact(self, what: str, text: str) -> None:
        """Add a headline figure."""
        label = f'<span style="display:inline-block;min-width:8em;opacity:.7">{_line(what)}</span>'
        self._add(f"<div>{label}{_line(text)}</div>")

    def remark(self, what: str, text: str) -> None:
        """Add a warning."""
        self._add(
            '<div style="border-left:3px solid rgba(200,130,0,.8);padding-left:8px">'
            f"<b>{_line(what)}</b>: {_line(text)}</div>"
        )

    def plain(self, text: str) -> None:
        """Add a line."""
        self._add(f"<div>{_line(text.strip())}</div>")

    def note(self, text: str) -> None:
        """Add a less important line."""
        self._add(f'<div style="opacity:.7">{_line(text)}</div>')

    def left_out(self, count: int) -> None:
        """Add the number of rows that are not shown."""
        self.note(f"and {words.format_number(count)} more")

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table, shortened if it is long."""
        count = max(len(column.cells) for column in columns)
        shown = [replace(column, cells=column.cells[:_ROWS]) for column in columns]
        columns = tables.collapse_equal_rows(tables.with_readable_names(shown))
        heads = "".join(_head(column) for column in columns)
        rows = zip(*(column.cells for column in columns), strict=True)
        body = "".join(f"<tr>{''.join(map(_cell, columns, cells))}</tr>" for cells in rows)
        self._add(
            '<div style="overflow-x:auto;margin:6px 0">'
            '<table style="border-collapse:collapse;font-size:inherit;margin:0">'
            f'<thead><tr style="border-bottom:{_LINE}">{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
        if count > _ROWS:
            self.left_out(count - _ROWS)

    def html(self) -> str:
        """Return the fragment."""
        end = ""
        if self._cut:
            end = f'<div style="opacity:.7">{self._cut:,} more lines not shown</div>'
        return (
            '<div style="font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:100%">'
            f"{''.join(self._parts)}{end}</div>"
        )

    def _add(self, part: str) -> None:
        if self._cut or self._size + len(part) > _LARGEST:
            self._cut += 1
            return
        self._parts.append(part)
        self._size += len(part)


def _line(text: str) -> str:
    return escape(names.truncate_middle(printable(text), _LONGEST_LINE))


def _head(column: Column) -> str:
    side = "left" if column.is_name else "right"
    return f'<th style="text-align:{side};font-weight:600;{_SMALL}">{_line(column.heading)}</th>'


def _cell(column: Column, text: str) -> str:
    widest = _WIDEST_NAME * column.lines if column.is_cut else _LONGEST_LINE
    shown = escape(names.truncate_middle(printable(text), widest))
    title = ""
    if column.is_cut and len(text) > widest:
        title = f' title="{_line(text)}"'
    look = "text-align:left" if column.is_name else "text-align:right;white-space:nowrap"
    if not column.is_prose and column.is_name:
        look += ";font-family:ui-monospace,monospace;font-size:12px"
    if column.heading == "share" and (found := _PERCENT.match(text)) is not None:
        part = min(100.0, float(found[1]))
        look += f";background:linear-gradient(to left,rgba(66,133,244,.28) {part:g}%,transparent 0)"
    return f'<td{title} style="{look};{_SMALL}">{shown}</td>'


def fill_page(
    title: str,
    styles: Iterable[str],
    scripts: Iterable[str],
    data: dict[str, Any],
    *,
    connects_to_itself: bool = False,
) -> str:
    """Assemble a page.

    Args:
        title: Title of the window; any text.
        styles: Names of files in `page/`, in order.
        scripts: Names of files in `page/`, in order; they share one private scope.
        data: Data that the scripts find under the id `data`, with the version of uprof.
        connects_to_itself: If True, the scripts may fetch files beside the page.
    """
    style = "\n".join(map(_part, styles))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, scripts)) + "\n})();"
    return _fill(
        _part("page.html"),
        {
            "title": html.escape(names.neutral(title)),
            "style": style,
            "style_hash": _hash(style),
            "connects_to": "; connect-src 'self'" if connects_to_itself else "",
            "data": _inert({"uprof": VERSION, **data}),
            "script": script,
            "script_hash": _hash(script),
        },
    )


def _part(name: str) -> str:
    return files("unified_prof.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _inert(data: dict[str, Any]) -> str:
    """Return data as JSON that cannot end its element or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(template: str, values: dict[str, str]) -> str:
    """Fill each placeholder once; values are not searched for placeholders."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += (values[name], rest)
    return "".join(filled)


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
    """Return the number of timeline blocks per report; ranks share the total down to a minimum."""
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
        anomaly["words"] = heading.anomaly_name(found.name)
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
        report["source"] = lines.of(_source_lines(figures, trees))
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
        connects_to_itself=True,
    )
