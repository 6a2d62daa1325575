"""`uprof time` and `uprof memory`: the spelling of Skyline's own commands, for one report each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from unified_prof.base.run_spec import MEMORY, RUN_TIME
from unified_prof.cli.command import Force, Quiet
from unified_prof.cli.run import measured_into

_EPILOG = "Exit code: as of `uprof run`; 9 where the file exists (--force replaces it)."

_Entry = Annotated[
    str, typer.Argument(metavar="ENTRY_POINT", help="The script, with providers or without.")
]
_Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The report to write.")
]
_Backend = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_LogFile = Annotated[Path | None, typer.Option(hidden=True, help="Taken, as Skyline does.")]
_Debug = Annotated[bool, typer.Option("--debug", hidden=True, help="Taken, as Skyline does.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("time", no_args_is_help=True, epilog=_EPILOG)(time)
    app.command("memory", no_args_is_help=True, epilog=_EPILOG)(memory)


def time(
    entry_point: _Entry,
    output: _Output,
    backend: _Backend = "auto",
    log_file: _LogFile = None,
    debug: _Debug = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the run time report of a script into one file, as Skyline's `time`.

    `uprof run` has more to choose from, and both reports at once.
    """
    _one(RUN_TIME, entry_point, output, backend, force=force, quiet=quiet)


def memory(
    entry_point: _Entry,
    output: _Output,
    backend: _Backend = "auto",
    log_file: _LogFile = None,
    debug: _Debug = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the memory report of a script into one file, as Skyline's `memory`.

    `uprof run` has more to choose from, and both reports at once.
    """
    _one(MEMORY, entry_point, output, backend, force=force, quiet=quiet)


def _one(
    report: str, entry_point: str, output: Path, backend: str, *, force: bool, quiet: bool
) -> None:
    from unified_prof.sqlite.atomic import output_error, refuse_existing

    target = output.absolute()
    refuse_existing(target, overwrite=force)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as err:
        raise output_error(target, err) from err
    try:
        exit_code = measured_into(folder, report, entry_point, backend, quiet=quiet)
        made = folder / f"{report.replace('-', '_')}.sqlite"
        if made.exists():
            refuse_existing(target, overwrite=force)
            try:
                made.replace(target)
            except OSError as err:
                raise output_error(target, err) from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(exit_code)
