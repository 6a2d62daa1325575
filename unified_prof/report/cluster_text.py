"""Tables and text of a multi-rank run, shared by terminal and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_prof.cluster.overview import GroupRow, Overview, RankRow, StepRow, format_ranges
from unified_prof.cluster.stored_run import LinkRecord
from unified_prof.report import names
from unified_prof.report.cluster_document import RankDetail, RankOperationRow
from unified_prof.report.document import Column, Document, name_column
from unified_prof.report.formats import ClusterBreakdown, ClusterRequest
from unified_prof.report.terminal import render_document

# Share of the step in exposed transfers from which a run without findings mentions them.
_MIN_EXPOSED_SHARE = 0.3


def rank_columns(rows: Sequence[RankRow]) -> list[Column]:
    """Return the table of ranks."""

    def times(name: str) -> tuple[str, ...]:
        return tuple(names.format_duration(row.parts.get(name)) for row in rows)

    blames = [row.blame for row in rows]
    return [
        Column("rank", tuple(str(row.rank.rank) for row in rows)),
        name_column("host", (row.rank.host or "-" for row in rows), importance=7),
        Column("stage", tuple(_text(row.rank.pp) for row in rows), importance=6),
        Column("step", tuple(names.format_duration(row.span_ns) for row in rows)),
        Column("compute", times("compute_ns")),
        Column(
            "vs stage",
            tuple("-" if one is None else _factor(one.work_ratio) for one in blames),
            importance=9,
        ),
        Column("communication", times("exposed_communication_ns"), importance=5),
        Column("waits", times("exposed_wait_ns"), importance=8),
        Column("idle", times("idle_ns"), importance=4),
        Column("late input", times("input_late_ns"), importance=3),
        Column(
            "causes wait",
            tuple(
                names.format_duration(
                    None if one is None else one.caused_wait_ns / max(1, row.steps)
                )
                for row, one in zip(rows, blames, strict=True)
            ),
            importance=8,
        ),
        Column(
            "cost/step",
            tuple(
                names.format_duration(None if one is None else one.saved_ns_per_step)
                for one in blames
            ),
        ),
        name_column(
            "cause",
            ("" if one is None else (one.cause or "").replace("_", " ") for one in blames),
            importance=9,
        ),
    ]


def step_columns(rows: Sequence[StepRow]) -> list[Column]:
    """Return the table of steps over all ranks."""

    def times(name: str) -> tuple[str, ...]:
        return tuple(names.format_duration(row.parts.get(name)) for row in rows)

    return [
        Column("step", tuple(str(row.step) for row in rows)),
        Column("mean", tuple(names.format_duration(row.span_ns) for row in rows)),
        Column("longest", tuple(names.format_duration(row.longest_ns) for row in rows)),
        Column("by rank", tuple(str(row.longest_rank) for row in rows)),
        Column("compute", times("compute_ns")),
        Column("most", tuple(names.format_duration(row.most_compute_ns) for row in rows)),
        Column("by rank", tuple(str(row.most_compute_rank) for row in rows), importance=9),
        Column("communication", times("exposed_communication_ns"), importance=8),
        Column("waiting", times("exposed_wait_ns"), importance=7),
        Column("idle", times("idle_ns"), importance=6),
    ]


def group_label(kind: str, size: str) -> str:
    """Return the label of groups of one kind and size."""
    if kind != "other":
        return f"{kind} of {size}"
    return f"{size} rank{'s' if size != '1' else ''}"


def group_columns(rows: Sequence[GroupRow]) -> list[Column]:
    """Return the table of collectives by kind of group."""
    return [
        name_column(
            "group",
            (f"{group_label(row.group_kind, f'{row.size:,}')} (x{row.groups:,})" for row in rows),
        ),
        name_column("collective", (row.kind for row in rows)),
        Column("size", tuple(names.format_size(row.bytes) for row in rows)),
        Column("per step", tuple(f"{row.per_step:,.3g}" for row in rows), importance=6),
        Column("transfer", tuple(names.format_duration(row.transfer_ns) for row in rows)),
        Column("waiting", tuple(names.format_duration(row.wait_ns) for row in rows)),
        Column(
            "setup",
            tuple(names.format_duration(row.setup_ns or None) for row in rows),
            importance=4,
        ),
        Column("bus", tuple(_rate(row.bus_gb_per_s) for row in rows), importance=8),
        Column("slowest", tuple(_rate(row.slowest_gb_per_s) for row in rows), importance=7),
        name_column(
            "ranks",
            (
                "-" if row.slowest_group is None else format_ranges(row.slowest_group.ranks, most=3)
                for row in rows
            ),
            importance=5,
        ),
    ]


def link_columns(rows: Sequence[LinkRecord]) -> list[Column]:
    """Return the table of links."""
    where = {0: "within a host", 1: "between hosts", None: "-"}
    return [
        name_column("link", (f"{row.src_rank} -> {row.dst_rank}" for row in rows)),
        name_column("kind", (row.kind for row in rows), importance=7),
        name_column("where", (where[row.across_hosts] for row in rows), importance=6),
        Column("transfers", tuple(names.format_number(row.n) for row in rows), importance=4),
        Column("bytes", tuple(names.format_size(row.bytes) for row in rows), importance=5),
        Column("median", tuple(_rate(row.gb_per_s_p50) for row in rows)),
        Column("slowest", tuple(_rate(row.gb_per_s_p99) for row in rows), importance=3),
        Column(
            "similar links",
            tuple(_rate(row.like_gb_per_s) for row in rows),
            importance=8,
        ),
        Column("ratio", tuple(_factor(row.ratio) for row in rows), importance=9),
    ]


def rank_step_columns(rows: Sequence[tuple[int, dict[str, float | None]]]) -> list[Column]:
    """Return the table of one rank's steps."""
    headings = {
        "span_ns": "length",
        "compute_ns": "compute",
        "exposed_communication_ns": "communication",
        "exposed_wait_ns": "waits",
        "bubble_ns": "pipeline wait",
        "setup_ns": "setup",
        "input_late_ns": "late input",
        "idle_ns": "idle",
    }
    return [
        Column("step", tuple(str(number) for number, _ in rows)),
        *(
            Column(heading, tuple(names.format_duration(parts[name]) for _, parts in rows))
            for name, heading in headings.items()
        ),
    ]


