"""What a command leaves out that lives for half a second: looking for garbage, threads of BLAS.

To import what a command needs makes some hundred thousand objects, which all stay. Python looks
through them 120 times meanwhile, and once more at the end, together a tenth of a small command's
processor time; NumPy's BLAS starts a thread for each processor, and nothing here multiplies
matrices. A program that runs inside this process finds everything as it is without uprof.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 200_000
"""So many new objects before the next look: what is garbage by then are a few dozen MB at most."""
_THREADS = "OPENBLAS_NUM_THREADS"

# Numbers of malloc.h, and the most that it takes for the first.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT, _MOST_KEPT = 32 << 20, 256 << 20

_usual: tuple[int, int, int] | None = None
"""Python's thresholds, while ours count."""
_is_ours_alone = False
"""Whether no program but uprof has run in this process."""


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Have Python look for garbage seldom within the block, or until `as_usual`."""
    global _usual, _is_ours_alone
    if _usual is None and gc.get_threshold()[0]:  # 0: somebody wants no looking at all
        _usual, _is_ours_alone = gc.get_threshold(), True
        gc.set_threshold(_SELDOM, *_usual[1:])
    try:
        yield
    finally:
        _restore()


def as_usual() -> None:
    """Have Python look for garbage as it does by itself: somebody's program is to run."""
    global _is_ours_alone
    _is_ours_alone = False
    _restore()


def _restore() -> None:
    global _usual
    if _usual is not None:
        gc.set_threshold(*_usual)
        _usual = None


def leave() -> None:
    """Spare Python its look through everything as the process ends; only ever the last call."""
    if _is_ours_alone:
        gc.freeze()


def keep_memory() -> None:
    """Have the GNU C library keep what is freed for what comes next, until the process ends.

    It gives megabytes back as they are freed, and gets the next column's from the kernel again,
    which clears every page of them: a twentieth of a conversion. No more is held than was in use
    at one time.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or none of that name
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let NumPy, if it is imported within the block, start no threads; the user's wish counts."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)
