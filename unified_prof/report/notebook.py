"""HTML representation of runs, figures, comparisons, verdicts and findings in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from unified_prof.base.display import Together
from unified_prof.compare.device_diff import DeviceDifference
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Verdict
from unified_prof.recording.model import Advice
from unified_prof.report import advice, comparison, names, terminal
from unified_prof.report import device_documents as device_text
from unified_prof.report import terminal as brief
from unified_prof.report.api import Answer
from unified_prof.report.figures import Figures, select_rows
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.html_page import InertPage
from unified_prof.sqlite.reader import Report

# Maximum rows of each table.
_MAX_ROWS = 10
# Maximum breakdowns of a report if none was selected.
_MAX_BREAKDOWNS = 3
# Maximum items of a list.
_MAX_ITEMS = 8
_FINDINGS = 5
_TABLES = 40


def html_of(shown: object) -> str:
    """Return an object of the public API as HTML without scripts, of limited size."""
    page = InertPage()
    _add(page, shown)
    return page.html()


def run_html(
    files: Mapping[str, Iterable[Path]], *, failure: str | None = None, top: int = _MAX_ROWS
) -> str:
    """Return the result of a run, as `uprof run` prints it."""
    page = InertPage()
    if failure is not None:
        page.remark("incomplete", failure)
    brief.add_run_footer(page, files, top=top, more="")
    return page.html()


def _add(page: InertPage, shown: object) -> None:
    if isinstance(shown, Together):
        for number, one in enumerate(shown[:_MAX_ITEMS]):
            if number:
                page.gap()
            _add(page, one)
        if len(shown) > _MAX_ITEMS:
            page.left_out(len(shown) - _MAX_ITEMS)
        if not shown:
            page.note("nothing")
    elif isinstance(shown, Answer):
        _add_figures(page, shown.figures)
    elif isinstance(shown, DeviceDifference):
        device_text.add_device_comparison(page, shown, DeviceRequest(top=_MAX_ROWS))
    elif isinstance(shown, Difference):
        comparison.add_diff(page, shown, top=_MAX_ROWS, everything=False)
    elif isinstance(shown, Verdict):
        page.title(f"gate: {shown.outcome}")
        comparison.add_verdict(page, shown)
    elif isinstance(shown, Advice):
        page.title("findings")
        advice.add_advice(page, shown, top=_FINDINGS)
    elif isinstance(shown, Report):
        _add_report(page, shown)
    else:
        raise TypeError(f"no HTML representation of {type(shown).__name__}")


def _add_figures(page: InertPage, figures: Figures) -> None:
    chosen = figures.selections[:_MAX_BREAKDOWNS]
    cut = tuple(select_rows(one.breakdown, top=_MAX_ROWS) for one in chosen)
    terminal.add_report(page, replace(figures, selections=cut), more="")
    others = figures.selections[_MAX_BREAKDOWNS:]
    if others:
        page.note(
            f"more breakdowns: {', '.join(one.breakdown.by for one in others)} (.breakdown(NAME))"
        )


def _add_report(page: InertPage, report: Report) -> None:
    page.title(names.neutral(str(report.path)))
    page.fact("family", report.family)
    page.fact("revision", report.revision or "unknown")
    named = ", ".join(report.tables[:_TABLES])
    left = len(report.tables) - _TABLES
    page.fact("tables", f"{named} and {left} more" if left > 0 else named)
