"""The one place where exceptions become words on stderr and an exit code."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from unified_prof import streams
from unified_prof.cli.printing import put_error
from unified_prof.errors import BUG_EXIT_CODE, UprofError, UsageError
from unified_prof.plain import printable
from unified_prof.version import VERSION

INTERRUPTED = 130
READER_LEFT = 141
"""What shells report of a program that SIGPIPE ended."""

# Typer has a Click of its own since 0.26; all of Click's errors have this method.
_OF_CLICK = "format_message"

# How Typer's parser of values puts it -> how a person would.
_OF_PARSERS = (
    (r": Value error, ", ": "),
    (r": Input should be (.*?)(?:, unable to .*)?$", r": expected \1"),
    (r"expected (greater|less) than", r"expected a number \1 than"),
    (r"a number (greater) than or equal to (\S+)", r"\2 or more"),
    (r"a number (less) than or equal to (\S+)", r"\2 or less"),
    (r"a valid integer", "a whole number"),
    (r"a valid boolean", "true or false"),
)


def exit_code_of(work: Callable[[], object]) -> int:
    """Run a command and return its exit code; whatever it raises has been told on stderr.

    Args:
        work: Runs the command; returns its exit code, or something that is no number for 0.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return _of_system_exit(end)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    except Exception as err:
        return _of_other(err)


def _of_system_exit(end: SystemExit) -> int:
    try:
        sys.stdout.flush()
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    streams.tell(printable(str(end.code)))
    return 1


def _of_other(error: Exception) -> int:
    if hasattr(error, _OF_CLICK):
        return _of_click(error)
    if isinstance(error, FileNotFoundError) and not _folder_exists():
        put_error(
            UsageError(
                "the current folder does not exist any more",
                hint="cd to one that does",
                slug="no-current-folder",
            )
        )
        return UsageError.exit_code
    _put_bug(error)
    return BUG_EXIT_CODE


def _of_click(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ in ("NoArgsIsHelpError",):
        streams.tell(error.format_message())
        return int(error.exit_code)
    hint = None if context is None else f"`{context.command_path} --help` shows what there is"
    put_error(UprofError(_sentence(error.format_message()), hint=hint, slug="wrong-command-line"))
    return int(error.exit_code)


def _sentence(message: str) -> str:
    """Return one of Click's sentences as all our messages are: small at the start, no full stop."""
    for words, ours in _OF_PARSERS:
        message = re.sub(words, ours, message)
    message = message.strip().removesuffix(".")
    return message[:1].lower() + message[1:]


def _folder_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (the question is whether it can be asked)
    except OSError:
        return False
    return True


def _put_bug(error: Exception) -> None:
    """Tell an unforeseen exception in one line, with the details in a file."""
    from unified_prof.redaction import redact

    what = printable(redact(f"{type(error).__name__}: {error}"))[:300]
    details = redact("".join(traceback.format_exception(error)))
    try:
        path = _write_details(details)
    except OSError:
        streams.tell(details)
        hint = None
    else:
        hint = f"it is a bug in uprof; please report it with {path}"
    put_error(UprofError(f"this should not have happened: {what}", hint=hint, slug="bug"))


def _write_details(details: str) -> Path:
    from unified_prof.redaction import redact_arguments

    number, name = tempfile.mkstemp(prefix="uprof-bug-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(
            f"uprof {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
            f"command: {redact_arguments(sys.argv)!r}\n\n{details}"
        )
    return Path(name)
