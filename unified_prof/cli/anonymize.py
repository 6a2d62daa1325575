"""Command `uprof anonymize`: copy a recording without names of its owner."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from unified_prof.cli import output as printing
from unified_prof.cli.command import REQUIRED, AsJson, Force, Group, Quiet, argument, option

_EPILOG = (
    "Exit codes: 0 success; 2 usage error; 6 recording unreadable or of an unknown format; "
    "9 OUT exists or cannot be written."
)
# Files that are left out and listed on the terminal; --json has all.
_MAX_SHOWN = 5


def register(app: Group) -> None:
    """Register the command."""
    app.command("anonymize", no_args_is_help=True, epilog=_EPILOG)(anonymize)


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
