"""Text pages for terminals and pipes, the text format of reports, the footer of `uprof run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unified_prof.errors import UprofError
from unified_prof.explain.api import Opened, open_files
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.source import Coverage
from unified_prof.report import heading, names, tables
from unified_prof.report import heading as sections
from unified_prof.report import names as words
from unified_prof.report.figures import DEFAULT_TEXT_ROWS, Figures, collect_figures, gather_figures
from unified_prof.report.formats import ReportRequest
from unified_prof.report.tables import Column, SheetWriter

# If a name column would be narrower than this, other columns are dropped.
_MIN_NAME_WIDTH = 24
_REASONS = 20
_MAX_NAME_WIDTH = 100
# Maximum width of a table in a pipe, unless its figures need more.
_MAX_TABLE_WIDTH = 200
# Maximum width of a fact in a pipe; longer facts are wrapped at semicolons.
_MAX_FACT_WIDTH = 200
# Line width of wrapped facts.
_WRAPPED_FACT_WIDTH = 120
_UNLIMITED = 100_000
_GAP = 2


class TerminalPage:
    """Text page.

    Args:
        width: Width of the terminal; None for a pipe.
        color: If True, use escape sequences for color.
        full_names: If True, do not shorten names.
    """

    def __init__(self, *, width: int | None, color: bool, full_names: bool = False) -> None:
        self._terminal_width = width
        self._full_names = full_names
        self._output = StringIO()
        self._console = Console(
            file=self._output,
            width=_UNLIMITED if width is None or full_names else width,
            force_terminal=color,
            force_jupyter=False,  # in a kernel it would be shown there, and not be our text
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
            markup=False,
            soft_wrap=width is None or full_names,
        )

    def title(self, text: str) -> None:
        """Add a title."""
        self._console.print(Text(text, style="bold"))

    def heading(self, text: str) -> None:
        """Add an empty line and the heading of a table."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def gap(self) -> None:
        """Add an empty line."""
        self._console.print()

    def fact(self, what: str, text: str) -> None:
        """Add a headline figure.

        Long lines are wrapped by the terminal, and at semicolons in a pipe.
        """
        label = f"{what:<12}  "
        if self._terminal_width is None and len(label) + len(text) > _MAX_FACT_WIDTH:
            text = f"\n{' ' * len(label)}".join(
                _wrap_at_semicolons(text, _WRAPPED_FACT_WIDTH - len(label))
            )
        self._console.print(Text.assemble((label, "cyan"), text))

    def remark(self, what: str, text: str) -> None:
        """Add a warning."""
        self._console.print(Text.assemble((f"{what}: ", "yellow"), text))

    def warnings(self, what: str, reasons: Sequence[str]) -> None:
        """Add a warning with its reasons, one line each if there are several."""
        first, *more = reasons
        if not more:
            self.remark(what, first)
            return
        self._console.print(Text(f"{what}:", style="yellow"))
        for reason in reasons[:_REASONS]:
            self._console.print(Text(f"  {reason}"))
        if len(reasons) > _REASONS:
            self.note(f"  and {len(reasons) - _REASONS:,} more")

    def plain(self, text: str) -> None:
        """Add a line."""
        self._console.print(Text(text))

    def note(self, text: str) -> None:
        """Add a less important line."""
        self._console.print(Text(text, style="dim"))

    def left_out(self, count: int) -> None:
        """Add the number of rows that are not shown."""
        self.note(f"and {words.format_number(count)} more (--top)")

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table.

        On a narrow terminal the least important columns are dropped. In a pipe all columns stay and
        names are shortened.
        """
        if not self._full_names:
            columns = tables.with_readable_names(columns)
        columns = tables.collapse_equal_rows(columns)
        shown, widths = self._fitting(columns)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column, wide in zip(shown, widths, strict=True):
            table.add_column(
                column.heading,
                justify="left" if column.is_name else "right",
                no_wrap=True,
                width=wide,
                style="dim" if column.is_name and column is not shown[0] else None,
            )
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*map(Text, map(names.truncate_middle, cells, widths)))
        self._console.print(table)

    def _fitting(self, columns: Sequence[Column]) -> tuple[list[Column], list[int]]:
        if self._full_names:
            return list(columns), [_width(column) for column in columns]
        if self._terminal_width is None:
            return list(columns), _pipe_widths(columns)
        return _fit_columns(columns, self._terminal_width)

    def text(self) -> str:
        """Return the page without trailing spaces."""
        return "\n".join(line.rstrip() for line in self._output.getvalue().split("\n"))


def _wrap_at_semicolons(text: str, room: int) -> list[str]:
    """Wrap a text at semicolons."""
    lines: list[str] = []
    for part in text.split("; "):
        if lines and len(lines[-1]) + len(part) + 3 <= room:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return [*(f"{line};" for line in lines[:-1]), lines[-1]]


def _fit_columns(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """Drop the least important columns until names fit; return the widths of the others."""
    shown = list(columns)
    while True:
        widths = [_width(column) for column in shown]
        over = sum(widths) + _GAP * (len(shown) - 1) - width
        for index in sorted(range(len(shown)), key=lambda index: -widths[index]):
            if shown[index].is_name and over > 0:
                cut = min(over, max(0, widths[index] - _MIN_NAME_WIDTH))
                widths[index] -= cut
                over -= cut
        if over <= 0 or all(column.importance >= 10 for column in shown):
            return shown, widths
        shown.remove(min(reversed(shown), key=lambda column: column.importance))


def _pipe_widths(columns: Sequence[Column]) -> list[int]:
    """Return column widths for a pipe: names are shortened only in very wide tables."""
    widths = [
        min(_width(column), column.lines * _MAX_NAME_WIDTH) if column.is_cut else _width(column)
        for column in columns
    ]
    over = sum(widths) + _GAP * (len(widths) - 1) - _MAX_TABLE_WIDTH
    for index in sorted(range(len(widths)), key=lambda index: -widths[index]):
        if columns[index].is_cut and over > 0:
            cut = min(over, max(0, widths[index] - _MIN_NAME_WIDTH))
            widths[index] -= cut
            over -= cut
    return widths


def _width(column: Column) -> int:
    return max(map(cell_len, (column.heading, *column.cells)))


def produce_text(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as text, missing reports first."""
    reports = gather_figures(opened, request, rows=DEFAULT_TEXT_ROWS, details=False)
    return render_text(
        reports,
        coverage=opened.coverage,
        width=request.width,
        color=request.color,
        full_names=request.full_names,
    )


