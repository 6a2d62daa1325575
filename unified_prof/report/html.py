"""A report as one HTML file: no network, no framework, every name shown and none executed.

The page's style and script stand beside this module in `page/`. The figures travel as JSON in a
script element that is data only, and a content security policy allows no script but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.model import By
from unified_prof.report import page_data
from unified_prof.report.figures import as_document, collect
from unified_prof.report.source_lines import SourceLines
from unified_prof.version import VERSION

_SCRIPTS = ("base.js", "icicle.js", "table.js", "timeline.js", "chart.js", "main.js")
_FEWEST_BLOCKS = 10_000
_ROWS = 1000
"""Rows of a breakdown on the page; those beyond are the smallest."""


def render(
    analyses: Sequence[Analysis],
    *,
    by: By | None = None,
    sort: str | None = None,
    top: int | None = None,
    source_root: Path | None = None,
) -> str:
    """Return the page.

    Args:
        analyses: the reports; the reader chooses among several.
        by: the only breakdown, or None for all.
        sort: order of the rows at first.
        top: rows of a breakdown.
        source_root: folder of the source lines to include; None includes none.
    """
    # Several ranks share the room that one report would have, down to a readable least.
    blocks = max(page_data.BLOCKS // max(1, len(analyses)), _FEWEST_BLOCKS)
    reports = [_report(one, by, sort, top or _ROWS, blocks, source_root) for one in analyses]
    names = ", ".join(Path(report["figures"]["path"]).name for report in reports[:3])
    style = _part("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, _SCRIPTS)) + "\n})();"
    return _fill(
        _part("page.html"),
        {
            "title": html.escape(f"{names} - uprof report"),
            "style": style,
            "style_hash": _hash(style),
            "data": _inert({"uprof": VERSION, "reports": reports}),
            "script": script,
            "script_hash": _hash(script),
        },
    )


def _report(
    analysis: Analysis,
    by: By | None,
    sort: str | None,
    top: int,
    blocks: int,
    source_root: Path | None,
) -> dict[str, Any]:
    """Return all that the page shows of one report."""
    bys = None if by is None else [by]
    (figures,) = as_document([collect(analysis, bys, sort=sort, top=top)])["reports"]
    for breakdown in figures["breakdowns"].values():
        breakdown["rows"] = [
            {name: value for name, value in row.items() if value is not None}
            for row in breakdown["rows"]
        ]
    trees = page_data.trees(analysis)
    memory, counters = analysis.memory_series(), analysis.counter_series()
    origin_ns = min((int(one.time_ns[0]) for one in (*memory, *counters)), default=0)
    report = {
        "figures": figures,
        "trees": trees,
        "timeline": page_data.timeline(analysis, blocks),
        "memory": page_data.series(memory, origin_ns),
        "counters": page_data.series(counters, origin_ns),
    }
    if source_root is not None:
        lines = SourceLines(source_root)
        report["source"] = lines.of(_lines_shown(figures, trees))
    return report


def _lines_shown(figures: dict[str, Any], trees: list[dict[str, Any]]) -> set[str]:
    shown = {row["name"] for row in figures["breakdowns"].get("line", {"rows": []})["rows"]}
    return shown.union(*(tree["names"] for tree in trees if tree["kind"] == "line"))


def _part(name: str) -> str:
    return files("unified_prof.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _inert(data: dict[str, Any]) -> str:
    """Return data as JSON that cannot end the element it stands in, or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(template: str, values: dict[str, str]) -> str:
    """Put each value in its one place; what a value contains is never looked at again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += (values[name], rest)
    return "".join(filled)
