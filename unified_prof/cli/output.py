"""Output of commands: text, JSON, files, choice of the format, hints."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import click

from unified_prof.base import streams
from unified_prof.base.text import printable
from unified_prof.cli.command import AsJson, Force, Quiet, option, rare_option, refuse
from unified_prof.errors import OutputError, StoreError, UprofError, UsageError

if TYPE_CHECKING:
    from unified_prof.pipeline.convert import Outcome
    from unified_prof.pipeline.reports import Recovery
    from unified_prof.report.document import Document

TEXT, JSON = "text", "json"
STDOUT = Path("-")
_MIN_MESSAGE_WIDTH = 40  # Messages are not wrapped to less than this.
_UNBREAKABLE = "\ue000"  # Character for the spaces within a command while wrapping.
WIPE = "\r\x1b[K"  # Control sequence that erases the current terminal line.


def terminal(stream: TextIO | None = None) -> tuple[int | None, bool]:
    """Return the width of the text (None: unlimited), and True if colors are shown.

    In a pipe, it is unlimited unless COLUMNS is set without LINES (Python's readline sets both).
    """
    stream = stream or sys.stdout
    if stream.closed or not stream.isatty():
        columns = os.environ.get("COLUMNS", "") if "LINES" not in os.environ else ""
        return int(columns) if columns.isdecimal() and int(columns) else None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def put(content: str | bytes, *, for_people: bool = True) -> None:
    """Print to stdout; characters outside the terminal's encoding become escapes.

    If the reader closes the pipe (`| head`), the command ends silently, as with SIGPIPE. Raises
    OutputError if stdout cannot be written, and ReaderLeft if the reader has closed stdout.
    """
    encoding = sys.stdout.encoding if for_people else "utf-8"
    with streams.writing_the_result():
        sys.stdout.flush()
        if isinstance(content, str):
            content = content.encode(encoding or "utf-8", errors="backslashreplace")
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def print_message(text: str) -> None:
    """Print a message to stderr; ignored if stderr cannot be written.

    Notes, warnings, errors and hints are wrapped to the width of a terminal, but no commands.
    """
    text, (width, _) = printable(text), terminal(sys.stderr)
    if width is not None and len(text) > width and text.startswith("uprof: "):
        import textwrap  # Most messages are short.

        lines = textwrap.wrap(
            re.sub("`[^`]*`", lambda command: command[0].replace(" ", _UNBREAKABLE), text),
            max(width, _MIN_MESSAGE_WIDTH),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        text = "\n".join(lines).replace(_UNBREAKABLE, " ")
    streams.tell(f"{WIPE if _Progress.is_shown else ''}{text}")


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

    is_shown = False


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress in one terminal line, which is erased at the end.

    It does nothing without a terminal, or if --quiet is given.
    """
    if quiet or not streams.is_terminal():
        yield lambda _: None
        return

    def show(text: str) -> None:
        # A wrapped line could not be erased.
        text = printable(f"uprof: {text}")[: shutil.get_terminal_size().columns - 1]
        streams.tell(f"{WIPE}{text}\r", end="")

    _Progress.is_shown = True
    try:
        yield show
    finally:
        _Progress.is_shown = False
        streams.tell(WIPE, end="")


_Outcome = TypeVar("_Outcome", "Outcome", "Recovery")  # Outcome for one of several files.


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints messages and results as --quiet and --json say."""

    quiet: Quiet = False
    json_: AsJson = False

    def lines(self, *lines: str) -> None:
        """Print lines to stderr unless --quiet is given."""
        for line in () if self.quiet else lines:
            print_message(line)

    def say(self, kind: str, text: str) -> None:
        """Print a message of a kind (note, hint, warning) unless --quiet is given."""
        self.lines(f"uprof: {kind}: {text}")

    note = partialmethod(say, "note")
    hint = partialmethod(say, "hint")
    warning = partialmethod(say, "warning")

    def progress(self) -> AbstractContextManager[Callable[[str], None]]:
        """Return `progress`."""
        return progress(self.quiet)

    def json(self, fields: Callable[[], object]) -> bool:
        """Print the result to stdout if --json is given, and return True."""
        if self.json_:
            put(_json_text(fields()), for_people=False)
        return self.json_

    def show(self, fields: Callable[[], object], lines: Iterable[str]) -> None:
        """Print the result to stdout: as JSON, or as lines of text unless --quiet is given."""
        if not self.json(fields) and not self.quiet:
            put("".join(f"{printable(line)}\n" for line in lines))

    def outcomes(self, found: Iterable[_Outcome], start: str = "") -> list[_Outcome]:
        """Print outcomes as they appear; return them for `outcome_fields`."""
        outcomes = []
        for outcome in found:
            outcomes.append(outcome)
            if outcome.error is not None:
                put_error(outcome.error)
            self.lines(*(start + line for line in outcome.lines()))
        return outcomes


def outcome_fields(outcomes: Iterable[Outcome | Recovery]) -> list[dict[str, Any]]:
    """Return outcomes and their errors as plain data for JSON."""
    return [
        one.fields() | ({} if one.error is None else error_record(one.error)) for one in outcomes
    ]


def _json_text(document: object) -> str:
    from unified_prof.report.document import dump_json

    return dump_json(document)


def message_text(document: Document) -> str:
    """Render a document as text for stderr."""
    from unified_prof.report.terminal import render_text

    width, color = terminal(sys.stderr) if streams.is_terminal() else (None, False)
    return render_text(document, width=width, color=color).rstrip("\n")


def end_if_missing(missing: str, *, told: bool = False) -> None:
    """Exit with the code of unreadable reports if `missing` names any; print it unless `told`.

    Raises Exit if something could not be read.
    """
    if missing:
        if not told:
            put_error(StoreError(missing, slug="ranks-missing"))
        raise click.exceptions.Exit(StoreError.exit_code)


@dataclass(frozen=True, slots=True)
class Target:
    """File and format of a result."""

    # None for stdout.
    file: Path | None
    shape: str
    force: bool = False  # Overwrite the file.

    @property
    def is_text(self) -> bool:
        """True for text, which warnings are part of."""
        return self.shape == TEXT

    def deliver(self, content: str | bytes, *, note: bool = False) -> None:
        """Write a result to the file, or print it to stdout if there is none.

        If `note`, also print format and size of the file.

        Raises:
            OutputError: It cannot be written; the file exists and is not to be overwritten, or is a
                database.
        """
        if self.file is None:
            put(content, for_people=self.shape == TEXT)  # UTF-8 for programs
            return
        from unified_prof.sqlite.atomic import replacing
        from unified_prof.sqlite.fingerprint import is_database

        if self.force and is_database(self.file):
            raise OutputError(
                f"{self.file} is a database and is not overwritten with text",
                hint="choose another file for -o",
                slug="not-replaced",
            )
        if isinstance(content, str):
            content = content.encode()
        with replacing(self.file, overwrite=self.force) as partial:
            partial.write_bytes(content)
        if note:
            print_message(f"{self.file}: {self.shape}, {self.file.stat().st_size:,} bytes")

    def render(
        self,
        fields: Callable[[], object],
        document: Callable[[], Document],
        *,
        full_names: bool = False,
    ) -> str:
        """Return a result as JSON, or as a document in text or Markdown."""
        if self.shape == JSON:
            return _json_text(fields())
        from unified_prof.report.formats import ReportRequest
        from unified_prof.report.terminal import render_document

        width, color = (None, False) if self.file is not None else terminal()
        request = ReportRequest(full_names=full_names, width=width, color=color)
        return render_document(document(), self.shape, request)


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Format and file of a result; each command declares its formats with `formats_of`."""

    format_: str | None
    output: Annotated[
        Path | None, option("Write to FILE instead of stdout.", "-o --output FILE")
    ] = None
    force: Force = False
    json_: Annotated[bool, rare_option("Same as --format json.", "--json")] = False
    quiet: Quiet = False

    @property
    def printer(self) -> Printer:
        """Printer of messages."""
        return Printer(self.quiet)

    def target(self) -> Target:
        """Return file and format; the command line takes precedence over settings.

        Raises OutputError if the file exists, and UsageError if the extension belongs to no format,
        the options contradict one another, or a terminal cannot show the format.
        """
        from unified_prof.report.formats import FORMATS
        from unified_prof.sqlite.atomic import refuse_existing

        known = {**{one.name: one.suffixes for one in FORMATS}, "junit": (".xml",)}
        (offered,) = (
            one.type for one in click.get_current_context().command.params if one.name == "format_"
        )
        assert isinstance(offered, click.Choice)
        file = None if self.output == STDOUT else self.output
        shape = self._format(file, {name: known[name] for name in offered.choices})
        if file is not None:
            refuse_existing(file, overwrite=self.force)
        refuse(
            file is None
            and sys.stdout.isatty()
            and any(one.name == shape and not one.for_terminal for one in FORMATS),
            f"{shape} cannot be shown on a terminal",
            hint="write it to a file with -o",
            slug="not-for-a-terminal",
        )
        return Target(file, shape, self.force)

    def _format(self, file: Path | None, suffixes: Mapping[str, tuple[str, ...]]) -> str:
        asked = self.format_
        typed_format, typed_json = is_typed("format_"), is_typed("json_")
        if self.json_ and typed_json:
            refuse(asked not in (None, JSON) and typed_format, "--json contradicts --format")
            asked, typed_format = JSON, True
        elif self.json_ and not typed_format:
            asked = JSON
        if file is None:
            return asked or TEXT
        if asked is None or (file.suffix and not typed_format):
            return _format_of_file(file, suffixes)
        # `.txt` fits all formats.
        others = [one for name, one in suffixes.items() if name not in (asked, TEXT)]
        if typed_format and any(file.suffix.lower() in one for one in others):
            raise UsageError(
                f"{file}: the extension selects {_format_of_file(file, suffixes)}, "
                f"but the format is {asked}",
                hint="omit --format, or change the extension",
                slug="contradicting-options",
            )
        return asked


def _format_of_file(file: Path, suffixes: Mapping[str, tuple[str, ...]]) -> str:
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


def is_typed(parameter: str) -> bool:
    """Return True if a parameter of this command was given on the command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return getattr(source, "name", None) == "COMMANDLINE"