def operation_columns(rows: Sequence[RankOperationRow]) -> list[Column]:
    """Return the table of one rank's kernels, compared with other ranks of its pipeline stage."""
    return [
        name_column("kernel", (row.name for row in rows)),
        Column("runs", tuple(names.format_number(row.n) for row in rows), importance=8),
        Column("time", tuple(names.format_duration(row.total_ns) for row in rows)),
        Column(
            "vs stage", tuple(names.format_duration(row.stage_ns) for row in rows), importance=7
        ),
        Column("ratio", tuple(_factor(row.ratio) for row in rows), importance=9),
        Column("longest", tuple(names.format_duration(row.max_ns) for row in rows), importance=4),
        name_column("module", (row.module for row in rows), importance=3),
    ]


@dataclass(frozen=True, slots=True)
class KernelKindRow:
    """Kernels of one kind on all ranks."""

    name: str
    ranks: int
    n: int
    total_ns: int
    most_ns: int
    most_rank: int


def kernel_kind_columns(rows: Sequence[KernelKindRow]) -> list[Column]:
    """Return the table of kernels over all ranks."""
    return [
        name_column("kernel", (row.name for row in rows)),
        Column("ranks", tuple(names.format_number(row.ranks) for row in rows), importance=6),
        Column("runs", tuple(names.format_number(row.n) for row in rows), importance=7),
        Column("time", tuple(names.format_duration(row.total_ns) for row in rows)),
        Column("per rank", tuple(names.format_duration(row.total_ns / row.ranks) for row in rows)),
        Column("most", tuple(names.format_duration(row.most_ns) for row in rows), importance=8),
        Column("by rank", tuple(str(row.most_rank) for row in rows), importance=8),
    ]


def _text(value: int | None) -> str:
    return names.NOT_MEASURED if value is None else str(value)


def _factor(value: float | None) -> str:
    return names.NOT_MEASURED if value is None else f"{value:.2f} x"


