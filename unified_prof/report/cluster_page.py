"""HTML page of a multi-rank run: verdict first, then its evidence.

Columns are encoded and long series thinned, so that the page stays small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.overview import Overview
from unified_prof.cluster.step_lanes import StepLanes, select_lanes
from unified_prof.report import cluster_document
from unified_prof.report.cluster_text import cluster_title
from unified_prof.report.formats import ClusterRequest, encode_varints
from unified_prof.report.html_parts import fill_page

MAX_GROUPS = 40  # Maximum number of collectives with bars, the most expensive ones.
# Maximum number of rank-step cells per measure; about three bytes each.
_MAX_CELLS = 100_000
_MAX_LINKS = 60_000
_MEASURES = (
    "span_ns",
    "compute_ns",
    "exposed_communication_ns",
    "exposed_wait_ns",
    "input_late_ns",
    "idle_ns",
)
_HIDDEN_KEYS = frozenset(
    ("blame", "file", "partial", "device_name", "vendor", "clock_error_ns", "clock_island")
)
_UNKNOWN = 0  # Encoding of an unknown value; known values are encoded plus one.


def flatten_columns(rank: dict[str, Any]) -> dict[str, Any]:
    """Flatten a rank, without keys that no table shows."""
    row = {name: value for name, value in rank.items() if name not in _HIDDEN_KEYS}
    for name in ("caused_wait_ns", "times", "work_ratio", "saved_ns_per_step", "cause"):
        row[name] = None if rank["blame"] is None else rank["blame"][name]
    return {name: value for name, value in row.items() if value is not None}


def heat_cells(overview: Overview) -> dict[str, Any]:
    """Return each measure as a matrix of ranks by steps, in µs.

    If there are too many cells, the longest steps are kept.
    """
    table = overview.run.steps
    ranks = np.unique(table.rank)
    steps = sorted(overview.steps, key=lambda row: (-row.longest_ns, row.step))
    room = max(1, _MAX_CELLS // max(1, len(ranks)))
    shown = np.array(sorted(row.step for row in steps[:room]), np.int64)
    kept = np.isin(table.step, shown)
    row = np.searchsorted(ranks, table.rank[kept])
    column = np.searchsorted(shown, table.step[kept])
    measures = {}
    for name in _MEASURES:
        values = table.span_ns if name == "span_ns" else table.parts[name]
        matrix = np.full((len(ranks), len(shown)), np.nan)
        matrix[row, column] = values[kept]
        if not np.isnan(matrix).all():
            measures[name] = _encode_column(matrix.ravel() / 1000)
    return {
        "ranks": ranks.tolist(),
        "steps": shown.tolist(),
        "steps_left_out": max(0, len(steps) - room),
        "measures": measures,
    }


def link_cells(overview: Overview) -> dict[str, Any]:
    """Return the links as columns, slowest relative to similar links first."""
    rows = overview.links[:_MAX_LINKS]
    kinds = sorted({row.kind for row in rows})
    return {
        "count": len(rows),
        "left_out": len(overview.links) - len(rows),
        "kinds": kinds,
        "src": encode_varints(np.array([row.src_rank for row in rows], np.int64)),
        "dst": encode_varints(np.array([row.dst_rank for row in rows], np.int64)),
        "kind": encode_varints(np.array([kinds.index(row.kind) for row in rows], np.int64)),
        "bytes": encode_varints(np.array([row.bytes for row in rows], np.int64)),
        "mb_per_s": _encode_column(_column([row.gb_per_s_p50 for row in rows]) * 1000),
        "like_mb_per_s": _encode_column(_column([row.like_gb_per_s for row in rows]) * 1000),
    }


def lane_data(overview: Overview, *, step: int | None, rank: int | None) -> dict[str, Any] | None:
    """Return the timelines of some ranks in one step on a common clock, or None if unavailable."""
    found = select_lanes(overview, step=step, ranks=None if rank is None else [rank])
    return None if found is None else _lanes(found)


def _lanes(found: StepLanes) -> dict[str, Any]:
    return {
        "step": found.step,
        "start_ns": 0,
        "duration_ns": found.end_ns - found.start_ns,
        "error_ns": found.error_ns,
        "labels": list(found.labels),
        "ranks": [
            {
                "rank": lane.rank,
                "host": lane.host,
                "aligned": lane.aligned,
                "count": len(lane.start_ns),
                "start": encode_varints(np.diff(lane.start_ns - found.start_ns, prepend=0)),
                "duration": encode_varints(lane.end_ns - lane.start_ns),
                "label": encode_varints(lane.label),
                "left_out": lane.left_out,
                "from_ns": lane.step_start_ns - found.start_ns,
                "to_ns": lane.step_end_ns - found.start_ns,
            }
            for lane in found.lanes
        ],
    }


def _column(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _encode_column(values: NDArray[np.float64]) -> str:
    known = ~np.isnan(values)
    whole = np.full(len(values), _UNKNOWN, np.int64)
    whole[known] = np.rint(np.maximum(values[known], 0)).astype(np.int64) + 1
    return encode_varints(whole)


_STYLES = ("page.css", "cluster.css")
_SCRIPTS = (
    *("base.js", "frame.js", "table.js"),
    *("cluster_heat.js", "cluster_parts.js", "cluster_lanes.js", "cluster.js"),
)


def produce_cluster_page(overview: Overview, request: ClusterRequest) -> str:
    """Render the run as an HTML page."""
    return fill_page(
        cluster_title(overview, folder=False), _STYLES, _SCRIPTS, _data(overview, request)
    )


def _data(overview: Overview, request: ClusterRequest) -> dict[str, Any]:
    whole = cluster_document.run_fields(overview)
    return {
        "coverage": {"headline": "", "missing": []},
        "title": cluster_title(overview, folder=False),
        "told": overview.coverage,
        "run": whole["run"],
        "findings": whole["findings"],
        "ranks": [flatten_columns(row) for row in whole["ranks"]],
        "steps": whole["steps"],
        "groups": whole["groups"][:MAX_GROUPS],
        "groups_left_out": max(0, len(whole["groups"]) - MAX_GROUPS),
        "cells": heat_cells(overview),
        "links": link_cells(overview),
        "lanes": lane_data(overview, step=request.step, rank=request.rank),
    }
