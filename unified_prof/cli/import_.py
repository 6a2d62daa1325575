"""`uprof import`: other profilers' recordings to reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import conversion
from unified_prof.cli.options import AsJson, Force, Quiet, Schema

if TYPE_CHECKING:
    from unified_prof.pipeline.import_trace import Imported, Outcome


class Layout(str, Enum):
    """How files and folders are named."""

    PLAIN = "plain"
    ASCEND_PT = "ascend-pt"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "import",
        no_args_is_help=True,
        epilog=(
            "Exit code: 0 all imported; 2 wrong use; 6 a trace is unreadable (the others are "
            "imported); 9 a report exists or cannot be written."
        ),
    )(import_)


def import_(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of torch.profiler: .json or .json.gz."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The report if OUT ends in .db and there is one trace, else a folder.",
            show_default="TRACE.db in this folder",
        ),
    ] = None,
    schema: Schema = "documented",
    layout: Annotated[
        Layout,
        typer.Option(
            help="ascend-pt: the folders in which MindStudio Insight and msprof-analyze look."
        ),
    ] = Layout.PLAIN,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Make msprof databases of recorded torch.profiler traces: no torch, no GPU needed."""
    from unified_prof.models import catalogue
    from unified_prof.pipeline.import_trace import import_all, worst_exit_code

    catalogue.resolve(catalogue.MSPROF, schema)
    outcomes = []
    with conversion.progress_line(enabled=sys.stderr.isatty() and not quiet) as progress:
        for outcome in import_all(
            traces, output, schema=schema, layout=layout.value, force=force, progress=progress
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
    elif outcome.imported is not None and not quiet:
        for line in _summary(outcome.imported):
            typer.echo(line, err=True)


def _summary(imported: Imported) -> Iterator[str]:
    decoded = imported.decoded
    yield f"{imported.trace} -> {imported.report}"
    yield f"  {decoded.events:,} events: {decoded.operations:,} operations, " + (
        f"{decoded.tasks:,} device tasks, {decoded.tasks_joined:,} joined to their launch"
        if decoded.tasks
        else "no device task"
    )
    yield from conversion.anomaly_lines(imported.anomalies)


def _record(outcome: Outcome) -> dict[str, Any]:
    record: dict[str, Any] = {"trace": str(outcome.trace)}
    if outcome.error is not None:
        return record | conversion.error_record(outcome.error)
    assert outcome.imported is not None
    imported = outcome.imported
    return record | {
        "report": str(imported.report),
        "events": imported.decoded.events,
        "events_by_kind": dict(sorted(imported.decoded.counts.items())),
        "device_tasks": imported.decoded.tasks,
        "device_tasks_joined": imported.decoded.tasks_joined,
        "rank": imported.decoded.rank,
        "rows": dict(sorted(imported.rows.items())),
        "anomalies": conversion.anomaly_record(imported.anomalies),
    }
