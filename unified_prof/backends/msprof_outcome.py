"""Determines the result of an msprof run from the files on disk.

msprof exits with 0 even if the application failed, the export failed or nothing was recorded, so
its exit status is not reliable. An incomplete export leaves a partial database and intermediate
files, which are removed.

msprof reports the exit status of the workload only as the text of an error number, which is the
same for exit code 9 and signal 9. `WorkloadWatch` reads the status of the process instead: msprof
reaps the process only once per second, and the status is available until then.

`DynamicRecording` records this process with `msprof --dynamic`, without waiting for msprof. msprof
connects to a socket that CANN opens if PROFILING_MODE is `dynamic` when the program initializes the
NPU. It reads commands from its standard input, and answers each with a line such as `dynamic
profiling for pid 7 start success` (older releases: `Execution success`).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from unified_prof.backends import cann
from unified_prof.backends.cann import ProcessResult, run_group
from unified_prof.errors import CaptureError, DeviceUnavailableError, OutputError, UprofError

# Exit statuses of msprof; 0 does not mean success.
_REFUSED = 255
_VIRTUAL_NPU = 254
_MIN_FREE_BYTES = 20 * 1024 * 1024  # msprof stops recording below this amount of free space.

_APP_FAILED = re.compile(
    r"exception has occurred in process App, return code: ?(.*)", re.IGNORECASE
)
_PROBLEM = re.compile(r"^\[(?:ERROR|WARNING)\]\s*(?!\s|Running profiling failed)(.+)")
_EXPORT_FAILED = re.compile(
    r"exception has occurred in process Export.*, return code: ?(.*)", re.IGNORECASE
)
# getopt prints the program as it was called, msprof's own check prints its path.
_REFUSED_OPTION = re.compile(r"^\S.*?: (unrecognized option '(--[a-z][a-z0-9-]*)(?:=.*)?')")
_ERROR = re.compile(r"^(?:\[ERROR\]|msprof:)\s*(.*)")
# Signals that end processes without a request: out of memory, a crash in a library.
_LIKELY_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGKILL", "SIGSEGV", "SIGABRT") if hasattr(signal, name)
)
_FULL = re.compile(r"no space left|disk (is )?full|(disk|storage) space", re.IGNORECASE)
_NATIVE = re.compile(r"msprof_\d{14}\.db")


class ProfDirectory(Struct, frozen=True):
    """A PROF_* directory of a run."""

    path: Path
    native: Path | None  # Newest database that msprof exported into the directory.
    has_device_data: bool


def find(folder: Path) -> set[Path]:
    """Return the PROF_* directories in `folder`; empty if `folder` does not exist."""
    try:
        return {path for path in folder.glob("PROF_*") if path.is_dir() and not path.is_symlink()}
    except OSError:
        return set()


def inspect(path: Path) -> ProfDirectory:
    """Return what msprof left in the PROF_* directory `path`."""
    natives = sorted(p for p in path.glob("msprof_*.db") if _NATIVE.fullmatch(p.name))
    has_device_data = any(
        not file.name.endswith((".done", ".complete"))
        for file in path.glob("device_*/data/*.data.*")
    )
    return ProfDirectory(path, natives[-1] if natives else None, has_device_data)


def refused_option(lines: Iterable[str]) -> str | None:
    """Return the rejected option, without dashes, that prevented msprof from starting."""
    for line in lines:
        if found := _REFUSED_OPTION.match(line):
            return found[2].removeprefix("--")
    return None


def remove_record(folder: Path, process: int) -> None:
    """Remove the list of recordings that a killed msprof left in `folder`."""
    with suppress(OSError):
        (folder / f"{process}_profiling_output_record").unlink(missing_ok=True)


def workload_exit_code(reported: int | None, observed: int | None, ended: ProcessResult) -> int:
    """Return the workload's exit code.

    `reported` is the exit code according to the launcher; None if it did not get that far because
    of a signal or `os._exit`, or if the workload is not a Python program. `observed` is that of the
    process; None if msprof reaped it first. The warning of msprof in `ended` contains the code as
    the text of an errno.
    """
    said = next((found[1] for one in ended.lines if (found := _APP_FAILED.search(one))), None)
    if ended.interrupted_by is not None and observed == 128 + signal.SIGTERM:
        observed = 128 + ended.interrupted_by  # msprof forwards every signal as SIGTERM
    if observed or (observed == 0 and not reported and said is None):
        return observed  # 0 is also what the system shows without permission
    if reported is not None:
        return reported
    if ended.interrupted_by is not None:
        return 128 + ended.interrupted_by
    if said is not None:
        return _code_of_text(said.strip())
    return 128 - ended.status if ended.status < 0 else 0


def describe_failure(
    ended: ProcessResult, exit_code: int, directories: Sequence[ProfDirectory]
) -> str | None:
    """Return the reason why the recording is missing or incomplete, None if it is complete."""
    parts: list[str] = []
    if ended.interrupted_by is not None:
        parts.append("the run was interrupted")
    if exit_code and ended.interrupted_by is None:
        killed = " (SIGKILL, often out of memory)" if exit_code == 137 else ""
        parts.append(f"the workload exited with code {exit_code}{killed}")
    if not directories:
        parts.append(_nothing_recorded_error(ended))
    elif ended.status < 0 and ended.interrupted_by is None:
        parts.append(
            f"msprof was killed by signal {-ended.status} during the recording: samples and device"
            " data may be missing"
        )
    parts += [
        f"{directory.path} has no device data: nothing ran on an NPU during the recording"
        for directory in directories
        if not directory.has_device_data
    ]
    return "; ".join(parts) or None


def _nothing_recorded_error(ended: ProcessResult) -> str:
    errors = [
        found[1]
        for line in ended.lines
        if (found := _REFUSED_OPTION.match(line) or _ERROR.match(line))
    ]
    if ended.status == _VIRTUAL_NPU:
        return "msprof cannot record here: this container has a virtual NPU (vNPU)"
    if ended.status < 0:
        return f"msprof was killed by signal {-ended.status} and recorded nothing"
    if any("aclInit" in error or "profiling data" in error for error in errors):
        return (
            "msprof recorded nothing: the workload never initialized an NPU (no aclInit), "
            "so it ran on another device or ended earlier"
        )
    if errors:
        return f"msprof recorded nothing: {errors[0]}"
    if ended.status == _REFUSED:
        return "msprof recorded nothing and gives no reason"
    return f"msprof exited with {ended.status} and recorded nothing"


def export_error(ended: ProcessResult) -> str | None:
    """Return why the result of an export is unusable, None if msprof reported no error."""
    for line in ended.lines:
        if found := _REFUSED_OPTION.match(line):
            return f"msprof's export failed: {found[1]}"
        if found := _EXPORT_FAILED.search(line):
            return f"msprof's export failed: {found[1].removesuffix('.')}"
    if ended.status < 0:
        return f"msprof's export was killed by signal {-ended.status}"
    return missing_database_error(ended) if ended.status else None


def missing_database_error(ended: ProcessResult) -> str:
    """Return the error for an export that seemed to succeed but wrote no database."""
    said = [found[1] for line in ended.lines if (found := _PROBLEM.match(line))]
    if said:  # the last error before it gave up
        return f"msprof's export failed: {said[-1]}"
    status = f" and exit status {ended.status}" if ended.status else ""
    return f"msprof's export failed without a reason{status}"


def disk_error(ended: ProcessResult, folder: Path) -> OutputError | None:
    """Return an error message if the disk of the recordings is full, otherwise None."""
    full = any(
        _FULL.search(line) for line in ended.lines if line.startswith(("[ERROR]", "[WARNING]"))
    )
    with suppress(OSError):
        full = full or shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    text = f"the disk of {folder} is full: the recording is incomplete or missing"
    return OutputError(text, slug="cannot-write") if full else None


def _code_of_text(text: str) -> int:
    """Return the exit code for the `strerror` text printed by msprof, 1 if the text is unknown.

    msprof appends a full stop, and prints the number of a signal as if it were an exit code.
    """
    for one in (text, text.removesuffix(".")):
        if unknown := re.fullmatch(r"(?:Unknown error )?(\d+)", one, re.ASCII):
            return int(unknown[1]) & 0xFF or 1
        for code in range(1, 256):
            if os.strerror(code) == one:
                return 128 + code if code in _LIKELY_SIGNALS else code
    return 1


_LIMIT_S = 3600.0  # Time limit of an export; tens of millions of tasks take half an hour.


class Exporter:
    """Exports the recordings of one run; stops after the user interrupts an export.

    `relay` is called with every line that msprof writes.
    """

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay = relay
        self._interrupted: str | None = None

    def export(self, prof: Path) -> Path:
        """Export `prof` with msprof and return its database; see `export`.

        Raises CaptureError if there is no database, or an earlier export was interrupted.
        """
        if self._interrupted is not None:
            raise CaptureError(self._interrupted, slug="export-failed")
        try:
            return export(prof, self._relay)
        except _InterruptedError as err:
            self._interrupted = str(err)
            raise


class _InterruptedError(CaptureError):
    """Raised if a signal ended the export."""


def export(prof: Path, relay: Callable[[str], None], *, limit_s: float = _LIMIT_S) -> Path:
    """Export the PROF_* directory `prof` with msprof and return the database.

    A termination signal ends the export; the signal is then raised again in this process. `relay`
    is called with every line that msprof writes.

    Raises:
        CaptureError: The export failed; all files that it created were removed.
    """
    msprof = cann.find_msprof()
    if msprof is None:
        raise CaptureError("msprof, needed to export it, was not found", slug="export-failed")
    before = {*prof.rglob("*")}
    end_s, is_late = time.monotonic() + limit_s, False

    def look(group: int) -> bool:
        nonlocal is_late
        if not is_late and time.monotonic() > end_s:
            is_late = True
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        return False

    try:
        ended = run_group(
            [str(msprof), "--export=on", "--type=db", f"--output={prof}"],
            environment=os.environ,
            relay=relay,
            tick=look,
        )
    except DeviceUnavailableError as err:
        raise CaptureError(str(err), slug=err.slug) from err
    except BaseException:
        _remove_new(prof, before)
        raise
    if ended.interrupted_by is not None:
        why = "msprof's export was interrupted"
    elif is_late:
        why = f"msprof's export took more than {limit_s:g} s"
    else:
        why = export_error(ended) or ""
    made = inspect(prof).native
    if not why and (made is None or made in before):
        why = missing_database_error(ended)
    if not why and made is not None:
        if _is_database(made):
            return made
        why = "msprof's export wrote a file that is not a database"
    _remove_new(prof, before)
    if ended.interrupted_by is not None:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(ended.interrupted_by)
        raise _InterruptedError(why, slug="export-failed")
    raise CaptureError(why, slug="export-failed")


def _remove_new(folder: Path, before: set[Path]) -> None:
    """Remove the files that an export created; changed files are kept."""
    for path in sorted({*folder.rglob("*")} - before):
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


# File to which the workload's script writes its process id first of all.
STARTED_FILE = "started"
_LOOK_S = 0.02
_STATE, _EXIT_STATUS = 0, 49  # Positions in /proc/<pid>/stat, after the name of the program.


class WorkloadWatch:
    """Watches the workload process and keeps its exit status.

    The script stores the process id in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / STARTED_FILE
        self._pid: int | None = None
        self._thread: threading.Thread | None = None
        self._status: int | None = None

    @property
    def started(self) -> bool:
        """True if the workload has started."""
        return self._file.exists()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the workload as in a shell, None if unknown."""
        if self._thread is not None:
            self._thread.join(1.0)
        if self._status is None:
            return None
        code = os.waitstatus_to_exitcode(self._status)
        return 128 - code if code < 0 else code

    def look(self, session: int) -> None:
        """Start watching as soon as the workload has started.

        A process of another session than `session`, in which msprof was started, is not the
        workload: msprof ran it in another namespace.
        """
        if self._thread is not None:
            return
        with suppress(OSError, ValueError):
            pid = int(self._file.read_text(encoding="ascii"))
            if os.getsid(pid) == session:
                self._pid = pid
                self._thread = threading.Thread(target=self._watch, args=(pid,), daemon=True)
                self._thread.start()

    def runs(self) -> bool:
        """Return True if the workload is known to be running."""
        return self._pid is not None and _state(self._pid)[0] not in ("", "Z", "X")

    def _watch(self, pid: int) -> None:
        # A thread, because msprof may read the status a moment after the end.
        try:
            descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):  # no such call on this system: poll
            while _state(pid)[0] not in ("", "Z", "X"):
                time.sleep(_LOOK_S)
        else:
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll()
            finally:
                os.close(descriptor)
        state, status = _state(pid)
        if state in ("Z", "X"):
            self._status = status


def _state(pid: int) -> tuple[str, int]:
    """Return the state letter and wait status of a process; the state is empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_EXIT_STATUS])
    except (OSError, IndexError, ValueError):
        return "", 0


