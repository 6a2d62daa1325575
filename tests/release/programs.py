"""Programs that tests of the release use where they are installed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program(name: str) -> str | None:
    """Return where a program is: beside this interpreter, or where the shell finds it."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
