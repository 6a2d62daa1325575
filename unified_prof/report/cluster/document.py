"""A run of many ranks as plain data: what JSON prints, CSV lists and the page draws.

Times are ns a step unless their names say otherwise; what is not known is null. Each rank, step,
kind of group and link stands here once, so that a run of a thousand ranks stays readable.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unified_prof.cluster.overview import GroupRow, LinkRow, Overview, RankRow, StepRow
from unified_prof.cluster.stored import Finding

VERSION = 1
"""Of the document; a key that changes its meaning raises it."""


def of_run(overview: Overview, *, top: int | None = None) -> dict[str, Any]:
    """Return the whole run; `top` bounds each list but that of the findings."""
    return {
        "version": VERSION,
        "run": head(overview),
        "findings": [finding(one) for one in overview.run.findings],
        "ranks": [rank(row) for row in _some(overview.ranks, overview.worst, top)],
        "steps": [step(row) for row in overview.steps[:top]],
        "groups": [group(row) for row in overview.groups[:top]],
        "links": [link(row) for row in overview.links[:top]],
    }


def _some(
    every: tuple[RankRow, ...], worst: tuple[RankRow, ...], top: int | None
) -> tuple[RankRow, ...]:
    return every if top is None else worst[:top]


def head(overview: Overview) -> dict[str, Any]:
    """Return what holds for the run as a whole."""
    run = overview.run
    hosts = {one.host for one in run.ranks if one.host is not None}
    return {
        "path": str(run.path),
        "world_size": run.world_size,
        "ranks_read": len(run.read),
        "ranks_missing": [
            {"rank": one.rank, "status": one.status, "file": one.file, "why": one.why}
            for one in overview.missing
        ],
        "hosts": len(hosts),
        "layout": overview.layout,
        "devices": sorted({one.device_name for one in run.ranks if one.device_name}),
        "vendors": sorted({one.vendor for one in run.ranks if one.vendor}),
        "steps": len(overview.steps),
        "clock_islands": len({one.clock_island for one in run.ranks} - {None}),
        "mean_step": rounded(overview.whole),
        "facts": run.facts,
    }


def finding(one: Finding) -> dict[str, Any]:
    """Return a finding."""
    found = asdict(one)
    return (
        found
        | {name: list(found[name]) for name in ("ranks", "hosts", "steps")}
        | {
            "links": [list(pair) for pair in one.links],
            "figures": dict(one.figures),
        }
    )


def rank(row: RankRow) -> dict[str, Any]:
    """Return a rank: who it is, where its steps go, what it costs the others."""
    fields = asdict(row.rank)
    return {
        **fields,
        "steps": row.steps,
        "span_ns": _whole(row.span_ns),
        **rounded(row.parts),
        "blame": None if row.blame is None else asdict(row.blame),
    }


def step(row: StepRow) -> dict[str, Any]:
    """Return a step over all ranks."""
    return {
        "step": row.step,
        "ranks": row.ranks,
        "span_ns": _whole(row.span_ns),
        "longest_ns": _whole(row.longest_ns),
        "longest_rank": row.longest_rank,
        "most_compute_ns": _whole(row.most_compute_ns),
        "most_compute_rank": row.most_compute_rank,
        **rounded(row.parts),
    }


def group(row: GroupRow) -> dict[str, Any]:
    """Return the collectives of one kind and size in groups that are alike."""
    slowest = row.slowest_group
    return {
        "group_kind": row.group_kind,
        "size": row.size,
        "groups": row.groups,
        "kind": row.kind,
        "bytes": row.bytes,
        "per_step": row.per_step,
        "incomplete": row.incomplete,
        "transfer_ns": _whole(row.transfer_ns),
        "wait_ns": _whole(row.wait_ns),
        "setup_ns": _whole(row.setup_ns),
        "bus_gb_per_s": row.bus_gb_per_s,
        "slowest_group": None if slowest is None else list(slowest.ranks),
        "slowest_gb_per_s": row.slowest_gb_per_s,
    }


def link(row: LinkRow) -> dict[str, Any]:
    """Return a link; its times and bytes are sums over the run."""
    return asdict(row.link) | {"ratio": row.ratio}


def rounded(values: dict[str, float | None]) -> dict[str, int | None]:
    """Return times in whole nanoseconds."""
    return {name: _whole(value) for name, value in values.items()}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
