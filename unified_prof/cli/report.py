"""Command `uprof report`: time and memory of a run."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from unified_prof.cli import output as printing
from unified_prof.cli import report_input
from unified_prof.cli.command import (
    FORMAT,
    HELP_ALL,
    AsJsonFormat,
    Force,
    FullNames,
    Group,
    OneRank,
    OutputFile,
    Quiet,
    ReportPath,
    option,
)
from unified_prof.cli.report_input import Convert
from unified_prof.errors import StoreError, UsageError
from unified_prof.recording.breakdown_kinds import KINDS, STATISTICS_OF
from unified_prof.report import formats
from unified_prof.schema.catalogue import WATCH_FILES

if TYPE_CHECKING:
    ByOption = Enum
    FormatOption = Enum
else:
    ByOption = Enum("ByOption", {name: name for name in KINDS}, type=str)
    FormatOption = Enum("FormatOption", {name: name for name in formats.FORMAT_NAMES}, type=str)


class SortOption(str, Enum):
    """Sort keys of rows, largest value first."""

    TIME = "time"
    FORWARD = "forward"
    BACKWARD = "backward"
    AVERAGE = "average"
    COUNT = "count"
    SIZE = "size"
    NAME = "name"


def register(app: Group) -> None:
    """Register the command."""
    app.command(
        "report",
        epilog="Exit codes: 0 success; 2 usage error; 6 recording unreadable; 7 report missing "
        "or unreadable; 9 output cannot be written.",
    )(report)


def report(
    context: click.Context,
    path: ReportPath,
    by: Annotated[
        ByOption | None,
        option(
            metavar="NAME",
            help=f"Breakdown: {', '.join(KINDS)}.",
            show_default="operation; several for json and html",
        ),
    ] = None,
    top: Annotated[
        int | None,
        option(
            min=1, help="Number of rows to show.", show_default="20; all for json, csv and html"
        ),
    ] = None,
    sort: Annotated[
        SortOption | None,
        option(help="Sort rows.", show_default="time, else size"),
    ] = None,
    format_: Annotated[FormatOption | None, FORMAT] = None,
    output: OutputFile = None,
    rank: OneRank = None,
    statistics: Annotated[
        bool,
        option(
            "--stats",
            help="Add min, median, p99, max, standard deviation and launch statistics.",
        ),
    ] = False,
    capture: Annotated[
        Path | None,
        option(
            "--with",
            metavar="CAPTURE",
            help="Report in which the CUDA graphs that this run replays were captured; their "
            "kernels are attributed to the operations recorded there.",
            shown_by=HELP_ALL,
        ),
    ] = None,
    full_names: FullNames = False,
    convert: Convert = False,
    embed_source: Annotated[
        bool,
        option(
            "--embed-source",
            help="html: embed source lines of files below the current directory.",
            shown_by=HELP_ALL,
        ),
    ] = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    quiet: Quiet = False,
) -> None:
    """Show time and memory of a run per operation, kernel, module or line.

    If DIR is given, damaged or missing reports are listed in every format and the exit code is 7;
    the others are shown. For a multi-rank run, a summary of the run comes first; with many ranks
    only the summary is shown.
    """
    from unified_prof.sqlite.atomic import refuse_existing

    file = printing.output_file(output)
    asked = format_ and format_.value
    shape = formats.find_format(
        printing.choose_format(
            context, formats.FORMAT_SUFFIXES, asked=asked, as_json=json_, file=file
        )
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
            f"--stats adds nothing to --by {by.value}",
            hint=f"use it with --by {', '.join(STATISTICS_OF)}",
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
    folder = path.parent if path.match(WATCH_FILES) else path
    if any(folder.glob(WATCH_FILES)):
        if by is not None or sort is not None or statistics or capture is not None:
            raise UsageError(
                "--by, --sort, --stats and --with do not apply to watched runs",
                slug="option-without-effect",
            )
        content = _render_watched(folder, shape.name, rank, request)
        if file is None:
            printing.put(content, for_people=shape.for_people)
        else:
            printing.write(file, content, force=force)
        return
    made = report_input.render_reports(
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
            printing.print_message(f"{file}: {shape.name}, {file.stat().st_size:,} bytes")
    if rank is None and not quiet:
        report_input.print_hints(path, made)
    if made.missing:
        if not (to_terminal and shape.for_people):  # on a terminal it is printed above the figures
            printing.put_error(StoreError(made.missing, slug="ranks-missing"))
        raise click.exceptions.Exit(StoreError.exit_code)


def _render_watched(
    folder: Path, shape: str, rank: int | None, request: formats.ReportRequest
) -> str | bytes:
    """Render the steps of a run that `uprof watch` follows or followed."""
    from unified_prof.report.watch_document import produce_watch
    from unified_prof.sqlite.watch_file import read_folder

    ranks = read_folder(folder)
    if rank is not None and rank not in ranks:
        raise UsageError(
            f"{folder} has no rank {rank}",
            hint=f"it has {', '.join(map(str, sorted(ranks)))}",
            slug="no-such-rank",
        )
    chosen = ranks if rank is None else {rank: ranks[rank]}
    return produce_watch(shape, chosen, folder, request)
