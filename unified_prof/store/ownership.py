"""Which process a file under way belongs to, and what dead processes left behind.

A process that is killed cannot remove what it was writing. So the name of such a file says who
writes it, and whoever next writes beside it removes it, if that process is gone for certain: the
same boot of the same kernel, the same numbering of processes, and no process of that number and
start. Of a writer on another machine, in another container or before a reboot nothing is known,
and its file stays.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

TAG = re.compile(r"([0-9a-f]{8})-([0-9a-f]+)-([0-9a-f]+)")
"""A writer's tag: where process numbers count, the process, its start."""

TEMPORARY = "uprof-"
_ENDED = ("Z", "X")  # a zombie writes no more


def tag() -> str:
    """Return what the names of this process's unfinished files hold."""
    process = os.getpid()
    return f"{_domain() or '0' * 8}-{process:x}-{_start(process) or 0:x}"


def is_abandoned(owner: str) -> bool:
    """Say whether the process with this tag is gone for certain."""
    match = TAG.fullmatch(owner)
    if match is None or match[1] != _domain():
        return False
    process, start = int(match[2], 16), int(match[3], 16)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # somebody else's, which /proc may hide
    found = _start(process)
    return found is not None and found != start


def is_of_here(owner: str) -> bool:
    """Say whether the process with this tag can be seen from here: it lives unless abandoned."""
    match = TAG.fullmatch(owner)
    return match is not None and match[1] == _domain()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for temporary copies; first remove those that dead processes left.

    Raises:
        OSError: it cannot be made.
    """
    place = tempfile.gettempdir()
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(TEMPORARY).rpartition("-")[0]
            if entry.name.startswith(TEMPORARY) and is_abandoned(owner):
                shutil.rmtree(entry.path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{tag()}-", dir=place) as folder:
        yield Path(folder)


@cache
def _domain() -> str | None:
    """Return what tells this numbering of processes from all others; None: not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        numbering = Path("/proc/self/ns/pid").readlink()
    except (OSError, ValueError):
        return None
    return blake2b(f"{boot} {numbering}".encode(), digest_size=4).hexdigest()


def _start(process: int) -> int | None:
    """Return when a process started, in the kernel's ticks; -1: it has ended; None: not known."""
    try:
        # The second field, the program's name, may hold anything.
        status = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if status[0].decode("ascii") in _ENDED else int(status[19])
    except (OSError, ValueError, IndexError):
        return None
