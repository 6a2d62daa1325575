"""`uprof report`: where the time and the memory went."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import convert as producing
from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli.command import AsJsonFormat, Force, FullNames, OneRank, OutputFile, Quiet
from unified_prof.cli.convert import Convert
from unified_prof.errors import StoreError, UsageError
from unified_prof.recording.breakdown_kinds import KINDS, STATISTICS_OF
from unified_prof.report import formats

if TYPE_CHECKING:
    ByOption = Enum
    FormatOption = Enum
else:
    ByOption = Enum("ByOption", {name: name for name in KINDS}, type=str)
    FormatOption = Enum("FormatOption", {name: name for name in formats.FORMAT_NAMES}, type=str)


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
            metavar="NAME",
            help=f"What to break time and memory down by: {', '.join(KINDS)}.",
            show_default="operation; the usual ones for json and html",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to show.", show_default="20; all for programs and html"),
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
    output: OutputFile = None,
    rank: OneRank = None,
    statistics: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Also the smallest, median, 99th percentile and largest time of operations and "
            "kernels, the standard deviation, and launches.",
        ),
    ] = False,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="CAPTURE",
            help="The report in which CUDA graphs were captured that this one replays: their "
            "kernels count for the operations recorded there.",
        ),
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
    is 7; all others are shown. Of several ranks of one run that comes first which of them costs
    the others time; of many, that alone.
    """
    from unified_prof.sqlite.atomic import refuse_existing

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = formats.find_format(
        shapes.chosen(context, formats.FORMAT_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    to_terminal = file is None and sys.stdout.isatty()
    if embed_source and not shape.embeds_source:
        raise UsageError(
            "--embed-source applies to --format html only", slug="option-without-effect"
        )
    if to_terminal and not shape.for_terminal:
        raise UsageError(
            f"{shape.name} cannot be shown on a terminal",
            hint="write it to a file with -o",
            slug="not-for-a-terminal",
        )
    if file is not None:
        refuse_existing(file, overwrite=force)
    if statistics and by is not None and by.value not in STATISTICS_OF:
        raise UsageError(
            f"--stats has nothing to add to --by {by.value}",
            hint=f"it describes: {', '.join(STATISTICS_OF)}",
            slug="no-breakdown",
        )
    width, color = printing.terminal() if to_terminal else (None, False)
    request = formats.ReportRequest(
        by=None if by is None else by.value,
        sort=None if sort is None else sort.value,
        top=top,
        statistics=statistics,
        full_names=full_names,
        source_root=Path.cwd() if embed_source else None,
        width=width,
        color=color,
    )
    made = producing.produced(
        path,
        shape,
        request,
        rank=rank,
        capture=capture,
        convert=convert,
        quiet=quiet,
        output=file,
    )
    if file is None:
        printing.put(made.content, for_people=shape.for_people)
    else:
        printing.write(file, made.content, force=force)
        if not quiet:
            printing.say(f"{file}: {shape.name}, {file.stat().st_size:,} bytes")
    if rank is None and not quiet:
        producing.say_hints(path, made)
    if made.missing:
        if not (to_terminal and shape.for_people):  # the terminal has it above the figures
            printing.put_error(StoreError(made.missing, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)
