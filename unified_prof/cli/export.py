"""Command `uprof export`: write a report as files for other tools, and timelines for viewers."""

from __future__ import annotations

import re
from pathlib import Path

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Printer
from unified_prof.export import files as layouts
from unified_prof.recording.model import MEASURES, Place
from unified_prof.report.formats import FORMAT_SUFFIXES

_PICTURES = (".svg", ".png", ".pdf")  # Otherwise a directory of this name would be written.
_LAYOUT_HELP = "; ".join(f"{one.name}: {one.what}" for one in layouts.LAYOUTS) + "."
# Kind of layout -> options that apply to it only, and its layouts.
_APPLY = {
    "timeline": ("--ranks, --step and --critical-path apply to timelines", "perfetto or chrome"),
    "stacks": ("--measure and --by apply to stacks", "collapsed, speedscope or pprof"),
    "tables": ("--table and --ids apply to tables", "parquet or arrow"),
    "deliverables": ("--raw applies to the files of msprof", "mindstudio"),
}


@cli.command("trace", replaced_by="export")
@cli.command(
    "export",
    epilog="Exit codes: 0 success, even if parts were left out; 2 usage error (the "
    "report lacks what the layout needs); 6 recording unreadable; 7 report missing or "
    "unreadable (stacks of the other reports of a directory are still written); 9 a "
    "file exists or cannot be written (then none is).",
)
def export(
    path: str = cli.argument(
        "A report or a directory of reports, or the URL of a cluster run; mindstudio: an msprof "
        "database or a PROF_* directory.",
        "FILE|DIR",
    ),
    output: Path = cli.option(
        "File for timelines and stacks, directory for other layouts.",
        "-o --output FILE|DIR",
        default=cli.REQUIRED,
    ),
    layout: str | None = cli.option(
        f"{_LAYOUT_HELP} [default: by the extension of -o, or mindstudio]",
        "NAME",
        choices=layouts.NAMES,
    ),
    *,
    ranks: str | None = cli.option(
        "Timelines of a cluster run: these ranks on one clock, for example 0,8-11.", "LIST"
    ),
    step: int | None = cli.option("Timelines of a cluster run: only this step.", "N"),
    critical_path: bool = cli.flag(
        "Timelines: add a track of the critical path.", "--critical-path --path"
    ),
    measure: str | None = cli.option(
        f"Stacks: weight of the frames: {', '.join(MEASURES)}. [default: all; collapsed: the first "
        "available]",
        "NAME",
        choices=MEASURES,
    ),
    by: Place | None = cli.option(
        "Stacks: parent frames of the operations. [default: module, else line]"
    ),
    table: list[str] | None = cli.option("Tables: export only this table. Repeatable.", "NAME"),
    ids: bool = cli.flag("Tables: write ids of strings and enums instead of their texts."),
    raw: bool = cli.flag(
        "mindstudio: write names as msprof does, without the apostrophe that keeps spreadsheets "
        "from running them as formulas."
    ),
    convert: cli.Convert = False,
    force: cli.Force = False,
    printer: Printer,
) -> None:
    """Export a report: timelines, flame graphs, pprof, Parquet, or the text files of msprof."""
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.pipeline.export import Selection, export_report
    from unified_prof.pipeline.outputs import parse_ranks
    from unified_prof.pipeline.remote import fetch_part
    from unified_prof.pipeline.report_input import Reader

    if layout is None:
        _refuse_report_formats(path, output)
    chosen = layouts.select_layout(output, layout)
    for makes, (why, fitting) in _APPLY.items():
        names = [name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", why)]
        cli.refuse(
            makes != chosen.makes and any(map(printing.is_typed, names)),
            why,
            hint=f"use --layout {fitting}",
            slug="option-without-effect",
        )
    selected = Selection(
        ranks=None if ranks is None else parse_ranks(ranks),
        step=step,
        with_path=critical_path,
        measure=measure,
        by=by,
        tables=table or (),
        ids=ids,
        raw=raw,
    )
    with fetch_part(path, SUMMARY_FILE_NAME) as local:
        reader = Reader(printer, convert, output)
        result = export_report(local, output, chosen, reader, selected, force=force)
    for warning in result.warnings:
        printer.warning(warning)
    printer.json(lambda: result.fields)
    printer.lines(*result.lines)
    printing.end_if_missing(result.missing)


def _refuse_report_formats(path: str, output: Path) -> None:
    """Raise UsageError for an extension that `uprof report` writes, or that no command writes."""
    known = {suffix for names in FORMAT_SUFFIXES.values() for suffix in names} - {".json"}
    suffix = output.suffix.lower()
    hint = f"use `uprof report {path} -o {output}`"
    if suffix in _PICTURES:
        hint = f"write a flame graph: `uprof export {path} -o {output.stem}.speedscope.json`"
    cli.refuse(
        suffix in known.union(_PICTURES) and not output.is_dir(),
        f"{output}: export does not write {output.suffix} files",
        hint=hint,
        slug="unknown-format",
    )
