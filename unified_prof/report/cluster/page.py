"""A run of many ranks as one HTML file: the verdict first, then where it shows."""

from __future__ import annotations

from typing import Any

from unified_prof.cluster.overview import Overview
from unified_prof.report import page_file
from unified_prof.report.cluster import document, page_data
from unified_prof.report.cluster.formats import Request
from unified_prof.report.cluster.sections import title

_STYLES = ("page.css", "cluster.css")
_SCRIPTS = (
    *("base.js", "frame.js", "table.js"),
    *("cluster_heat.js", "cluster_parts.js", "cluster_lanes.js", "cluster.js"),
)


def produce(overview: Overview, request: Request) -> str:
    """Return the run as a page."""
    return page_file.filled(
        title(overview, folder=False), _STYLES, _SCRIPTS, _data(overview, request)
    )


def _data(overview: Overview, request: Request) -> dict[str, Any]:
    whole = document.of_run(overview)
    return {
        "coverage": {"headline": "", "missing": []},
        "title": title(overview, folder=False),
        "told": overview.coverage,
        "run": whole["run"],
        "findings": whole["findings"],
        "ranks": [page_data.flat(row) for row in whole["ranks"]],
        "steps": whole["steps"],
        "groups": whole["groups"][: page_data.GROUPS],
        "groups_left_out": max(0, len(whole["groups"]) - page_data.GROUPS),
        "cells": page_data.cells(overview),
        "links": page_data.links(overview),
        "lanes": page_data.lanes(overview, step=request.step, rank=request.rank),
    }
