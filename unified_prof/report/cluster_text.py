"""Documents of multi-rank runs, and of comparisons of two runs, for text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from unified_prof.cluster.overview import GroupRow, Overview, RankRow, StepRow, format_ranges
from unified_prof.cluster.stored_run import GroupRecord, LinkRecord
from unified_prof.report import cluster_document, names
from unified_prof.report.cluster_document import RankDetail, RankOperationRow, cluster_title
from unified_prof.report.document import Document, Figure
from unified_prof.report.formats import ClusterRequest
from unified_prof.report.names import format_duration as duration
from unified_prof.report.names import format_gb_per_second as rate
from unified_prof.report.names import neutral

if TYPE_CHECKING:
    from unified_prof.cluster.run_comparison import (
        ClusterDifference,
        CollectiveChange,
        LinkChange,
        OperationChange,
        QuantityPair,
        RoleChange,
    )


def _factor(value: float | None) -> str:
    return names.NOT_MEASURED if value is None else f"{value:.2f} x"


def _caused_wait_ns(row: RankRow) -> float | None:
    known = row.blame is not None and row.blame.caused_wait_ns is not None
    return row.cost_ns[1] if known else None


_RANK_FIGURES: tuple[Figure[RankRow], ...] = (
    ("rank", lambda row: row.rank.rank, str, 10),
    ("host", lambda row: row.rank.host or "-", neutral, 7),
    ("stage", lambda row: "-" if row.rank.pp is None else row.rank.pp, str, 6),
    ("step", lambda row: row.span_ns, duration, 10),
    ("compute", lambda row: row.parts["compute_ns"], duration, 10),
    ("vs stage", lambda row: row.blame and row.blame.work_ratio, _factor, 9),
    ("exposed comm.", lambda row: row.parts["exposed_communication_ns"], duration, 5),
    ("waiting", lambda row: row.parts["exposed_wait_ns"], duration, 8),
    ("idle", lambda row: row.parts["idle_ns"], duration, 4),
    ("late input", lambda row: row.parts["input_late_ns"], duration, 3),
    ("causes wait", _caused_wait_ns, duration, 8),
    ("cost/step", lambda row: row.blame and row.blame.saved_ns_per_step, duration, 10),
    ("cause", lambda row: ((row.blame and row.blame.cause) or "").replace("_", " "), neutral, 9),
)


_STEP_FIGURES: tuple[Figure[StepRow], ...] = (
    ("step", lambda row: row.step, str, 10),
    ("mean", lambda row: row.span_ns, duration, 10),
    ("longest", lambda row: row.longest_ns, duration, 10),
    ("by rank", lambda row: row.longest_rank, str, 10),
    ("compute", lambda row: row.parts["compute_ns"], duration, 10),
    ("most", lambda row: row.most_compute_ns, duration, 10),
    ("by rank", lambda row: row.most_compute_rank, str, 9),
    ("exposed comm.", lambda row: row.parts["exposed_communication_ns"], duration, 8),
    ("waiting", lambda row: row.parts["exposed_wait_ns"], duration, 7),
    ("idle", lambda row: row.parts["idle_ns"], duration, 6),
)


def _slowest_group(row: GroupRow) -> str:
    return format_ranges(row.slowest_group.ranks, most=3) if row.slowest_group else "-"


def _collective_ns(row: GroupRow) -> float | None:
    """Return the time of collectives per step, by which rows are ordered."""
    return None if row.transfer_ns is None else row.transfer_ns + (row.wait_ns or 0)


_GROUP_FIGURES: tuple[Figure[GroupRow], ...] = (
    ("group", cluster_document.group_label, neutral, 10),
    ("collective", lambda row: row.kind, neutral, 10),
    ("size", lambda row: row.bytes, names.format_size, 10),
    ("per step", lambda row: row.per_step, "{:,.3g}".format, 6),
    ("time", _collective_ns, duration, 10),
    ("transfer", lambda row: row.transfer_ns, duration, 9),
    ("waiting", lambda row: row.wait_ns, duration, 9),
    ("setup", lambda row: row.setup_ns or None, duration, 4),
    ("bus", lambda row: row.bus_gb_per_s, rate, 8),
    ("slowest", lambda row: row.slowest_gb_per_s, rate, 7),
    ("ranks", _slowest_group, neutral, 5),
)


def _group_heading(rows: Sequence[GroupRow]) -> str:
    """Return the heading of the collectives, which says what their order is."""
    if all(row.transfer_ns is None for row in rows):
        return "collectives, largest first (no times: recordings of members are missing)"
    return "collectives, longest first (transfer and waiting, per step)"


_PLACES = {1: "between hosts", 0: "within a host", None: "-"}  # Links, by `across_hosts`.


_LINK_FIGURES: tuple[Figure[LinkRecord], ...] = (
    ("link", lambda row: f"{row.src_rank} -> {row.dst_rank}", neutral, 10),
    ("kind", lambda row: row.kind, neutral, 7),
    ("where", lambda row: _PLACES[row.across_hosts], neutral, 6),
    ("transfers", lambda row: row.n, names.format_number, 4),
    ("bytes", lambda row: row.bytes, names.format_size, 5),
    ("median", lambda row: row.gb_per_s_p50, rate, 10),
    ("slowest", lambda row: row.gb_per_s_p99, rate, 3),
    ("similar links", lambda row: row.like_gb_per_s, rate, 8),
    ("ratio", lambda row: row.ratio, _factor, 9),
)


_FIGURES_OF_RANK_STEPS: tuple[Figure[tuple[int, dict[str, float | None]]], ...] = (
    ("step", lambda row: row[0], str, 10),
    ("length", lambda row: row[1]["span_ns"], duration, 10),
    ("compute", lambda row: row[1]["compute_ns"], duration, 10),
    ("exposed comm.", lambda row: row[1]["exposed_communication_ns"], duration, 10),
    ("waiting", lambda row: row[1]["exposed_wait_ns"], duration, 10),
    ("pipeline wait", lambda row: row[1]["bubble_ns"], duration, 10),
    ("setup", lambda row: row[1]["setup_ns"], duration, 10),
    ("late input", lambda row: row[1]["input_late_ns"], duration, 10),
    ("idle", lambda row: row[1]["idle_ns"], duration, 10),
)


_OPERATION_FIGURES: tuple[Figure[RankOperationRow], ...] = (
    ("kernel", lambda row: row.name, neutral, 10),
    ("runs", lambda row: row.n, names.format_number, 8),
    ("time", lambda row: row.total_ns, duration, 10),
    ("vs stage", lambda row: row.stage_ns, duration, 7),
    ("ratio", lambda row: row.ratio, _factor, 9),
    ("longest", lambda row: row.max_ns, duration, 4),
    ("module", lambda row: row.module, neutral, 3),
)


class KernelKindRow(Struct, frozen=True):
    """Kernels of one kind on all ranks."""

    name: str
    ranks: int
    n: int
    total_ns: int
    most_ns: int
    most_rank: int


_KERNEL_FIGURES: tuple[Figure[KernelKindRow], ...] = (
    ("kernel", lambda row: row.name, neutral, 10),
    ("ranks", lambda row: row.ranks, names.format_number, 6),
    ("runs", lambda row: row.n, names.format_number, 7),
    ("time", lambda row: row.total_ns, duration, 10),
    ("per rank", lambda row: row.total_ns / row.ranks, duration, 10),
    ("most", lambda row: row.most_ns, duration, 8),
    ("by rank", lambda row: row.most_rank, str, 8),
)


_ROWS_PER_TABLE = 20  # Rows of a single requested table.
_MAX_FINDINGS = 5
_SHARES = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "exposed communication"),
    ("idle_ns", "idle"),
)
_WAITS = (
    ("exposed_wait_ns", "collective wait"),
    ("setup_ns", "collective setup"),
    ("input_late_ns", "late input"),
)


def _add_headline(document: Document, overview: Overview) -> None:
    """Add the headline figures, and the anomalies of the recordings."""
    document.fact("ranks", overview.coverage)
    if overview.layout:
        document.fact("layout", overview.layout)
    whole = overview.mean_step
    if whole["span_ns"] is not None:
        parts = [
            f"{what} {duration(whole[name])} ({names.format_share(whole[name], whole['span_ns'])})"
            for name, what in _SHARES
        ]
        document.fact("mean step", f"{duration(whole['span_ns'])}; {', '.join(parts)}")
        waits = [f"{what} {duration(whole[name])}" for name, what in _WAITS if whole[name]]
        if whole["bubble_ns"] and whole["exposed_wait_ns"]:
            waits[0] += f" (pipeline wait {duration(whole['bubble_ns'])} of it)"
        if waits:
            document.fact("waits", ", ".join(waits))
    islands = {one.clock_island for one in overview.run.ranks} - {None}
    if len(islands) > 1:
        text = (
            f"{len(islands):,} groups of ranks without a common clock: times are valid within "
            "each group"
        )
        document.fact("clocks", text)
    for one in overview.run.anomalies:
        times = f" ({one.count:,} times)" if one.count > 1 else ""
        document.warning("warning", f"{one.detail or one.name.replace('_', ' ')}{times}")


def _add_findings(document: Document, overview: Overview) -> None:
    """Add the findings, most expensive first."""
    found = overview.run.findings
    if not found:
        document.fact("findings", cluster_document.no_findings(overview))
    step_ms = (overview.mean_step.get("span_ns") or 0) / 1e6
    for one in found[:_MAX_FINDINGS]:
        document.finding(*cluster_document.finding_line(one, step_ms))
    if len(found) > _MAX_FINDINGS:
        document.note(f"and {len(found) - _MAX_FINDINGS:,} more (--format json has all)")


def _add_rank(document: Document, detail: RankDetail, top: int) -> None:
    document.section("rank", [detail.row], _RANK_FIGURES, 1)
    document.section("steps", detail.steps, _FIGURES_OF_RANK_STEPS, top)
    document.section("kernels", detail.operations, _OPERATION_FIGURES, top)
    if detail.links:
        document.section("links", detail.links, _LINK_FIGURES, top)
    if detail.groups:
        figures: tuple[Figure[GroupRecord], ...] = (
            ("group", lambda one: one.kind, neutral, 10),
            ("names", lambda one: ", ".join(one.names), neutral, 10),
            ("ranks", lambda one: format_ranges(one.ranks), neutral, 10),
        )
        document.section("groups", detail.groups, figures, len(detail.groups))


def _operations(overview: Overview) -> list[KernelKindRow]:
    found: dict[str, dict[int, list[int]]] = {}
    for one in overview.run.operations():
        sums = found.setdefault(one.name, {}).setdefault(one.rank, [0, 0])
        sums[0] += one.n
        sums[1] += one.total_ns
    rows = []
    for name, by_rank in found.items():
        most = max(by_rank, key=lambda rank: (by_rank[rank][1], -rank))
        count, total = (sum(sums[index] for sums in by_rank.values()) for index in (0, 1))
        rows.append(KernelKindRow(name, len(by_rank), count, total, by_rank[most][1], most))
    return sorted(rows, key=lambda row: -row.total_ns)


def run_document(overview: Overview, request: ClusterRequest) -> Document:
    """Return the document of a run, or of one rank or step.

    Raises UsageError if the run has no such rank or step.
    """
    document = Document()
    document.title(cluster_title(overview))
    top, by = request.top or _ROWS_PER_TABLE, request.by
    if by is None and request.rank is None and request.step is None:
        _add_findings(document, overview)
    _add_headline(document, overview)
    if request.rank is not None:
        _add_rank(document, RankDetail.from_overview(overview, request.rank, request.step), top)
        return document
    if request.step is not None:
        ranks = sorted(overview.step(request.step), key=lambda row: -(row.span_ns or 0))
        document.section("ranks, longest first", ranks, _RANK_FIGURES, top)
        return document
    steps, links = sorted(overview.steps, key=lambda row: -row.longest_ns), overview.links
    kernels = _operations(overview) if by == "operation" else []
    # Table, its rows if all tables share one screen, heading, rows and figures.
    tables: tuple[tuple[str, int, str, Sequence[Any], Sequence[Figure[Any]]], ...] = (
        ("rank", 5, "ranks, most expensive first", overview.worst, _RANK_FIGURES),
        ("step", 3, "steps, longest first", steps, _STEP_FIGURES),
        ("group", 5, _group_heading(overview.groups), overview.groups, _GROUP_FIGURES),
        ("link", 4, "links, slowest relative to similar links first", links, _LINK_FIGURES),
        ("operation", 0, "kernels, all ranks", kernels, _KERNEL_FIGURES),
    )
    for name, few, heading, rows, figures in tables:
        if by == name or (by is None and rows):
            document.section(heading, rows, figures, top if by else request.top or few)
    return document


def _ratio(pair: QuantityPair) -> str:
    if pair.ratio is None:
        return "new" if pair.base is None and pair.new else "gone" if pair.base else "-"
    return _factor(pair.ratio)


def _times(pair: Callable[[Any], QuantityPair]) -> tuple[Figure[Any], ...]:
    """Return the columns of a duration in both runs."""
    return (
        ("base", lambda row: pair(row).base, duration, 10),
        ("new", lambda row: pair(row).new, duration, 10),
        ("ratio", pair, _ratio, 10),
    )


def _before_and_after(pair: QuantityPair) -> str:
    return f"{duration(pair.base)} -> {duration(pair.new)}"


def _rates(pair: QuantityPair) -> str:
    return f"{rate(pair.base)} -> {rate(pair.new)}"


def _group_change(row: CollectiveChange) -> str:
    sizes = [size for size in (row.base_size, row.new_size) if size is not None]
    return cluster_document.groups_of(row.group_kind, " -> ".join(map(str, dict.fromkeys(sizes))))


_ROLE_CHANGES: tuple[Figure[RoleChange], ...] = (
    ("role", lambda row: row.role, neutral, 10),
    ("ranks", lambda row: f"{row.base_ranks} -> {row.new_ranks}", str, 5),
    *_times(lambda row: row.span_ns),
    ("compute", lambda row: row.parts["compute_ns"], _before_and_after, 9),
    ("exposed comm.", lambda row: row.parts["exposed_communication_ns"], _before_and_after, 8),
    ("waiting", lambda row: row.parts["exposed_wait_ns"], _before_and_after, 7),
    ("idle", lambda row: row.parts["idle_ns"], _before_and_after, 6),
)
_COLLECTIVE_CHANGES: tuple[Figure[CollectiveChange], ...] = (
    ("collective", lambda row: row.kind, neutral, 10),
    ("group", _group_change, neutral, 10),
    ("size", lambda row: row.bytes, names.format_size, 10),
    *_times(lambda row: row.transfer_ns),
    ("waiting", lambda row: row.wait_ns, _before_and_after, 7),
    ("bus", lambda row: row.bus_gb_per_s, _rates, 6),
)
_LINK_CHANGES: tuple[Figure[LinkChange], ...] = (
    ("links", lambda row: row.kind, neutral, 10),
    ("where", lambda row: _PLACES[row.across_hosts], neutral, 10),
    ("count", lambda row: f"{row.base_links} -> {row.new_links}", str, 5),
    ("median", lambda row: row.gb_per_s, _rates, 10),
    ("slowest", lambda row: row.slowest_gb_per_s, _rates, 8),
)
_KERNEL_CHANGES: tuple[Figure[OperationChange], ...] = (
    ("kernel", lambda row: row.name, neutral, 10),
    ("stage", lambda row: row.stage, str, 8),
    *_times(lambda row: row.time_ns),
)
_HEADINGS = {
    "span_ns": "step",
    "compute_ns": "compute",
    "communication_ns": "communication",
    "exposed_communication_ns": "exposed communication",
    "wait_ns": "collective wait",
    "exposed_wait_ns": "exposed collective wait",
    "setup_ns": "collective setup",
    "bubble_ns": "pipeline wait",
    "input_late_ns": "late input",
    "idle_ns": "idle",
}


def cluster_difference_document(found: ClusterDifference, *, top: int) -> Document:
    """Return the document of a comparison with at most `top` rows per table."""
    document = Document()
    document.fact("base", cluster_title(found.base))
    document.fact("new", cluster_title(found.new))
    for heading, findings in (
        ("new findings", found.new_findings),
        ("resolved findings", found.gone_findings),
        ("unchanged findings", found.kept_findings),
    ):
        if findings:
            document.heading(heading)
            for finding in findings:
                document.fact(*cluster_document.finding_line(finding))
    parts = [
        (_HEADINGS[name], pair)
        for name, pair in found.step.items()
        if pair.base is not None or pair.new is not None
    ]
    part: Figure[Any] = ("part", itemgetter(0), neutral, 10)
    document.section("mean step", parts, (part, *_times(itemgetter(1))), len(parts))
    kernels = _KERNEL_CHANGES
    if all(row.stage == "all" for row in found.operations[:top]):
        kernels = tuple(figure for figure in kernels if figure[0] != "stage")
    tables: tuple[tuple[str, Sequence[Any], Sequence[Figure[Any]]], ...] = (
        ("by role", found.roles, _ROLE_CHANGES),
        ("collectives", found.collectives, _COLLECTIVE_CHANGES),
        ("links", found.links, _LINK_CHANGES),
        ("kernels, largest regression first", found.operations, kernels),
    )
    for heading, rows, figures in tables:
        if rows:
            document.section(heading, rows, figures, top)
    return document


def cluster_difference_fields(found: ClusterDifference) -> dict[str, Any]:
    """Return a comparison with all rows as plain data for JSON; times are ns per step."""
    return {
        "version": cluster_document.CLUSTER_FORMAT_VERSION,
        "base": cluster_document.run_facts(found.base),
        "new": cluster_document.run_facts(found.new),
        "step": {name: asdict(pair) for name, pair in found.step.items()},
        "roles": [asdict(one) for one in found.roles],
        "collectives": [asdict(one) for one in found.collectives],
        "links": [asdict(one) for one in found.links],
        "operations": [asdict(one) for one in found.operations],
        "findings": {
            "new": [cluster_document.finding_fields(one) for one in found.new_findings],
            "gone": [cluster_document.finding_fields(one) for one in found.gone_findings],
            "kept": [cluster_document.finding_fields(one) for one in found.kept_findings],
        },
    }
