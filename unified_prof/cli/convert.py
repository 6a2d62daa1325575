"""Command `uprof convert`: write databases from recordings, identified by file contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.base.coverage import coverage_text
from unified_prof.cli import output as printing
from unified_prof.cli.command import SCHEMA_HELP, AsJson, Force, Quiet, argument, command, option
from unified_prof.pipeline.sources import SOURCES

if TYPE_CHECKING:
    from unified_prof.pipeline.convert import Outcome


_INPUT_HELP = "; ".join(source.description for source in SOURCES)
_EPILOG = (
    "Exit codes: 0 all converted; 1 a converting process was killed; 2 "
    "usage error; 6 recording unreadable (the others are converted); 9 a database exists "
    "or cannot be written. Recordings that were converted before are skipped."
)


@command("build", no_args_is_help=True, epilog=_EPILOG, replaced_by="convert")
@command("import", no_args_is_help=True, epilog=_EPILOG, replaced_by="convert")
@command("convert", no_args_is_help=True, epilog=_EPILOG)
def convert(
    recordings: list[Path] = argument(
        metavar="RECORDING...",
        help="Recordings, directories of them at any depth, patterns, or - for standard "
        f"input (compressed or not). Formats: {_INPUT_HELP}.",
    ),
    output: Path | None = option(
        "-o",
        "--output",
        metavar="OUT",
        help="Database file if OUT ends in .db (one recording), else a directory.",
        show_default="PROF_*/msprof_TIME.db; for others TRACE.db in the current directory",
    ),
    schema: str | None = option(
        metavar="REVISION",
        help=SCHEMA_HELP,
        show_default="documented; latest with --layout ascend-pt",
    ),
    layout: str = option(
        default="plain",
        choices=("plain", "ascend-pt"),
        help="ascend-pt: the directories that MindStudio Insight and msprof-analyze "
        "expect. Not for PROF_* directories and memory snapshots.",
    ),
    jobs: int = option(default=1, min=1, help="Number of recordings to convert in parallel."),
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Convert recordings of other profilers to databases, without torch, CANN or a device."""
    from unified_prof.cli.process_tuning import keep_memory
    from unified_prof.pipeline.convert import convert_all, worst_exit_code

    keep_memory()
    outcomes: list[Outcome] = []
    with printing.progress(quiet) as progress:
        for outcome in convert_all(
            recordings,
            output,
            schema=schema,
            layout=layout,
            force=force,
            jobs=jobs,
            progress=progress,
            note=lambda sentence: printing.print_message(f"uprof: note: {sentence}"),
        ):
            outcomes.append(outcome)
            _print_written(outcome, quiet=quiet)
    outcomes.sort(key=lambda outcome: outcome.number)
    if len(outcomes) > 1 and not quiet:
        printing.print_message(_combined_record(outcomes))
    if json_:
        printing.put_json([_record(outcome) for outcome in outcomes])
    if code := worst_exit_code(outcomes):
        raise click.exceptions.Exit(code)


def _print_written(outcome: Outcome, *, quiet: bool) -> None:
    if outcome.error is not None:
        printing.put_error(outcome.error)
    elif quiet:
        return
    elif outcome.existing is not None:
        printing.print_message(
            f"{_display_name(outcome.recording)} -> {outcome.existing}: already converted"
        )
    elif outcome.conversion is not None:
        for line in _summary(outcome):
            printing.print_message(line)


def _combined_record(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes of several recordings as one document."""
    counts = {
        "converted": sum(one.conversion is not None for one in outcomes),
        "already converted": sum(one.existing is not None for one in outcomes),
        "refused": sum(one.error is not None for one in outcomes),
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{len(outcomes):,} recordings: {', '.join(parts)}"


def _summary(outcome: Outcome) -> Iterator[str]:
    conversion, source = outcome.conversion, outcome.source
    assert conversion is not None
    assert source is not None
    yield f"{_display_name(conversion.recording)} -> {conversion.database}"
    if conversion.result.summary is not None:
        yield f"  {source.title.partition(' ')[2]}: {conversion.result.summary}"
    else:
        yield f"  {source.title.partition(' ')[2]}"
        width = max((len(name) for name in conversion.rows), default=0)
        for table, rows in sorted(conversion.rows.items()):
            yield f"  {table:{width}}  {rows:>12,} rows"
    if conversion.coverage:
        yield f"  decoded {coverage_text(conversion.coverage)}"
    yield from printing.anomaly_lines(conversion.anomalies)
    total = sum(conversion.seconds.values())
    slowest = sorted(conversion.seconds.items(), key=lambda stage: -stage[1])
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest if seconds >= 0.005)
    yield f"  CPU time {total:.2f} s" + (f": {parts}" if parts else "")


def _display_name(recording: Path) -> str:
    from unified_prof.pipeline.temporary_inputs import STANDARD_INPUT

    return "standard input" if recording == STANDARD_INPUT else str(recording)


def _record(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a recording as plain data; its keys depend on the format."""
    source = outcome.source
    recording, database = ("recording", "database") if source is None else source.json_keys
    record: dict[str, Any] = {recording: str(outcome.recording)}
    if source is not None:
        record["kind"] = source.kind
    if outcome.error is not None:
        return record | printing.error_record(outcome.error)
    if outcome.existing is not None:
        return record | {database: str(outcome.existing), "converted_already": True}
    assert outcome.conversion is not None
    conversion = outcome.conversion
    return record | {
        database: str(conversion.database),
        **conversion.result.figures,
        "rows": dict(sorted(conversion.rows.items())),
        "anomalies": printing.anomaly_fields(conversion.anomalies),
        "coverage": [part._asdict() for part in conversion.coverage],
        "cpu_seconds": {name: round(seconds, 4) for name, seconds in conversion.seconds.items()},
    }
