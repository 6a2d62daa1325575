"""Command group `uprof db`: info, check, upgrade, create, recover."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import click

from unified_prof.base.text import printable
from unified_prof.cli.command import (
    COMMANDS,
    AsJson,
    Force,
    Group,
    Quiet,
    Schema,
    argument,
    command,
    flag,
    option,
)
from unified_prof.cli.output import error_record, print_message, put, put_error, put_json
from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.migrate.check import Check
    from unified_prof.migrate.upgrade import Upgrade
    from unified_prof.pipeline.recover import Recovery
    from unified_prof.sqlite.detect import Detection

Files = Annotated[list[Path], argument(metavar="FILE...", help="Report files.")]
Family = Annotated[
    str, option("--family", help="msprof, skyline-run-time, skyline-memory or cluster.")
]


class _Result(Protocol):
    """Result of one file."""

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""

    def lines(self) -> Iterable[str]:
        """Return the result as lines of text."""


Result = TypeVar("Result", bound=_Result)
File = TypeVar("File", Path, str)

_RECOVER_EPILOG = (
    "Exit codes: 0 reports were recovered; 1 nothing to recover, or only processes that still run; "
    "2 usage error; 6 a file is damaged (the others are recovered); 9 a report cannot be written."
)
# Exit code if there was nothing to recover.
NOTHING_RECOVERED = 1

db = Group(name="db", help="Inspect, check, upgrade, create and recover report files.")
COMMANDS.add_command(db)


@db.command()
@db.command("current", replaced_by="db info")
def info(
    files: list[Path] | None = argument(default=None, metavar="[FILE]...", help="Report files."),
    family: Family = "msprof",
    as_json: AsJson = False,
) -> None:
    """Show the schema family and revision of each FILE, how they were identified, and its producer.

    Without FILE, lists the revisions of a schema family. Exits with 7 if a file cannot be read or
    is not a report. Files are not changed.
    """
    if not files:
        history(family, as_json)
        return
    from unified_prof.sqlite.detect import detect

    def look(path: Path) -> Detection:
        found = detect(path)
        if found.family is None:
            found.require()
        return found

    _for_each_file(files, look, as_json=as_json)


@db.command("history", replaced_by="db info")
def history(family: Family = "msprof", as_json: AsJson = False) -> None:
    """List the revisions of a schema family, oldest first, with their changes."""
    from unified_prof.migrate import runner
    from unified_prof.schema import catalogue

    catalogue.resolve(family, "latest")
    aliases = {catalogue.resolve(family, a): a for a in ("latest", "documented")}
    revisions = [
        {
            "revision": revision,
            "alias": aliases.get(revision),
            "summary": text.partition("\n")[0],
            "text": text.strip(),
        }
        for revision, text in runner.history(family)
    ]
    if as_json:
        put_json({"family": family, "revisions": revisions})
        return
    for entry in revisions:
        alias = f"  ({entry['alias']})" if entry["alias"] else ""
        _status_line(f"{entry['revision']}{alias}")
        _status_line(f"    {entry['summary']}")


@db.command()
def check(
    files: list[str] = argument(
        metavar="FILE...", help="Report files and cluster runs, or their URLs."
    ),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check the structure, schema and references of each FILE.

    Exits with 1 if a check fails, with 7 if a file cannot be read or is not a report.
    """
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME, is_run_directory
    from unified_prof.migrate.check import check as look_at
    from unified_prof.pipeline.remote import fetch_part

    def look(location: str) -> Check:
        with fetch_part(location, SUMMARY_FILE_NAME) as path:
            return look_at(path / SUMMARY_FILE_NAME if is_run_directory(path) else path)

    _for_each_file(
        files,
        look,
        as_json=as_json,
        quiet=quiet,
        code=lambda found: 0 if found.sound else 1,
    )


