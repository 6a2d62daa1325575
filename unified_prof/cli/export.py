"""`uprof export`: the files that scripts written for the vendor's text export read."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import converting, hints, printing
from unified_prof.cli.converting import Convert
from unified_prof.cli.options import AsJson, Force, Quiet

if TYPE_CHECKING:
    from unified_prof.export.mindstudio.writing import Exported


class Layout(str, Enum):
    """Whose files are written."""

    MINDSTUDIO = "mindstudio"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "export",
        epilog="Exit code: 0 fine, also where something had to be left out; 2 wrong use (a report "
        "without tasks or calls); 6 the recording is unreadable; 7 no report, or one that cannot "
        "be read; 9 a file exists or cannot be written: then none is.",
    )(export)


def export(
    path: Annotated[
        Path,
        typer.Argument(metavar="DB|PROF", help="An msprof database, or a PROF_* directory."),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the files."),
    ],
    layout: Annotated[
        Layout,
        typer.Option(help="mindstudio: the CSV and JSON files of `msprof --type=text`."),
    ] = Layout.MINDSTUDIO,
    convert: Convert = False,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Write a timeline as op_summary, task_time, msprof_*.json and their like."""
    from unified_prof.pipeline import export as job

    enabled = sys.stderr.isatty() and not quiet
    # What is built on the way holds more than a report has room for.
    convert = convert and not job.is_built_on_the_way(path)
    ready = converting.reports_of(path, convert=convert, quiet=quiet, several=False)
    with hints.for_reports(path), printing.progress_line(enabled=enabled) as progress:
        exported = job.export(ready.path, output, force=force, progress=progress)
    if json_:
        printing.put_json(_record(output, layout, exported))
    if not quiet:
        _tell(output, exported)


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


def _record(directory: Path, layout: Layout, exported: Exported) -> dict[str, object]:
    return {
        "output": str(directory),
        "layout": layout.value,
        "files": [{"name": file.name, "entries": file.entries} for file in exported.files],
        "left_out": [
            {"deliverable": one.deliverable, "what": one.what, "why": one.why}
            for one in exported.left_out
        ],
        "anomalies": {
            one.name: {"count": one.count, "detail": one.detail} for one in exported.anomalies
        },
    }
