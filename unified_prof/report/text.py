"""A report for the terminal: tables that fit it, plain text where it is none."""

from __future__ import annotations

from collections.abc import Iterable

from unified_prof.analysis.load import Opened
from unified_prof.analysis.read.coverage import Coverage
from unified_prof.report import heading, sections, words
from unified_prof.report.figures import ROWS_FOR_PEOPLE, Figures, gather
from unified_prof.report.formats import Request
from unified_prof.report.sheet import Sheet
from unified_prof.report.terminal import Page


def produce(opened: Opened, request: Request) -> str:
    """Return the reports as text, what is missing first."""
    reports = gather(opened, request, rows=ROWS_FOR_PEOPLE, details=False)
    return render(
        reports,
        coverage=opened.coverage,
        width=request.width,
        color=request.color,
        full_names=request.full_names,
    )


def render(
    reports: Iterable[Figures],
    *,
    coverage: Coverage | None = None,
    width: int | None,
    color: bool,
    full_names: bool = False,
) -> str:
    """Return the reports as text.

    Args:
        reports: what to print.
        coverage: which reports are missing, if any.
        width: columns of the terminal; None: there is none.
        color: whether escape sequences for colour may be used.
        full_names: whether names are shown whole, however long.
    """
    page = Page(width=width, color=color, full_names=full_names)
    if coverage is not None and coverage.missing:
        page.warnings(coverage.headline, [words.neutral(why) for why in coverage.reasons])
        page.gap()
    for number, figures in enumerate(reports):
        if number:
            page.gap()
        add(page, figures, more=" (--top)")
    return page.text()


def add(page: Sheet, figures: Figures, *, more: str) -> None:
    """Add one report to a page; `more` says where rows that were left out are."""
    page.title(heading.title(figures.summary))
    sections.first_to_do(page, figures)
    sections.headline(page, figures)
    for selection in figures.selections:
        if selection.rows:
            sections.rows(page, selection, more=more)
        else:
            page.gap()
            page.plain(f"no {selection.breakdown.by} was recorded")
    sections.remarks(page, heading.remarks(figures))
