"""Optional programs for tests of the release."""

import os
import shutil
import sys
from pathlib import Path


def program(name: str) -> str | None:
    """Return the path of a program beside this interpreter or on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
