"""Figures of a report, selected and sorted: the common input of all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.base.records import asdict
from unified_prof.errors import StoreError, UsageError
from unified_prof.explain.api import Opened
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.collectives import Group
from unified_prof.recording.idle import IdleReasons
from unified_prof.recording.model import (
    KINDS,
    Advice,
    Breakdown,
    By,
    DeviceTime,
    Distribution,
    ModelUse,
    PmuFigure,
    Row,
    Series,
    Summary,
    Totals,
)
from unified_prof.recording.source import Coverage
from unified_prof.recording.steps import StepTrace
from unified_prof.report import names
from unified_prof.report.formats import ReportRequest

Answer = TypeVar("Answer")

DEFAULT_TEXT_ROWS = 20  # Default rows of a breakdown in text and Markdown; other formats have all.


# Version of the JSON document; raised when a key changes its meaning or is removed.
FORMAT_VERSION = 1


class Selection(Struct, frozen=True):
    """Rows of a breakdown to show."""

    breakdown: Breakdown
    rows: tuple[Row, ...]

    @property
    def left_out(self) -> int:
        """Number of rows that are not shown."""
        return len(self.breakdown.rows) - len(self.rows)

    @property
    def counted(self) -> str:
        """Heading of the counts; lines of a memory snapshot have blocks, not calls."""
        is_memory = self.breakdown.total_ns is None
        if is_memory and any(row.allocated_bytes is not None for row in self.rows):
            return "blocks"
        return KINDS[self.breakdown.by].counted


class Figures(Struct, frozen=True):
    """Everything to print about one report."""

    summary: Summary
    selections: tuple[Selection, ...]
    launch_delay: Distribution | None
    pmu: tuple[PmuFigure, ...]
    memory: tuple[Series, ...]
    step_traces: tuple[StepTrace, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    why_idle: tuple[IdleReasons, ...] = ()
    # Findings; None if not requested.
    advice: Advice | None = None
    model_use: tuple[ModelUse, ...] = ()


_SORT_KEYS = {
    "time": "total_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "average": "average_ns",
    "count": "count",
    "size": "size_bytes",
    "name": "name",
}


def select_rows(
    breakdown: Breakdown, *, sort: str | None = None, top: int | None = None
) -> Selection:
    """Sort the rows of a breakdown and keep the first ones.

    Rows without the figure to sort by come last. Steps stay in time order without a sort key.
    Raises UsageError if no row has the figure to sort by.
    """
    rows = list(breakdown.rows)
    if sort is not None:
        key = attrgetter(_SORT_KEYS[sort])
        if rows and all(key(row) is None for row in rows):
            raise UsageError(
                f"cannot sort by {sort}: not measured for any {breakdown.by}",
                hint="try time, size, count or name",
                slug="cannot-sort",
            )
        if sort == "name":
            rows.sort(key=key)
        else:
            rows.sort(key=lambda row: 1.0 if key(row) is None else -key(row))
    return Selection(breakdown, tuple(rows if top is None else rows[:top]))


def _describe_breakdown(analysis: Analysis, selection: Selection) -> Selection:
    """Add the distribution of times to each row."""
    found = analysis.statistics(selection.breakdown.by)
    rows = [
        replace(row, extra={**row.extra, **found.get((row.name, row.kind), {})})
        for row in selection.rows
    ]
    return Selection(selection.breakdown, tuple(rows))


def collect_figures(
    analysis: Analysis,
    bys: Iterable[By] | None = None,
    *,
    sort: str | None = None,
    top: int | None = None,
    details: bool = True,
    headline: bool = True,
    statistics: bool = False,
) -> Figures:
    """Collect the figures to print.

    Args:
        analysis: Report.
        bys: Breakdowns, or None for all that are available.
        sort: time, forward, backward, average, count, size or name; None for the default order.
        top: Maximum rows of each breakdown.
        details: Also collect hardware counters and memory over time.
        headline: Also collect launch latency, groups, idle reasons and findings.
        statistics: Also collect distributions of operation and kernel times.

    Raises:
        UsageError: The report does not have the breakdown or the sort key.
    """
    if bys is None:
        bys = analysis.summary.available
    selections = tuple(select_rows(analysis.breakdown(by), sort=sort, top=top) for by in bys)
    if statistics:
        selections = tuple(_describe_breakdown(analysis, one) for one in selections)
    return Figures(
        # Last, because the summary lists anomalies that were found while reading.
        launch_delay=analysis.launch_latency() if headline else None,
        pmu=analysis.pmu() if details else (),
        memory=analysis.memory_series() if details else (),
        step_traces=analysis.step_traces() if headline else (),
        groups=analysis.groups() if headline else {},
        why_idle=analysis.why_idle() if headline else (),
        advice=analysis.advice(quick=True) if headline else None,
        model_use=analysis.model_use() if headline else (),
        selections=selections,
        summary=analysis.summary,
    )


def gather_figures(
    opened: Opened,
    request: ReportRequest,
    *,
    everything: bool = False,
    rows: int | None = None,
    details: bool = True,
    headline: bool = True,
) -> list[Figures]:
    """Collect the figures of every report in a directory.

    If `everything`, the format shows all breakdowns unless one is requested; otherwise only the
    first. `rows` is the default number of rows of the format (None: all). `details` are hardware
    counters and memory over time, `headline` is launch latency, groups and idle reasons. Raises
    StoreError if no report could be read to its end, and UsageError if a report does not have the
    breakdown or the sort key.
    """

    def ask(analysis: Analysis) -> Figures:
        bys: list[By] | None = None if request.by is None else [request.by]
        if bys is None and not everything:
            # An empty report still has a headline, and the reasons why it is empty.
            usual: tuple[By, ...] = ("operation", "line")
            bys = [by for by in usual if by in analysis.summary.available][:1]
        top = rows if request.top is None else request.top
        return collect_figures(
            analysis,
            bys,
            sort=request.sort,
            top=top,
            details=details,
            headline=headline,
            statistics=request.statistics,
        )

    return readable_answers(opened, ask)


def readable_answers(opened: Opened, ask: Callable[[Analysis], Answer]) -> list[Answer]:
    """Compute an answer for every report in a directory; damaged reports are skipped and listed.

    Raises StoreError if no report could be read to its end.
    """
    found = []
    failure: StoreError | None = None
    for analysis in opened.analyses:
        try:
            found.append(ask(analysis))
        except StoreError as err:
            opened.lose(analysis, err)
            failure = failure or err
    if failure is not None and not found:
        raise failure
    return found


def figures_document(reports: Iterable[Figures]) -> dict[str, Any]:
    """Return the figures as plain data, as in `--format json`.

    Times are ns, sizes are bytes; null means "not measured".
    """
    return {
        "format": "uprof-report",
        "version": FORMAT_VERSION,
        "reports": [report_fields(figures) for figures in reports],
    }


def coverage_fields(coverage: Coverage) -> dict[str, Any]:
    """Return present and missing reports as plain data."""
    missing = [asdict(one) | {"rank": one.rank} for one in coverage.missing]
    return asdict(coverage) | {"missing": missing}


def peak_parts(totals: Totals) -> dict[str, int]:
    """Return the parts of the peak memory, which add up to it; empty if none is known.

    Weights and optimizer state are in use all the time. Not all gradients and activations need
    exist at the peak, so they take at most what the former leave.
    """
    activations = totals.activation_bytes
    if activations is not None and totals.most_activation_bytes is not None:
        activations = min(activations, totals.most_activation_bytes)
    sizes = {
        "weights": totals.weight_bytes,
        "optimizer state": totals.optimizer_state_bytes,
        "gradients": totals.gradient_bytes,
        "activations": activations,
    }
    if totals.peak_bytes is None or not any(sizes.values()):
        return {}
    parts, left = {}, totals.peak_bytes
    for name, size in sizes.items():
        if size:
            parts[name] = min(size, left)
            left -= parts[name]
    rest = names.OTHER_TENSORS
    if totals.weight_bytes is None:  # tensors of no module
        rest = f"weights, {rest}"
    return {**parts, rest: left}


def report_fields(figures: Figures) -> dict[str, Any]:
    """Return one report as plain data."""
    summary = figures.summary
    return {
        "path": summary.path,
        "family": summary.family,
        "revision": summary.revision,
        "clock": summary.clock,
        "facts": dict(summary.facts),
        "totals": asdict(summary.totals) | {"peak_parts_bytes": peak_parts(summary.totals)},
        "devices": [_device(one) for one in summary.devices],
        "step_trace": [asdict(one) for one in figures.step_traces],
        "why_idle": [asdict(one) for one in figures.why_idle],
        "advice": None if figures.advice is None else advice_fields(figures.advice),
        "model_use": [asdict(one) for one in figures.model_use],
        "groups": [
            {
                "label": label,
                "kind": group.kind,
                "title": group.title or None,
                "name": group.name,
                "ranks": list(group.ranks) or None,
            }
            for label, group in figures.groups.items()
        ],
        "launch_delay": None if figures.launch_delay is None else asdict(figures.launch_delay),
        "breakdowns": {one.breakdown.by: _breakdown(one) for one in figures.selections},
        "pmu": [asdict(one) for one in figures.pmu],
        "memory": [
            {
                "name": series.name,
                "device": series.device,
                "unit": series.unit,
                "samples": len(series.value),
                "max": float(series.value.max()),
                "mean": float(series.value.mean()),
            }
            for series in figures.memory
        ],
        "anomalies": [asdict(one) for one in summary.anomalies],
        "not_measured": [asdict(one) for one in summary.not_measured],
        "available": list(summary.available),
        "decoded": [part._asdict() for part in summary.coverage],
    }


def advice_fields(advice: Advice) -> dict[str, Any]:
    """Return findings and skipped rules as plain data."""
    return asdict(advice) | {
        "findings": [one.document() for one in advice.findings],
        "not_judged": [asdict(one) for one in advice.not_judged],
        "judged": list(advice.judged),
    }


def _device(one: DeviceTime) -> dict[str, Any]:
    steps = None
    if one.steps is not None:
        steps = asdict(one.steps) | {"idle_ns": one.steps.idle_ns}
        for not_of_steps in ("device", "tasks", "steps"):
            del steps[not_of_steps]
    return asdict(one) | {"idle_ns": one.idle_ns, "steps": steps}


def _breakdown(selection: Selection) -> dict[str, Any]:
    breakdown = selection.breakdown
    return {
        "total_ns": breakdown.total_ns,
        "size_bytes": breakdown.size_bytes,
        "rows_left_out": selection.left_out,
        "rows": [row_fields(breakdown, row) for row in selection.rows],
    }


def row_fields(breakdown: Breakdown, row: Row) -> dict[str, Any]:
    """Return one row as plain data."""
    return {
        "name": row.name,
        "kind": row.kind,
        "detail": row.detail,
        "count": row.count,
        "total_ns": row.total_ns,
        "percent": breakdown.percent(row),
        "average_ns": row.average_ns,
        "forward_ns": row.forward_ns,
        "backward_ns": row.backward_ns,
        "size_bytes": row.size_bytes,
        "weight_bytes": row.weight_bytes,
        "gradient_bytes": row.gradient_bytes,
        "activation_bytes": row.activation_bytes,
        "allocated_bytes": row.allocated_bytes,
        **row.extra,
    }
