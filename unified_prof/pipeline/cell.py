"""Which cell of which notebook runs: what a reader is told instead of the kernel's command line."""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from types import FrameType
from typing import Any

from unified_prof.tracking.watch.cells import cell_name

_SUFFIX = ".ipynb"


def running_cell() -> str | None:
    """Return the cell that runs now, as `In [3]`; None where no code of one is running."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the outermost: functions may be of earlier cells
        found = cell_name(frame.f_code.co_filename) or found
        frame = frame.f_back
    return found


def notebook_name() -> str | None:
    """Return the name of the notebook's file, where the server or the editor tells it."""
    # What Jupyter's server sets for its kernels, and what an editor leaves among the variables.
    told = os.environ.get("JPY_SESSION_NAME", "")
    variables = getattr(_shell(), "user_ns", None)
    if not told.endswith(_SUFFIX) and isinstance(variables, dict):
        told = str(variables.get("__vsc_ipynb_file__", ""))
    return PurePath(told.replace("\\", "/")).name if told.endswith(_SUFFIX) else None


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython()
    except AttributeError:  # it is being imported, or something else of that name
        return None
