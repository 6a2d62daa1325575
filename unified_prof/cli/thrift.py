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
