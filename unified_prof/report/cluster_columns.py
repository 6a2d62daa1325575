"""The columns of every table about a run: which figures, under which headings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unified_prof.cluster.overview import (
    GroupRow,
    LinkRow,
    RankRow,
    StepRow,
    ranges,
)
from unified_prof.report import names
from unified_prof.report.cluster_document import OperationRow
from unified_prof.report.tables import Column


def rank_columns(rows: Sequence[RankRow]) -> list[Column]:
    """Return a table of ranks."""

    def times(name: str) -> tuple[str, ...]:
        return tuple(names.duration(row.parts.get(name)) for row in rows)

    blames = [row.blame for row in rows]
    columns = [
        Column("rank", tuple(str(row.rank.rank) for row in rows)),
        Column(
            "host",
            tuple(names.neutral(row.rank.host or "-") for row in rows),
            is_name=True,
            importance=7,
        ),
        Column("stage", tuple(_text(row.rank.pp) for row in rows), importance=6),
        Column("step", tuple(names.duration(row.span_ns) for row in rows)),
        Column("compute", times("compute_ns")),
        Column(
            "of stage",
            tuple("-" if one is None else _factor(one.work_ratio) for one in blames),
            importance=9,
        ),
        Column("communication", times("exposed_communication_ns"), importance=5),
        Column("waits", times("exposed_wait_ns"), importance=8),
        Column("idle", times("idle_ns"), importance=4),
        Column("input late", times("input_late_ns"), importance=3),
        Column(
            "makes wait",
            tuple(
                names.duration(None if one is None else one.caused_wait_ns / max(1, row.steps))
                for row, one in zip(rows, blames, strict=True)
            ),
            importance=8,
        ),
        Column(
            "costs a step",
            tuple(names.duration(None if one is None else one.saved_ns_per_step) for one in blames),
        ),
        Column(
            "cause",
            tuple("" if one is None else (one.cause or "").replace("_", " ") for one in blames),
            is_name=True,
            importance=9,
        ),
    ]
    return _told(columns)


def step_columns(rows: Sequence[StepRow]) -> list[Column]:
    """Return a table of steps over all ranks."""

    def times(name: str) -> tuple[str, ...]:
        return tuple(names.duration(row.parts.get(name)) for row in rows)

    return _told(
        [
            Column("step", tuple(str(row.step) for row in rows)),
            Column("mean", tuple(names.duration(row.span_ns) for row in rows)),
            Column("longest", tuple(names.duration(row.longest_ns) for row in rows)),
            Column("by rank", tuple(str(row.longest_rank) for row in rows)),
            Column("compute", times("compute_ns")),
            Column("most", tuple(names.duration(row.most_compute_ns) for row in rows)),
            Column("by rank", tuple(str(row.most_compute_rank) for row in rows), importance=9),
            Column("communication", times("exposed_communication_ns"), importance=8),
            Column("waiting", times("exposed_wait_ns"), importance=7),
            Column("idle", times("idle_ns"), importance=6),
        ]
    )


def group_columns(rows: Sequence[GroupRow]) -> list[Column]:
    """Return a table of collectives by kind of group."""
    return _told(
        [
            Column(
                "group",
                tuple(f"{row.group_kind} of {row.size:,} (x{row.groups:,})" for row in rows),
                is_name=True,
            ),
            Column("collective", tuple(names.neutral(row.kind) for row in rows), is_name=True),
            Column("size", tuple(names.size(row.bytes) for row in rows)),
            Column("a step", tuple(f"{row.per_step:,.3g}" for row in rows), importance=6),
            Column("transfer", tuple(names.duration(row.transfer_ns) for row in rows)),
            Column("waiting", tuple(names.duration(row.wait_ns) for row in rows)),
            Column(
                "set-up", tuple(names.duration(row.setup_ns or None) for row in rows), importance=4
            ),
            Column("bus", tuple(_rate(row.bus_gb_per_s) for row in rows), importance=8),
            Column("slowest", tuple(_rate(row.slowest_gb_per_s) for row in rows), importance=7),
            Column(
                "its ranks",
                tuple(
                    "-" if row.slowest_group is None else ranges(row.slowest_group.ranks, most=3)
                    for row in rows
                ),
                is_name=True,
                importance=5,
            ),
        ]
    )


def link_columns(rows: Sequence[LinkRow]) -> list[Column]:
    """Return a table of links."""
    where = {0: "in one host", 1: "between hosts", None: "-"}
    return _told(
        [
            Column(
                "link",
                tuple(f"{row.link.src_rank} -> {row.link.dst_rank}" for row in rows),
                is_name=True,
            ),
            Column(
                "of",
                tuple(names.neutral(row.link.kind) for row in rows),
                is_name=True,
                importance=7,
            ),
            Column(
                "where",
                tuple(where[row.link.across_hosts] for row in rows),
                is_name=True,
                importance=6,
            ),
            Column("transfers", tuple(names.number(row.link.n) for row in rows), importance=4),
            Column("bytes", tuple(names.size(row.link.bytes) for row in rows), importance=5),
            Column("median", tuple(_rate(row.link.gb_per_s_p50) for row in rows)),
            Column("slow end", tuple(_rate(row.link.gb_per_s_p99) for row in rows), importance=3),
            Column("like it", tuple(_rate(row.link.like_gb_per_s) for row in rows), importance=8),
            Column("ratio", tuple(_factor(row.ratio) for row in rows), importance=9),
        ]
    )


def own_step_columns(rows: Sequence[tuple[int, dict[str, float | None]]]) -> list[Column]:
    """Return a table of one rank's steps."""
    headings = {
        "span_ns": "length",
        "compute_ns": "compute",
        "exposed_communication_ns": "communication",
        "exposed_wait_ns": "waits",
        "bubble_ns": "for a stage",
        "setup_ns": "set-up",
        "input_late_ns": "input late",
        "idle_ns": "idle",
    }
    return _told(
        [Column("step", tuple(str(number) for number, _ in rows))]
        + [
            Column(heading, tuple(names.duration(parts[name]) for _, parts in rows))
            for name, heading in headings.items()
        ]
    )


