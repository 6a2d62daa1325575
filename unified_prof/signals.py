"""How SIGTERM and SIGHUP end uprof: as `sys.exit` would, and never in the middle of a report.

A process that a scheduler, a closed terminal or a launcher ends must leave no half-written file
and, once it has measured something, its reports. `ended_by_signals` turns both signals into
SystemExit, so that every `finally` and `with` block does its work; `held_back` lets signals wait
while files get their names. Only signals with their default action are taken: a handler of the
user's program, or `nohup`, stays as it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a process to end; Windows lacks SIGHUP."""

_Handler = Callable[[int, FrameType | None], object] | int | None


def exit_code_of(number: int) -> int:
    """Return the exit code with which a shell reports a process that signal `number` ended."""
    return 128 + number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit in the main thread while the block runs.

    Child processes that Python forks inherit the handlers; one that execs another program gets
    the default actions back, as the system does it. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken: dict[int, _Handler] = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                taken[number] = signal.signal(number, _end)
        yield
    finally:
        for number, before in taken.items():
            if signal.getsignal(number) is _end:  # the program inside may have taken it since
                signal.signal(number, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(exit_code_of(number))


@contextmanager
def held_back(numbers: tuple[int, ...] = (*ENDING, signal.SIGINT)) -> Iterator[None]:
    """Let signals wait while the block runs; the first that came is delivered at its end.

    For the short time in which finished measurements become files. Outside the main thread
    nothing is changed, for Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, _Handler] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    for number in numbers:
        handler = signal.getsignal(number)
        # None: set by something that is not Python, which could not be put back.
        if handler is not None and handler is not signal.SIG_IGN:
            before[number] = signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
