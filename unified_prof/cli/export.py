"""Command `uprof export`: write a report as files for other tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unified_prof.cli import output as printing
from unified_prof.cli import trace
from unified_prof.cli.command import REQUIRED, AsJson, Force, Group, Quiet, argument, flag, option
from unified_prof.cli.report_input import Convert, Reader
from unified_prof.cli.trace import TimelineOptions
from unified_prof.errors import StoreError, UsageError
from unified_prof.export import files as layouts
from unified_prof.recording.breakdown_kinds import MEASURES, Place
from unified_prof.report.formats import FORMAT_SUFFIXES

if TYPE_CHECKING:
    from unified_prof.export.mindstudio.writer import Exported

_MEASURE_HELP = f"Stacks: weight of the frames: {', '.join(MEASURES)}."
_LAYOUT_HELP = "; ".join(f"{one.name}: {one.what}" for one in layouts.LAYOUTS) + "."


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


def register(app: Group) -> None:
    """Register the command and its former name for timelines."""
    app.command("trace", replaced_by="export")(export)
    app.command(
        "export",
        epilog="Exit codes: 0 success, also if something had to be left out; 2 usage error (the "
        "report lacks what the layout needs); 6 recording unreadable; 7 report missing or "
        "unreadable (stacks of the other reports of a directory are still written); 9 a "
        "file exists or cannot be written, and none is written.",
    )(export)


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
        reader = Reader(usual.convert, usual.quiet, output)
        trace.write_timeline(path, output, timeline, reader, force=usual.force, as_json=usual.json_)
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
    """Raise UsageError for an extension that `uprof report` writes."""
    known = {suffix for names in FORMAT_SUFFIXES.values() for suffix in names} - {".json"}
    if output.suffix.lower() in known and not output.is_dir():
        raise UsageError(
            f"{output}: export does not write {output.suffix} files",
            hint=f"use `uprof report {path} -o {output}`",
            slug="unknown-format",
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
        raise click.exceptions.Exit(StoreError.exit_code)


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