def render_text(
    reports: Iterable[Figures],
    *,
    coverage: Coverage | None = None,
    width: int | None,
    color: bool,
    full_names: bool = False,
) -> str:
    """Render figures as text.

    Args:
        reports: Figures of each report.
        coverage: Missing reports, if any.
        width: Width of the terminal; None for a pipe.
        color: If True, use escape sequences for color.
        full_names: If True, do not shorten names.
    """
    page = TerminalPage(width=width, color=color, full_names=full_names)
    if coverage is not None and coverage.missing:
        page.warnings(coverage.headline, [names.neutral(why) for why in coverage.reasons])
        page.gap()
    for number, figures in enumerate(reports):
        if number:
            page.gap()
        add_report(page, figures, more=" (--top)")
    return page.text()


def add_report(page: SheetWriter, figures: Figures, *, more: str) -> None:
    """Add one report; `more` says how to show the rows left out."""
    page.title(heading.report_title(figures.summary))
    sections.add_findings(page, figures)
    sections.add_headline(page, figures)
    for selection in figures.selections:
        if selection.rows:
            sections.add_rows(page, selection, more=more)
        else:
            page.gap()
            page.plain(f"no {selection.breakdown.by} was recorded")
    sections.add_remarks(page, heading.report_remarks(figures))


def run_footer(
    files: Mapping[str, Iterable[Path]],
    *,
    top: int = 10,
    width: int | None = None,
    color: bool = False,
) -> str:
    """Return the footer of `uprof run` about the reports just written.

    A report that cannot be read back is mentioned, not raised: the run itself is over.

    Args:
        files: Kind of report -> files, in display order.
        top: Maximum rows of each table.
        width: Width of the terminal; None for a pipe.
        color: If True, use escape sequences for color.
    """
    page = TerminalPage(width=width, color=color)
    add_run_footer(page, files, top=top, more=" (see `uprof report`)")
    return page.text()


def add_run_footer(
    page: SheetWriter, files: Mapping[str, Iterable[Path]], *, top: int, more: str
) -> None:
    """Add the footer to a page; `more` says how to show the rows left out."""
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
    return collect_figures(analysis, bys, top=top, details=False)


def _report(page: SheetWriter, figures: Figures, more: str) -> None:
    sections.add_headline(page, figures)
    for selection in figures.selections:
        sections.add_rows(page, selection, more=more)
    sections.add_remarks(page, heading.anomaly_warnings(figures))
