"""Garbage collection, memory and threads of the processes of the command line.

Imports create about 100,000 objects that are never freed, and Python's garbage collector visits
them 120 times, which is a tenth of a small command's CPU time. NumPy's BLAS starts a thread per
processor that uprof does not use. Both are restored before a user's program runs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from unified_prof.errors import SystemLimitError

# New objects between two garbage collections; at most a few dozen MB of garbage.
_GC_THRESHOLD = 200_000
_THREADS = "OPENBLAS_NUM_THREADS"
_MIN_ADDRESS_SPACE_MB = 128  # NumPy with its BLAS needs this much before anything is read.

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, and the maximum of the former.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT, _MOST_KEPT = 32 << 20, 256 << 20

# Python's own thresholds while ours are active.
_default_thresholds: tuple[int, int, int] | None = None
_is_only_uprof = False  # True if no user program has run in this process.


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely within the block, or until `restore_garbage_collection` is called."""
    global _default_thresholds, _is_only_uprof
    if _default_thresholds is None and gc.get_threshold()[0]:  # 0: collection is off
        _default_thresholds, _is_only_uprof = gc.get_threshold(), True
        gc.set_threshold(_GC_THRESHOLD, *_default_thresholds[1:])
    try:
        yield
    finally:
        _restore()


def restore_garbage_collection() -> None:
    """Restore Python's garbage collection before a user's program runs."""
    global _is_only_uprof
    _is_only_uprof = False
    _restore()


def _restore() -> None:
    global _default_thresholds
    if _default_thresholds is not None:
        gc.set_threshold(*_default_thresholds)
        _default_thresholds = None


def skip_exit_collection() -> None:
    """Skip the garbage collection at process exit; must be the last call."""
    if _is_only_uprof:
        gc.freeze()


def keep_memory() -> None:
    """Let the GNU C library keep freed memory until the process ends.

    By default it returns freed memory to the kernel, which clears every page on the next
    allocation: 5 % of a conversion's time. Peak memory does not change.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Keep NumPy from starting BLAS threads on import; a number set by the user is kept."""
    with nullcontext() if _THREADS in os.environ else environment(_THREADS, "1"):
        yield


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable within the block, also for processes that start in it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def refuse_small_address_space() -> None:
    """Raise SystemLimitError below a limit at which OpenBLAS exits with 1, a regression to CI."""
    if sys.platform == "win32":
        return
    try:
        import resource
    except ImportError:  # Windows has no such limits.
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < _MIN_ADDRESS_SPACE_MB << 20:
        raise SystemLimitError(
            f"the address space is limited to {limit >> 20} MB, expected {_MIN_ADDRESS_SPACE_MB} MB"
            " or more",
            hint="raise the limit (`ulimit -v`)",
            slug="system-limit",
        )
