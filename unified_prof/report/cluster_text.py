"""What text and Markdown say of a run: the headline, the findings, and the tables.

A run of many ranks for the terminal: what costs most first, and no more than a screen.

A run of many ranks as GitHub-flavoured Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unified_prof.cluster.overview import Overview, ranges
from unified_prof.report import markdown, names
from unified_prof.report.cluster_columns import (
    KindRow,
    group_columns,
    kind_columns,
    link_columns,
    operation_columns,
    own_step_columns,
    rank_columns,
    step_columns,
)
from unified_prof.report.cluster_document import Detail
from unified_prof.report.cluster_formats import By, Request
from unified_prof.report.tables import Column
from unified_prof.report.terminal import Page

_SCREEN: dict[By, int] = {"rank": 5, "step": 3, "group": 5, "link": 4, "operation": 0}
"""Rows where all tables are on one screen."""
_ALONE = 20
"""Rows of a table that was asked for."""
_FINDINGS = 5
_SHARES = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "communication not covered by it"),
    ("idle_ns", "idle"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """A table under its heading."""

    heading: str
    columns: list[Column]
    left_out: int = 0
    """Rows that are not shown."""


def title(overview: Overview, *, folder: bool = True) -> str:
    """Return what the run is, in a line, with the folder that it is in if that is wanted."""
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
    name = str(run.path) if folder else run.path.absolute().name
    return f"{names.neutral(name)}: {names.neutral(', '.join(parts))}"


def headline(overview: Overview) -> list[tuple[str, str]]:
    """Return the headline figures as (what, figure in words)."""
    lines = [("ranks", names.neutral(overview.coverage))]
    if overview.layout:
        lines.append(("layout", overview.layout))
    whole = overview.whole
    if whole["span_ns"] is not None:
        parts = [
            f"{what} {names.duration(whole[name])} ({names.share(whole[name], whole['span_ns'])})"
            for name, what in _SHARES
        ]
        text = f"{names.duration(whole['span_ns'])}; {', '.join(parts)}"
        lines.append(("mean step", text))
        waits = [
            f"{what} {names.duration(whole[name])}"
            for name, what in (
                ("exposed_wait_ns", "waiting for other ranks"),
                ("bubble_ns", "of it for another stage"),
                ("setup_ns", "set-up of collectives"),
                ("input_late_ns", "input late"),
            )
            if whole[name]
        ]
        if waits:
            lines.append(("not working", ", ".join(waits)))
    islands = {one.clock_island for one in overview.run.ranks} - {None}
    if len(islands) > 1:
        text = f"{len(islands):,} islands without a common clock: times are told within each"
        lines.append(("clocks", text))
    return lines


def remarks(overview: Overview) -> list[str]:
    """Return what was odd about the recordings, a line each."""
    found = []
    for one in overview.run.oddities:
        times = f" ({one.count:,} times)" if one.count > 1 else ""
        found.append(names.neutral(f"{one.detail or one.name.replace('_', ' ')}{times}"))
    return found


def verdict(overview: Overview, *, most: int = _FINDINGS) -> list[str]:
    """Return the findings in words, the costliest first."""
    found = overview.run.findings
    if not found and not overview.whole.get("compute_ns"):
        return ["no kernels were recorded in a step: nothing can be told"]
    if not found:
        return ["nothing stands out: no rank, host or link costs the run time"]
    lines = [
        f"{number}. {names.neutral(one.text)}" for number, one in enumerate(found[:most], start=1)
    ]
    if len(found) > most:
        lines.append(f"and {len(found) - most:,} more (--format json has all)")
    return lines


def tables(overview: Overview, request: Request) -> Iterator[Section]:
    """Yield the tables that are asked for, or a screen of all of them.

    Raises:
        UsageError: the run has no such rank or step.
    """
    if request.rank is not None:
        yield from _of_rank(Detail.of(overview, request.rank, request.step), request)
        return
    if request.step is not None:
        rows = sorted(overview.step(request.step), key=lambda row: -(row.span_ns or 0))
        yield _section("ranks, the longest first", rank_columns, rows, request.top or _ALONE)
        return
    made: dict[By, tuple[str, Callable[[Any], list[Column]], Sequence[Any]]] = {
        "rank": ("ranks, the costliest first", rank_columns, overview.worst),
        "step": (
            "steps, the longest first",
            step_columns,
            sorted(overview.steps, key=lambda row: -row.longest_ns),
        ),
        "group": ("collectives, the costliest first", group_columns, overview.groups),
        "link": ("links, the slowest beside those like them first", link_columns, overview.links),
    }
    for by, (heading, columns, found) in made.items():
        if request.by in (None, by) and (found or request.by):
            default = _SCREEN[by] if request.by is None else _ALONE
            yield _section(heading, columns, found, request.top or default)
    if request.by == "operation":
        kinds = _operations(overview)
        yield _section("kernels, all ranks", kind_columns, kinds, request.top or _ALONE)


def _section(
    heading: str, columns: Callable[[Any], list[Column]], rows: Sequence[Any], top: int
) -> Section:
    return Section(heading, columns(rows[:top]), max(0, len(rows) - top))


def _of_rank(detail: Detail, request: Request) -> Iterator[Section]:
    top = request.top or _ALONE
    yield _section("rank", rank_columns, [detail.row], 1)
    yield _section("its steps", own_step_columns, detail.steps, top)
    yield _section("its kernels", operation_columns, detail.operations, top)
    if detail.links:
        yield _section("its links", link_columns, detail.links, top)
    groups = [
        (one.kind, names.neutral(", ".join(one.names)), ranges(one.ranks)) for one in detail.groups
    ]
    if groups:
        yield Section(
            "its groups",
            [
                Column(heading, tuple(row[index] for row in groups), is_name=True)
                for index, heading in enumerate(("group", "names", "ranks"))
            ],
        )


def _operations(overview: Overview) -> list[KindRow]:
    found: dict[str, dict[int, list[int]]] = {}
    for one in overview.run.operations():
        sums = found.setdefault(one.name, {}).setdefault(one.rank, [0, 0])
        sums[0] += one.n
        sums[1] += one.total_ns
    rows = []
    for name, by_rank in found.items():
        most = max(by_rank, key=lambda rank: (by_rank[rank][1], -rank))
        count, total = (sum(sums[index] for sums in by_rank.values()) for index in (0, 1))
        rows.append(KindRow(name, len(by_rank), count, total, by_rank[most][1], most))
    return sorted(rows, key=lambda row: -row.total_ns)


def produce_cluster_text(overview: Overview, request: Request) -> str:
    """Return the run as text."""
    page = Page(width=request.width, color=request.color, full_names=request.full_names)
    page.title(title(overview))
    for what, text in headline(overview):
        page.fact(what, text)
    for line in remarks(overview):
        page.remark("warning", line)
    if request.by is None and request.rank is None and request.step is None:
        page.heading("what costs the run time")
        for line in verdict(overview):
            page.plain(line)
    for section in tables(overview, request):
        page.heading(section.heading)
        page.table(section.columns)
        if section.left_out:
            page.note(f"and {names.number(section.left_out)} more (--top)")
    return page.text()


def produce_cluster_markdown(overview: Overview, request: Request) -> str:
    """Return the run as Markdown."""
    lines = [f"## {markdown.escape(title(overview))}", ""]
    lines += [f"- **{what}**: {markdown.escape(text)}" for what, text in headline(overview)]
    lines += [f"- **warning**: {markdown.escape(line)}" for line in remarks(overview)]
    if request.by is None and request.rank is None and request.step is None:
        lines += ["", "### What costs the run time", ""]
        lines += [f"- {markdown.escape(line)}" for line in verdict(overview)]
    for section in tables(overview, request):
        lines += ["", f"### {section.heading.capitalize()}", ""]
        lines += markdown.table(section.columns, full_names=request.full_names)
        if section.left_out:
            lines += ["", f"and {names.number(section.left_out)} more"]
    return "\n".join(lines) + "\n"
