"""Commands `uprof advise` (ranked findings) and `uprof what-if` (estimated step times)."""

from __future__ import annotations

import math
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli import report_input, report_ranks
from unified_prof.cli.command import AsJsonFormat, Force, FullNames, OneRank, OutputFile, Quiet
from unified_prof.cli.report_input import Convert
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.explain.report_questions import Change
    from unified_prof.recording.model import Finding


# Default number of findings in text and Markdown; JSON has all.
_DEFAULT_FINDINGS = 10


class AdviceFormat(str, Enum):
    """Output format of advice."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "advise",
        epilog="Exit codes: 0 success, with or without findings; 2 usage error; 6 recording "
        "unreadable; 7 report missing or unreadable (the other reports of a directory are "
        "still analyzed); 9 output cannot be written.",
    )(advise)


def advise(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A report of any kind, or a directory of reports."),
    ],
    top: Annotated[
        int | None,
        typer.Option(min=1, help=("Number of findings to show."), show_default="10; all for json"),
    ] = None,
    format_: Annotated[
        AdviceFormat | None,
        typer.Option(
            "--format", help="Output format.", show_default=("by the extension of -o, or text")
        ),
    ] = None,
    output: OutputFile = None,
    rank: OneRank = None,
    full_names: FullNames = False,
    convert: Convert = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    quiet: Quiet = False,
) -> None:
    """List findings by cost, with what to try.

    Each finding states the time that a step could save, its evidence, and its confidence. Rules
    whose input was not recorded are listed as skipped. For a multi-rank run, findings about the run
    come first. docs/advice.md describes each rule.
    """
    from unified_prof.explain.api import open_reports
    from unified_prof.report import advice as told
    from unified_prof.sqlite.atomic import refuse_existing

    file = shapes.output_file(output)
    asked = format_ and format_.value
    shape = shapes.choose_format(
        context, told.ADVICE_SUFFIXES, asked=asked, as_json=json_, file=file
    )
    if file is not None:
        refuse_existing(file, overwrite=force)
    of_run: tuple[Finding, ...] = ()
    with ExitStack() as stack:
        if rank is not None or (path.is_dir() and not convert):
            overview = stack.enter_context(
                report_ranks.open_ranks(path, quiet=quiet, needed=rank is not None)
            )
            if overview is not None:
                of_run = _findings(overview)
            if rank is not None:
                path = report_ranks.rank_report(overview, path, rank)
            elif overview is not None and overview.run.file.parent == path:
                # A cluster summary may be read without its ranks' recordings.
                text = _cluster_findings_only(
                    of_run, shape, top, to_file=file is not None, full=full_names
                )
                _show(text, shape, file, force=force)
                if not quiet:
                    printing.print_message(
                        "uprof: hint: use --rank N to analyze the recording of one rank"
                    )
                return
        ready = report_input.reports_of(path, convert=convert, quiet=quiet, output=file)
        stack.enter_context(hints.with_convert_hint(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        reports = told.gather_advice(opened)
        if shape == "json":
            text = told.advice_json(reports, opened, of_run, top=top)
        else:
            document = told.advice_document(reports, of_run, top=top or _DEFAULT_FINDINGS)
            text = printing.render(document, shape, to_file=file is not None, full_names=full_names)
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


def _cluster_findings_only(
    of_run: tuple[Finding, ...], shape: str, top: int | None, *, to_file: bool, full: bool
) -> str:
    """Render the findings of a multi-rank run without those of single ranks."""
    from unified_prof.report import advice as told

    if shape == "json":
        return told.advice_json([], None, of_run[:top], top=top)
    document = told.advice_document([], of_run, top=top or _DEFAULT_FINDINGS, is_run=True)
    return printing.render(document, shape, to_file=to_file, full_names=full)


def _findings(overview: Overview) -> tuple[Finding, ...]:
    """Return the findings of a multi-rank run, each with a command that shows details."""
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
    """Output format of an estimate."""

    TEXT = "text"
    JSON = "json"


def register_what_if(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "what-if",
        epilog="Exit codes: 0 success; 2 usage error (no operation of that name was recorded); 6 "
        "recording unreadable; 7 report missing or unreadable; 9 output cannot be "
        "written.",
    )(what_if)


def what_if(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR", help=("A timeline report, or a directory of timeline reports.")
        ),
    ],
    faster: Annotated[
        list[str] | None,
        typer.Option(
            "--faster",
            metavar="NAME=K",
            help="Make an operation, kernel, collective, call or class (kernel, communication, "
            "copy, host, input) K times as fast; host:NAME selects its time on the host. "
            "Repeatable.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NAME",
            help=(
                "Remove an operation, kernel, collective, call or class; a removed "
                "synchronization no longer blocks its thread. Repeatable."
            ),
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(min=1, help=("Without --faster and --without: number of candidates to try.")),
    ] = 10,
    format_: Annotated[
        WhatIfFormat | None,
        typer.Option(
            "--format", help="Output format.", show_default=("by the extension of -o, or text")
        ),
    ] = None,
    output: OutputFile = None,
    rank: OneRank = None,
    full_names: FullNames = False,
    convert: Convert = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    quiet: Quiet = False,
) -> None:
    """Estimate the step time if kernels, copies or host work were faster.

    Replays the recorded schedule with changed durations; the order on streams and threads, launches
    and waits stay the same. Without --faster and --without, tries the most expensive items of the
    critical path (see uprof report --by path).
    """
    from unified_prof.explain.api import open_reports
    from unified_prof.report import advice as told
    from unified_prof.sqlite.atomic import refuse_existing

    changes = [*map(_faster, faster or ()), *map(_without, without or ())]
    file = shapes.output_file(output)
    asked = format_ and format_.value
    shape = shapes.choose_format(
        context, told.WHAT_IF_SUFFIXES, asked=asked, as_json=json_, file=file
    )
    if file is not None:
        refuse_existing(file, overwrite=force)
    with ExitStack() as stack:
        if rank is not None:
            overview = stack.enter_context(report_ranks.open_ranks(path, quiet=quiet, needed=True))
            path = report_ranks.rank_report(overview, path, rank)
        ready = report_input.reports_of(path, convert=convert, quiet=quiet, output=file)
        stack.enter_context(hints.with_convert_hint(path))
        opened = stack.enter_context(open_reports(ready.path, ready.missing))
        reports = told.gather_what_if(opened, changes, top=top)
        if shape == "json":
            text = told.what_if_json(reports, changes, opened)
        else:
            document = told.what_if_document(reports, changes)
            text = printing.render(document, shape, to_file=file is not None, full_names=full_names)
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
            f"--faster {said}: expected NAME=K, for example aten::mm=2",
            slug="wrong-option-value",
        )
    return Change(name, factor)


def _without(name: str) -> Change:
    from unified_prof.explain.report_questions import Change

    return Change(name, math.inf)
