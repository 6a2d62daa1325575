#!/usr/bin/env python3
"""Make an environment for a checkout, which sees all that this one has installed; print its Python.

    python action/environment.py FOLDER

What is installed there hides what is installed here, and nothing here changes. `pip` is this one's
pip. It needs Python's standard library alone.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

# The last of the files by name, which add paths in that order: what is installed there comes first.
_NAME = "~uprof.pth"


def main() -> int:
    """Make it; return an exit code."""
    folder = Path(sys.argv[1]).absolute()
    python = made(folder)
    print(python)
    return 0


def made(folder: Path) -> Path:
    """Make an environment in place of what is in a folder; return its interpreter."""
    venv.create(folder, clear=True, symlinks=os.name != "nt")
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    scheme = "nt" if os.name == "nt" else "posix_prefix"
    own = Path(sysconfig.get_path("purelib", scheme, {"base": str(folder)}))
    here = [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({one!r})\n" for one in here]
    (own / _NAME).write_text("".join(lines), encoding="utf-8")
    for name in ("pip", "pip3"):
        if os.name == "nt":
            text = f'@"{python}" -m pip %*\n'
            (scripts / f"{name}.bat").write_text(text, encoding="utf-8")
        else:
            text = f'#!/bin/sh\nexec "{python}" -m pip "$@"\n'
            (scripts / name).write_text(text, encoding="utf-8")
            (scripts / name).chmod(0o755)
    return python


if __name__ == "__main__":
    sys.exit(main())
