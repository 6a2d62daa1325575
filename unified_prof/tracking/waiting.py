"""How long this thread was ready to run while other programs had the processor.

Linux counts it for every thread (`schedstat`, second field, nanoseconds). Taken off the time of an
iteration it leaves what the program itself took, also on a machine that others use.
"""

from __future__ import annotations

import os
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class WaitingTime:
    """Reads the waiting time of the thread that made it; about two microseconds a reading."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another system, or a kernel that does not count
            self._file = None

    def read_ns(self) -> int | None:
        """Return the time waited since the thread began, None where the system does not say."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
