"""Commands on recordings: `convert` writes databases, `check` compares, `anonymize` copies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Printer
from unified_prof.pipeline.sources import SOURCES

_INPUT_HELP = "; ".join(source.description for source in SOURCES)
_EPILOG = (
    "Exit codes: 0 all converted; 1 a converting process was killed; 2 "
    "usage error; 6 recording unreadable (the others are converted); 9 a database exists "
    "or cannot be written. Recordings that were converted before are skipped."
)


@cli.command("build", no_args_is_help=True, epilog=_EPILOG, replaced_by="convert")
@cli.command("import", no_args_is_help=True, epilog=_EPILOG, replaced_by="convert")
@cli.command("convert", no_args_is_help=True, epilog=_EPILOG)
def convert(
    recordings: list[Path] = cli.argument(
        "Recordings, directories of them at any depth, patterns, or - for standard input "
        f"(compressed or not). Formats: {_INPUT_HELP}.",
        "RECORDING...",
    ),
    output: Path | None = cli.option(
        "Database file if OUT ends in .db (one recording), else a directory. [default: "
        "PROF_*/msprof_TIME.db; for others TRACE.db in the current directory]",
        "-o --output OUT",
    ),
    schema: str | None = cli.option(
        f"{cli.SCHEMA_HELP} [default: documented; latest with --layout ascend-pt]", "REVISION"
    ),
    layout: str = cli.option(
        "ascend-pt: the directories that MindStudio Insight and msprof-analyze expect. Not for "
        "PROF_* directories and memory snapshots.",
        default="plain",
        choices=("plain", "ascend-pt"),
    ),
    jobs: int = cli.option("Number of recordings to convert in parallel.", default=1, min=1),
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Convert recordings of other profilers to databases, without torch, CANN or a device."""
    from unified_prof.base.process_tuning import keep_memory
    from unified_prof.pipeline.convert import convert_all, worst_exit_code

    keep_memory()
    with printer.progress() as progress:
        outcomes = printer.outcomes(
            convert_all(
                recordings,
                output,
                schema=schema,
                layout=layout,
                force=force,
                jobs=jobs,
                progress=progress,
                note=lambda sentence: printing.print_message(f"uprof: note: {sentence}"),
            )
        )
    outcomes.sort(key=lambda outcome: outcome.number)
    if len(outcomes) > 1:
        counts = {
            "converted": sum(one.conversion is not None for one in outcomes),
            "already converted": sum(one.existing is not None for one in outcomes),
            "refused": sum(one.error is not None for one in outcomes),
        }
        parts = [f"{count:,} {what}" for what, count in counts.items() if count]
        printer.lines(f"{len(outcomes):,} recordings: {', '.join(parts)}")
    printer.json(lambda: printing.outcome_fields(outcomes))
    if code := worst_exit_code(outcomes):
        raise click.exceptions.Exit(code)


_CHECK_EPILOG = (
    "Exit codes: 0 nothing was skipped and all tables agree; 1 data was skipped or lost, or tables "
    "differ; 6 recording unreadable; 7 database unreadable; 8 its revision is unknown."
)
_ANONYMIZE_EPILOG = (
    "Exit codes: 0 success; 2 usage error; 6 recording unreadable or of an unknown format; "
    "9 OUT exists or cannot be written."
)
_MAX_SHOWN = 5  # Files that are left out and listed on the terminal; --json has all.


@cli.command("check", no_args_is_help=True, epilog=_CHECK_EPILOG)
def check(
    recording: Path = cli.argument("A recording, as for convert.", "RECORDING"),
    against: Path | None = cli.option(
        "Database that another exporter wrote for the recording.", "DB"
    ),
    *,
    printer: Printer,
) -> None:
    """Check that a recording is decoded completely, or compare another exporter's database."""
    from unified_prof.pipeline.recording_check import check_recording

    with printer.progress() as progress:
        result = check_recording(recording, against, progress)
    printer.show(lambda: result.fields(against), result.lines())
    if not result.passes:
        raise click.exceptions.Exit(1)


@cli.command("anonymize", no_args_is_help=True, epilog=_ANONYMIZE_EPILOG)
def anonymize(
    recording: Path = cli.argument(
        "A recording as for convert, a report, Flight Recorder dumps, or a directory.", "RECORDING"
    ),
    output: Path = cli.option(
        "File or directory to write. Files whose names end in .gz, .xz or .bz2 are compressed.",
        "-o --output OUT",
        default=cli.REQUIRED,
    ),
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Replace names, paths and texts of a recording, so that you can share it."""
    from unified_prof.pipeline.anonymize import anonymize as write

    with printer.progress() as progress:
        result = write(recording, output, progress, force=force)
    files = "file" if result.files == 1 else "files"
    printer.show(
        lambda: {**asdict(result), "recording": str(recording), "output": str(output)},
        [f"{output}: {result.files:,} {files}, {result.names:,} names replaced"],
    )
    left_out = list(result.left_out.items())
    notes = [f"{path} is left out: {why}" for path, why in left_out[:_MAX_SHOWN]]
    if more := left_out[_MAX_SHOWN:]:
        notes.append(f"{len(more):,} other files are left out (--json lists them)")
    notes += [f"{part} is copied, text in it is not searched" for part in result.unsearched]
    for note in notes:
        printing.print_message(f"uprof: note: {note}")
