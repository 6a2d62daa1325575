"""Another revision of this repository in a folder of its own, to be run beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from unified_prof.base.signals import ended_by_signals  # noqa: E402 (of this checkout)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a folder that holds the files of `revision`; it is gone afterwards, SIGTERM or not.

    The files are taken out of the repository, which hears nothing of the folder: a worktree would
    have to be taken back from it, and stays where this process is killed.
    """
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="uprof-before-") as folder:
        path = Path(folder) / "checkout"
        path.mkdir()
        git = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
        with subprocess.Popen(git, stdout=subprocess.PIPE) as packing:
            try:
                with tarfile.open(fileobj=packing.stdout, mode="r|") as packed:
                    packed.extractall(path, filter="data")
            except tarfile.ReadError:
                raise SystemExit(f"{revision} is no revision of {ROOT}") from None
        yield path


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
