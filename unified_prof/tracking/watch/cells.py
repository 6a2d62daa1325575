"""What the user calls a cell of a notebook whose code runs from a file that nobody knows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

_NUMBERED = re.compile(r"<ipython-input-(\d+)-")
_IN_KERNEL = f"{os.sep}ipykernel_"


def cell_name(filename: str) -> str | None:
    """Return `In [3]` for the code of a cell, None where a file holds no cell's.

    A kernel compiles each cell under the name of a file that is not there; which cell that was, its
    shell knows as long as it lives, by the last time that the same text ran.
    """
    if (found := _NUMBERED.search(filename)) is not None:
        return f"In [{found[1]}]"
    if _IN_KERNEL not in filename:
        return None
    return _known_to_shell(filename) or Path(filename).name


def _known_to_shell(filename: str) -> str | None:
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    try:
        _, label = shell.compile.format_code_name(filename)
    except (AttributeError, TypeError, ValueError):  # no shell, an older one, or not its cell
        return None
    number = re.search(r"\d+", str(label))
    return None if number is None else f"In [{number[0]}]"
