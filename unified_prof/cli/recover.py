"""Command `uprof recover`: reports of a killed run."""

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
    """Register the command."""
    app.command(
        "recover",
        epilog="Exit codes: 0 reports were recovered; 1 nothing to recover, or only processes "
        "that still run; 2 usage error; 6 a file is damaged (the others are recovered); 9 "
        "a report cannot be written.",
    )(recover)


def recover(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output directory of the killed `uprof run`."),
    ],
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Recover the reports of a run whose process was killed.

    While a workload runs, uprof saves its complete iterations in a hidden file of the output
    directory. After SIGKILL, an out-of-memory kill or the loss of a node, this command turns them
    into partial reports. Files of running processes are not touched.
    """
    from unified_prof.pipeline import recover as pipeline

    outcomes = []
    for outcome in pipeline.recover(folder, force=force):
        outcomes.append(outcome)
        _print_outcome(outcome, quiet=quiet)
    if not outcomes and not quiet:
        output.print_message(f"uprof: {folder}: nothing to recover (no unfinished measurements)")
    if json_:
        output.put_json([_record(outcome) for outcome in outcomes])
    if code := _exit_code(outcomes):
        raise typer.Exit(code)


def _print_outcome(outcome: Recovered, *, quiet: bool) -> None:
    if outcome.error is not None:
        output.put_error(outcome.error)
    elif quiet:
        return
    elif outcome.runs:
        output.print_message(f"uprof: {outcome.spool}: skipped, its process is still running")
    else:
        files = ", ".join(str(path) for path in outcome.files.values())
        count = f"{outcome.iterations} of {outcome.asked} iterations, saved at {outcome.saved}"
        output.print_message(f"uprof: {files}: {count}")
        if outcome.remark:
            output.print_message(f"uprof: {outcome.remark}")


def _exit_code(outcomes: list[Recovered]) -> int:
    """Return the exit code of the worst outcome: damage, output errors, nothing recovered."""
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
