"""`uprof trace`: the timeline for a viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import printing
from unified_prof.cli.options import AsJson, Force, Quiet
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.base import Analysis

_PERFETTO = (".perfetto-trace", ".pftrace")
_CHROME = (".json",)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "trace",
        epilog="Exit code: 0 fine, 2 wrong use (a report without points in time), 7 no report or "
        "one that cannot be read, 9 the output cannot be written.",
    )(trace)


def trace(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="An msprof database, or a folder of them."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="OUT.perfetto-trace for ui.perfetto.dev, or OUT.json in Chrome's format.",
        ),
    ],
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Write the timeline of a report: streams, host calls, who launched whom, counters."""
    from unified_prof.analysis.load import open_analyses
    from unified_prof.store.atomic import refuse_existing, replacing

    if not output.name.endswith(_PERFETTO + _CHROME):
        raise UsageError(
            f"{output}: the ending does not say which kind of trace",
            hint=f"use one of {', '.join(_PERFETTO + _CHROME)}",
        )
    refuse_existing(output, overwrite=force)
    with open_analyses(path) as analyses:
        named = _with_times(path, analyses)
        if output.name.endswith(_CHROME):
            from unified_prof.report.chrome_trace import write
        else:
            from unified_prof.report.perfetto import write
        with replacing(output, overwrite=force) as partial:
            written = write(partial, named)
    if json_:
        printing.put_json(
            {
                "output": str(output),
                "slices": written.slices,
                "tracks": written.tracks,
                "flows": written.flows,
                "counters": written.counters,
            }
        )
    elif not quiet:
        typer.echo(
            f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
            f"{written.flows:,} flows, {written.counters:,} counters",
            err=True,
        )


def _with_times(path: Path, analyses: list[Analysis]) -> list[tuple[str, Analysis]]:
    """Return the reports that have points in time, each with a prefix for its names."""
    found = [one for one in analyses if next(one.tracks(), None) is not None]
    if not found:
        family = analyses[0].summary.family
        why = (
            "it has no device task and no host range"
            if family == "msprof"
            else "a Skyline report says how long operations took, not when they ran"
        )
        raise UsageError(
            f"{path}: there is no timeline to write: {why}",
            hint="`uprof report` shows what the report has",
        )
    if len(found) == 1:
        return [("", found[0])]
    return [(f"{Path(one.summary.path).stem}: ", one) for one in found]