def _rate(value: float | None) -> str:
    return names.NOT_MEASURED if value is None else f"{value:.3g} GB/s"


# Rows per table if all tables share one screen.
_ROWS_PER_OVERVIEW: dict[ClusterBreakdown, int] = {
    "rank": 5,
    "step": 3,
    "group": 5,
    "link": 4,
    "operation": 0,
}
# Rows of a single requested table.
_ROWS_PER_TABLE = 20
_MAX_FINDINGS = 5
_SHARES = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "exposed communication"),
    ("idle_ns", "idle"),
)


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """A table with its heading."""

    heading: str
    columns: list[Column]
    left_out: int = 0  # Number of rows that are not shown.


def cluster_title(overview: Overview, *, folder: bool = True) -> str:
    """Return the run in one line, optionally with its directory."""
    run = overview.run
    hosts = {one.host for one in run.ranks if one.host is not None}
    parts = [f"{run.world_size:,} rank{'s' if run.world_size != 1 else ''}"]
    if hosts:
        parts[0] += f" on {len(hosts):,} host{'s' if len(hosts) != 1 else ''}"
    count = len(overview.steps)
    parts.append(f"{count:,} step{'s' if count != 1 else ''}")
    devices = sorted({one.device_name for one in run.ranks if one.device_name})
    if devices:
        parts.append(" and ".join(devices[:3]))
    name = run.path if folder else Path(run.path).absolute().name
    return f"{names.neutral(name)}: {names.neutral(', '.join(parts))}"


def cluster_headline(overview: Overview) -> list[tuple[str, str]]:
    """Return the headline figures as (label, text)."""
    lines = [("ranks", names.neutral(overview.coverage))]
    if overview.layout:
        lines.append(("layout", overview.layout))
    whole = overview.mean_step
    if whole["span_ns"] is not None:
        parts = [
            f"{what} {names.format_duration(whole[name])} "
            f"({names.format_share(whole[name], whole['span_ns'])})"
            for name, what in _SHARES
        ]
        text = f"{names.format_duration(whole['span_ns'])}; {', '.join(parts)}"
        lines.append(("mean step", text))
        waits = [
            f"{what} {names.format_duration(whole[name])}"
            for name, what in (
                ("exposed_wait_ns", "collective wait"),
                ("setup_ns", "collective setup"),
                ("input_late_ns", "late input"),
            )
            if whole[name]
        ]
        if whole["bubble_ns"] and whole["exposed_wait_ns"]:
            waits[0] += f" (pipeline wait {names.format_duration(whole['bubble_ns'])} of it)"
        if waits:
            lines.append(("waits", ", ".join(waits)))
    islands = {one.clock_island for one in overview.run.ranks} - {None}
    if len(islands) > 1:
        text = (
            f"{len(islands):,} groups of ranks without a common clock: times are valid within "
            "each group"
        )
        lines.append(("clocks", text))
    return lines


def cluster_remarks(overview: Overview) -> list[str]:
    """Return the anomalies of the recordings, one line each."""
    found = []
    for one in overview.run.anomalies:
        times = f" ({one.count:,} times)" if one.count > 1 else ""
        found.append(names.neutral(f"{one.detail or one.name.replace('_', ' ')}{times}"))
    return found


def _no_findings(overview: Overview) -> str:
    """Return the verdict for a run without findings, with a high cost that all ranks share."""
    whole = overview.mean_step
    exposed = (whole["exposed_communication_ns"] or 0.0) - (whole["exposed_wait_ns"] or 0.0)
    share = exposed / whole["span_ns"] if whole["span_ns"] else 0.0
    text = "no findings: no rank, host or link stands out"
    if share < _MIN_EXPOSED_SHARE or overview.is_watched:
        return text
    setup_ns = whole["setup_ns"] or 0.0
    if 2 * setup_ns > exposed:
        return (
            f"{text}; collective setup takes {names.format_share(setup_ns, whole['span_ns'])} of "
            "the step on all ranks: the first collective of a group connects its ranks, so "
            "record later steps"
        )
    return (
        f"{text}; exposed transfers take {names.format_share(share, 1.0)} of the step on all "
        "ranks: compare with an earlier run (`uprof cluster diff`)"
    )


