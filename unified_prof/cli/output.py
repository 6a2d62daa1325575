"""Output of commands: text, JSON, files, choice of the format, hints."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from unified_prof.base import streams
from unified_prof.base.text import printable
from unified_prof.cli.command import AsJsonFormat, Force, OutputFile, Quiet
from unified_prof.errors import OutputError, StoreError, UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.report.document import Document


# Control sequence that erases the current terminal line.
WIPE = "\r\x1b[K"


def terminal(stream: TextIO | None = None) -> tuple[int | None, bool]:
    """Return the width of the terminal (None if there is none), and True if it shows colors.

    Args:
        stream: Stream to inspect; stdout by default.
    """
    if not (stream or sys.stdout).isatty():
        return None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def put(content: str | bytes, *, for_people: bool = True) -> None:
    """Print to stdout; characters outside the terminal's encoding become escapes.

    If the reader closes the pipe (`| head`), the command ends silently, as with SIGPIPE.

    Raises:
        OutputError: stdout cannot be written.
        ReaderLeft: The reader has closed stdout.
    """
    encoding = sys.stdout.encoding if for_people else "utf-8"
    with streams.writing_the_result():
        sys.stdout.flush()
        if isinstance(content, str):
            content = content.encode(encoding or "utf-8", errors="backslashreplace")
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def print_message(text: str) -> None:
    """Print a message to stderr; ignored if stderr cannot be written."""
    streams.tell(f"{WIPE if _Progress.stands else ''}{printable(text)}")


def say_unless(quiet: bool, kind: str) -> Callable[[str], None]:
    """Return a function that prints messages of a kind (note, hint, warning) unless `quiet`."""
    return lambda text: None if quiet else print_message(f"uprof: {kind}: {text}")


def put_error(error: UprofError) -> None:
    """Print an error and its hint to stderr, without the passwords of URLs."""
    print_message(_redacted(f"uprof: error: {error.tagged_message}"))
    if error.hint:
        print_message(_redacted(f"uprof: hint: {error.hint}"))


def error_record(error: UprofError) -> dict[str, Any]:
    """Return an error as plain data for JSON."""
    return {
        "error": _redacted(str(error)),
        "slug": error.slug,
        "hint": _redacted(error.hint) if error.hint else error.hint,
        "exit_code": error.exit_code,
    }


@lru_cache(16)  # thousands of errors may have the same hint
def _redacted(text: str) -> str:
    from unified_prof.base.redaction import redact  # Only errors need it.

    return redact(text)


class _Progress:
    """State of the progress line on the terminal."""

    stands = False


def progress(quiet: bool) -> AbstractContextManager[Callable[[str], None]]:
    """Return `progress_line`, enabled on a terminal unless --quiet is given."""
    return progress_line(enabled=streams.is_terminal() and not quiet)


@contextmanager
def progress_line(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress in one terminal line, which is erased at the end."""
    if not enabled:
        yield lambda _: None
        return

    def show(text: str) -> None:
        # A wrapped line could not be erased.
        text = printable(f"uprof: {text}")[: shutil.get_terminal_size().columns - 1]
        streams.tell(f"{WIPE}{text}\r", end="")

    _Progress.stands = True
    try:
        yield show
    finally:
        _Progress.stands = False
        streams.tell(WIPE, end="")


def json_text(document: object) -> str:
    """Return a document as JSON; NaN and infinity raise ValueError."""
    from unified_prof.report.renderers import dump_json

    return dump_json(document)


def render(
    document: Document, shape: str, *, to_file: bool = False, full_names: bool = False
) -> str:
    """Render a document as Markdown, or as text for the terminal, a pipe or a file."""
    from unified_prof.report.renderers import render_markdown
    from unified_prof.report.terminal import render_text

    if shape == "markdown":
        return render_markdown(document, full_names=full_names)
    width, color = (None, False) if to_file else terminal()
    return render_text(document, width=width, color=color, full_names=full_names)


def message_text(document: Document) -> str:
    """Render a document as text for stderr."""
    from unified_prof.report.terminal import render_text

    width, color = terminal(sys.stderr) if streams.is_terminal() else (None, False)
    return render_text(document, width=width, color=color).rstrip("\n")


def put_json(document: object) -> None:
    """Print a document to stdout as JSON."""
    put(json_text(document), for_people=False)


