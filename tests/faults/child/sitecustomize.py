"""Faults inside a command: Python imports this module when the command starts.

The variable FAULT_PLAN has the fault as JSON. The counted events are operations on files below
FAULT_ROOT and starts of processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

_EVENTS = frozenset(
    "open os.rename os.link os.remove os.mkdir os.rmdir sqlite3.connect shutil.rmtree".split()
)
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn"})


def _watch(on_event: object) -> None:
    root = os.environ["FAULT_ROOT"]

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in _STARTS or (event in _EVENTS and root in str(arguments)):
            on_event()  # type: ignore[operator]

    sys.addaudithook(audit)


def _count(path: str) -> None:
    """Append a byte to a file for each event."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    _watch(lambda: os.write(descriptor, b"."))
    tmp = os.environ["TMPDIR"]

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith("tempfile.") and str(arguments[0]).startswith(tmp):
            _note(f"{path}.tmp")

    sys.addaudithook(audit)


def _note(path: str) -> None:
    """Create a file: the fault has struck."""
    with Path(path).open("a"):
        pass


def _kill(event: int, number: int, struck: str) -> None:
    """Send a signal to this process just before the given event."""
    left = event

    def on_event() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _note(struck)
            os.kill(os.getpid(), number)

    _watch(on_event)


def _set_clock_back(calls: int, struck: str) -> None:
    """Let the clock go back by an hour after so many readings."""
    left = calls
    now_ns = time.time_ns

    def time_ns() -> int:
        nonlocal left
        left -= 1
        if left == -1:
            _note(struck)
        return now_ns() - (3_600_000_000_000 if left < 0 else 0)

    time.time_ns, time.time = time_ns, lambda: time_ns() / 1e9


def _remove_tmpdir(struck: str) -> None:
    """Let no directory for temporary files be usable."""

    def candidates() -> list[str]:
        _note(struck)
        return [str(Path("/nonexistent"))]

    tempfile._candidate_tempdir_list = candidates  # type: ignore[attr-defined]


def _start() -> None:
    plan = json.loads(os.environ["FAULT_PLAN"])
    struck = os.environ["FAULT_STRUCK"]
    if "count" in plan or "event" in plan:
        del os.environ["FAULT_PLAN"]  # only of the first process
    if "count" in plan:
        _count(plan["count"])
    if "event" in plan:
        _kill(plan["event"], plan["signal"], struck)
    if "clock" in plan:
        _set_clock_back(plan["clock"], struck)
    if "no tmpdir" in plan:
        _remove_tmpdir(struck)


def _note_start(path: str) -> None:
    """Create a file when uprof's own code starts; before, signals are Python's matter."""

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "import" and arguments[0] == "unified_prof.cli.app":
            _note(path)

    sys.addaudithook(audit)


if "FAULT_STARTED" in os.environ:
    _note_start(os.environ.pop("FAULT_STARTED"))
if "FAULT_PLAN" in os.environ:
    _start()
