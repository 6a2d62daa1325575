"""`uprof what-if`: what a step would gain if something were faster."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import converting, hints, printing, report_ranks
from unified_prof.cli import shape as shapes
from unified_prof.cli.converting import Convert
from unified_prof.cli.options import AsJsonFormat, Force, FullNames, OneRank, OutputFile, Quiet
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.explain.supposed import Change


class WhatIfFormat(str, Enum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "what-if",
        epilog="Exit code: 0 fine, whatever is gained, 2 wrong use (nothing of that name was "
        "recorded), 6 a recording is unreadable, 7 no report, or one that cannot be read, 9 the "
        "output cannot be written.",
    )(what_if)


def what_if(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A timeline, or a folder of timelines.")
    ],
    faster: Annotated[
        list[str] | None,
        typer.Option(
            "--faster",
            metavar="NAME=K",
            help="An operation, kernel, collective, call or class (kernel, communication, copy, "
            "host, input) K times as fast; host:NAME is its time on the host. May be repeated.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NAME",
            help="The same, not done at all; without a synchronising call its thread goes on.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Without a change: how many things to try.")] = 10,
    format_: Annotated[
        WhatIfFormat | None,
        typer.Option("--format", help="How to print it.", show_default="by -o's ending, or text"),
    ] = None,
    output: OutputFile = None,
    rank: OneRank = None,
    full_names: FullNames = False,
    convert: Convert = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    quiet: Quiet = False,
) -> None:
    """Say what a step would gain if something took less time.

    The recorded schedule is run again with other durations: what ran after what on streams and
    threads, what launched what and who waited for whom stay as they were. Without --faster and
    --without it tries the costliest things of the critical path (uprof report --by path).
    """
    from unified_prof.analysis.load import open_reports
    from unified_prof.report import what_if as told
    from unified_prof.store.atomic import refuse_existing

    changes = [*map(_faster, faster or ()), *map(_without, without or ())]
    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = shapes.chosen(context, told.SUFFIXES, asked=asked, as_json=json_, file=file)
    if file is not None:
        refuse_existing(file, overwrite=force)
    with ExitStack() as stack:
        if rank is not None:
            overview = stack.enter_context(report_ranks.of_run(path, quiet=quiet, needed=True))
            path = report_ranks.file_of(overview, path, rank)
        ready = converting.reports_of(path, convert=convert, quiet=quiet, output=file)
        stack.enter_context(hints.for_reports(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        reports = told.gather(opened, changes, top=top)
        if shape == "json":
            text = told.json_text(reports, changes, opened)
        else:
            to_terminal = file is None and sys.stdout.isatty()
            width, color = printing.terminal() if to_terminal else (None, False)
            text = told.text(reports, changes, width=width, color=color, full_names=full_names)
        missing = opened.coverage.sentence
    if file is None:
        printing.put(text, for_people=shape == "text")
    else:
        printing.write(file, text, force=force)
    if missing:
        printing.put_error(StoreError(missing, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)


def _faster(said: str) -> Change:
    from unified_prof.analysis.explain.supposed import Change

    name, _, number = said.rpartition("=")
    try:
        factor = float(number.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not name or not (0 < factor < math.inf):
        raise UsageError(
            f"--faster {said}: expected a name and how many times as fast, such as aten::mm=2",
            slug="wrong-option-value",
        )
    return Change(name, factor)


def _without(name: str) -> Change:
    from unified_prof.analysis.explain.supposed import Change

    return Change(name, math.inf)
