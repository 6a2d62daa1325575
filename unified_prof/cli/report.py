"""`uprof report`: where the time and the memory went."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import printing
from unified_prof.cli.options import AsJsonFormat, Force, Quiet
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.base import Analysis
    from unified_prof.analysis.model import By


class ByOption(str, Enum):
    """What a report can be broken down by."""

    OPERATION = "operation"
    MODULE = "module"
    LINE = "line"
    KERNEL = "kernel"
    STREAM = "stream"
    STEP = "step"


class SortOption(str, Enum):
    """What rows can be ordered by, largest first."""

    TIME = "time"
    FORWARD = "forward"
    BACKWARD = "backward"
    AVERAGE = "average"
    COUNT = "count"
    SIZE = "size"
    NAME = "name"


class FormatOption(str, Enum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


_FORMAT_OF_SUFFIX = {
    ".txt": FormatOption.TEXT,
    ".json": FormatOption.JSON,
    ".csv": FormatOption.CSV,
    ".md": FormatOption.MARKDOWN,
    ".html": FormatOption.HTML,
    ".htm": FormatOption.HTML,
}
_PEOPLES_ROWS = 20
"""Rows a breakdown has for people unless asked otherwise; programs get all."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "report",
        epilog="Exit code: 0 fine, 2 wrong use (a breakdown that this report cannot give), "
        "7 no report or one that cannot be read, 9 the output cannot be written.",
    )(report)


def report(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A report of any family, or a folder of reports."),
    ],
    by: Annotated[
        ByOption | None,
        typer.Option(
            help="What to break time and memory down by.",
            show_default="operation; everything for json and html",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to show.", show_default="20; all for json, csv and html"),
    ] = None,
    sort: Annotated[
        SortOption | None, typer.Option(help="Order of the rows.", show_default="time, else size")
    ] = None,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format",
            help="How to print it.",
            show_default="by -o's ending, or text",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file, not to stdout."),
    ] = None,
    embed_source: Annotated[
        bool,
        typer.Option(
            "--embed-source", help="html: include the source lines, read from this folder."
        ),
    ] = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    quiet: Quiet = False,
) -> None:
    """Show where the time and the memory of a run went."""
    from unified_prof.analysis.load import open_analyses
    from unified_prof.store.atomic import refuse_existing

    shape = _format(format_, output, as_json=json_)
    to_file = output is not None and str(output) != "-"
    if embed_source and shape is not FormatOption.HTML:
        raise UsageError("--embed-source is for --format html only")
    if shape is FormatOption.HTML and not to_file and sys.stdout.isatty():
        raise UsageError("a page of HTML is not for a terminal", hint="name a file with -o")
    if output is not None and to_file:
        refuse_existing(output, overwrite=force)
    with open_analyses(path) as analyses:
        text = _rendered(
            analyses,
            shape,
            by=None if by is None else by.value,
            sort=None if sort is None else sort.value,
            top=top,
            to_terminal=not to_file and sys.stdout.isatty(),
            embed_source=embed_source,
        )
    if output is None or not to_file:
        printing.put(text, for_people=shape is FormatOption.TEXT)
        return
    printing.write(output, text, force=force)
    if not quiet:
        typer.echo(f"{output}: {shape.value}, {output.stat().st_size:,} bytes", err=True)


def _format(chosen: FormatOption | None, output: Path | None, *, as_json: bool) -> FormatOption:
    if as_json:
        if chosen not in (None, FormatOption.JSON):
            raise UsageError("--json and --format say different things")
        return FormatOption.JSON
    if chosen is None and output is not None:
        return _FORMAT_OF_SUFFIX.get(output.suffix.lower(), FormatOption.TEXT)
    return chosen or FormatOption.TEXT


def _rendered(
    analyses: list[Analysis],
    shape: FormatOption,
    *,
    by: By | None,
    sort: str | None,
    top: int | None,
    to_terminal: bool,
    embed_source: bool,
) -> str:
    """Return the reports in the shape asked for."""
    if shape is FormatOption.HTML:
        from unified_prof.report.html import render as render_html

        root = Path.cwd() if embed_source else None
        return render_html(analyses, by=by, sort=sort, top=top, source_root=root)
    from unified_prof.report.figures import as_document, collect

    for_people = shape in (FormatOption.TEXT, FormatOption.MARKDOWN)
    figures = []
    for analysis in analyses:
        bys: list[By] | None = None if by is None else [by]
        if by is None and shape is not FormatOption.JSON:
            # An empty report still has a headline and the reasons why it is empty.
            bys = ["operation"] if "operation" in analysis.summary.available else []
        rows = _PEOPLES_ROWS if top is None and for_people else top
        details = shape is not FormatOption.TEXT and shape is not FormatOption.CSV
        figures.append(collect(analysis, bys, sort=sort, top=rows, details=details))
    if shape is FormatOption.JSON:
        return printing.json_text(as_document(figures))
    if shape is FormatOption.CSV:
        from unified_prof.report.csv_text import render as render_csv

        return render_csv(figures)
    if shape is FormatOption.MARKDOWN:
        from unified_prof.report.markdown import render as render_markdown

        return render_markdown(figures)
    from unified_prof.report.text import render as render_text

    width, color = printing.terminal() if to_terminal else (None, False)
    return render_text(figures, width=width, color=color)
