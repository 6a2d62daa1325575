"""`uprof recover`: reports of a run whose process was killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import output
from unified_prof.cli.command import AsJson, Force, Quiet
from unified_prof.errors import OutputError, RawFormatError

if TYPE_CHECKING:
    from unified_prof.pipeline.recover import Recovered

_NOTHING = 1


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "recover",
        epilog="Exit code: 0 reports were made, 1 there is nothing to recover, or only of "
        "processes that still run, 2 wrong use, 6 a file is damaged (all others are recovered "
        "nevertheless), 9 a report cannot be written.",
    )(recover)


def recover(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder that `uprof run` was to write into."),
    ],
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Make reports of what a killed run had measured.

    While a workload runs, uprof keeps its complete iterations in a hidden file of the folder. After
    SIGKILL, for want of memory, or with a node that is lost, this makes partial reports of it. What
    belongs to a process that still runs is left alone.
    """
    from unified_prof.pipeline import recover as pipeline

    outcomes = []
    for outcome in pipeline.recover(folder, force=force):
        outcomes.append(outcome)
        _tell(outcome, quiet=quiet)
    if not outcomes and not quiet:
        output.say(
            f"uprof: {folder}: nothing to recover: no process has left unfinished measurements here"
        )
    if json_:
        output.put_json([_record(outcome) for outcome in outcomes])
    if code := _exit_code(outcomes):
        raise typer.Exit(code)


def _tell(outcome: Recovered, *, quiet: bool) -> None:
    if outcome.error is not None:
        output.put_error(outcome.error)
    elif quiet:
        return
    elif outcome.runs:
        output.say(f"uprof: {outcome.spool}: its process still runs, it is left alone")
    else:
        files = ", ".join(str(path) for path in outcome.files.values())
        count = f"{outcome.iterations} of {outcome.asked} iterations, saved at {outcome.saved}"
        output.say(f"uprof: {files}: {count}")
        if outcome.remark:
            output.say(f"uprof: {outcome.remark}")


def _exit_code(outcomes: list[Recovered]) -> int:
    """Return what is worst: damage, then what could not be written, then nothing at all."""
    codes = {one.error.exit_code for one in outcomes if one.error is not None}
    for code in (RawFormatError.exit_code, OutputError.exit_code):
        if code in codes:
            return code
    return max(codes, default=0 if any(one.files for one in outcomes) else _NOTHING)


def _record(outcome: Recovered) -> dict[str, Any]:
    record: dict[str, Any] = {"spool": str(outcome.spool), "runs": outcome.runs}
    if outcome.error is not None:
        return record | output.error_record(outcome.error)
    if outcome.runs:
        return record
    return record | {
        "rank": outcome.rank,
        "files": {kind: str(path) for kind, path in outcome.files.items()},
        "iterations": outcome.iterations,
        "asked": outcome.asked,
        "saved": outcome.saved,
        "remark": outcome.remark,
    }
