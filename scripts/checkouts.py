"""Another revision of this repository in a folder of its own, to be run beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a folder that holds `revision`; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="uprof-before-") as folder:
        path = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", path, revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", path], check=True)


def command(*arguments: str) -> list[str]:
    """Return what runs `uprof` with these arguments; the environment says of which checkout."""
    return [sys.executable, "-m", "unified_prof", *arguments]


def environment(checkout: Path) -> dict[str, str]:
    """Return variables with which this interpreter imports the package of a checkout."""
    return {**plain_environment(), "PYTHONPATH": str(checkout), "TERM": "dumb"}


def plain_environment() -> dict[str, str]:
    """Return this process's variables without those that change what a command does or costs.

    Where Python may not keep bytecode, each run compiles all it imports: a third of a second that
    nobody pays who has installed uprof.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UPROF_")}
    for name in ("GITHUB_STEP_SUMMARY", "PYTHONDONTWRITEBYTECODE"):
        kept.pop(name, None)
    return kept
