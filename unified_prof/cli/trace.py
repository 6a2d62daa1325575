"""Command `uprof trace`: write a timeline for a viewer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import cluster_report, report_input
from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli.cluster_report import RankSelection
from unified_prof.cli.command import AsJson, Force, Quiet
from unified_prof.cli.report_input import Convert
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.explain.api import Opened
    from unified_prof.explain.report_questions import OverTime
    from unified_prof.recording.source import Coverage
    from unified_prof.report.viewer_traces import OnUnreadable, TraceContents

_PERFETTO = (".perfetto-trace", ".pftrace")
_CHROME = (".json",)


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "trace",
        epilog="Exit codes: 0 success; 2 usage error (a report without timestamps); 6 recording "
        "unreadable; 7 report missing or unreadable (the other reports of a directory are "
        "still written); 9 output cannot be written.",
    )(trace)


def trace(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="An msprof database, or a directory of databases."),
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
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="For a cluster run: these ranks on one clock, for example 0,8-11.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="With --ranks: only this step.")
    ] = None,
    with_path: Annotated[
        bool,
        typer.Option("--path", help="Add a track of the critical path (see report --by path)."),
    ] = False,
    convert: Convert = False,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Write a timeline for Perfetto or Chrome: streams, host calls, launches, counters."""
    from unified_prof.report.figures import coverage_fields
    from unified_prof.sqlite.atomic import refuse_existing

    if not output.name.endswith(_PERFETTO + _CHROME):
        raise UsageError(
            f"{output}: unknown extension for a trace",
            hint=f"use one of {', '.join(_PERFETTO + _CHROME)}",
            slug="unknown-format",
        )
    refuse_existing(output, overwrite=force)
    if ranks is not None or step is not None:
        if with_path:
            raise UsageError(
                "--path cannot be combined with --ranks and --step",
                slug="contradicting-options",
            )
        told = write_ranks(
            path, output, RankSelection.of(ranks, step), convert=convert, force=force, quiet=quiet
        )
        if json_:
            printing.put_json(
                {"output": str(output), **asdict(told.written), "ranks": told.ranks}
                | {"clock_islands": told.islands}
            )
        elif not quiet:
            printing.print_message(trace_summary(output, told.written))
        return
    written, coverage = write_reports(
        path, output, with_path=with_path, convert=convert, force=force, quiet=quiet
    )
    if json_:
        printing.put_json(
            {"output": str(output), **asdict(written), "coverage": coverage_fields(coverage)}
        )
    elif not quiet:
        printing.print_message(trace_summary(output, written))
    if coverage.missing:
        printing.put_error(StoreError(coverage.sentence, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Content of a trace of several ranks."""

    written: TraceContents
    ranks: list[int]
    # Ranks grouped by the clock that they share.
    islands: list[list[int]]


def write_ranks(
    path: Path, output: Path, wanted: RankSelection, *, convert: bool, force: bool, quiet: bool
) -> RankTrace:
    """Write the timelines of ranks of a run.

    Raises:
        UprofError: As `cluster_report.timelines`, or the file cannot be written.
    """
    with cluster_report.timelines(
        path, wanted, convert=convert, quiet=quiet, output=output
    ) as found:
        written = _write(output, found.named, None, force=force)
        return RankTrace(written, found.ranks, found.islands)


def write_reports(
    path: Path, output: Path, *, with_path: bool, convert: bool, force: bool, quiet: bool
) -> tuple[TraceContents, Coverage]:
    """Write the timeline of a report, or of all reports in a directory, and return its content.

    Raises:
        StoreError: There is no report, or the only one is damaged.
        UsageError: No report has timestamps.
        OutputError: The file cannot be written.
    """
    from unified_prof.explain.api import open_reports

    ready = report_input.reports_of(path, convert=convert, quiet=quiet, output=output)
    with hints.with_convert_hint(path), open_reports(ready.path, ready.missing) as opened:
        named = _timed_reports(opened, with_path=with_path)

        def lose(lost: OverTime, error: StoreError) -> None:
            (analysis,) = (one for one in opened.analyses if one.path == lost.path)
            opened.lose(analysis, error, part="the trace is incomplete")

        written = _write(output, named, lose if len(named) > 1 else None, force=force)
        return written, opened.coverage


def _write(
    output: Path, named: list[tuple[str, OverTime]], lose: OnUnreadable | None, *, force: bool
) -> TraceContents:
    """Write the trace atomically in the format of the file's extension."""
    from unified_prof.report.viewer_traces import write_chrome_trace, write_perfetto_trace
    from unified_prof.sqlite.atomic import replacing

    write = write_chrome_trace if output.name.endswith(_CHROME) else write_perfetto_trace
    with replacing(output, overwrite=force) as partial:
        return write(partial, named, lose)


def trace_summary(output: Path, written: TraceContents) -> str:
    """Summarize the content of a trace."""
    return (
        f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
        f"{written.flows:,} flows, {written.counters:,} counters"
    )


def _timed_reports(opened: Opened, *, with_path: bool) -> list[tuple[str, OverTime]]:
    """Return the reports with timestamps, each with a prefix for its track names."""
    from unified_prof.report.figures import readable_answers
    from unified_prof.report.viewer_traces import WithCriticalPath

    # A memory snapshot has no tracks, but memory over time.
    has_times = readable_answers(
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
            else "Skyline reports have durations but no timestamps"
        )
        raise UsageError(
            f"{opened.path} has no timeline: {why}",
            hint="record one with `uprof run --report timeline`",
            slug="no-timeline",
        )
    several = len(found) > 1
    return [
        (f"{Path(one.path).stem}: " if several else "", WithCriticalPath(one) if with_path else one)
        for one in found
    ]
