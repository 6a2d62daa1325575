"""Which format a command prints in: what stands on the command line, a file's ending, settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from unified_prof.errors import UsageError

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
