"""Command group `uprof db`: info, check, upgrade, create, recover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click

from unified_prof.cli import command as cli
from unified_prof.cli.output import Printer, error_record, outcome_fields, put_error
from unified_prof.errors import UprofError

if TYPE_CHECKING:
    from unified_prof.migrate.check import Check
    from unified_prof.migrate.upgrade import Upgrade
    from unified_prof.sqlite.opening import Detection

Files = Annotated[list[Path], cli.argument("Report files.", "FILE...")]
Family = Annotated[
    str, cli.option("msprof, skyline-run-time, skyline-memory or cluster.", "--family")
]


Result = TypeVar("Result", "Detection", "Check", "Upgrade")
File = TypeVar("File", Path, str)

_RECOVER_EPILOG = (
    "Exit codes: 0 reports were recovered; 1 nothing to recover, or all processes still run; "
    "2 usage error; 6 a file is damaged (the others are recovered); 9 a report cannot be written."
)

db = cli.Group(name="db", help="Inspect, check, upgrade, create and recover report files.")
cli.COMMANDS.add_command(db)


@db.command("history", replaced_by="db info")
@db.command("current", replaced_by="db info")
@db.command()
def info(
    files: list[Path] | None = cli.argument("Report files.", "[FILE]...", default=None),
    family: Family = "msprof",
    json_: cli.AsJson = False,
) -> None:
    """Show the schema family and revision of each FILE, how they were identified, and its producer.

    Without FILE, lists the revisions of a schema family. Exits with 7 if a file cannot be read or
    is not a report. Files are not changed.
    """
    printer = Printer(json_=json_)
    if files:
        _for_each_file(files, _identify, printer)
        return
    from unified_prof.migrate import runner
    from unified_prof.schema import catalogue

    aliases = {catalogue.resolve(family, one): one for one in ("latest", "documented")}
    revisions, lines = [], []
    for revision, text in runner.history(family):
        alias, summary = aliases.get(revision), text.partition("\n")[0]
        about = {"alias": alias, "summary": summary, "text": text.strip()}
        revisions.append({"revision": revision, **about})
        lines += [f"{revision}  ({alias})" if alias else revision, f"    {summary}"]
    printer.show(lambda: {"family": family, "revisions": revisions}, lines)


def _identify(path: Path) -> Detection:
    from unified_prof.sqlite.opening import detect

    found = detect(path)
    if found.family is None:
        found.require()
    return found


@db.command()
def check(
    files: list[str] = cli.argument("Report files and cluster runs, or their URLs.", "FILE..."),
    *,
    printer: Printer,
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

    _for_each_file(files, look, printer, code=lambda found: 0 if found.sound else 1)


@db.command()
def upgrade(
    files: Files,
    schema: cli.Schema = "latest",
    to: str | None = cli.option("", "REVISION", hidden=True),
    output: Path | None = cli.option(
        "Write to OUT instead of in place; a directory for several files.", "-o --output OUT"
    ),
    no_backup: bool = cli.flag("Do not keep a copy of the original."),
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Upgrade each FILE to a newer schema revision.

    Migrates and verifies a copy, which then replaces FILE; the original is kept as FILE.bak. If a
    file cannot be upgraded, it stays unchanged and the others are still upgraded. Exit codes: 7
    unreadable or not a report; 8 revision unknown or newer; 9 output cannot be written.
    """
    from unified_prof.migrate.upgrade import upgrade as bring_up

    into_folder = output is not None and output.is_dir()
    cli.refuse(
        output is not None and len(files) > 1 and not into_folder,
        f"{output} is not a directory, but {len(files)} files are to be written",
        hint="use an existing directory after -o",
        slug="one-output-for-many",
    )

    def work(path: Path) -> Upgrade:
        target = output / path.name if output is not None and into_folder else output
        return bring_up(path, to or schema, output=target, backup=not no_backup, overwrite=force)

    def notes(done: Upgrade) -> list[str]:
        return [f"  note: {one.name} ({one.count}): {one.detail}" for one in done.anomalies]

    _for_each_file(files, work, printer, notes=notes)


@db.command()
def create(
    file: Path = cli.argument("File to create.", "FILE"),
    family: Family = "msprof",
    schema: cli.Schema = "documented",
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Create an empty report with all tables of a revision."""
    from unified_prof.migrate.upgrade import create as make

    revision = make(file, family, schema, overwrite=force)
    printer.show(
        lambda: {"file": str(file), "family": family, "revision": revision},
        [f"{file}: created, {family} {revision}"],
    )


@db.command(epilog=_RECOVER_EPILOG)
@cli.command("recover", epilog=_RECOVER_EPILOG, replaced_by="db recover")
def recover(
    folder: Path = cli.argument("Output directory of the killed `uprof run`.", "DIR"),
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Recover the reports of a run whose process was killed.

    While a workload runs, uprof saves its complete iterations in a hidden file of the output
    directory. After SIGKILL, an out-of-memory kill or the loss of a node, this command turns them
    into partial reports. Files of running processes are not touched.
    """
    from unified_prof.pipeline import reports as pipeline

    outcomes = printer.outcomes(pipeline.recover(folder, force=force), "uprof: ")
    if not outcomes:
        printer.lines(f"uprof: {folder}: nothing to recover (no unfinished measurements)")
    printer.json(lambda: outcome_fields(outcomes))
    if code := pipeline.exit_code(outcomes):
        raise click.exceptions.Exit(code)


def _for_each_file(
    files: list[File],
    work: Callable[[File], Result],
    printer: Printer,
    *,
    code: Callable[[Result], int] = lambda _: 0,
    notes: Callable[[Result], list[str]] = lambda _: [],
) -> None:
    """Process every file, continue after failures, and exit with the code of the first failure."""
    results: list[dict[str, Any]] = []
    codes: list[int] = []
    text = Printer(printer.quiet or printer.json_)
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
        text.show(result.fields, result.lines())
        text.lines(*notes(result))
    printer.json(lambda: results)
    if failed := [number for number in codes if number]:
        raise click.exceptions.Exit(failed[0])
