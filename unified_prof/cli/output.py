"""What commands print: text for people as the terminal can show it, data for programs.

Which format a command prints in: what stands on the command line, a file's ending, settings.

Which command takes a file that is no report: people try the one that they know.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from unified_prof.base import streams
from unified_prof.base.text import printable
from unified_prof.errors import OutputError, StoreError, UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.pipeline.sources import Source


WIPE = "\r\x1b[K"
"""Empties the line of a terminal."""


def terminal(stream: TextIO | None = None) -> tuple[int | None, bool]:
    """Return the width of the terminal (None: there is none) and whether to colour.

    Args:
        stream: where the text goes; stdout unless given.
    """
    if not (stream or sys.stdout).isatty():
        return None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def put(content: str | bytes, *, for_people: bool = True) -> None:
    """Print to stdout; what a terminal's encoding cannot show appears as an escape.

    A reader that has seen enough (`| head`) ends the command without a word, as SIGPIPE would.

    Raises:
        OutputError: stdout cannot be written.
        ReaderLeft: nobody reads it any more.
    """
    encoding = sys.stdout.encoding if for_people else "utf-8"
    with streams.writing_the_result():
        sys.stdout.flush()
        if isinstance(content, str):
            content = content.encode(encoding or "utf-8", errors="backslashreplace")
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for people to stderr; where that cannot be written, nobody is told."""
    streams.tell(f"{WIPE if _Progress.stands else ''}{printable(text)}")


def put_error(error: UprofError) -> None:
    """Tell on stderr what went wrong, and what to do about it."""
    say(f"uprof: error: {error.told}")
    if error.hint:
        say(f"uprof: hint: {error.hint}")


