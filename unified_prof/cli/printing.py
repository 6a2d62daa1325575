"""What commands print: text for people as the terminal can show it, data for programs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TextIO


def terminal(stream: TextIO | None = None) -> tuple[int | None, bool]:
    """Return the width of the terminal (None: there is none) and whether to colour.

    Args:
        stream: where the text goes; stdout unless given.
    """
    if not (stream or sys.stdout).isatty():
        return None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def put(text: str, *, for_people: bool = True) -> None:
    """Print to stdout; what a terminal's encoding cannot show appears as an escape."""
    encoding = sys.stdout.encoding if for_people else "utf-8"
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(encoding or "utf-8", errors="backslashreplace"))
    sys.stdout.flush()


def json_text(document: object) -> str:
    """Return a document as JSON; a number that is not finite is a bug, not a NaN."""
    import json

    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def put_json(document: object) -> None:
    """Print a document to stdout as JSON."""
    put(json_text(document), for_people=False)


def write(path: Path, text: str, *, force: bool) -> None:
    """Write a text file, complete or not at all.

    Raises:
        OutputError: it exists and `force` is not given, or cannot be written.
    """
    from unified_prof.store.atomic import replacing

    with replacing(path, overwrite=force) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
