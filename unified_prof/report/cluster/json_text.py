"""A run of many ranks as JSON, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unified_prof.cluster.overview import Overview
from unified_prof.report.cluster import document
from unified_prof.report.cluster.detail import Detail
from unified_prof.report.cluster.formats import Request
from unified_prof.report.documents import dumped


def produce(overview: Overview, request: Request) -> str:
    """Return the run, one rank of it or one step of it as a document."""
    if request.rank is not None:
        return dumped(_rank(overview, request.rank, request.step))
    if request.step is not None:
        rows = overview.step(request.step)
        return dumped(
            {
                "version": document.VERSION,
                "run": document.head(overview),
                "step": request.step,
                "ranks": [document.rank(row) for row in rows[: request.top]],
            }
        )
    return dumped(document.of_run(overview, top=request.top))


def _rank(overview: Overview, number: int, step: int | None) -> dict[str, Any]:
    detail = Detail.of(overview, number, step)
    return {
        "version": document.VERSION,
        "run": document.head(overview),
        "rank": document.rank(detail.row),
        "steps": [{"step": one} | document.rounded(parts) for one, parts in detail.steps],
        "groups": [asdict(one) for one in detail.groups],
        "links": [document.link(row) for row in detail.links],
        "operations": [asdict(one) for one in detail.operations],
    }
