"""`uprof export`: a report as files that other tools read."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import convert as converting
from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli.command import AsJson, Force, Quiet, with_groups
from unified_prof.cli.convert import Convert
from unified_prof.errors import StoreError, UsageError
from unified_prof.export import files as layouts
from unified_prof.recording.breakdown_kinds import MEASURES, PLACES

if TYPE_CHECKING:
    from unified_prof.export.mindstudio.writer import Exported

    LayoutOption = Enum
    MeasureOption = Enum
    PlaceOption = Enum
else:
    LayoutOption = Enum("LayoutOption", {name: name for name in layouts.NAMES}, type=str)
    MeasureOption = Enum("MeasureOption", {name: name for name in MEASURES}, type=str)
    PlaceOption = Enum("PlaceOption", {name: name for name in PLACES}, type=str)


@dataclass(frozen=True)
class OfStacks:
    """What of stacks is written."""

    measure: Annotated[
        MeasureOption | None,
        typer.Option(
            metavar="NAME",
            help=f"Of stacks, what to weigh them by: {', '.join(MEASURES)}.",
            show_default="all; collapsed: the first that there is",
        ),
    ] = None
    by: Annotated[
        PlaceOption | None,
        typer.Option(
            help="Of stacks, what stands above operations.", show_default="module, else line"
        ),
    ] = None


@dataclass(frozen=True)
class OfTables:
    """What of tables is written."""

    table: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of tables, this one; may be given several times."),
    ] = None
    ids: Annotated[
        bool,
        typer.Option("--ids", help="Of tables: ids of texts and enums as they are, not as texts."),
    ] = False


@dataclass(frozen=True)
class Usual:
    """What most commands are told."""

    convert: Convert = False
    force: Force = False
    quiet: Quiet = False
    json_: AsJson = False


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "export",
        epilog="Exit code: 0 fine, also where something had to be left out; 2 wrong use (a report "
        "without what the layout is made of); 6 the recording is unreadable; 7 no report, or one "
        "that cannot be read (of a folder, stacks of all others are written nevertheless); 9 a "
        "file exists or cannot be written: then none is.",
    )(with_groups(export))


def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="A report, or a folder of them; mindstudio: an msprof database, or a PROF_* "
            "directory.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE|DIR", help="File of stacks, or folder for the files."
        ),
    ],
    layout: Annotated[
        LayoutOption | None,
        typer.Option(
            metavar="NAME",
            help="; ".join(f"{one.name}: {one.what}" for one in layouts.LAYOUTS) + ".",
            show_default="by -o's ending, or mindstudio",
        ),
    ] = None,
    *,
    stacks: OfStacks,
    tables: OfTables,
    usual: Usual,
) -> None:
    """Write a report for other tools: flame graphs, pprof, Parquet, msprof's text files."""
    chosen = layouts.chosen(output, layout and layout.value)
    if tables != OfTables() and chosen.makes != "tables":
        raise UsageError(
            "--table and --ids are of tables",
            hint="with --layout parquet or arrow",
            slug="contradicting-options",
        )
    if chosen.makes == "stacks":
        _stacks(path, output, chosen, stacks, usual)
        return
    if stacks != OfStacks():
        raise UsageError(
            "--measure and --by are of stacks",
            hint="with --layout collapsed, speedscope or pprof",
            slug="option-without-effect",
        )
    if chosen.makes == "tables":
        _tables(path, output, chosen, tables, usual)
        return
    from unified_prof.pipeline import export as job

    quiet = usual.quiet
    enabled = sys.stderr.isatty() and not quiet
    # What is built on the way holds more than a report has room for.
    convert = usual.convert and not job.is_built_on_the_way(path)
    ready = converting.reports_of(path, convert=convert, quiet=quiet, several=False)
    with hints.for_reports(path), printing.progress_line(enabled=enabled) as progress:
        exported = job.export(ready.path, output, force=usual.force, progress=progress)
    if usual.json_:
        printing.put_json(_record(output, chosen, exported))
    if not quiet:
        _tell(output, exported)


def _stacks(
    path: Path, output: Path, layout: layouts.Layout, stacks: OfStacks, usual: Usual
) -> None:
    from unified_prof.explain.api import open_reports
    from unified_prof.pipeline.export import export_stacks
    from unified_prof.report import names
    from unified_prof.report.figures import coverage_fields

    ready = converting.reports_of(path, convert=usual.convert, quiet=usual.quiet, output=output)
    with hints.for_reports(path), open_reports(ready.path, ready.missing) as opened:
        parts = export_stacks(
            opened,
            output,
            layout,
            measure=stacks.measure and stacks.measure.value,
            by=stacks.by and stacks.by.value,
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
            printing.say(
                f"{output}: {part.measure}: {part.stacks:,} stacks, {show(part.total)} in all"
            )
    if coverage.missing:
        printing.say(f"uprof: error: {coverage.sentence}")
        raise typer.Exit(StoreError.exit_code)


def _tables(
    path: Path, output: Path, layout: layouts.Layout, tables: OfTables, usual: Usual
) -> None:
    from unified_prof.pipeline.export import export_tables

    quiet = usual.quiet
    ready = converting.reports_of(path, convert=usual.convert, quiet=quiet, several=False)
    with hints.for_reports(path):
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
    printing.say(f"{output}: {len(exported.files)} files")
    for file in exported.files:
        printing.say(f"  {file.name}  {file.entries:,} rows")
    for one in exported.left_out:
        printing.say(f"  null in {one.table}.{one.column}: {one.count:,}, {one.why}")


def _tell(directory: Path, exported: Exported) -> None:
    printing.say(f"{directory}: {len(exported.files)} files")
    for file in exported.files:
        what = "rows" if file.name.endswith(".csv") else "events"
        printing.say(f"  {file.name}  {file.entries:,} {what}")
    for one in exported.left_out:
        printing.say(f"  left out of {one.deliverable}: {one.what}: {one.why}")
    for anomaly in exported.anomalies:
        detail = f" ({anomaly.detail})" if anomaly.detail else ""
        printing.say(f"  anomaly {anomaly.name}: {anomaly.count:,}{detail}")


def _record(directory: Path, layout: layouts.Layout, exported: Exported) -> dict[str, object]:
    return {
        "output": str(directory),
        "layout": layout.name,
        "files": [{"name": file.name, "entries": file.entries} for file in exported.files],
        "left_out": [
            {"deliverable": one.deliverable, "what": one.what, "why": one.why}
            for one in exported.left_out
        ],
        "anomalies": {
            one.name: {"count": one.count, "detail": one.detail} for one in exported.anomalies
        },
    }
