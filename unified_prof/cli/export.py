"""Command `uprof export`: write a report as files for other tools, and timelines for viewers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.cli import output as printing
from unified_prof.cli.command import REQUIRED, AsJson, Force, Quiet, argument, command, flag, option
from unified_prof.cli.report_input import Convert, Reader
from unified_prof.errors import StoreError, UsageError
from unified_prof.export import files as layouts
from unified_prof.pipeline import rank_runs
from unified_prof.recording.breakdown_kinds import MEASURES, Place
from unified_prof.report.formats import FORMAT_SUFFIXES

if TYPE_CHECKING:
    from unified_prof.explain.report_questions import OverTime
    from unified_prof.export.mindstudio.writer import Exported
    from unified_prof.recording.source import Coverage
    from unified_prof.report.viewer_traces import TraceContents

_MEASURE_HELP = f"Stacks: weight of the frames: {', '.join(MEASURES)}."
_PICTURES = (".svg", ".png", ".pdf")  # Otherwise a directory of this name would be written.
_LAYOUT_HELP = "; ".join(f"{one.name}: {one.what}" for one in layouts.LAYOUTS) + "."


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """Options of timelines."""

    ranks: str | None = option(
        metavar="N,...",
        help="Timelines of a cluster run: these ranks on one clock, for example 0,8-11.",
    )
    step: int | None = option(metavar="N", help="Timelines of a cluster run: only this step.")
    critical_path: bool = flag(
        "--critical-path", "--path", help="Timelines: add a track of the critical path."
    )


@dataclass(frozen=True)
class StackOptions:
    """Options of stack exports."""

    measure: str | None = option(
        choices=MEASURES,
        metavar="NAME",
        help=_MEASURE_HELP,
        show_default="all; collapsed: the first available",
    )
    by: Place | None = option(
        help="Stacks: frames above the operations.",
        show_default="module, else line",
    )


@dataclass(frozen=True)
class TableOptions:
    """Options of table exports."""

    table: list[str] | None = option(
        metavar="NAME", help="Tables: export only this table. Repeatable."
    )
    ids: bool = flag(help="Tables: write ids of strings and enums instead of their texts.")


@dataclass(frozen=True)
class CommonOptions:
    """Options that most commands have."""

    raw: bool = flag(
        help="mindstudio: write names as msprof does, without the apostrophe that keeps "
        "spreadsheets from running them as formulas."
    )
    convert: Convert = False
    force: Force = False
    quiet: Quiet = False
    json_: AsJson = False


@command("trace", replaced_by="export")
@command(
    "export",
    epilog="Exit codes: 0 success, also if something had to be left out; 2 usage error (the "
    "report lacks what the layout needs); 6 recording unreadable; 7 report missing or "
    "unreadable (stacks of the other reports of a directory are still written); 9 a "
    "file exists or cannot be written, and none is written.",
)
def export(
    path: str = argument(
        metavar="FILE|DIR",
        help="A report or a directory of reports, or the URL of a cluster run; mindstudio: an "
        "msprof database or a PROF_* directory.",
    ),
    output: Path = option(
        "-o",
        "--output",
        default=REQUIRED,
        metavar="FILE|DIR",
        help="File for timelines and stacks, directory for other layouts.",
    ),
    layout: str | None = option(
        choices=layouts.NAMES,
        metavar="NAME",
        help=_LAYOUT_HELP,
        show_default="by the extension of -o, or mindstudio",
    ),
    *,
    timeline: TimelineOptions,
    stacks: StackOptions,
    tables: TableOptions,
    usual: CommonOptions,
) -> None:
    """Export a report: timelines, flame graphs, pprof, Parquet, or the text files of msprof."""
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.pipeline.remote import fetch_part

    with fetch_part(path, SUMMARY_FILE_NAME) as local:
        _export(local, output, layout, timeline, stacks, tables, usual)


def _export(
    path: Path,
    output: Path,
    layout: str | None,
    timeline: TimelineOptions,
    stacks: StackOptions,
    tables: TableOptions,
    usual: CommonOptions,
) -> None:
    if layout is None:
        _refuse_report_formats(path, output)
    chosen = layouts.select_layout(output, layout)
    if usual.raw and chosen.makes != "deliverables":
        raise UsageError(
            "--raw applies to the files of msprof",
            hint="use --layout mindstudio",
            slug="option-without-effect",
        )
    if chosen.makes == "timeline":
        _timeline(path, output, timeline, usual)
        return
    if timeline != TimelineOptions():
        raise UsageError(
            "--ranks, --step and --critical-path apply to timelines",
            hint="use --layout perfetto or chrome",
            slug="option-without-effect",
        )
    if tables != TableOptions() and chosen.makes != "tables":
        raise UsageError(
            "--table and --ids apply to tables",
            hint="use --layout parquet or arrow",
            slug="contradicting-options",
        )
    if chosen.makes == "stacks":
        _stacks(path, output, chosen, stacks, usual)
        return
    if stacks != StackOptions():
        raise UsageError(
            "--measure and --by apply to stacks",
            hint="use --layout collapsed, speedscope or pprof",
            slug="option-without-effect",
        )
    if chosen.makes == "tables":
        _tables(path, output, chosen, tables, usual)
        return
    from unified_prof.pipeline import export as job

    quiet = usual.quiet
    # The conversion must keep rows that a report does not show.
    convert = usual.convert and not job.is_converted_first(path)
    ready = Reader(convert, quiet).reports(path, several=False)
    with printing.with_convert_hint(path), printing.progress(quiet) as progress:
        exported = job.export(
            ready.path, output, force=usual.force, raw=usual.raw, progress=progress
        )
    if usual.json_:
        printing.put_json(_record(output, chosen, exported))
    if not quiet:
        _print_written(output, exported)


def _refuse_report_formats(path: Path, output: Path) -> None:
    """Raise UsageError for an extension that `uprof report` writes, or that no command writes."""
    known = {suffix for names in FORMAT_SUFFIXES.values() for suffix in names} - {".json"}
    suffix = output.suffix.lower()
    if suffix not in known.union(_PICTURES) or output.is_dir():
        return
    hint = f"use `uprof report {path} -o {output}`"
    if suffix in _PICTURES:
        hint = f"write a flame graph: `uprof export {path} -o {output.stem}.speedscope.json`"
    raise UsageError(
        f"{output}: export does not write {output.suffix} files", hint=hint, slug="unknown-format"
    )


def _stacks(
    path: Path, output: Path, layout: layouts.Layout, stacks: StackOptions, usual: CommonOptions
) -> None:
    from unified_prof.explain.api import open_reports
    from unified_prof.pipeline.export import export_stacks
    from unified_prof.report import names
    from unified_prof.report.figures import coverage_fields

    ready = Reader(usual.convert, usual.quiet, output).reports(path)
    with printing.with_convert_hint(path), open_reports(ready.path, ready.missing) as opened:
        parts = export_stacks(
            opened,
            output,
            layout,
            measure=stacks.measure,
            by=stacks.by,
            force=usual.force,
        )
        coverage = opened.coverage
    if usual.json_:
        record = {"output": str(output), "layout": layout.name}
        profiles = [asdict(part) for part in parts]
        printing.put_json(record | {"profiles": profiles, "coverage": coverage_fields(coverage)})
    elif not usual.quiet:
        for part in parts:
            show = names.format_size if part.unit == "bytes" else names.format_duration
            printing.print_message(
                f"{output}: {part.measure}: {part.stacks:,} stacks, total {show(part.total)}"
            )
    if coverage.missing:
        printing.print_message(f"uprof: error: {coverage.sentence}")
        printing.end_if_missing(coverage.sentence, told=True)


def _tables(
    path: Path, output: Path, layout: layouts.Layout, tables: TableOptions, usual: CommonOptions
) -> None:
    from unified_prof.pipeline.export import export_tables

    quiet = usual.quiet
    ready = Reader(usual.convert, quiet).reports(path, several=False)
    with printing.with_convert_hint(path):
        exported = export_tables(
            ready.path,
            output,
            layout,
            only=tables.table or (),
            ids=tables.ids,
            force=usual.force,
        )
    if usual.json_:
        files = [{"name": one.name, "entries": one.entries} for one in exported.files]
        record = {"output": str(output), "layout": layout.name, "files": files}
        printing.put_json(record | {"left_out": [asdict(one) for one in exported.left_out]})
    if quiet:
        return
    printing.print_message(f"{output}: {len(exported.files)} files")
    for file in exported.files:
        printing.print_message(f"  {file.name}  rows: {file.entries:,}")
    for one in exported.left_out:
        printing.print_message(f"  null in {one.table}.{one.column}: {one.count:,}, {one.why}")


def _print_written(directory: Path, exported: Exported) -> None:
    printing.print_message(f"{directory}: {len(exported.files)} files")
    for file in exported.files:
        what = "rows" if file.name.endswith(".csv") else "events"
        printing.print_message(f"  {file.name}  {file.entries:,} {what}")
    for one in exported.left_out:
        printing.print_message(f"  left out of {one.deliverable}: {one.what} ({one.why})")
    for anomaly in exported.anomalies:
        detail = f" ({anomaly.detail})" if anomaly.detail else ""
        printing.print_message(f"  anomaly {anomaly.name}: {anomaly.count:,}{detail}")


def _record(directory: Path, layout: layouts.Layout, exported: Exported) -> dict[str, object]:
    return {
        "output": str(directory),
        "layout": layout.name,
        "files": [{"name": file.name, "entries": file.entries} for file in exported.files],
        "left_out": [asdict(one) for one in exported.left_out],
        "anomalies": {
            one.name: {"count": one.count, "detail": one.detail} for one in exported.anomalies
        },
    }


def _timeline(path: Path, output: Path, options: TimelineOptions, usual: CommonOptions) -> None:
    """Write a timeline and print what was written."""
    from unified_prof.report.figures import coverage_fields
    from unified_prof.sqlite.atomic import refuse_existing

    reader, missing = Reader(usual.convert, usual.quiet, output), ""
    refuse_existing(output, overwrite=usual.force)
    ranks, step, with_path = options.ranks, options.step, options.critical_path
    if ranks is not None or step is not None:
        if with_path:
            raise UsageError(
                "--critical-path cannot be combined with --ranks and --step",
                slug="contradicting-options",
            )
        numbers = None if ranks is None else _rank_numbers(ranks)
        written, record = write_ranks(path, output, numbers, step, reader, force=usual.force)
    else:
        written, coverage = write_reports(
            path, output, reader, with_path=with_path, force=usual.force
        )
        record = {"coverage": coverage_fields(coverage)}
        missing = coverage.sentence if coverage.missing else ""
    if usual.json_:
        printing.put_json({"output": str(output), **asdict(written), **record})
    elif not usual.quiet:
        printing.print_message(trace_summary(output, written))
    printing.end_if_missing(missing)


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# Maximum ranks per trace; viewers cannot draw more, and each rank is read in full.
_MAX_RANKS = 256


def _rank_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `0,8-11`.

    Raises:
        UsageError: Not a list of ranks, or too many ranks.
    """
    found: dict[int, None] = {}
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high:
            raise UsageError(
                f"--ranks {text!r}: expected numbers such as 0,8-11",
                hint="select ranks",
                slug="wrong-ranks",
            )
        if high - low >= _MAX_RANKS or len(found) + high - low >= _MAX_RANKS:
            raise UsageError(
                f"--ranks {text!r}: a trace can have at most {_MAX_RANKS} ranks",
                slug="wrong-ranks",
            )
        found |= dict.fromkeys(range(low, high + 1))
    return tuple(found)


