"""Command `uprof report`: time and memory of a run."""

from __future__ import annotations

import sys
from pathlib import Path

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import ResultOptions
from unified_prof.errors import UsageError
from unified_prof.pipeline.report_input import Reader, render_reports
from unified_prof.recording.model import KINDS, STATISTICS_OF
from unified_prof.report import formats
from unified_prof.schema.catalogue import WATCH_FILES

# Keys to sort rows by, largest value first.
_SORT_KEYS = ("time", "forward", "backward", "average", "count", "size", "name")


@cli.command(
    "report",
    epilog="Exit codes: 0 success; 2 usage error; 6 recording unreadable; 7 report missing "
    "or unreadable; 9 output cannot be written.",
)
def report(
    path: cli.ReportPath,
    by: str | None = cli.option(
        f"Breakdown: {', '.join(KINDS)}. [default: operation; several for json and html]",
        "NAME",
        choices=KINDS,
    ),
    top: int | None = cli.option(
        "Number of rows to show. [default: 20; all for json, csv and html]", min=1
    ),
    sort: str | None = cli.option("Sort rows. [default: time, else size]", choices=_SORT_KEYS),
    result: ResultOptions = cli.formats_of(*formats.FORMAT_NAMES),
    rank: cli.OneRank = None,
    statistics: bool = cli.flag(
        "Add min, median, p99, max, standard deviation and launch statistics.", "--stats"
    ),
    capture: Path | None = cli.rare_option(
        "Report in which the CUDA graphs that this run replays were captured; their kernels are "
        "attributed to the operations recorded there.",
        "--with CAPTURE",
    ),
    full_names: cli.FullNames = False,
    convert: cli.Convert = False,
    embed_source: bool = cli.rare_flag(
        "html: embed source lines of files below the current directory."
    ),
) -> None:
    """Show time and memory of a run per operation, kernel, module or line.

    If DIR is given, damaged or missing reports are listed in every format and the exit code is 7;
    the others are shown. For a multi-rank run, a summary of the run comes first; with many ranks
    only the summary is shown.
    """
    target = result.target()
    shape = formats.find_format(target.shape)
    if embed_source and not shape.embeds_source:
        raise UsageError(
            "--embed-source applies to --format html only", slug="option-without-effect"
        )
    if statistics and by is not None and by not in STATISTICS_OF:
        raise UsageError(
            f"--stats adds nothing to --by {by}",
            hint=f"use it with --by {', '.join(STATISTICS_OF)}",
            slug="no-breakdown",
        )
    width, color = (None, False) if target.file else printing.terminal()
    request = formats.ReportRequest(
        by=by,
        sort=sort,
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
        from unified_prof.report.watch_document import render_watched

        content, missing = render_watched(folder, shape.name, rank, request)
        target.deliver(content)
        printing.end_if_missing(missing)
        return
    reader = Reader(result.printer, convert, target.file)
    made = render_reports(path, shape, request, reader, rank=rank, capture=capture)
    target.deliver(made.content, note=not result.quiet)
    for hint in made.hints:
        result.printer.hint(hint)
    # On a terminal it is printed above the figures.
    told = target.file is None and target.is_text and sys.stdout.isatty()
    printing.end_if_missing(made.missing, told=told)
