"""`uprof advise`: what to do first.

`uprof what-if`: what a step would gain if something were faster.
"""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import convert as converting
from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli import report_ranks
from unified_prof.cli.command import AsJsonFormat, Force, FullNames, OneRank, OutputFile, Quiet
from unified_prof.cli.convert import Convert
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.explain.report_questions import Change
    from unified_prof.recording.model import Finding


_FOR_PEOPLE = 10
"""Findings shown to people unless asked otherwise; programs get all."""


class AdviceFormat(str, Enum):
    """How advice is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "advise",
        epilog="Exit code: 0 fine, whatever is found, 2 wrong use, 6 a recording is unreadable, "
        "7 no report, or one that cannot be read (of a folder, all others are judged "
        "nevertheless), 9 the output cannot be written.",
    )(advise)


def advise(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A report of any family, or a folder of reports."),
    ],
    top: Annotated[
        int | None, typer.Option(min=1, help="Findings to show.", show_default="10; all for json")
    ] = None,
    format_: Annotated[
        AdviceFormat | None,
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
    """Say what could be better in a run, the costliest first, and what to try.

    Every finding has what a step could gain at most, its evidence, and how sure it is. Rules that
    the recording has no data for are listed as not judged. Of several ranks of one run comes first
    what costs all of them time. docs/advice.md says what each rule looks for.
    """
    from unified_prof.explain.api import open_reports
    from unified_prof.report import advice as told
    from unified_prof.sqlite.atomic import refuse_existing

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = shapes.chosen(context, told.ADVICE_SUFFIXES, asked=asked, as_json=json_, file=file)
    if file is not None:
        refuse_existing(file, overwrite=force)
    of_run: tuple[Finding, ...] = ()
    with ExitStack() as stack:
        if rank is not None or (path.is_dir() and not convert):
            overview = stack.enter_context(
                report_ranks.of_run(path, quiet=quiet, needed=rank is not None)
            )
            if overview is not None:
                of_run = _findings(overview)
            if rank is not None:
                path = report_ranks.file_of(overview, path, rank)
            elif overview is not None and overview.run.file.parent == path:
                # A run that was built: its ranks are elsewhere, or there no more.
                text = _of_run_alone(of_run, shape, top, to_file=file is not None, full=full_names)
                _show(text, shape, file, force=force)
                if not quiet:
                    printing.say("uprof: hint: --rank N judges the recording of one rank")
                return
        ready = converting.reports_of(path, convert=convert, quiet=quiet, output=file)
        stack.enter_context(hints.for_reports(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        reports = told.gather_advice(opened)
        if shape == "json":
            text = told.advice_json(reports, opened, of_run, top=top)
        elif shape == "markdown":
            text = told.advice_markdown(reports, of_run, top=top or _FOR_PEOPLE)
        else:
            width, color = _terminal(to_file=file is not None)
            text = told.advice_text(
                reports,
                of_run,
                top=top or _FOR_PEOPLE,
                width=width,
                color=color,
                full_names=full_names,
            )
        missing = opened.coverage.sentence
    _show(text, shape, file, force=force)
    if missing:
        printing.put_error(StoreError(missing, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)


def _show(text: str, shape: str, file: Path | None, *, force: bool) -> None:
    if file is None:
        printing.put(text, for_people=shape == "text")
    else:
        printing.write(file, text, force=force)


def _terminal(*, to_file: bool) -> tuple[int | None, bool]:
    return printing.terminal() if not to_file and sys.stdout.isatty() else (None, False)


def _of_run_alone(
    of_run: tuple[Finding, ...], shape: str, top: int | None, *, to_file: bool, full: bool
) -> str:
    """Return what costs all ranks time, without reports of single ones."""
    from unified_prof.report import advice as told

    if shape == "json":
        return told.advice_json([], None, of_run[:top], top=top)
    if shape == "markdown":
        return told.advice_markdown([], of_run, top=top or _FOR_PEOPLE)
    width, color = _terminal(to_file=to_file)
    return told.advice_text(
        [], of_run, top=top or _FOR_PEOPLE, width=width, color=color, full_names=full, is_run=True
    )


def _findings(overview: Overview) -> tuple[Finding, ...]:
    """Return what costs all ranks time, with the command that shows more of it."""
    from unified_prof.recording.model import Finding

    found: list[Any] = list(overview.run.findings)
    return tuple(
        Finding(
            kind=one.kind,
            ranks=tuple(one.ranks),
            hosts=tuple(one.hosts),
            links=tuple((pair[0], pair[1]) for pair in one.links),
            steps=tuple(one.steps),
            cost_ms_per_step=one.cost_ms_per_step,
            text=one.text,
            figures=dict(one.figures),
            advice=f"uprof cluster report {overview.run.path}",
        )
        for one in found
    )


class WhatIfFormat(str, Enum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


def register_what_if(app: typer.Typer) -> None:
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
    from unified_prof.explain.api import open_reports
    from unified_prof.report import advice as told
    from unified_prof.sqlite.atomic import refuse_existing

    changes = [*map(_faster, faster or ()), *map(_without, without or ())]
    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = shapes.chosen(context, told.WHAT_IF_SUFFIXES, asked=asked, as_json=json_, file=file)
    if file is not None:
        refuse_existing(file, overwrite=force)
    with ExitStack() as stack:
        if rank is not None:
            overview = stack.enter_context(report_ranks.of_run(path, quiet=quiet, needed=True))
            path = report_ranks.file_of(overview, path, rank)
        ready = converting.reports_of(path, convert=convert, quiet=quiet, output=file)
        stack.enter_context(hints.for_reports(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        reports = told.gather_what_if(opened, changes, top=top)
        if shape == "json":
            text = told.what_if_json(reports, changes, opened)
        else:
            to_terminal = file is None and sys.stdout.isatty()
            width, color = printing.terminal() if to_terminal else (None, False)
            text = told.what_if_text(
                reports, changes, width=width, color=color, full_names=full_names
            )
        missing = opened.coverage.sentence
    if file is None:
        printing.put(text, for_people=shape == "text")
    else:
        printing.write(file, text, force=force)
    if missing:
        printing.put_error(StoreError(missing, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)


def _faster(said: str) -> Change:
    from unified_prof.explain.report_questions import Change

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
    from unified_prof.explain.report_questions import Change

    return Change(name, math.inf)
