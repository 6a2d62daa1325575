"""What commands print: text for people as the terminal can show it, data for programs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from unified_prof import streams
from unified_prof.errors import OutputError, UprofError
from unified_prof.plain import printable

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
    from unified_prof.report.documents import dumped

    return dumped(document)


def put_json(document: object) -> None:
    """Print a document to stdout as JSON."""
    put(json_text(document), for_people=False)


def write(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file, complete or not at all; a database is never replaced by one.

    Raises:
        OutputError: it exists and `force` is not given, is a database, or cannot be written.
    """
    from unified_prof.store.atomic import replacing
    from unified_prof.store.table_names import is_database

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