def write(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file atomically; never replaces a database.

    Raises:
        OutputError: The file exists and `force` is not set, is a database, or cannot be written.
    """
    from unified_prof.sqlite.atomic import replacing
    from unified_prof.sqlite.fingerprint import is_database

    if force and is_database(path):
        raise OutputError(
            f"{path} is a database and is not overwritten with text",
            hint="choose another file for -o",
            slug="not-replaced",
        )
    with replacing(path, overwrite=force) as partial:
        if isinstance(content, bytes):
            partial.write_bytes(content)
        else:
            partial.write_text(content, encoding="utf-8", newline="\n")


def end_if_missing(missing: str, *, told: bool = False) -> None:
    """Exit with the code of unreadable reports if there are any.

    Args:
        missing: Description of what could not be read; empty if everything was read.
        told: If True, it was printed before.

    Raises:
        Exit: Something could not be read.
    """
    if missing:
        if not told:
            put_error(StoreError(missing, slug="ranks-missing"))
        raise click.exceptions.Exit(StoreError.exit_code)


TEXT, JSON = "text", "json"
STDOUT = Path("-")

# Format -> file extensions in lower case, the preferred one first.
Suffixes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """File and format of a result."""

    # None for stdout.
    file: Path | None
    shape: str
    # Overwrite the file.
    force: bool

    def refuse_existing(self) -> None:
        """Raise OutputError if the file exists and must not be overwritten."""
        from unified_prof.sqlite.atomic import refuse_existing

        if self.file is not None:
            refuse_existing(self.file, overwrite=self.force)

    def refuse_terminal(self, *, for_terminal: bool) -> None:
        """Raise UsageError if a result that a terminal cannot show would be printed to one."""
        if self.file is None and not for_terminal and sys.stdout.isatty():
            raise UsageError(
                f"{self.shape} cannot be shown on a terminal",
                hint="write it to a file with -o",
                slug="not-for-a-terminal",
            )

    def deliver(self, content: str | bytes, *, note: bool = False) -> None:
        """Write a result to the file, or print it to stdout if there is none.

        Args:
            content: The result.
            note: Print format and size of the file.

        Raises:
            OutputError: Same as `put` and `write`.
        """
        if self.file is None:
            put(content, for_people=self.shape == TEXT)  # UTF-8 for programs
            return
        write(self.file, content, force=self.force)
        if note:
            print_message(f"{self.file}: {self.shape}, {self.file.stat().st_size:,} bytes")

    def render_document(
        self,
        as_json: Callable[[], str],
        as_document: Callable[[], Document],
        *,
        full_names: bool = False,
    ) -> str:
        """Return a result as JSON, or as a document in text or Markdown."""
        if self.shape == JSON:
            return as_json()
        return render(
            as_document(), self.shape, to_file=self.file is not None, full_names=full_names
        )


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Format and file of a result; each command declares its formats with `formats_of`."""

    format_: str | None
    output: OutputFile = None
    force: Force = False
    json_: AsJsonFormat = False
    quiet: Quiet = False

    def target(self, suffixes: Suffixes) -> Target:
        """Return file and format; the command line takes precedence over settings.

        Raises:
            UsageError: The extension belongs to no format, or the options contradict one another.
        """
        file = None if self.output == STDOUT else self.output
        return Target(file, self._format(file, suffixes), self.force)

    def _format(self, file: Path | None, suffixes: Suffixes) -> str:
        asked = self.format_
        typed_format, typed_json = is_typed("format_"), is_typed("json_")
        if self.json_ and typed_json:
            if asked not in (None, JSON) and typed_format:
                raise UsageError("--json contradicts --format", slug="contradicting-options")
            asked, typed_format = JSON, True
        elif self.json_ and not typed_format:
            asked = JSON
        if file is None:
            return asked or TEXT
        if asked is None or (file.suffix and not typed_format):
            return _format_of_file(file, suffixes)
        if typed_format and _contradicts(file, asked, suffixes):
            raise UsageError(
                f"{file}: the extension selects {_format_of_file(file, suffixes)}, "
                f"but the format is {asked}",
                hint="omit --format, or change the extension",
                slug="contradicting-options",
            )
        return asked


def _format_of_file(file: Path, suffixes: Suffixes) -> str:
    """Return the format of a file's extension; text if there is no extension."""
    suffix = file.suffix.lower()
    for name, known in suffixes.items():
        if suffix in known:
            return name
    if not suffix:
        return TEXT
    usual = ", ".join(known[0] for known in suffixes.values())
    raise UsageError(
        f"{file}: unknown extension {suffix}",
        hint=f"use one of {usual}, or --format",
        slug="unknown-format",
    )


def _contradicts(file: Path, asked: str, suffixes: Suffixes) -> bool:
    """Return True if the extension belongs to another format; `.txt` fits all."""
    suffix = file.suffix.lower()
    return any(suffix in known for name, known in suffixes.items() if name not in (asked, TEXT))


def is_typed(parameter: str) -> bool:
    """Return True if a parameter of this command was given on the command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return getattr(source, "name", None) == "COMMANDLINE"


@contextmanager
def with_convert_hint(*paths: Path) -> Iterator[None]:
    """If a path is not a report, add the command that converts it to the error's hint."""
    try:
        yield
    except StoreError as err:
        from unified_prof.pipeline.discovery import report_hint

        for path in paths:
            if (hint := report_hint(path, str(err))) is not None:
                err.hint = hint
                break
        raise
