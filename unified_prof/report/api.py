"""`unified_prof.figures` and `unified_prof.gate`: figures of report files for programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from unified_prof.base.display import Displayed, DisplayedList
from unified_prof.base.text import some_of
from unified_prof.compare import gate as judging
from unified_prof.compare import runs
from unified_prof.compare.confidence import Noise
from unified_prof.compare.device_tables import DeviceDifference
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Limits, Verdict
from unified_prof.errors import UsageError, missing_package
from unified_prof.explain.api import open_reports
from unified_prof.recording.model import KINDS, Advice, Breakdown, By, Summary
from unified_prof.report import names
from unified_prof.report.advice import add_advice
from unified_prof.report.device_documents import device_document
from unified_prof.report.document import Document, render_fragment
from unified_prof.report.figures import (
    Figures,
    collect_figures,
    figures_document,
    readable_answers,
    row_fields,
    select_rows,
)
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.operation_difference import difference_document
from unified_prof.report.report_document import report_document
from unified_prof.report.verdicts import verdict_document
from unified_prof.sqlite.reader import Report

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Answer(Displayed):
    """Figures of one report; they remain available if the file changes."""

    figures: Figures

    def __repr__(self) -> str:
        have = ", ".join(one.breakdown.by for one in self.figures.selections) or "nothing"
        return f"<figures of {self.summary.path}, by {have}>"

    @property
    def summary(self) -> Summary:
        """Headline figures, anomalies, and what was not measured."""
        return self.figures.summary

    @property
    def document(self) -> dict[str, Any]:
        """The report as in `uprof report --format json`."""
        (found,) = figures_document([self.figures])["reports"]
        document: dict[str, Any] = found
        return document

    def breakdown(self, by: By = "operation") -> Breakdown:
        """Return a breakdown with all rows.

        Raises:
            UsageError: The report does not have this breakdown, or it was not requested.
        """
        for selection in self.figures.selections:
            if selection.breakdown.by == by:
                return selection.breakdown
        have = ", ".join(one.breakdown.by for one in self.figures.selections) or "none"
        raise UsageError(
            f"{self.summary.path}: breakdown {by!r} was not requested",
            hint=f"requested: {have}; use figures(path, by={by!r})",
            slug="no-breakdown",
        )

    def to_pandas(self, by: By = "operation") -> Any:
        """Return a breakdown as a pandas DataFrame; column names end with the unit.

        Raises:
            UsageError: As `breakdown`, or pandas is not installed.
        """
        return self._frame("pandas", by)

    def to_polars(self, by: By = "operation") -> Any:
        """Return a breakdown as a polars DataFrame; column names end with the unit.

        Raises:
            UsageError: As `breakdown`, or polars is not installed.
        """
        return self._frame("polars", by)

    def _frame(self, package: str, by: By) -> Any:
        with missing_package(f"{package} is not installed", hint=f"pip install {package}"):
            library = import_module(package)
        breakdown = self.breakdown(by)
        return library.DataFrame([row_fields(breakdown, row) for row in breakdown.rows])

    def to_arrow(self, by: By = "operation") -> Any:
        """Return a breakdown as a `pyarrow.Table`, as in `uprof report --format parquet`.

        Raises:
            UsageError: As `breakdown`, or pyarrow is not installed.
        """
        from unified_prof.report.report_formats import arrow_table

        self.breakdown(by)
        chosen = tuple(one for one in self.figures.selections if one.breakdown.by == by)
        return arrow_table([replace(self.figures, selections=chosen)])


def figures(path: Path, *, by: By | Sequence[By] | None = None) -> list[Answer]:
    """Return the figures of a report, or of each report in a directory.

    Args:
        path: File or directory.
        by: Names of breakdowns, see `unified_prof.recording.model.KINDS`; None for all
            that the report has, except those that are computed only on request.

    Raises:
        StoreError: No report can be read.
        UsageError: An unknown breakdown, or one that the report does not have.
    """
    wanted = [by] if isinstance(by, str) else None if by is None else list(by)
    for one in wanted or ():
        if one not in KINDS:
            raise UsageError(
                f"unknown breakdown {one!r}", hint=f"known: {', '.join(KINDS)}", slug="no-breakdown"
            )
    with open_reports(path) as opened:
        return DisplayedList(
            Answer(one)
            for one in readable_answers(opened, lambda one: collect_figures(one, wanted))
        )


def gate(
    base: Path | Sequence[Path],
    new: Path | Sequence[Path],
    *,
    metrics: Sequence[str] = ("total",),
    max_regress: float = 0.05,
    noise: float | None = None,
) -> Verdict:
    """Judge a change like `uprof gate`.

    Args:
        base: Report or reports of the baseline.
        new: Report or reports of the candidate.
        metrics: total, forward, backward, peak-memory or operation:GLOB.
        max_regress: Largest accepted regression as a fraction; 0.05 is 5 %.
        noise: Run-to-run variation of an unchanged workload as a fraction; None if unknown.

    Raises:
        StoreError: A report cannot be read.
        UsageError: An unknown metric, or reports that cannot be compared.
    """
    known = None if noise is None else Noise(noise, 1e9, "as given")
    before, after = (runs.load(_several(side)) for side in (base, new))
    return judging.gate(before, after, metrics, Limits(max_regress=max_regress), known)


def _several(side: Path | Sequence[Path]) -> list[Path]:
    return [side] if isinstance(side, str | os.PathLike) else list(side)


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
    document.fact("tables", some_of(report.tables, _MAX_TABLE_NAMES))
