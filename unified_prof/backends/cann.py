"""Queries the installed CANN toolkit, msprof and chip, and runs msprof in a process group.

msprof calls a chip a platform and prints its number when it rejects an option (`PlatformType:4`).
The table of chips is used if msprof itself cannot be queried; see `msprof_plan`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from msgspec import Struct, field

from unified_prof.base.signals import ENDING
from unified_prof.errors import DeviceUnavailableError, UsageError, system_errors

_COMMON_METRICS = (
    *("ArithmeticUtilization", "PipeUtilization", "Memory", "MemoryL0", "MemoryUB"),
    "ResourceConflictRatio",
)
_MAX_CUSTOM_EVENTS = 8
UNKNOWN = "unknown"  # Name for a chip that is not in the table: no option is left out in advance.


class Chip(Struct, frozen=True):
    """A chip and the options that msprof accepts on it."""

    name: str  # Common name.
    platforms: tuple[int, ...]  # Platform numbers of msprof.
    full_names: str  # Regular expression for its names in npu-smi and CANN, without `Ascend`.
    # Unsupported options, without dashes; with one of them, msprof exits immediately.
    refuses: frozenset[str]
    metrics: tuple[str, ...]  # Values of `--aic-metrics`.
    # Option -> accepted values, if they differ from other chips.
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Option -> maximum, if it differs from other chips.
    limits: Mapping[str, int] = field(default_factory=dict)
    custom_events: int = _MAX_CUSTOM_EVENTS  # Maximum number of events in `--aic-metrics Custom:`.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LINKS = "sys-interconnection-profiling sys-interconnection-freq"
_PORTS = "sys-io-profiling sys-io-sampling-freq"
_ALL_OR_OFF = {"task-block": ("all", "off")}

CHIPS: tuple[Chip, ...] = (
    Chip(
        "310",
        (0,),
        r"310",
        _words(
            f"{_LINKS} l2 npu-events storage-limit task-block nts-metrics dynamic pid delay"
            " duration"
        ),
        _COMMON_METRICS,
        values={"llc-profiling": ("capacity", "bandwidth")},
    ),
    Chip(
        "910A",
        (1,),
        r"910(?:A|Pro[AB]|PremiumA)",
        _words("task-block nts-metrics"),
        _COMMON_METRICS,
    ),
    Chip("310P", (4,), r"310P\d*.*", _words(f"{_PORTS} task-block nts-metrics"), _COMMON_METRICS),
    Chip(
        # A2 and A3. npu-smi also prints a bare 910B for a board of the generation before.
        "910B",
        (5,),
        r"910(?:B\d.*|_93.*|C\d*)",
        _words("task-block nts-metrics"),
        (*_COMMON_METRICS, "L2Cache", "MemoryAccess"),
    ),
    Chip(
        "310B",
        (7,),
        r"310B\d*.*",
        _words(f"{_LINKS} nts-metrics"),
        (*_COMMON_METRICS, "L2Cache", "PipelineExecuteUtilization"),
        values=_ALL_OR_OFF,
    ),
    Chip(
        "950",
        (15, 16),
        r"950.*",
        _words("nts-metrics"),
        (*_COMMON_METRICS, "L2Cache"),
        limits={"sys-hardware-mem-freq": 10000},
        custom_events=10,
    ),
)


def by_full_name(text: str | None) -> Chip | None:
    """Return the chip with a name from npu-smi or CANN (`Ascend 910B3`), None if unknown."""
    name = re.sub(r"^\s*ascend[\s_-]*", "", text or "", flags=re.IGNORECASE).strip()
    return next(
        (chip for chip in CHIPS if re.fullmatch(chip.full_names, name, re.IGNORECASE)), None
    )


def find_chip(text: str) -> Chip | None:
    """Return the chip for a value of `--npu-chip`, None for UNKNOWN.

    Raises UsageError if there is no chip with this name.
    """
    if text.strip().lower() == UNKNOWN:
        return None
    plain = re.sub(r"^\s*ascend[\s_-]*", "", text, flags=re.IGNORECASE).strip().lower()
    aliases = {"910": "910a", "a2": "910b", "a3": "910b", "910_93": "910b"}
    for chip in CHIPS:
        if chip.name.lower() == aliases.get(plain, plain):
            return chip
    if found := by_full_name(text):
        return found
    known = ", ".join([*(chip.name for chip in CHIPS), UNKNOWN])
    raise UsageError(
        f"--npu-chip: expected one of {known}, found {text!r}", slug="wrong-npu-option"
    )


_TIMEOUT_S = 10


def query(*command: str, any_status: bool = False) -> str | None:
    """Return the output of `command`, None if it is missing, fails or takes too long.

    If `any_status`, an exit status other than 0 is not a failure.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=not any_status,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# Set by the toolkit's set_env.sh; the newer name first.