def write_ranks(
    path: Path,
    output: Path,
    ranks: Sequence[int] | None,
    step: int | None,
    reader: Reader,
    *,
    force: bool,
) -> tuple[TraceContents, dict[str, Any]]:
    """Write the timelines of ranks, shifted to the common clock; return contents and JSON keys.

    Args:
        path: Cluster run.
        output: File to write.
        ranks: Numbers of the ranks; None selects the most informative ones of the step.
        step: The only step, or None for all.
        reader: How paths are read.
        force: Overwrite the file.

    Raises:
        StoreError: The run or a rank's recording is missing.
        UsageError: The run has no such rank or step, or a recording must be converted first.
        OutputError: The file cannot be written.
    """
    from unified_prof.cluster.step_lanes import (
        ShiftedTimeline,
        ranks_by_clock,
        ranks_of_interest,
        step_window,
    )
    from unified_prof.explain.api import open_reports
    from unified_prof.pipeline import export as job

    with ExitStack() as stack:
        overview = stack.enter_context(reader.ranks(path, needed=True))
        if overview is None:
            raise rank_runs.not_a_run_error(
                path, "leave out --ranks and --step, which apply to cluster runs"
            )
        numbers = ranks if ranks is not None else ranks_of_interest(overview)
        chosen = [overview.rank(number).rank for number in numbers]
        found: list[tuple[str, OverTime]] = []
        for rank in chosen:
            window = step_window(overview.run, rank, step)
            file = stack.enter_context(rank_runs.fetch_recording(overview, rank))
            ready = reader.reports(file, several=False)
            reports = stack.enter_context(open_reports(ready.path))
            label = f"rank {rank.rank}" + (f" ({rank.host})" if rank.host else "")
            found += [
                (f"{label}: ", ShiftedTimeline(one, overview.run.clock(rank), window))
                for one in reports.analyses
            ]
        together = ranks_by_clock(chosen)
        if not reader.quiet and (len(together) > 1 or None in together):
            printing.print_message(
                "uprof: warning: clocks cannot be aligned, no common event between ranks: "
                + "; ".join(", ".join(map(str, group)) for group in together.values())
            )
        written = job.write_timeline(output, found, None, force=force)
        # Ranks grouped by the clock that they share.
        islands = [*together.values()]
        return written, {"ranks": [one.rank for one in chosen], "clock_islands": islands}


def write_reports(
    path: Path, output: Path, reader: Reader, *, with_path: bool, force: bool
) -> tuple[TraceContents, Coverage]:
    """Write the timeline of a report, or of all reports in a directory, and return its content.

    Raises:
        StoreError: There is no report, or the only one is damaged.
        UsageError: No report has timestamps.
        OutputError: The file cannot be written.
    """
    from unified_prof.explain.api import open_reports
    from unified_prof.pipeline import export as job

    ready = reader.reports(path)
    with printing.with_convert_hint(path), open_reports(ready.path, ready.missing) as opened:
        named = job.timed_reports(opened, with_path=with_path)

        def lose(lost: OverTime, error: StoreError) -> None:
            (analysis,) = (one for one in opened.analyses if one.path == lost.path)
            opened.lose(analysis, error, part="the trace is incomplete")

        written = job.write_timeline(output, named, lose if len(named) > 1 else None, force=force)
        return written, opened.coverage


def trace_summary(output: Path, written: TraceContents) -> str:
    """Summarize the content of a trace."""
    return (
        f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
        f"{written.flows:,} flows, {written.counters:,} counters"
    )
