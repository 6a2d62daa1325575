"""`uprof report`: where the time and the memory went."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import converting, hints, printing
from unified_prof.cli import shape as shapes
from unified_prof.cli.converting import Convert
from unified_prof.cli.options import AsJsonFormat, Force, FullNames, Quiet
from unified_prof.errors import StoreError, UsageError
from unified_prof.report import formats

if TYPE_CHECKING:
    FormatOption = Enum
else:
    FormatOption = Enum("FormatOption", {name: name for name in formats.NAMES}, type=str)


class ByOption(str, Enum):
    """What a report can be broken down by."""

    OPERATION = "operation"
    MODULE = "module"
    LINE = "line"
    KERNEL = "kernel"
    GROUP = "group"
    STREAM = "stream"
    ANNOTATION = "annotation"
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


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "report",
        epilog="Exit code: 0 fine, 2 wrong use (a breakdown that this report cannot give), "
        "6 a recording is unreadable, 7 no report, or one that cannot be read (of a folder, all "
        "others are shown nevertheless), "
        "9 the output cannot be written.",
    )(report)


def report(
    context: typer.Context,
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
    full_names: FullNames = False,
    convert: Convert = False,
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
    """Show where the time and the memory of a run went.

    Of a folder, a report that is damaged or missing is told of in every format, and the exit code
    is 7; all others are shown.
    """
    from unified_prof.analysis.load import open_reports
    from unified_prof.store.atomic import refuse_existing

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = formats.named(
        shapes.chosen(context, formats.SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    to_terminal = file is None and sys.stdout.isatty()
    if embed_source and not shape.embeds_source:
        raise UsageError("--embed-source applies to --format html only")
    if to_terminal and not shape.for_terminal:
        raise UsageError(
            f"{shape.name} cannot be shown on a terminal", hint="write it to a file with -o"
        )
    if file is not None:
        refuse_existing(file, overwrite=force)
    width, color = printing.terminal() if to_terminal else (None, False)
    request = formats.Request(
        by=None if by is None else by.value,
        sort=None if sort is None else sort.value,
        top=top,
        full_names=full_names,
        source_root=Path.cwd() if embed_source else None,
        width=width,
        color=color,
    )
    ready = converting.reports_of(path, convert=convert, quiet=quiet)
    with hints.for_reports(path), open_reports(ready.path, ready.missing) as opened:
        text = shape.produce(opened, request)
        coverage = opened.coverage
    if file is None:
        printing.put(text, for_people=shape.for_people)
    else:
        printing.write(file, text, force=force)
        if not quiet:
            printing.say(f"{file}: {shape.name}, {file.stat().st_size:,} bytes")
    if not quiet and path.is_dir() and (hint := hints.unrecovered(path)) is not None:
        printing.say(f"uprof: hint: {hint}")
    if coverage.missing:
        if not (to_terminal and shape.for_people):  # the terminal has it above the figures
            printing.say(f"uprof: error: {coverage.sentence}")
        raise typer.Exit(StoreError.exit_code)
