"""`uprof build`: recorded PROF_* directories to msprof databases."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import conversion
from unified_prof.cli.options import AsJson, Force, Quiet, Schema

if TYPE_CHECKING:
    from unified_prof.pipeline.build import Built, Outcome


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "build",
        no_args_is_help=True,
        epilog=(
            "Exit code: 0 all built; 2 wrong use; 6 a recording is unreadable (the others are "
            "built); 9 a database exists or cannot be written."
        ),
    )(build)


def build(
    recordings: Annotated[
        list[Path],
        typer.Argument(metavar="PROF_DIR...", help="PROF_* directories, or folders of them."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The database if OUT ends in .db and there is one recording, else a folder.",
            show_default="PROF_*/msprof_TIME.db, where msprof puts it",
        ),
    ] = None,
    schema: Schema = "documented",
    jobs: Annotated[int, typer.Option(min=1, help="Recordings to build at a time.")] = 1,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Build the database of recorded Ascend PROF_* directories: no CANN, no NPU needed."""
    from unified_prof.models import catalogue
    from unified_prof.pipeline.build import build_all, worst_exit_code

    catalogue.resolve(catalogue.MSPROF, schema)
    outcomes = []
    with conversion.progress_line(enabled=sys.stderr.isatty() and not quiet) as progress:
        for outcome in build_all(
            recordings, output, schema=schema, force=force, jobs=jobs, progress=progress
        ):
            outcomes.append(outcome)
            _tell(outcome, quiet=quiet)
    if json_:
        typer.echo(json.dumps([_record(outcome) for outcome in outcomes], indent=2))
    if code := worst_exit_code(outcomes):
        raise typer.Exit(code)


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    if outcome.error is not None:
        conversion.put_error(outcome.error)
    elif outcome.built is not None and not quiet:
        for line in _summary(outcome.built):
            typer.echo(line, err=True)


def _summary(built: Built) -> Iterator[str]:
    yield f"{built.recording} -> {built.database}"
    width = max((len(name) for name in built.rows), default=0)
    for table, rows in sorted(built.rows.items()):
        yield f"  {table:{width}}  {rows:>12,} rows"
    yield from conversion.anomaly_lines(built.anomalies)
    total = sum(built.seconds.values())
    slowest = sorted(built.seconds.items(), key=lambda stage: -stage[1])
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest if seconds >= 0.005)
    yield f"  CPU time {total:.2f} s" + (f": {parts}" if parts else "")


def _record(outcome: Outcome) -> dict[str, Any]:
    record: dict[str, Any] = {"recording": str(outcome.recording)}
    if outcome.error is not None:
        return record | conversion.error_record(outcome.error)
    assert outcome.built is not None
    built = outcome.built
    return record | {
        "database": str(built.database),
        "rows": dict(sorted(built.rows.items())),
        "anomalies": conversion.anomaly_record(built.anomalies),
        "cpu_seconds": {name: round(seconds, 4) for name, seconds in built.seconds.items()},
    }
