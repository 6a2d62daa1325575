"""The database that msprof itself makes of a recording, asked for afterwards.

msprof exits 0 although the export failed, and an export that ends early leaves half a database and
the files it was made from. So what is there afterwards decides, and what is of no use is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from unified_prof.backends import cann, msprof_outcome
from unified_prof.backends.msprof_process import run_group
from unified_prof.errors import CaptureError, DeviceUnavailableError

_LIMIT_S = 3600.0
"""Nobody waits longer for an exporter that hangs; tens of millions of tasks take half an hour."""


class Exporter:
    """Exports the recordings of one run; whoever interrupts it does not want the next one either.

    Args:
        relay: Shown every line that msprof writes.
    """

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay = relay
        self._interrupted: str | None = None

    def export(self, prof: Path) -> Path:
        """Let msprof export `prof`; see `export`.

        Raises:
            CaptureError: there is no such database, or an export of before was interrupted.
        """
        if self._interrupted is not None:
            raise CaptureError(self._interrupted, slug="export-failed")
        try:
            return export(prof, self._relay)
        except _InterruptedError as err:
            self._interrupted = str(err)
            raise


class _InterruptedError(CaptureError):
    """A signal ended the export."""


def export(prof: Path, relay: Callable[[str], None], *, limit_s: float = _LIMIT_S) -> Path:
    """Let msprof export the PROF_* directory `prof`, and return the database that it makes.

    A signal that asks this process to end ends the export; it is delivered again afterwards.

    Args:
        prof: The recording.
        relay: Shown every line that msprof writes.
        limit_s: How long it may take.

    Raises:
        CaptureError: there is no such database; nothing of the attempt is left.
    """
    msprof = cann.find_msprof()
    if msprof is None:
        raise CaptureError("msprof, which could export it, was not found", slug="export-failed")
    before = _contents(prof)
    watch = _Limit(limit_s)
    try:
        ended = run_group(
            [str(msprof), "--export=on", "--type=db", f"--output={prof}"],
            environment=os.environ,
            relay=relay,
            tick=watch.look,
        )
    except DeviceUnavailableError as err:
        raise CaptureError(str(err), slug=err.slug) from err
    except BaseException:
        _remove_new(prof, before)
        raise
    if ended.interrupted_by is not None:
        why = "msprof's export was interrupted"
    elif watch.passed:
        why = f"msprof's export took more than {limit_s:g} s"
    else:
        why = msprof_outcome.why_not_exported(ended) or ""
    made = msprof_outcome.inspect(prof).native
    if not why and (made is None or made in before):
        why = msprof_outcome.why_no_database(ended)
    if not why and made is not None and not _is_database(made):
        why = "msprof's export left a file that is no database"
    if not why and made is not None:
        return made
    _remove_new(prof, before)
    if ended.interrupted_by is not None:
        if _is_main_thread():
            signal.raise_signal(ended.interrupted_by)
        raise _InterruptedError(why, slug="export-failed")
    raise CaptureError(why, slug="export-failed")


class _Limit:
    """Kills a group of processes that takes too long."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s
        self.passed = False

    def look(self, group: int) -> bool:
        """Kill the group when its time has passed; it leaves nothing to wait for."""
        if not self.passed and time.monotonic() > self._end:
            self.passed = True
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        return False


def _contents(folder: Path) -> set[Path]:
    return {*folder.rglob("*")}


def _remove_new(folder: Path, before: set[Path]) -> None:
    """Remove what an export has left; files that it changed belong to none of ours."""
    for path in sorted(_contents(folder) - before):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error:
        return False


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
