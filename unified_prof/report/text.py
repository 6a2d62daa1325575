"""A report for the terminal: tables that fit it, plain text where it is none.

The end of a run in short: headline, the most expensive rows, what was odd, the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from unified_prof.errors import UprofError
from unified_prof.explain.api import Opened, open_files
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.source import Coverage
from unified_prof.report import heading, names
from unified_prof.report import heading as sections
from unified_prof.report.figures import ROWS_FOR_PEOPLE, Figures, collect, gather
from unified_prof.report.formats import Request
from unified_prof.report.tables import Sheet
from unified_prof.report.terminal import Page


def produce_text(opened: Opened, request: Request) -> str:
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
        page.warnings(coverage.headline, [names.neutral(why) for why in coverage.reasons])
        page.gap()
    for number, figures in enumerate(reports):
        if number:
            page.gap()
        add(page, figures, more=" (--top)")
    return page.text()


def add(page: Sheet, figures: Figures, *, more: str) -> None:
    """Add one report to a page; `more` says where rows that were left out are."""
    page.title(heading.title(figures.summary))
    sections.add_findings(page, figures)
    sections.add_headline(page, figures)
    for selection in figures.selections:
        if selection.rows:
            sections.rows(page, selection, more=more)
        else:
            page.gap()
            page.plain(f"no {selection.breakdown.by} was recorded")
    sections.add_remarks(page, heading.remarks(figures))


def of_run(
    files: Mapping[str, Iterable[Path]],
    *,
    top: int = 10,
    width: int | None = None,
    color: bool = False,
) -> str:
    """Return what `uprof run` says of the reports that it has just written.

    A report that cannot be read back is told of, not raised: the run itself is over.

    Args:
        files: kind of report -> the files written, in the order in which they are to be named.
        top: rows of each table.
        width: columns of the terminal; None: there is none.
        color: whether escape sequences for colour may be used.
    """
    page = Page(width=width, color=color)
    add_run_footer(page, files, top=top, more=": uprof report shows them")
    return page.text()


def add_run_footer(
    page: Sheet, files: Mapping[str, Iterable[Path]], *, top: int, more: str
) -> None:
    """Add the same to a page; `more` says where rows that were left out are."""
    try:
        with open_files(path for paths in files.values() for path in paths) as analyses:
            for number, figures in enumerate(_figures(one, top) for one in analyses):
                if number:
                    page.gap()
                _report(page, figures, more)
    except UprofError as err:
        page.remark("warning", names.neutral(str(err)))
    if any(files.values()):
        page.gap()
    for kind, paths in files.items():
        for path in paths:
            page.fact(f"{kind} report", names.neutral(str(path)))


def _figures(analysis: Analysis, top: int) -> Figures:
    bys = analysis.summary.available[:1]
    return collect(analysis, bys, top=top, details=False)


def _report(page: Sheet, figures: Figures, more: str) -> None:
    sections.add_headline(page, figures)
    for selection in figures.selections:
        sections.rows(page, selection, more=more)
    sections.add_remarks(page, heading.warnings(figures))
