"""Objects of the public API as HTML fragments for notebooks."""

from __future__ import annotations

from dataclasses import replace

from unified_prof.base.display import DisplayedList
from unified_prof.compare.device_tables import DeviceDifference
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Verdict
from unified_prof.recording.model import Advice
from unified_prof.report import names
from unified_prof.report.advice import add_advice
from unified_prof.report.api import Answer
from unified_prof.report.device_documents import device_document
from unified_prof.report.document import (
    Document,
)
from unified_prof.report.figures import Figures, select_rows
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.operation_difference import difference_document
from unified_prof.report.renderers import render_fragment
from unified_prof.report.report_document import report_document
from unified_prof.report.verdicts import verdict_document
from unified_prof.sqlite.reader import Report

_MAX_ROWS = 10  # Maximum rows of each table of an object of the public API.
_MAX_BREAKDOWNS = 3  # Maximum breakdowns of a report if none was selected.
# Maximum items of a list.
_MAX_ITEMS = 8
_MAX_FINDINGS = 5
_MAX_TABLE_NAMES = 40


def object_html(shown: object) -> str:
    """Return an object of the public API as HTML without scripts, of limited size."""
    document = Document()
    _add(document, shown)
    return render_fragment(document)


def _add(document: Document, shown: object) -> None:
    """Add an object of the public API to a document."""
    if isinstance(shown, DisplayedList):
        for one in shown[:_MAX_ITEMS]:
            _add(document, one)
        if len(shown) > _MAX_ITEMS:
            document.note(f"and {names.format_number(len(shown) - _MAX_ITEMS)} more")
        if not shown:
            document.note("nothing")
    elif isinstance(shown, Answer):
        _add_figures(document, shown.figures)
    elif isinstance(shown, DeviceDifference):
        document.add(device_document(shown, DeviceRequest(top=_MAX_ROWS)))
    elif isinstance(shown, Difference):
        document.add(difference_document(shown, top=_MAX_ROWS))
    elif isinstance(shown, Verdict):
        document.add(verdict_document(shown))
    elif isinstance(shown, Advice):
        document.title("findings")
        add_advice(document, shown, top=_MAX_FINDINGS)
    elif isinstance(shown, Report):
        _add_report(document, shown)
    else:
        raise TypeError(f"no HTML representation of {type(shown).__name__}")


def _add_figures(document: Document, figures: Figures) -> None:
    shown = tuple(
        select_rows(one.breakdown, top=_MAX_ROWS) for one in figures.selections[:_MAX_BREAKDOWNS]
    )
    document.add(report_document([replace(figures, selections=shown)]))
    others = figures.selections[_MAX_BREAKDOWNS:]
    if others:
        document.note(
            f"more breakdowns: {', '.join(one.breakdown.by for one in others)} (.breakdown(NAME))"
        )


def _add_report(document: Document, report: Report) -> None:
    document.title(str(report.path))
    document.fact("family", report.family)
    document.fact("revision", report.revision or "unknown")
    tables = ", ".join(report.tables[:_MAX_TABLE_NAMES])
    left_out = len(report.tables) - _MAX_TABLE_NAMES
    document.fact("tables", f"{tables} and {left_out} more" if left_out > 0 else tables)
