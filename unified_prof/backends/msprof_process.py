"""Runs msprof in a separate process group, and forwards signals and output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from unified_prof.base.signals import ENDING
from unified_prof.errors import DeviceUnavailableError, system_errors

_FORWARDED = (signal.SIGINT, *ENDING)
_SIGNALS_TO_KILL = 3  # Requests to end after which the group is killed.
_MAX_LINES = 400
_READER_GRACE_S = 5.0
_TICK_S = 0.1
_GROUP = 2  # Position in /proc/<pid>/stat after the name of the program.
Feed = Callable[[IO[bytes], threading.Event], None]


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Exit status, last output and signal of a finished msprof process."""

    status: int  # Exit status; a negative number is the signal that killed it.
    lines: tuple[str, ...]  # Last lines of its standard output and standard error.
    # First signal that this process received while msprof was running, or None.
    interrupted_by: int | None
    process: int = 0  # Process id.


def run_group(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    inherited: Sequence[int] = (),
    relay: Callable[[str], None],
    feed: Feed | None = None,
    tick: Callable[[int], bool] = lambda _: False,
    workload_runs: Callable[[], bool] = lambda: False,
) -> ProcessResult:
    """Run `command` and wait for it.

    SIGINT, SIGTERM and SIGHUP are forwarded to the whole group, as a terminal does. While the
    workload runs, they are not forwarded to msprof itself: it exits on SIGTERM and kills the
    workload one second after SIGINT, but the workload shall decide when to end. The third signal
    kills the group. Signals ignored by `nohup` stay ignored.

    Args:
        command: Program and arguments.
        environment: Environment of the process.
        inherited: File descriptors that the process and its children inherit.
        relay: Called with every line of output, without its newline.
        feed: Runs in a thread and writes to the standard input of the process. Its event is set
            when the process has ended or this process received a termination signal; the first
            signal is then not forwarded. If None, the process inherits the standard input, or an
            empty one if it is a terminal, which a background process group must not read.
        tick: Called regularly in this thread with the process id, which is also the session and
            group id. Returns True while the workload runs, because the workload may still be
            running after msprof exited on SIGTERM.
        workload_runs: Called when a signal arrives; returns True if the workload is running.

    Raises:
        DeviceUnavailableError: The program cannot be started.
    """
    with _Signals(polite=feed is not None, workload_runs=workload_runs) as signals:
        stdin: int | None = subprocess.DEVNULL
        if feed is not None:
            stdin = subprocess.PIPE
        else:
            with contextlib.suppress(OSError):
                stdin = stdin if os.isatty(0) else None
        with system_errors(
            DeviceUnavailableError, f"cannot start {command[0]}", slug="cannot-start"
        ):
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=tuple(inherited),
                start_new_session=True,
            )
        signals.process = process
        kept: list[str] = []
        threads = [threading.Thread(target=_read, args=(process.stdout, relay, kept), daemon=True)]
        if feed:
            arguments = (process.stdin, signals.asked_to_end)
            threads.append(threading.Thread(target=feed, args=arguments, daemon=True))
        for thread in threads:
            thread.start()
        status = _wait(process, tick)
        signals.asked_to_end.set()
        # A grandchild that outlives msprof may hold the pipe open.
        for thread in threads:
            thread.join(_READER_GRACE_S)
    for thread, stream in zip(threads, (process.stdout, process.stdin), strict=False):
        if stream and not thread.is_alive():
            with contextlib.suppress(OSError):  # closing writes buffered input
                stream.close()
    first = signals.received[0] if signals.received else None
    return ProcessResult(status, tuple(kept), first, process.pid)


def _wait(process: subprocess.Popen[bytes], tick: Callable[[int], bool]) -> int:
    """Wait until the process has ended and `tick` returns False; return the exit status."""
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while not ended.wait(_TICK_S):
        tick(process.pid)
    while tick(process.pid):
        time.sleep(_TICK_S)
    return process.wait()


class _Signals:
    """Context manager that forwards termination signals to the process group of `process`."""

    def __init__(self, *, polite: bool, workload_runs: Callable[[], bool]) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.received: list[int] = []
        self.asked_to_end = threading.Event()
        self._polite, self._workload_runs = polite, workload_runs
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._forward)
                for number in _FORWARDED
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        self.asked_to_end.set()
        if self.process is None:
            # Requested to end while msprof was being started.
            raise KeyboardInterrupt
        if self._polite and len(self.received) == 1:
            return
        group, others = self.process.pid, list[int]()
        with contextlib.suppress(ProcessLookupError):
            if len(self.received) >= _SIGNALS_TO_KILL:
                os.killpg(group, signal.SIGKILL)
                return
            others = _others_of(group) if self._workload_runs() else []
            if not others:
                os.killpg(group, number)
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _others_of(group: int) -> list[int]:
    """Return the process ids of a group without its leader; empty if not available."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            text = path.read_text(encoding="ascii", errors="replace")
            if int(text.rpartition(")")[2].split()[_GROUP]) == group:
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != group]


def _read(stream: IO[bytes], relay: Callable[[str], None], kept: list[str]) -> None:
    for raw in stream:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        kept.append(line)
        del kept[:-_MAX_LINES]
        with contextlib.suppress(OSError, ValueError):  # our output was closed
            relay(line)


class DeferredOutput:
    """Buffers output lines until msprof is known to have started.

    If msprof rejects an option, it prints its help, which is discarded if msprof is started again
    without the option.
    """

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay, self._lock = relay, threading.Lock()
        self._kept: list[str] | None = []

    def __call__(self, line: str) -> None:
        """Buffer a line, or relay it after `show` was called."""
        with self._lock:
            if self._kept is not None:
                self._kept.append(line)
                return
        self._relay(line)

    def show(self) -> None:
        """Relay the buffered lines, and relay all later lines immediately."""
        with self._lock:
            kept, self._kept = self._kept or [], None
            for line in kept:
                with contextlib.suppress(OSError, ValueError):  # our output was closed
                    self._relay(line)
