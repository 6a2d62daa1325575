"""A multi-rank run as JSON, CSV and HTML page, and the details of one rank.

Times are ns per step unless the key says otherwise; unknown values are null. Each rank, step, kind
of group and link occurs once, so that a run of a thousand ranks stays readable.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import encode_varints
from unified_prof.cluster.overview import GroupRow, Overview, RankRow, StepRow, format_ranges
from unified_prof.cluster.step_lanes import select_lanes
from unified_prof.cluster.stored_run import FindingRecord, GroupRecord, LinkRecord
from unified_prof.report import names
from unified_prof.report.document import csv_text, dump_json, fill_page
from unified_prof.report.formats import ClusterRequest


@dataclass(frozen=True, slots=True)
class RankOperationRow:
    """Kernels of one kind on a rank, compared with the ranks of its pipeline stage."""

    name: str
    module: str
    n: int
    total_ns: int
    min_ns: int
    max_ns: int
    # Median over all ranks of the same pipeline stage; None if there is only one.
    stage_ns: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class RankDetail:
    """Details of one rank."""

    row: RankRow
    # (step number, `span_ns` and PARTS).
    steps: tuple[tuple[int, dict[str, float | None]], ...]
    groups: tuple[GroupRecord, ...]
    links: tuple[LinkRecord, ...]
    operations: tuple[RankOperationRow, ...]  # Longest first.

    @classmethod
    def from_overview(cls, overview: Overview, number: int, step: int | None = None) -> RankDetail:
        """Return the details of rank `number`, for all steps or for one.

        Raises UsageError if the run has no such rank or step.
        """
        row = overview.rank(number)
        if step is not None:
            overview.step(step)
        return cls(
            row,
            _steps(overview, number, step),
            tuple(one for one in overview.run.groups if number in one.ranks),
            tuple(one for one in overview.links if number in (one.src_rank, one.dst_rank)),
            _operations(overview, row),
        )


def _steps(
    overview: Overview, number: int, step: int | None
) -> tuple[tuple[int, dict[str, float | None]], ...]:
    table = overview.run.steps
    return tuple(
        (int(table.step[row]), table.means(slice(row, row + 1)))
        for row in np.flatnonzero(table.rank == number).tolist()
        if step is None or table.step[row] == step
    )


def _operations(overview: Overview, row: RankRow) -> tuple[RankOperationRow, ...]:
    rank = row.rank
    stage = tuple(one.rank for one in overview.run.read if one.pp == rank.pp)
    others: dict[tuple[str, str], list[int]] = {}
    of_rank = []
    for one in overview.run.operations(stage):
        others.setdefault((one.name, one.module), []).append(one.total_ns)
        if one.rank == rank.rank:
            of_rank.append(one)
    rows = []
    for one in of_rank:
        stage_ns = median(others[one.name, one.module]) if len(stage) > 1 else None
        ratio = one.total_ns / stage_ns if stage_ns else None
        times = (one.total_ns, one.min_ns, one.max_ns, stage_ns)
        rows.append(RankOperationRow(one.name, one.module, one.n, *times, ratio))
    return tuple(sorted(rows, key=lambda one: -one.total_ns))


def cluster_title(overview: Overview, *, folder: bool = True) -> str:
    """Return the run in one line, optionally with its directory."""
    run = overview.run
    hosts = {one.host for one in run.ranks if one.host is not None}
    parts = [overview.world_size_text]
    if hosts:
        parts[0] += f" on {len(hosts):,} host{'s' if len(hosts) != 1 else ''}"
    count = len(overview.steps)
    parts.append(f"{count:,} step{'s' if count != 1 else ''}")
    devices = sorted({one.device_name for one in run.ranks if one.device_name})
    if devices:
        parts.append(" and ".join(devices[:3]))
    name = run.path if folder else Path(run.path).absolute().name
    return f"{names.neutral(name)}: {names.neutral(', '.join(parts))}"


CLUSTER_FORMAT_VERSION = 1  # Version of the document; raised when a key changes its meaning.


def run_fields(overview: Overview, *, top: int | None = None) -> dict[str, Any]:
    """Return the whole run as plain data; `top` limits all lists except the findings."""
    ranks = overview.ranks if top is None else overview.worst[:top]
    return {
        "version": CLUSTER_FORMAT_VERSION,
        "run": run_facts(overview),
        "findings": [finding_fields(one) for one in overview.run.findings],
        "ranks": [rank_fields(row) for row in ranks],
        "steps": [step_fields(row) for row in overview.steps[:top]],
        "groups": [group_fields(row) for row in overview.groups[:top]],
        "links": [link_fields(row) for row in overview.links[:top]],
    }


def run_facts(overview: Overview) -> dict[str, Any]:
    """Return the facts about the run."""
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
        "mean_step": rounded_times(overview.mean_step),
        "facts": run.facts,
    }


def finding_fields(one: FindingRecord) -> dict[str, Any]:
    """Return a finding as plain data."""
    found = asdict(one)
    lists = {name: list(found[name]) for name in ("ranks", "hosts", "steps")}
    pairs = [list(pair) for pair in one.links]
    return found | lists | {"links": pairs, "figures": dict(one.figures)}


def rank_fields(row: RankRow) -> dict[str, Any]:
    """Return a rank as plain data: identity, parts of its steps, cost to other ranks."""
    return {
        **asdict(row.rank),
        "steps": row.steps,
        "span_ns": _rounded(row.span_ns),
        **rounded_times(row.parts),
        "blame": None if row.blame is None else asdict(row.blame),
    }


def step_fields(row: StepRow) -> dict[str, Any]:
    """Return a step over all ranks as plain data."""
    fields = _rounded_fields(row)
    parts: dict[str, float | None] = fields.pop("parts")
    return fields | rounded_times(parts)


def group_fields(row: GroupRow) -> dict[str, Any]:
    """Return the collectives of one kind, size and kind of group as plain data."""
    slowest = row.slowest_group
    ranks = None if slowest is None else list(slowest.ranks)
    return _rounded_fields(row) | {"slowest_group": ranks}


def group_label(row: GroupRow) -> str:
    """Return the kind, size and number of the groups of a row."""
    at_least = "at least " if row.size_is_minimum else ""
    label = groups_of(row.group_kind, f"{at_least}{row.size:,}")
    return f"{label} (x{row.groups:,})" if row.groups > 1 else label


def groups_of(kind: str, size: str) -> str:
    """Return the label of groups of one kind and size."""
    if kind != "other":
        return f"{kind} of {size}"
    return f"{size} rank{'' if re.fullmatch('(at least )?1', size) else 's'}"


def _rounded_fields(row: StepRow | GroupRow) -> dict[str, Any]:
    """Return the fields of a row, with times in whole nanoseconds."""
    return {
        name: _rounded(value) if name.endswith("_ns") else value
        for name, value in asdict(row).items()
    }


def link_fields(row: LinkRecord) -> dict[str, Any]:
    """Return a link as plain data; times and bytes are sums over the run."""
    return asdict(row) | {"ratio": row.ratio}


def rounded_times(values: dict[str, float | None]) -> dict[str, int | None]:
    """Round times to whole nanoseconds."""
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def produce_cluster_csv(overview: Overview, request: ClusterRequest) -> str:
    """Render one table as CSV, by default that of the ranks; unknown values are empty."""
    rows = [_flatten_row(row) for row in _rows(overview, request)]
    if request.top is not None:
        rows = rows[: request.top]
    return csv_text(rows)


def _rows(overview: Overview, request: ClusterRequest) -> list[dict[str, Any]]:
    if request.rank is not None:
        detail = RankDetail.from_overview(overview, request.rank, request.step)
        if request.by == "operation":
            return [asdict(one) for one in detail.operations]
        if request.by == "link":
            return [link_fields(row) for row in detail.links]
        return [
            {"rank": request.rank, "step": number} | rounded_times(parts)
            for number, parts in detail.steps
        ]
    if request.step is not None:
        return [rank_fields(row) for row in overview.step(request.step)]
    if request.by == "operation":
        return [asdict(one) for one in overview.run.operations()]
    tables: dict[str | None, tuple[Any, Any]] = {
        "step": (step_fields, overview.steps),
        "group": (group_fields, overview.groups),
        "link": (link_fields, overview.links),
    }
    show, found = tables.get(request.by, (rank_fields, overview.ranks))
    return [show(row) for row in found]


def _flatten_row(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a row: nested keys are joined, lists become text."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": one for inner, one in value.items()}
        elif isinstance(value, list):
            flat[name] = " ".join(map(str, value))
        elif not (value is None and name in ("blame",)):
            flat[name] = value
    return flat


def produce_cluster_json(overview: Overview, request: ClusterRequest) -> str:
    """Render the run, or one rank or step of it, as JSON."""
    if request.rank is not None:
        return dump_json(_rank(overview, request.rank, request.step))
    if request.step is not None:
        rows = overview.step(request.step)
        return dump_json(
            {
                "version": CLUSTER_FORMAT_VERSION,
                "run": run_facts(overview),
                "step": request.step,
                "ranks": [rank_fields(row) for row in rows[: request.top]],
            }
        )
    return dump_json(run_fields(overview, top=request.top))


def _rank(overview: Overview, number: int, step: int | None) -> dict[str, Any]:
    detail = RankDetail.from_overview(overview, number, step)
    return {
        "version": CLUSTER_FORMAT_VERSION,
        "run": run_facts(overview),
        "rank": rank_fields(detail.row),
        "steps": [{"step": one} | rounded_times(parts) for one, parts in detail.steps],
        "groups": [asdict(one) for one in detail.groups],
        "links": [link_fields(row) for row in detail.links],
        "operations": [asdict(one) for one in detail.operations],
    }


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


def _lanes(overview: Overview, request: ClusterRequest) -> dict[str, Any] | None:
    """Return the timelines of some ranks in one step on a common clock, or None if unavailable."""
    ranks = None if request.rank is None else [request.rank]
    found = select_lanes(overview, step=request.step, ranks=ranks)
    if found is None:
        return None
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


_WHOLE_RECORDING = " over the whole recording"  # End of a finding of a run without steps.


_MAX_KERNEL_NAME = 60  # Maximum length of the name of a kernel in a sentence.


def finding_line(one: FindingRecord, step_ms: float | None = None) -> tuple[str, str]:
    """Return the cost of a finding, with its share of a step, and its text without that cost."""
    if kernel := one.figures.get("kernel"):
        short = names.truncate_middle(names.short_symbol(str(kernel)), _MAX_KERNEL_NAME)
        one = replace(one, text=one.text.replace(str(kernel), short))
    cost = names.format_duration(one.cost_ms_per_step * 1e6)
    share = f" ({names.format_share(one.cost_ms_per_step, step_ms)})" if step_ms else ""
    if one.text.endswith(_WHOLE_RECORDING):
        return cost, one.text.removesuffix(f"; costs {cost}{_WHOLE_RECORDING}")
    text = one.text.removesuffix(f"; costs {cost} per step")
    text = text.replace(f"; costs at most {cost} per step", " (upper bound)")
    return f"{cost}/step{share}", text


# Minimum share of the step for communication with absent ranks to be mentioned.
_MIN_MENTIONED_SHARE = 0.1


def no_findings(overview: Overview) -> str:
    """Return the verdict for a run without findings, with the reason for long communication."""
    whole = overview.mean_step
    if not whole.get("compute_ns"):
        return "none: no kernels recorded within steps, no analysis possible"
    span_ns = whole["span_ns"] or 0.0
    exposed_ns = whole["exposed_communication_ns"] or 0.0
    wait_ns = whole["exposed_wait_ns"] or 0.0
    text = "none: no rank, host or link stands out"
    if overview.is_watched or exposed_ns - wait_ns < _MIN_MENTIONED_SHARE * span_ns:
        return text
    if overview.missing:
        wait = f"{names.format_share(wait_ns, span_ns)} collective wait, the rest"
        return (
            f"{text} among the recorded ranks; exposed communication takes "
            f"{names.format_share(exposed_ns, span_ns)} of the step: "
            f"{f'{wait} transfers' if wait_ns else 'transfers,'} or waits for "
            f"the missing rank{'s' * (len(overview.missing) > 1)} "
            f"{format_ranges(one.rank for one in overview.missing)}"
        )
    return text


_STYLES = ("page.css", "cluster.css")
_SCRIPTS = (
    *("base.js", "frame.js", "table.js"),
    *("cluster_heat.js", "cluster_parts.js", "cluster_lanes.js", "cluster.js"),
)


def produce_cluster_page(overview: Overview, request: ClusterRequest) -> str:
    """Render the run as an HTML page: verdict first, then its evidence.

    Columns are encoded and long series thinned, so that the page stays small.
    """
    whole, title = run_fields(overview), cluster_title(overview, folder=False)
    data = {
        "coverage": {"headline": "", "missing": []},
        "title": title,
        "told": overview.coverage,
        "no_findings": no_findings(overview),
        "count": f"{len(overview.run.read):,} of {overview.world_size_text}",
        "missing": overview.missing_ranges,
        "run": whole["run"],
        "findings": [
            finding | dict(zip(("cost", "said"), finding_line(one), strict=True))
            for finding, one in zip(whole["findings"], overview.run.findings, strict=True)
        ],
        "ranks": [flatten_columns(row) for row in whole["ranks"]],
        "steps": whole["steps"],
        "groups": whole["groups"][:MAX_GROUPS],
        "group_labels": [names.neutral(group_label(row)) for row in overview.groups[:MAX_GROUPS]],
        "groups_left_out": max(0, len(whole["groups"]) - MAX_GROUPS),
        "cells": heat_cells(overview),
        "links": link_cells(overview),
        "lanes": _lanes(overview, request),
    }
    return fill_page(title, _STYLES, _SCRIPTS, data)