@db.command()
def upgrade(
    files: Files,
    schema: Schema = "latest",
    to: str | None = option(metavar="REVISION", hidden=True),
    output: Path | None = option(
        "-o",
        "--output",
        metavar="OUT",
        help="Write to OUT instead of in place; a directory for several files.",
    ),
    no_backup: bool = flag(help="Do not keep a copy of the original."),
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade each FILE to a newer schema revision.

    Migrates and verifies a copy, which then replaces FILE; the original is kept as FILE.bak. If a
    file cannot be upgraded, it stays unchanged and the others are still upgraded. Exit codes: 7
    unreadable or not a report; 8 revision unknown or newer; 9 output cannot be written.
    """
    from unified_prof.migrate.upgrade import upgrade as bring_up

    into_folder = output is not None and output.is_dir()
    if output is not None and len(files) > 1 and not into_folder:
        raise UsageError(
            f"{output} is not a directory, but {len(files)} files are to be written",
            hint="use an existing directory after -o",
            slug="one-output-for-many",
        )

    def work(path: Path) -> Upgrade:
        target = output / path.name if output is not None and into_folder else output
        return bring_up(path, to or schema, output=target, backup=not no_backup, overwrite=force)

    def notes(done: Upgrade) -> list[str]:
        return [f"  note: {one.name} ({one.count}): {one.detail}" for one in done.anomalies]

    _for_each_file(files, work, as_json=as_json, quiet=quiet, notes=notes)


@db.command()
def create(
    file: Path = argument(metavar="FILE", help="File to create."),
    family: Family = "msprof",
    schema: Schema = "documented",
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Create an empty report with all tables of a revision."""
    from unified_prof.migrate.upgrade import create as make

    revision = make(file, family, schema, overwrite=force)
    if as_json:
        put_json({"file": str(file), "family": family, "revision": revision})
    elif not quiet:
        _status_line(f"{file}: created, {family} {revision}")


@db.command(epilog=_RECOVER_EPILOG)
@command("recover", epilog=_RECOVER_EPILOG, replaced_by="db recover")
def recover(
    folder: Path = argument(metavar="DIR", help="Output directory of the killed `uprof run`."),
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Recover the reports of a run whose process was killed.

    While a workload runs, uprof saves its complete iterations in a hidden file of the output
    directory. After SIGKILL, an out-of-memory kill or the loss of a node, this command turns them
    into partial reports. Files of running processes are not touched.
    """
    from unified_prof.pipeline import recover as pipeline

    outcomes = []
    for outcome in pipeline.recover(folder, force=force):
        outcomes.append(outcome)
        if outcome.error is not None:
            put_error(outcome.error)
        for line in () if quiet else outcome.lines():
            print_message(f"uprof: {line}")
    if not outcomes and not quiet:
        print_message(f"uprof: {folder}: nothing to recover (no unfinished measurements)")
    if json_:
        errors = [{} if one.error is None else error_record(one.error) for one in outcomes]
        put_json([one.fields() | error for one, error in zip(outcomes, errors, strict=True)])
    if code := _recovery_exit_code(outcomes):
        raise click.exceptions.Exit(code)


def _recovery_exit_code(outcomes: list[Recovery]) -> int:
    """Return the exit code of the worst outcome: damage, output errors, nothing recovered."""
    codes = {one.error.exit_code for one in outcomes if one.error is not None}
    for code in (RawFormatError.exit_code, OutputError.exit_code):
        if code in codes:
            return code
    return max(codes, default=0 if any(one.files for one in outcomes) else NOTHING_RECOVERED)


def _for_each_file(
    files: list[File],
    work: Callable[[File], Result],
    *,
    as_json: bool,
    quiet: bool = False,
    code: Callable[[Result], int] = lambda _: 0,
    notes: Callable[[Result], list[str]] = lambda _: [],
) -> None:
    """Process every file, continue after failures, and exit with the code of the first failure."""
    results: list[dict[str, Any]] = []
    codes: list[int] = []
    for path in files:
        try:
            result = work(path)
        except UprofError as err:
            codes.append(err.exit_code)
            results.append({"file": str(path), **error_record(err)})
            put_error(err)
            continue
        codes.append(code(result))
        results.append({"file": str(path), **result.fields()})
        if not as_json and not quiet:
            for line in result.lines():
                _status_line(line)
            for line in notes(result):
                print_message(line)
    if as_json:
        put_json(results)
    if failed := [number for number in codes if number]:
        raise click.exceptions.Exit(failed[0])


def _status_line(text: str) -> None:
    """Print one line with control characters escaped."""
    put(printable(text) + "\n")
