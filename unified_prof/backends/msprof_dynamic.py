"""Records this process with `msprof --dynamic`, without waiting for msprof.

msprof connects to a socket that CANN opens if PROFILING_MODE is `dynamic` when the program
initializes the NPU. It reads commands from its standard input, and answers each with a line such as
`dynamic profiling for pid 7 start success` (older releases: `Execution success`).
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from unified_prof.backends import cann, msprof_outcome
from unified_prof.backends.msprof_process import run_group
from unified_prof.errors import UprofError

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
            recorded = map(msprof_outcome.inspect, msprof_outcome.find(self._place))
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