def error_record(error: UprofError) -> dict[str, Any]:
    """Return in a form for JSON what went wrong with one of several things."""
    return {
        "error": str(error),
        "slug": error.slug,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


class _Progress:
    """Whether a line stands on the terminal that the next one is to replace."""

    stands = False


@contextmanager
def progress_line(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield what shows a few words on one line of the terminal, wiped at the end."""
    if not enabled:
        yield lambda _: None
        return

    def show(text: str) -> None:
        # A line that wraps could not be wiped; what is printed next begins at the left again.
        text = printable(f"uprof: {text}")[: shutil.get_terminal_size().columns - 1]
        streams.tell(f"{WIPE}{text}\r", end="")

    _Progress.stands = True
    try:
        yield show
    finally:
        _Progress.stands = False
        streams.tell(WIPE, end="")


def json_text(document: object) -> str:
    """Return a document as JSON; a number that is not finite is a bug, not a NaN."""
    from unified_prof.report.figures import dump_json

    return dump_json(document)


def put_json(document: object) -> None:
    """Print a document to stdout as JSON."""
    put(json_text(document), for_people=False)


def write(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file, complete or not at all; a database is never replaced by one.

    Raises:
        OutputError: it exists and `force` is not given, is a database, or cannot be written.
    """
    from unified_prof.sqlite.atomic import replacing
    from unified_prof.sqlite.fingerprint import is_database

    if force and is_database(path):
        raise OutputError(
            f"{path} is a database, it is not replaced by text",
            hint="give -o another name",
            slug="not-replaced",
        )
    with replacing(path, overwrite=force) as partial:
        if isinstance(content, bytes):
            partial.write_bytes(content)
        else:
            partial.write_text(content, encoding="utf-8", newline="\n")


TEXT, JSON = "text", "json"
STDOUT = Path("-")

Suffixes = Mapping[str, tuple[str, ...]]
"""Format -> endings of files that hold it, in lower case, the usual one first."""


class Context(Protocol):
    """What is asked of Click's context."""

    def get_parameter_source(self, name: str) -> object | None:
        """Return where a parameter's value comes from."""


def file_of(output: Path | None) -> Path | None:
    """Return the file that -o names; None where the result goes to stdout, as with `-o -`."""
    return None if output == STDOUT else output


def chosen(
    context: Context, suffixes: Suffixes, *, asked: str | None, as_json: bool, file: Path | None
) -> str:
    """Return the format meant: what stands on the command line goes before any setting.

    Args:
        context: of the command, whose options are called `format_` and `json_` in Python.
        suffixes: the formats there are.
        asked: what --format says, wherever that was set.
        as_json: what --json says, wherever that was set.
        file: where the result is written; None: to stdout.

    Raises:
        UsageError: no format has the file's ending; the command line contradicts itself.
    """
    typed_format, typed_json = _is_typed(context, "format_"), _is_typed(context, "json_")
    if as_json and typed_json:
        if asked not in (None, JSON) and typed_format:
            raise UsageError("--json contradicts --format", slug="contradicting-options")
        asked, typed_format = JSON, True
    elif as_json and not typed_format:
        asked = JSON
    if file is None:
        return asked or TEXT
    if asked is None or (file.suffix and not typed_format):
        return _of_file(file, suffixes)
    if typed_format and _contradicts(file, asked, suffixes):
        raise UsageError(
            f"{file}: the extension selects {_of_file(file, suffixes)}, but {asked} is asked for",
            hint="leave the format out, or change the extension",
            slug="contradicting-options",
        )
    return asked


def _of_file(file: Path, suffixes: Suffixes) -> str:
    """Return the format that a file's ending names; a file without an ending is text."""
    suffix = file.suffix.lower()
    for name, known in suffixes.items():
        if suffix in known:
            return name
    if not suffix:
        return TEXT
    usual = ", ".join(known[0] for known in suffixes.values())
    raise UsageError(
        f"{file}: no format has the extension {suffix}",
        hint=f"use one of {usual}, or choose one with --format",
        slug="unknown-format",
    )


def _contradicts(file: Path, asked: str, suffixes: Suffixes) -> bool:
    """Whether a file's ending says another format; `.txt` may hold any."""
    suffix = file.suffix.lower()
    return any(suffix in known for name, known in suffixes.items() if name not in (asked, TEXT))


def _is_typed(context: Context, parameter: str) -> bool:
    """Whether a parameter was given on the command line, not by the environment or a file."""
    source = context.get_parameter_source(parameter)
    return getattr(source, "name", None) == "COMMANDLINE"


@contextmanager
def for_reports(*paths: Path) -> Iterator[None]:
    """Where a path is no report, say in the error's hint which command makes one of it."""
    try:
        yield
    except StoreError as err:
        for path in paths:
            if (hint := _hint(path, str(err))) is not None:
                err.hint = hint
                break
        raise


def unrecovered(folder: Path) -> str | None:
    """Return what to do about what killed processes left in `folder`; None: there is nothing."""
    from unified_prof.sqlite import spool

    if not any(spool.state_of(path) != spool.RUNS for path in spool.find(folder)):
        return None
    return (
        f"{folder} holds measurements of a run that was killed; `uprof recover {folder}` makes "
        "reports of them"
    )


def _hint(path: Path, message: str) -> str | None:
    from unified_prof.cluster import rank_partial
    from unified_prof.pipeline import sources

    if rank_partial.is_run_directory(path):
        return (
            f"it is a run of many ranks: `uprof cluster report {path}` has its tables, "
            f"`uprof report {path} --rank N` one rank, `uprof trace {path} --ranks N,...` timelines"
        )
    if path.is_dir() and (hint := rank_partial.completion_hint(path)) is not None:
        return hint
    if path.is_dir() and (hint := unrecovered(path)) is not None:
        return hint
    # A database that is damaged may be of any kind: only one that is surely a recording is named.
    of = sources.surely if path.suffix in (".db", ".sqlite") else sources.source_of
    if (source := of(path)) is not None:
        return f"it is {source.what}; {_converted(source, path)}"
    if (known := sources.recognised(path)) is not None:
        return f"it is {known.what}; {known.hint(path)}"
    if path.is_dir() and "no readable report" in message:
        inside = next((one for one in sorted(path.iterdir()) if sources.surely(one)), None)
        if inside is not None and (source := sources.surely(inside)) is not None:
            return f"{inside.name} is {source.what}; {_converted(source, path)}"
    return None


def _converted(source: Source, path: Path) -> str:
    return f"run `uprof {source.command} {path}` first, or give --convert"
