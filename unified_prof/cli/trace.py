"""`uprof trace`: the timeline for a viewer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import converting, hints, printing
from unified_prof.cli.converting import Convert
from unified_prof.cli.options import AsJson, Force, Quiet
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.base import Analysis
    from unified_prof.analysis.load import Opened

_PERFETTO = (".perfetto-trace", ".pftrace")
_CHROME = (".json",)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "trace",
        epilog="Exit code: 0 fine, 2 wrong use (a report without points in time), 6 a recording is "
        "unreadable, 7 no report, or one that cannot be read (of a folder, all others are written "
        "nevertheless), "
        "9 the output cannot be written.",
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
    convert: Convert = False,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Write the timeline of a report: streams, host calls, who launched whom, counters."""
    from unified_prof.analysis.load import open_reports
    from unified_prof.report.figures import coverage_fields
    from unified_prof.store.atomic import refuse_existing, replacing

    if not output.name.endswith(_PERFETTO + _CHROME):
        raise UsageError(
            f"{output}: the extension does not select a trace format",
            hint=f"use one of {', '.join(_PERFETTO + _CHROME)}",
        )
    refuse_existing(output, overwrite=force)
    ready = converting.reports_of(path, convert=convert, quiet=quiet)
    with hints.for_reports(path), open_reports(ready.path, ready.missing) as opened:
        named = _with_times(opened)
        if output.name.endswith(_CHROME):
            from unified_prof.report.chrome_trace import write
        else:
            from unified_prof.report.perfetto import write

        def lose(analysis: Analysis, error: StoreError) -> None:
            opened.lose(analysis, error, part="only a part of it is in the trace")

        with replacing(output, overwrite=force) as partial:
            written = write(partial, named, lose if len(named) > 1 else None)
        coverage = opened.coverage
    if json_:
        printing.put_json(
            {"output": str(output), **asdict(written), "coverage": coverage_fields(coverage)}
        )
    elif not quiet:
        printing.say(
            f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
            f"{written.flows:,} flows, {written.counters:,} counters"
        )
    if coverage.missing:
        printing.say(f"uprof: error: {coverage.sentence}")
        raise typer.Exit(StoreError.exit_code)


def _with_times(opened: Opened) -> list[tuple[str, Analysis]]:
    """Return the reports that have points in time, each with a prefix for its names."""
    from unified_prof.report.figures import answers

    # A snapshot of an allocator has no tracks, but memory over time.
    has_times = answers(
        opened,
        lambda analysis: (
            analysis,
            next(analysis.tracks(), None) is not None or bool(analysis.memory_series()),
        ),
    )
    found = [analysis for analysis, answer in has_times if answer]
    if not found:
        family = has_times[0][0].family
        why = (
            "neither device tasks nor host calls nor memory were recorded"
            if family == "msprof"
            else "Skyline reports say how long operations took, not when they ran"
        )
        raise UsageError(
            f"{opened.path} has no timeline: {why}",
            hint="record one with `uprof run --report timeline`",
        )
    if len(found) == 1:
        return [("", found[0])]
    return [(f"{Path(one.path).stem}: ", one) for one in found]
