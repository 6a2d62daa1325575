"""The end of a run in short: headline, the most expensive rows, what was odd, the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.load import open_files
from unified_prof.errors import UprofError
from unified_prof.report import heading, sections, words
from unified_prof.report.figures import Figures, collect
from unified_prof.report.sheet import Sheet
from unified_prof.report.terminal import Page


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
    add(page, files, top=top, more=": uprof report shows them")
    return page.text()


def add(page: Sheet, files: Mapping[str, Iterable[Path]], *, top: int, more: str) -> None:
    """Add the same to a page; `more` says where rows that were left out are."""
    try:
        with open_files(path for paths in files.values() for path in paths) as analyses:
            for number, figures in enumerate(_figures(one, top) for one in analyses):
                if number:
                    page.gap()
                _report(page, figures, more)
    except UprofError as err:
        page.remark("warning", words.neutral(str(err)))
    if any(files.values()):
        page.gap()
    for kind, paths in files.items():
        for path in paths:
            page.fact(f"{kind} report", words.neutral(str(path)))


def _figures(analysis: Analysis, top: int) -> Figures:
    bys = analysis.summary.available[:1]
    return collect(analysis, bys, top=top, details=False)


def _report(page: Sheet, figures: Figures, more: str) -> None:
    sections.headline(page, figures)
    for selection in figures.selections:
        sections.rows(page, selection, more=more)
    sections.remarks(page, heading.warnings(figures))
