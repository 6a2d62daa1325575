"""Run msprof in a separate process group: forward signals and output, and wait."""

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
from types import FrameType, TracebackType
from typing import IO, Any

from unified_prof.base.signals import ENDING
from unified_prof.errors import DeviceUnavailableError

_FORWARDED = (signal.SIGINT, *ENDING)
_SIGNALS_TO_KILL = 3  # Requests to end after which the group is killed.
_MAX_LINES = 400
_READER_GRACE_S = 5.0
_TICK_S = 0.1
_GROUP = 2  # Position in /proc/<pid>/stat after the name of the program.

Feed = Callable[[IO[bytes], threading.Event], None]


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How msprof ended."""

    status: int
    """Exit status; a negative number is the signal that killed it."""
    lines: tuple[str, ...]
    """Last lines of its standard output and error."""
    interrupted_by: int | None
    """First signal that this process received meanwhile, or None."""
    process: int = 0
    """Process id."""


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

    SIGINT, SIGTERM and SIGHUP are forwarded to the whole group, so that the workload sees them as
    from a terminal. Once the workload runs they are forwarded to all processes but msprof, which
    dies of SIGTERM and gives the workload a second after SIGINT: the workload decides when to end.
    The third signal kills the group. What `nohup` ignores stays ignored.

    Args:
        command: Program and arguments.
        environment: Environment of the process.
        inherited: File descriptors that it and its children inherit.
        relay: Called with every line of output, without its newline.
        feed: Runs in a thread and writes to the standard input. Its event is set when the program
            has ended or this process was requested to end; the first signal is then not forwarded.
            Without it, the standard input is ours, or empty if ours is a terminal, which a process
            of another group must not read.
        tick: Called regularly in this thread with the process id, which is also that of its session
            and group. Returns True while the workload runs: msprof does not survive SIGTERM, but a
            workload may take time to end.
        workload_runs: Called when a signal arrives; returns True if the workload runs.

    Raises:
        DeviceUnavailableError: The program cannot be started.
    """
    with _Signals(polite=feed is not None, workload_runs=workload_runs) as signals:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if feed else _stdin(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=tuple(inherited),
                start_new_session=True,
            )
        except OSError as err:
            raise DeviceUnavailableError(
                f"cannot start {command[0]}: {err.strerror or err}", slug="cannot-start"
            ) from err
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
    """Wait for the process, and while `tick` returns True; return the process's status."""
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
    """Forwards signals that request the end to the group of `process` within the block."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        group = self.process.pid
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
    """Return the processes of a group without its leader; empty if not available."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            text = path.read_text(encoding="ascii", errors="replace")
            if int(text.rpartition(")")[2].split()[_GROUP]) == group:
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != group]


def _stdin() -> int | None:
    try:
        return subprocess.DEVNULL if os.isatty(0) else None
    except OSError:
        return subprocess.DEVNULL


def _read(stream: IO[bytes], relay: Callable[[str], None], kept: list[str]) -> None:
    for raw in stream:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        kept.append(line)
        del kept[:-_MAX_LINES]
        with contextlib.suppress(OSError, ValueError):  # our output was closed
            relay(line)


class DeferredOutput:
    """Holds lines back until msprof is known to have started.

    After a rejected option, msprof prints its help, and may be started again without the option.
    """

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay, self._lock = relay, threading.Lock()
        self._kept: list[str] | None = []

    def __call__(self, line: str) -> None:
        """Take a line."""
        with self._lock:
            if self._kept is not None:
                self._kept.append(line)
                return
        self._relay(line)

    def show(self) -> None:
        """Relay the lines held back, and all others at once from now on."""
        with self._lock:
            kept, self._kept = self._kept or [], None
            for line in kept:
                with contextlib.suppress(OSError, ValueError):  # our output was closed
                    self._relay(line)