_HOME_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_INSTALL_FOLDERS = (
    "/usr/local/Ascend/ascend-toolkit/latest",
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/latest",
    "~/Ascend/ascend-toolkit/latest",
    "~/Ascend/cann",
    "~/Ascend/latest",
)
_MSPROF_BELOW_HOME = (
    "bin/msprof",
    "tools/profiler/bin/msprof",
    "x86_64-linux/bin/msprof",
    "aarch64-linux/bin/msprof",
)
_VERSION_FILES = (
    ("*-linux/ascend_toolkit_install.info", r"^version=(\S+)"),
    ("*-linux/ascend_cann_install.info", r"^version=(\S+)"),
    ("version.cfg", r"running_version=\[(?:[^:\]]*:)?([^\]]+)\]"),
    ("share/info/runtime/version.info", r"^Version=(\S+)"),
    ("runtime/version.info", r"^Version=(\S+)"),
)


def homes() -> Iterator[Path]:
    """Yield toolkit directories, starting with those from environment variables."""
    named = (os.environ.get(name, "") for name in _HOME_VARIABLES)
    for text in (*filter(None, named), *_INSTALL_FOLDERS):
        path = Path(text).expanduser()
        if path.is_dir():
            yield path


def find_msprof() -> Path | None:
    """Return the path of msprof: from PATH, otherwise from the first toolkit that contains it."""
    if on_path := shutil.which("msprof"):
        return Path(on_path)
    for home in homes():
        for below in _MSPROF_BELOW_HOME:
            if found := shutil.which(str(home / below)):
                return Path(found)
    return None


def version() -> str | None:
    """Return the version of the toolkit, None if unknown or not installed."""
    near_msprof = []
    if (msprof := find_msprof()) is not None:
        near_msprof = list(msprof.resolve().parents)[1:5]
    for home in (*homes(), *near_msprof):
        for pattern, expression in _VERSION_FILES:
            for path in sorted(home.glob(pattern)):
                try:
                    text = path.read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue
                if found := re.search(expression, text, re.MULTILINE):
                    return found[1]
    return None


def msprof_help() -> str | None:
    """Return the output of `msprof --help` on this machine, None if msprof does not respond."""
    msprof = find_msprof()
    return None if msprof is None else query(str(msprof), "--help", any_status=True)


def chip() -> str | None:
    """Return the name of the first chip as in npu-smi, such as `Ascend 910B3`."""
    answer = query("npu-smi", "info", "-m") or ""
    found = re.search(r"^\s*\d+\s+\d+\s+\d+\s+(\S.*?)\s*$", answer, re.MULTILINE)
    return found[1] if found else None


# Characters that msprof rejects in paths; a space is allowed.
FORBIDDEN_IN_PATHS = frozenset("\n\f\r\b\t\v\x7f\"'\\%><|&$;`")


def check_path(path: Path, what: str) -> None:
    """Raise UsageError if msprof would reject `path`."""
    if bad := sorted({*str(path)} & FORBIDDEN_IN_PATHS):
        raise UsageError(
            f"{what} {path} has characters that msprof rejects: {' '.join(map(repr, bad))}",
            hint="choose a directory without them",
            slug="msprof-refuses-path",
        )


_FORWARDED = (signal.SIGINT, *ENDING)
_SIGNALS_TO_KILL = 3  # Requests to end after which the group is killed.
_MAX_LINES = 400
_READER_GRACE_S = 5.0
_TICK_S = 0.1
_GROUP = 2  # Position in /proc/<pid>/stat after the name of the program.
Feed = Callable[[IO[bytes], threading.Event], None]


class ProcessResult(Struct, frozen=True):
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
