#!/usr/bin/env python3
"""Create a virtual environment that also sees the packages of this one; print its interpreter.

    python action/environment.py DIR

Packages installed in the new environment take precedence; this environment is not changed. `pip` in
the new environment is this environment's pip. Uses the standard library only.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

# Python processes .pth files in the order of their names; "~" sorts last, so that packages of the
# new environment come first on sys.path.
_PTH_NAME = "~uprof.pth"


def main() -> int:
    """Create the environment and return an exit code."""
    print(create(Path(sys.argv[1]).absolute()))
    return 0


def create(folder: Path) -> Path:
    """Create an environment in `folder`, replacing its content, and return its interpreter."""
    venv.create(folder, clear=True, symlinks=os.name != "nt")
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    scheme = "nt" if os.name == "nt" else "posix_prefix"
    site_packages = Path(sysconfig.get_path("purelib", scheme, {"base": str(folder)}))
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in shared]
    (site_packages / _PTH_NAME).write_text("".join(lines), encoding="utf-8")
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
