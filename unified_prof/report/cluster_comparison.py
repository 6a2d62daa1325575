"""Rendering of the comparison of two multi-rank runs as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from unified_prof.cluster.run_comparison import (
    ClusterDifference,
    CollectiveChange,
    LinkChange,
    OperationChange,
    QuantityPair,
    RoleChange,
)
from unified_prof.cluster.stored_run import STEP_PARTS
from unified_prof.report import cluster_document, names
from unified_prof.report.cluster_text import ClusterSection, cluster_title, group_label
from unified_prof.report.document import Column, Document, name_column

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
_LEVELS = {True: "between hosts", False: "within a host", None: "-"}


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
                document.line(finding.text)
    for section in _sections(found, top):
        document.heading(section.heading)
        document.table(section.columns, left_out=section.left_out)
    return document


def cluster_difference_fields(found: ClusterDifference) -> dict[str, Any]:
    """Return a comparison with all rows as plain data for JSON; times are ns per step."""
    return {
        "version": cluster_document.CLUSTER_FORMAT_VERSION,
        "base": cluster_document.run_facts(found.base),
        "new": cluster_document.run_facts(found.new),
        "step": {name: _pair(pair) for name, pair in found.step.items()},
        "roles": [_row_fields(one) for one in found.roles],
        "collectives": [_row_fields(one) for one in found.collectives],
        "links": [_row_fields(one) for one in found.links],
        "operations": [_row_fields(one) for one in found.operations],
        "findings": {
            "new": [cluster_document.finding_fields(one) for one in found.new_findings],
            "gone": [cluster_document.finding_fields(one) for one in found.gone_findings],
            "kept": [cluster_document.finding_fields(one) for one in found.kept_findings],
        },
    }


def _pair(pair: QuantityPair) -> dict[str, float | None]:
    return {"base": pair.base, "new": pair.new, "ratio": pair.ratio}


def _row_fields(row: Any) -> dict[str, Any]:
    """Return a row as plain data, with the ratio of each pair of values."""

    def with_ratio(value: Any, plain: Any) -> Any:
        if isinstance(value, QuantityPair):
            return _pair(value)
        if isinstance(value, dict):
            return {name: with_ratio(one, plain[name]) for name, one in value.items()}
        return plain

    return {name: with_ratio(getattr(row, name), plain) for name, plain in asdict(row).items()}


def _sections(found: ClusterDifference, top: int) -> Iterator[ClusterSection]:
    parts = [
        name
        for name in ("span_ns", *STEP_PARTS)
        if (pair := found.step[name]).base is not None or pair.new is not None
    ]
    pairs = [found.step[name] for name in parts]
    yield ClusterSection(
        "mean step",
        [
            name_column("part", (_HEADINGS[name] for name in parts)),
            *_times(pairs),
        ],
    )
    tables: tuple[tuple[str, Callable[[Any], list[Column]], Sequence[Any]], ...] = (
        ("by role", _role_columns, found.roles),
        ("collectives", _collective_columns, found.collectives),
        ("links", _link_columns, found.links),
        ("kernels, largest regression first", _operation_columns, found.operations),
    )
    for heading, columns, rows in tables:
        if rows:
            yield ClusterSection(heading, columns(rows[:top]), max(0, len(rows) - top))


def _times(pairs: Sequence[QuantityPair], *, importance: int = 10) -> list[Column]:
    return [
        Column(
            "base", tuple(names.format_duration(one.base) for one in pairs), importance=importance
        ),
        Column(
            "new", tuple(names.format_duration(one.new) for one in pairs), importance=importance
        ),
        Column("ratio", tuple(_ratio(one) for one in pairs), importance=importance),
    ]


def _pair_column(heading: str, pairs: Sequence[QuantityPair], importance: int) -> Column:
    """Return one column of `base -> new`."""
    cells = tuple(
        f"{names.format_duration(one.base)} -> {names.format_duration(one.new)}" for one in pairs
    )
    return Column(heading, cells, importance=importance)


def _role_columns(rows: Sequence[RoleChange]) -> list[Column]:
    return [
        name_column("role", (row.role for row in rows)),
        Column(
            "ranks", tuple(f"{row.base_ranks} -> {row.new_ranks}" for row in rows), importance=5
        ),
        *_times([row.span_ns for row in rows]),
        _pair_column("compute", [row.parts["compute_ns"] for row in rows], 9),
        _pair_column("communication", [row.parts["exposed_communication_ns"] for row in rows], 8),
        _pair_column("waiting", [row.parts["exposed_wait_ns"] for row in rows], 7),
        _pair_column("idle", [row.parts["idle_ns"] for row in rows], 6),
    ]


def _collective_columns(rows: Sequence[CollectiveChange]) -> list[Column]:
    return [
        name_column("collective", (row.kind for row in rows)),
        name_column(
            "group",
            (group_label(row.group_kind, _sizes(row.base_size, row.new_size)) for row in rows),
        ),
        Column("size", tuple(names.format_size(row.bytes) for row in rows)),
        *_times([row.transfer_ns for row in rows]),
        _pair_column("waiting", [row.wait_ns for row in rows], 7),
        Column("bus", tuple(_rates(row.bus_gb_per_s) for row in rows), importance=6),
    ]


def _link_columns(rows: Sequence[LinkChange]) -> list[Column]:
    return [
        name_column("links", (row.kind for row in rows)),
        name_column("where", (_LEVELS[row.across_hosts] for row in rows)),
        Column(
            "count", tuple(f"{row.base_links} -> {row.new_links}" for row in rows), importance=5
        ),
        Column("median", tuple(_rates(row.gb_per_s) for row in rows)),
        Column("slowest", tuple(_rates(row.slowest_gb_per_s) for row in rows), importance=8),
    ]


def _operation_columns(rows: Sequence[OperationChange]) -> list[Column]:
    columns = [name_column("kernel", (row.name for row in rows))]
    if {row.stage for row in rows} != {"all"}:
        columns.append(Column("stage", tuple(row.stage for row in rows), importance=8))
    return [*columns, *_times([row.time_ns for row in rows])]


def _sizes(base: int | None, new: int | None) -> str:
    if base == new or None in (base, new):
        return f"{base if new is None else new}"
    return f"{base} -> {new}"


def _ratio(pair: QuantityPair) -> str:
    if pair.ratio is None:
        return "new" if pair.base is None and pair.new else "gone" if pair.base else "-"
    return f"{pair.ratio:.2f} x"


def _rates(pair: QuantityPair) -> str:
    values = ["-" if one is None else f"{one:.3g}" for one in (pair.base, pair.new)]
    return f"{values[0]} -> {values[1]} GB/s"