def operation_columns(rows: Sequence[OperationRow]) -> list[Column]:
    """Return a table of one rank's kernels, beside those of its stage."""
    return _told(
        [
            Column("kernel", tuple(names.neutral(row.name) for row in rows), is_name=True),
            Column("runs", tuple(names.number(row.n) for row in rows), importance=8),
            Column("time", tuple(names.duration(row.total_ns) for row in rows)),
            Column("of stage", tuple(names.duration(row.stage_ns) for row in rows), importance=7),
            Column("ratio", tuple(_factor(row.ratio) for row in rows), importance=9),
            Column("longest", tuple(names.duration(row.max_ns) for row in rows), importance=4),
            Column(
                "module",
                tuple(names.neutral(row.module) for row in rows),
                is_name=True,
                importance=3,
            ),
        ]
    )


@dataclass(frozen=True, slots=True)
class KindRow:
    """Kernels of one kind on all ranks."""

    name: str
    ranks: int
    n: int
    total_ns: int
    most_ns: int
    most_rank: int


def kind_columns(rows: Sequence[KindRow]) -> list[Column]:
    """Return a table of kernels over all ranks."""
    return [
        Column("kernel", tuple(names.neutral(row.name) for row in rows), is_name=True),
        Column("ranks", tuple(names.number(row.ranks) for row in rows), importance=6),
        Column("runs", tuple(names.number(row.n) for row in rows), importance=7),
        Column("time", tuple(names.duration(row.total_ns) for row in rows)),
        Column("a rank", tuple(names.duration(row.total_ns / row.ranks) for row in rows)),
        Column("most", tuple(names.duration(row.most_ns) for row in rows), importance=8),
        Column("by rank", tuple(str(row.most_rank) for row in rows), importance=8),
    ]


def _told(columns: list[Column]) -> list[Column]:
    """Return the columns in which some row has something."""
    return [
        column
        for index, column in enumerate(columns)
        if index == 0 or any(cell not in ("", names.NOT_MEASURED) for cell in column.cells)
    ]


def _text(value: int | None) -> str:
    return names.NOT_MEASURED if value is None else str(value)


def _factor(value: float | None) -> str:
    return names.NOT_MEASURED if value is None else f"{value:.2f} x"


def _rate(value: float | None) -> str:
    return names.NOT_MEASURED if value is None else f"{value:.3g} GB/s"
