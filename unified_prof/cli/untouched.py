"""Ranks that are not measured: their process becomes the workload, as if uprof were not there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from unified_prof.errors import UsageError
from unified_prof.pipeline.ranks import ALL, Chosen, Rank


@dataclass(frozen=True, slots=True)
class Workload:
    """What the user asked to run."""

    target: str
    """Path of a script, or a module name when `is_module`."""
    is_module: bool
    arguments: tuple[str, ...]


def is_measured(rank: Rank, chosen: Chosen) -> bool:
    """Return whether this rank is among the chosen ones.

    Raises:
        UsageError: none of the ranks of this run is.
    """
    if chosen == ALL:
        return True
    world_size = rank.world_size or 1
    if not chosen.of(world_size):
        there = "one rank, 0" if world_size == 1 else f"{world_size} ranks, 0 to {world_size - 1}"
        raise UsageError(
            f"--ranks names none of the ranks of this run: it has {there}", slug="no-such-rank"
        )
    return (rank.number or 0) in chosen


def run_untouched(workload: Workload) -> NoReturn:
    """Let this process become the workload; does not return.

    Raises:
        UsageError: it cannot be started.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, full, or None
            stream.flush()
    command = _command(workload)
    try:
        os.execv(command[0], command)
    except OSError as err:
        raise UsageError(
            f"cannot start {command[0]}: {err.strerror or err}", slug="cannot-start"
        ) from err


def _command(workload: Workload) -> list[str]:
    path = Path(workload.target)
    if workload.is_module:
        return [*_python(), "-m", workload.target, *workload.arguments]
    is_program = path.suffix not in (".py", ".pyw") and path.is_file() and os.access(path, os.X_OK)
    if is_program:
        return [str(path.absolute()), *workload.arguments]
    return [*_python(), workload.target, *workload.arguments]


def _python() -> list[str]:
    """Return this interpreter with the options it was started with (-X, -W, -u, ...)."""
    options: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return [sys.executable, *options]
