"""Commands `uprof time` and `uprof memory`: Skyline's spelling, one report each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from unified_prof.base.run_spec import MEMORY, RUN_TIME
from unified_prof.cli.command import Force, Quiet
from unified_prof.cli.run import measured_into

_EPILOG = "Exit codes: as `uprof run`; 9 if the file exists (use --force)."

_Entry = Annotated[
    str, typer.Argument(metavar="ENTRY_POINT", help="Script to profile, with or without providers.")
]
_Output = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Report to write.")]
_Backend = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_LogFile = Annotated[
    Path | None, typer.Option(hidden=True, help=("Ignored, for compatibility with Skyline."))
]
_Debug = Annotated[
    bool, typer.Option("--debug", hidden=True, help=("Ignored, for compatibility with Skyline."))
]


def register(app: typer.Typer) -> None:
    """Register the commands."""
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
    """Write only the run time report of a script, like Skyline's `time`.

    `uprof run` has more options and writes both reports at once.
    """
    _write_report(RUN_TIME, entry_point, output, backend, force=force, quiet=quiet)


def memory(
    entry_point: _Entry,
    output: _Output,
    backend: _Backend = "auto",
    log_file: _LogFile = None,
    debug: _Debug = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write only the memory report of a script, like Skyline's `memory`.

    `uprof run` has more options and writes both reports at once.
    """
    _write_report(MEMORY, entry_point, output, backend, force=force, quiet=quiet)


def _write_report(
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
