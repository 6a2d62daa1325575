"""Commands on recordings: `uprof check` compares what is decoded, `uprof anonymize` copies one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.base.coverage import coverage_text
from unified_prof.cli import output as printing
from unified_prof.cli.command import REQUIRED, AsJson, Force, Quiet, argument, command, option

if TYPE_CHECKING:
    from unified_prof.pipeline.recording_check import RecordingCheck, TableCheck

_EPILOG = (
    "Exit codes: 0 nothing was skipped and all tables agree; 1 data was skipped or tables differ; "
    "6 recording unreadable; 7 database unreadable; 8 its revision is unknown."
)


_ANONYMIZE_EPILOG = (
    "Exit codes: 0 success; 2 usage error; 6 recording unreadable or of an unknown format; "
    "9 OUT exists or cannot be written."
)
# Files that are left out and listed on the terminal; --json has all.
_MAX_SHOWN = 5


@command("check", no_args_is_help=True, epilog=_EPILOG)
def check(
    recording: Path = argument(metavar="RECORDING", help="A recording, as for convert."),
    against: Path | None = option(
        metavar="DB", help="Database that another exporter wrote for the recording."
    ),
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Check that a recording is decoded completely, or compare a database with it by table."""
    from unified_prof.pipeline.recording_check import check_recording

    with printing.progress(quiet) as progress:
        result = check_recording(recording, against, progress)
    if json_:
        printing.put_json(_record(result, against))
    elif not quiet:
        printing.put("\n".join(_lines(result)) + "\n")
    if not result.passes:
        raise click.exceptions.Exit(1)


def _lines(result: RecordingCheck) -> Iterator[str]:
    conversion = result.conversion
    yield f"{conversion.recording}: decoded {coverage_text(conversion.coverage)}"
    yield from printing.anomaly_lines(conversion.anomalies)
    for finding in result.findings:
        yield f"  problem {finding.kind}: {finding.message} ({finding.count:,} rows)"
    for table in result.tables:
        yield from _table_lines(table)
    if result.tables:
        differ = sum(not one.agrees for one in result.tables)
        yield f"{len(result.tables):,} tables: {differ:,} differ"


def _table_lines(one: TableCheck) -> Iterator[str]:
    if one.agrees:
        yield f"  equal   {one.table}: {one.rows['recording']:,} rows"
        return
    sides = ", ".join(f"{count:,} only in the {side}" for side, count in one.only.items())
    columns = f"; different columns: {', '.join(one.columns)}" if one.columns else ""
    yield f"  differs {one.table}: {sides}{columns}"
    judged = f"supports the {one.supports}" if one.supports else "does not decide"
    yield f"          raw data {judged}: {'; '.join(one.reasons) or 'no rule applies'}"
    for side, rows in one.examples.items():
        for row in rows[:1]:
            yield f"          in the {side}: {row}"


def _record(result: RecordingCheck, database: Path | None) -> dict[str, Any]:
    conversion = result.conversion
    return {
        "recording": str(conversion.recording),
        "kind": conversion.kind,
        "database": None if database is None else str(database),
        "passes": result.passes,
        "coverage": [part._asdict() for part in conversion.coverage],
        "anomalies": printing.anomaly_fields(conversion.anomalies),
        "problems": [asdict(one) for one in result.findings],
        "tables": [{**asdict(one), "agrees": one.agrees} for one in result.tables],
    }


@command("anonymize", no_args_is_help=True, epilog=_ANONYMIZE_EPILOG)
def anonymize(
    recording: Path = argument(
        metavar="RECORDING",
        help="A recording as for convert, a report, Flight Recorder dumps, or a directory.",
    ),
    output: Path = option(
        "-o",
        "--output",
        default=REQUIRED,
        metavar="OUT",
        help="File or directory to write. Files whose names end in .gz, .xz or .bz2 are "
        "compressed.",
    ),
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Replace names, paths and texts of a recording, so that you can share it."""
    from unified_prof.pipeline.anonymize import anonymize as write

    with printing.progress(quiet) as progress:
        result = write(recording, output, progress, force=force)
    if json_:
        paths = {"recording": str(recording), "output": str(output)}
        printing.put_json({**asdict(result), **paths})
    elif not quiet:
        files = "file" if result.files == 1 else "files"
        printing.put(f"{output}: {result.files:,} {files}, {result.names:,} names replaced\n")
    left_out = list(result.left_out.items())
    notes = [f"{path} is left out: {why}" for path, why in left_out[:_MAX_SHOWN]]
    if more := left_out[_MAX_SHOWN:]:
        notes.append(f"{len(more):,} other files are left out (--json lists them)")
    notes += [f"{part} is copied, text in it is not searched" for part in result.unsearched]
    for note in notes:
        printing.print_message(f"uprof: note: {note}")