def verdict(overview: Overview, *, most: int = _MAX_FINDINGS) -> list[str]:
    """Return the findings as text, most expensive first."""
    found = overview.run.findings
    if not found and not overview.mean_step.get("compute_ns"):
        return ["no kernels recorded within steps: no analysis possible"]
    if not found:
        return [_no_findings(overview)]
    lines = [
        f"{number}. {names.neutral(one.text)}" for number, one in enumerate(found[:most], start=1)
    ]
    if len(found) > most:
        lines.append(f"and {len(found) - most:,} more (--format json has all)")
    return lines


def cluster_sections(overview: Overview, request: ClusterRequest) -> Iterator[ClusterSection]:
    """Yield the requested table, or one screen of all tables.

    Raises:
        UsageError: The run has no such rank or step.
    """
    if request.rank is not None:
        yield from _rank_sections(
            RankDetail.from_overview(overview, request.rank, request.step), request
        )
        return
    if request.step is not None:
        rows = sorted(overview.step(request.step), key=lambda row: -(row.span_ns or 0))
        yield _section("ranks, longest first", rank_columns, rows, request.top or _ROWS_PER_TABLE)
        return
    made: dict[ClusterBreakdown, tuple[str, Callable[[Any], list[Column]], Sequence[Any]]] = {
        "rank": ("ranks, most expensive first", rank_columns, overview.worst),
        "step": (
            "steps, longest first",
            step_columns,
            sorted(overview.steps, key=lambda row: -row.longest_ns),
        ),
        "group": ("collectives, most expensive first", group_columns, overview.groups),
        "link": ("links, slowest relative to similar links first", link_columns, overview.links),
    }
    for by, (heading, columns, found) in made.items():
        if request.by in (None, by) and (found or request.by):
            default = _ROWS_PER_OVERVIEW[by] if request.by is None else _ROWS_PER_TABLE
            yield _section(heading, columns, found, request.top or default)
    if request.by == "operation":
        kinds = _operations(overview)
        yield _section(
            "kernels, all ranks", kernel_kind_columns, kinds, request.top or _ROWS_PER_TABLE
        )


def _section(
    heading: str, columns: Callable[[Any], list[Column]], rows: Sequence[Any], top: int
) -> ClusterSection:
    return ClusterSection(heading, columns(rows[:top]), max(0, len(rows) - top))


def _rank_sections(detail: RankDetail, request: ClusterRequest) -> Iterator[ClusterSection]:
    top = request.top or _ROWS_PER_TABLE
    yield _section("rank", rank_columns, [detail.row], 1)
    yield _section("steps", rank_step_columns, detail.steps, top)
    yield _section("kernels", operation_columns, detail.operations, top)
    if detail.links:
        yield _section("links", link_columns, detail.links, top)
    groups = [
        (one.kind, names.neutral(", ".join(one.names)), format_ranges(one.ranks))
        for one in detail.groups
    ]
    if groups:
        yield ClusterSection(
            "groups",
            [
                name_column(heading, (row[index] for row in groups))
                for index, heading in enumerate(("group", "names", "ranks"))
            ],
        )


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


def produce_cluster_text(overview: Overview, request: ClusterRequest) -> str:
    """Render the run as text."""
    return render_document(run_document(overview, request), "text", request)


def produce_cluster_markdown(overview: Overview, request: ClusterRequest) -> str:
    """Render the run as Markdown."""
    return render_document(run_document(overview, request), "markdown", request)


def run_document(overview: Overview, request: ClusterRequest) -> Document:
    """Return the document of a run, or of one rank or step.

    Raises:
        UsageError: The run has no such rank or step.
    """
    document = Document()
    document.title(cluster_title(overview))
    for label, text in cluster_headline(overview):
        document.fact(label, text)
    for line in cluster_remarks(overview):
        document.warning("warning", line)
    if request.by is None and request.rank is None and request.step is None:
        document.heading("findings")
        for line in verdict(overview):
            document.line(line)
    for section in cluster_sections(overview, request):
        document.heading(section.heading)
        document.table(section.columns, left_out=section.left_out)
    return document
