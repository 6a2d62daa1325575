"""`uprof diff`: what changed from one run to another, and how much it explains."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from unified_prof.cli import converting, printing
from unified_prof.cli import shape as shapes
from unified_prof.cli.converting import Convert
from unified_prof.cli.options import AsJsonFormat, Force, FullNames, Quiet
from unified_prof.errors import UsageError


class ByOption(str, Enum):
    """What operations are summed up by."""

    OPERATION = "operation"
    LINE = "line"
    MODULE = "module"


class FormatOption(str, Enum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


_SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "diff",
        epilog="Exit code: 0 fine, 2 wrong use (reports that cannot be compared), 6 a recording is "
        "unreadable, 7 no report or one that cannot be read. Whether a change may pass is what "
        "`uprof gate` says.",
    )(diff)


def diff(
    context: typer.Context,
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="A report, or a run's folder: before.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same: after.")],
    more_base: Annotated[
        list[Path] | None,
        typer.Option("--base", metavar="FILE", help="Another report of the base run, for samples."),
    ] = None,
    more_new: Annotated[
        list[Path] | None,
        typer.Option("--new", metavar="FILE", help="Another report of the new run, for samples."),
    ] = None,
    by: Annotated[ByOption, typer.Option(help="Sum the changes up by this.")] = ByOption.OPERATION,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what surely did not change, or may not have.")
    ] = False,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format",
            help="How to print it; json has every row.",
            show_default="by -o's ending, or text",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
    ] = None,
    convert: Convert = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two runs, operation by operation.

    Operations are paired by module path, source line, name and order, so that inserted and
    removed ones do not shift the rest.
    """
    from unified_prof.analysis.compare import diff as analysis
    from unified_prof.report import comparison, difference

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(shapes.chosen(context, _SUFFIXES, asked=asked, as_json=json_, file=file))
    sides = [base, *(more_base or [])], [new, *(more_new or [])]
    silent = quiet or shape is not FormatOption.TEXT
    before, after = (
        converting.run_of(side, convert=convert, quiet=silent, output=file) for side in sides
    )
    for run in (before, after):
        if not len(run.operations) and not run.sizes and not run.totals:
            raise UsageError(f"{run.label} is empty: it has nothing to compare")
    found = analysis.diff(before, after, by=by.value)
    if shape is FormatOption.JSON:
        text = printing.json_text(difference.document(found))
    elif shape is FormatOption.MARKDOWN:
        text = comparison.diff_markdown(
            found, top=top, everything=everything, full_names=full_names
        )
    else:
        width, color = (None, False) if file else printing.terminal()
        text = comparison.diff_text(
            found, top=top, everything=everything, width=width, color=color, full_names=full_names
        )
    if file is None:
        printing.put(text, for_people=shape is FormatOption.TEXT)
    else:
        printing.write(file, text, force=force)
    if shape is not FormatOption.TEXT and not quiet:
        for warning in found.warnings:
            printing.say(f"uprof: warning: {warning}")
