"""How SIGTERM and SIGHUP end uprof: as `sys.exit` would, and never in the middle of a report.

A process that a scheduler, a closed terminal or a launcher ends must leave no half-written file
and, once it has measured something, its reports. `ended_by_signals` turns both signals into
SystemExit, so that every `finally` and `with` block does its work; `held_back` lets signals wait
while files get their names. Only signals with their default action are taken: a handler of the
user's program, or `nohup`, stays as it is.
"""

from __future__ import annotations

import os
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
def ended_by_signals(*, in_children: bool = True) -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit in the main thread while the block runs.

    A child process that execs another program gets the default actions back, as the system does
    it. Outside the main thread nothing is changed.

    Args:
        in_children: Whether processes that Python forks in the block end in the same way.
            Otherwise they have the default actions, as without us.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken: dict[int, _Handler] = {}
    owner = os.getpid()
    if not in_children:
        _leave_children_alone(1)
    try:
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                taken[number] = signal.signal(number, _end)
        yield
    finally:
        if not in_children:
            _leave_children_alone(-1)
        if os.getpid() == owner:
            for number, before in taken.items():
                if signal.getsignal(number) is _end:  # the program inside may have taken it since
                    signal.signal(number, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(exit_code_of(number))


_watches_forks = False
_blocks_that_leave_children_alone = 0


def _leave_children_alone(change: int) -> None:
    global _watches_forks, _blocks_that_leave_children_alone
    _blocks_that_leave_children_alone += change
    if not _watches_forks and hasattr(os, "register_at_fork"):
        _watches_forks = True
        os.register_at_fork(after_in_child=_defaults_again)


def _defaults_again() -> None:
    for number in ENDING:
        if _blocks_that_leave_children_alone and signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


class _Hold:
    """Signals that wait, from `begin` to `end`; the first that came is delivered then."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers = numbers
        self._before: dict[int, _Handler] = {}
        self._came: list[int] = []

    def begin(self) -> None:
        """Let signals wait from now on; harmless if they do already.

        One that comes in this moment is delivered when all others are held.
        """
        late: BaseException | None = None
        for number in self._numbers:
            handler = signal.getsignal(number)
            # None: set by something that is not Python, which could not be put back.
            if number in self._before or handler is None or handler is signal.SIG_IGN:
                continue
            self._before[number] = handler
            try:
                signal.signal(number, self._note)
            except BaseException as error:  # the handler's own: it ran in the very last moment
                late = error
        if late is not None:
            raise late

    def end(self) -> None:
        """Put the handlers back and deliver the first signal that came meanwhile."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        if self._came:
            first, self._came = self._came[0], []
            signal.raise_signal(first)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


@contextmanager
def held_back(numbers: tuple[int, ...] = (*ENDING, signal.SIGINT)) -> Iterator[None]:
    """Let signals wait while the block runs; the first that came is delivered at its end.

    For the short time in which finished measurements become files. Outside the main thread
    nothing is changed, for Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold(numbers)
    hold.begin()
    try:
        yield
    finally:
        hold.end()


_prepared: _Hold | None = None


@contextmanager
def held_back_from_end_of_workload() -> Iterator[None]:
    """Let signals wait from `workload_ended()` to the end of the block.

    While the workload runs in the block, signals are its own. Once it has ended nothing may come
    between what was measured and the files it becomes: a launcher sends SIGTERM to all ranks in
    the very moment in which one of them has failed and the others are about to write.
    """
    global _prepared
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _prepared = _prepared, _Hold((*ENDING, signal.SIGINT))
    hold = _prepared
    try:
        yield
    finally:
        _prepared = outer
        hold.end()


def workload_ended() -> None:
    """Let signals wait from now on, if a block of `held_back_from_end_of_workload` is open."""
    if _prepared is not None and threading.current_thread() is threading.main_thread():
        _prepared.begin()
