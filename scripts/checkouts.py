"""Temporary checkout of another revision of this repository, to compare with this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from unified_prof.base.signals import ended_by_signals  # noqa: E402 (of this checkout)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a directory with the files of `revision`; it is deleted at the end, also after SIGTERM.

    Uses `git archive`, not a worktree, which would stay registered if this process is killed.
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
                raise SystemExit(f"{revision} is not a revision of {ROOT}") from None
        yield path


@contextmanager
def runnable_checkout(revision: str) -> Iterator[Path]:
    """Yield a checkout of `revision` whose commands this interpreter can run.

    Raises:
        SystemExit: This environment lacks packages that the revision requires.
    """
    with checkout(revision) as folder:
        require_packages(revision, (folder / "pyproject.toml").read_text())
        yield folder


def require_packages(revision: str, text: str) -> None:
    """Raise SystemExit if packages that pyproject.toml (`text`) requires are not installed."""
    declared = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    required = [] if declared is None else re.findall(r'"([^"]+)"', declared[1])
    missing = [one for one in required if ";" not in one and not _is_installed(one)]
    if missing:
        names = " ".join(f"'{one}'" for one in missing)
        raise SystemExit(
            f"{revision} requires {', '.join(missing)}, which this environment lacks: "
            f"{sys.executable} -m pip install {names}"
        )


def _is_installed(requirement: str) -> bool:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def command(*arguments: str) -> list[str]:
    """Return the command line of `uprof`; see `environment` for the checkout."""
    return [sys.executable, "-m", "unified_prof", *arguments]


def environment(checkout: Path) -> dict[str, str]:
    """Return environment variables that make this interpreter import a checkout's package."""
    return {**plain_environment(), "PYTHONPATH": str(checkout), "TERM": "dumb"}


def plain_environment() -> dict[str, str]:
    """Return this process's environment without variables that change results or costs.

    Includes PYTHONDONTWRITEBYTECODE: without cached bytecode, each run compiles its imports, which
    takes a third of a second that an installed uprof does not need.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UPROF_")}
    for name in ("GITHUB_STEP_SUMMARY", "PYTHONDONTWRITEBYTECODE"):
        kept.pop(name, None)
    return kept
