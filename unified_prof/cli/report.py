"""Command `uprof report`: time and memory of a run."""

from __future__ import annotations

import sys
from pathlib import Path

from unified_prof.cli import output as printing
from unified_prof.cli import report_input
from unified_prof.cli.command import (
    HELP_ALL,
    FullNames,
    OneRank,
    ReportPath,
    command,
    flag,
    formats_of,
    option,
)
from unified_prof.cli.output import ResultOptions
from unified_prof.cli.report_input import Convert
from unified_prof.errors import UsageError
from unified_prof.recording.breakdown_kinds import KINDS, STATISTICS_OF
from unified_prof.report import formats
from unified_prof.schema.catalogue import WATCH_FILES

# Keys to sort rows by, largest value first.
_SORT_KEYS = ("time", "forward", "backward", "average", "count", "size", "name")
_BY_HELP = f"Breakdown: {', '.join(KINDS)}."


@command(
    "report",
    epilog="Exit codes: 0 success; 2 usage error; 6 recording unreadable; 7 report missing "
    "or unreadable; 9 output cannot be written.",
)
def report(
    path: ReportPath,
    by: str | None = option(
        choices=KINDS,
        metavar="NAME",
        help=_BY_HELP,
        show_default="operation; several for json and html",
    ),
    top: int | None = option(
        min=1, help="Number of rows to show.", show_default="20; all for json, csv and html"
    ),
    sort: str | None = option(
        choices=_SORT_KEYS, help="Sort rows.", show_default="time, else size"
    ),
    result: ResultOptions = formats_of(formats.FORMAT_NAMES),
    rank: OneRank = None,
    statistics: bool = flag(
        "--stats", help="Add min, median, p99, max, standard deviation and launch statistics."
    ),
    capture: Path | None = option(
        "--with",
        metavar="CAPTURE",
        help="Report in which the CUDA graphs that this run replays were captured; their "
        "kernels are attributed to the operations recorded there.",
        shown_by=HELP_ALL,
    ),
    full_names: FullNames = False,
    convert: Convert = False,
    embed_source: bool = flag(
        help="html: embed source lines of files below the current directory.", shown_by=HELP_ALL
    ),
) -> None:
    """Show time and memory of a run per operation, kernel, module or line.

    If DIR is given, damaged or missing reports are listed in every format and the exit code is 7;
    the others are shown. For a multi-rank run, a summary of the run comes first; with many ranks
    only the summary is shown.
    """
    target = result.target(formats.FORMAT_SUFFIXES)
    shape = formats.find_format(target.shape)
    to_terminal = target.file is None and sys.stdout.isatty()
    if embed_source and not shape.embeds_source:
        raise UsageError(
            "--embed-source applies to --format html only", slug="option-without-effect"
        )
    target.refuse_terminal(for_terminal=shape.for_terminal)
    target.refuse_existing()
    if statistics and by is not None and by not in STATISTICS_OF:
        raise UsageError(
            f"--stats adds nothing to --by {by}",
            hint=f"use it with --by {', '.join(STATISTICS_OF)}",
            slug="no-breakdown",
        )
    width, color = printing.terminal() if to_terminal else (None, False)
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
        content, missing = _render_watched(folder, shape.name, rank, request)
        target.deliver(content)
        printing.end_if_missing(missing)
        return
    reader = report_input.Reader(convert, result.quiet, target.file)
    made = report_input.render_reports(
        path, shape, request, rank=rank, capture=capture, reader=reader
    )
    target.deliver(made.content, note=not result.quiet)
    if rank is None and not result.quiet:
        report_input.print_hints(path, made)
    # On a terminal it is printed above the figures.
    printing.end_if_missing(made.missing, told=to_terminal and target.shape == printing.TEXT)


def _render_watched(
    folder: Path, shape: str, rank: int | None, request: formats.ReportRequest
) -> tuple[str | bytes, str]:
    """Render the steps of a watched run; return them, and which ranks cannot be read."""
    from unified_prof.report.watch_document import produce_watch
    from unified_prof.sqlite.watch_file import read_folder

    damaged: dict[int, str] = {}
    ranks = read_folder(folder, damaged=damaged)
    if not ranks or rank in damaged:
        ranks = read_folder(folder)  # raises what is wrong
    if rank is not None and rank not in ranks:
        raise UsageError(
            f"{folder} has no rank {rank}",
            hint=f"it has {', '.join(map(str, sorted(ranks)))}",
            slug="no-such-rank",
        )
    chosen = ranks if rank is None else {rank: ranks[rank]}
    missing = "; ".join(f"rank {number} cannot be read: {why}" for number, why in damaged.items())
    return produce_watch(shape, chosen, folder, request), missing if rank is None else ""
