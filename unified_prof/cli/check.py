"""Command `uprof check`: check a recording, or another exporter's database against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.base.coverage import coverage_text
from unified_prof.cli import output
from unified_prof.cli.command import AsJson, Group, Quiet, argument, option

if TYPE_CHECKING:
    from unified_prof.pipeline.recording_check import RecordingCheck, TableCheck

_EPILOG = (
    "Exit codes: 0 nothing was skipped and all tables agree; 1 data was skipped or tables differ; "
    "6 recording unreadable; 7 database unreadable; 8 its revision is unknown."
)


def register(app: Group) -> None:
    """Register the command."""
    app.command("check", no_args_is_help=True, epilog=_EPILOG)(check)


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

    with output.progress(quiet) as progress:
        result = check_recording(recording, against, progress)
    if json_:
        output.put_json(_record(result, against))
    elif not quiet:
        output.put("\n".join(_lines(result)) + "\n")
    if not result.passes:
        raise click.exceptions.Exit(1)


def _lines(result: RecordingCheck) -> Iterator[str]:
    conversion = result.conversion
    yield f"{conversion.recording}: decoded {coverage_text(conversion.coverage)}"
    for name, (count, detail) in sorted(conversion.anomalies.items()):
        yield f"  anomaly {name}: {count:,}" + (f" ({detail})" if detail else "")
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
        "anomalies": {
            name: {"count": count, "detail": detail}
            for name, (count, detail) in sorted(conversion.anomalies.items())
        },
        "problems": [asdict(one) for one in result.findings],
        "tables": [{**asdict(one), "agrees": one.agrees} for one in result.tables],
    }