MODE_VARIABLE, MODE = "PROFILING_MODE", "dynamic"
# Those of the default preset, with values that all releases accept, and a limit of the disk space.
_OPTIONS = "--task-time=on --ascendcl=on --runtime-api=on --msproftx=on --storage-limit=4000MB"
_START_S = 20.0  # Time to connect, usually a second.
# Time to write the data, for which msprof waits up to 60 s.
_STOP_S = 90.0
_SUCCESS = re.compile(r"(?:start|Execution) success")
_FAILURE = re.compile(r"\[ERROR\] *(.+)|(.+ (?:start failed|not been set up)|Execution fail.*)")


class DynamicRecording:
    """One recording of this process, which starts at once.

    msprof creates PROF_* in `place`.
    """

    def __init__(self, place: Path) -> None:
        self.failure: str | None = None  # Why there is no recording of the device.
        self.has_started = False  # True once msprof records, or has failed.
        self._place = place
        self._stop = threading.Event()
        self._end_s = time.monotonic() + _START_S
        self._thread = threading.Thread(target=self._run, name="uprof msprof", daemon=True)
        self._thread.start()

    def has_stopped(self) -> bool:
        """Stop recording at the first call; return True once msprof has ended."""
        if not self._stop.is_set():
            self._end_s = time.monotonic() + _STOP_S
            self._stop.set()
        return not self._thread.is_alive()

    def kill(self) -> None:
        """End msprof."""
        while self._thread.is_alive():
            self._end_s = 0.0
            self._thread.join(0.1)

    def _run(self) -> None:
        try:
            msprof = cann.find_msprof()
            if msprof is None or os.environ.get(MODE_VARIABLE) != MODE:
                self.failure = "msprof was not found" if msprof is None else _NOT_DYNAMIC
                return
            cann.check_path(self._place, "the directory")
            attach = (f"--output={self._place}", "--dynamic=on", f"--pid={os.getpid()}")
            command = [str(msprof), *_OPTIONS.split(), *attach]
            run_group(
                command, environment=os.environ, relay=self._heard, feed=self._feed, tick=self._look
            )
            recorded = map(inspect, find(self._place))
            if not (self.failure or any(one.has_device_data for one in recorded)):
                self.failure = "msprof recorded no device"
        except (UprofError, OSError) as error:
            self.failure = str(error)
        finally:
            self.has_started = True

    def _heard(self, line: str) -> None:
        if self.has_started:
            return
        if (failed := _FAILURE.search(line)) is not None:
            self.failure, self._end_s = failed[1] or failed[2], 0.0
        elif _SUCCESS.search(line):
            self.has_started, self._end_s = True, float("inf")

    def _feed(self, stdin: IO[bytes], has_ended: threading.Event) -> None:
        with suppress(OSError):  # msprof has ended
            stdin.write(b"start\n")
            stdin.flush()
            while not (self._stop.wait(0.1) or has_ended.is_set()):
                pass
            stdin.write(b"stop\nquit\n")
            stdin.close()  # msprof sees a command behind another one only at the end of its input

    def _look(self, group: int) -> bool:
        if time.monotonic() > self._end_s:
            self.failure = self.failure or "msprof did not respond"
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        return False


_NOT_DYNAMIC = f"the program started without {MODE_VARIABLE}={MODE}"
