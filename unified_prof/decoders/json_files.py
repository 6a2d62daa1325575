"""Recordings that are one JSON document, read as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from unified_prof.errors import RawFormatError


def read(path: Path) -> Any:
    """Return the document in a file.

    Raises:
        RawFormatError: the file cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise RawFormatError(
            f"{path} is damaged or cut off as JSON: {err}", slug="damaged-recording"
        ) from err
