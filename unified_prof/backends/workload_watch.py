"""The workload behind msprof: whether it has started, and how its process ended.

msprof starts the workload and tells of its end no more than the text of an error number, the same
for exit code 9 as for signal 9. But it looks only once a second whether the process has ended, and
until then the system keeps its status for all to read.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path

STARTED_FILE = "started"
"""The workload's script writes its process id there before anything else."""
_LOOK_S = 0.02
# Where in /proc/<pid>/stat, after the name of the program.
_STATE, _EXIT_STATUS = 0, 49


class WorkloadWatch:
    """Watches the process that a script in `folder` announces.

    Args:
        folder: Where the script writes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / STARTED_FILE
        self._pid: int | None = None
        self._thread: threading.Thread | None = None
        self._status: int | None = None

    @property
    def started(self) -> bool:
        """Whether anything of the workload has run."""
        return self._file.exists()

    @property
    def exit_code(self) -> int | None:
        """How the workload ended, as a shell tells it; None: not yet, or nobody saw it."""
        if self._thread is not None:
            self._thread.join(1.0)
        if self._status is None:
            return None
        code = os.waitstatus_to_exitcode(self._status)
        return 128 - code if code < 0 else code

    def look(self, session: int) -> None:
        """Begin to watch as soon as the workload has started.

        Args:
            session: The session that msprof was started in. A process of another one is not the
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
        """Return whether the workload is known to run still."""
        return self._pid is not None and _state(self._pid)[0] not in ("", "Z", "X")

    def _watch(self, pid: int) -> None:
        # A thread of its own: msprof may ask for the status a moment after the end.
        try:
            descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):  # no such call here: look often instead
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
    """Return the state of a process and, once it has ended, its wait status; `""`: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_EXIT_STATUS])
    except (OSError, IndexError, ValueError):
        return "", 0
