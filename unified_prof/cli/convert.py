"""Commands on recordings: `convert` writes databases, `check` compares, `anonymize` copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    REQUIRED,
    SCHEMA_HELP,
    AsJson,
    Force,
    Quiet,
    argument,
    command,
    option,
)
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
    from unified_prof.base.process_tuning import keep_memory
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
            if outcome.error is not None:
                printing.put_error(outcome.error)
            for line in () if quiet else outcome.lines():
                printing.print_message(line)
    outcomes.sort(key=lambda outcome: outcome.number)
    if len(outcomes) > 1 and not quiet:
        printing.print_message(_combined_record(outcomes))
    if json_:
        errors = [{} if one.error is None else printing.error_record(one.error) for one in outcomes]
        printing.put_json(
            [one.fields() | error for one, error in zip(outcomes, errors, strict=True)]
        )
    if code := worst_exit_code(outcomes):
        raise click.exceptions.Exit(code)


def _combined_record(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes of several recordings as one document."""
    counts = {
        "converted": sum(one.conversion is not None for one in outcomes),
        "already converted": sum(one.existing is not None for one in outcomes),
        "refused": sum(one.error is not None for one in outcomes),
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{len(outcomes):,} recordings: {', '.join(parts)}"


_CHECK_EPILOG = (
    "Exit codes: 0 nothing was skipped and all tables agree; 1 data was skipped or lost, or tables "
    "differ; 6 recording unreadable; 7 database unreadable; 8 its revision is unknown."
)
_ANONYMIZE_EPILOG = (
    "Exit codes: 0 success; 2 usage error; 6 recording unreadable or of an unknown format; "
    "9 OUT exists or cannot be written."
)
# Files that are left out and listed on the terminal; --json has all.
_MAX_SHOWN = 5


@command("check", no_args_is_help=True, epilog=_CHECK_EPILOG)
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
        printing.put_json(result.fields(against))
    elif not quiet:
        printing.put("\n".join(result.lines()) + "\n")
    if not result.passes:
        raise click.exceptions.Exit(1)


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
