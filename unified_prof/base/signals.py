"""Handling of SIGTERM and SIGHUP: they end uprof like `sys.exit`, but never during report writing.

A process ended by a scheduler, a closed terminal or a launcher must leave no half-written file and,
once it has measured something, its reports. `ended_by_signals` converts both signals to SystemExit,
so that all `finally` and `with` blocks run; `held_back` defers signals while files get their names.
Only signals with their default action are handled: handlers of the user's program and `nohup` stay.
Ctrl-C stays Python's KeyboardInterrupt, which `held_back` defers, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

# Signals that ask a process to end; Windows lacks SIGHUP.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_Handler = Callable[[int, FrameType | None], object] | int | None


def exit_code_of(number: int) -> int:
    """Return the exit code that a shell reports for a process ended by signal `number`."""
    return 128 + number


@contextmanager
def ended_by_signals(*, in_children: bool = True) -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit in the main thread within the block.

    If `in_children`, processes forked within the block end the same way. Otherwise, and in child
    processes that exec another program, they have the default actions. Outside the main thread
    nothing is changed.
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
                if signal.getsignal(number) is _end:  # the program may have replaced it
                    signal.signal(number, before)


_ended_by: int | None = None


def _end(number: int, frame: FrameType | None) -> None:
    global _ended_by
    _ended_by = number
    raise SystemExit(exit_code_of(number))


def status_of(code: int) -> int:
    """Return the status of a workload that ended with exit code `code` in this process.

    As in `subprocess`, it is the negative number of the signal if SIGTERM or SIGHUP ended it.
    """
    return code if _ended_by is None or code != exit_code_of(_ended_by) else -_ended_by


def end_process(status: int) -> None:
    """End this process with `status`; if it is negative, by that signal, as without uprof."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        signal.raise_signal(-status)
    sys.exit(status)


_AGAIN_S = 0.01  # Time after which a finalizer or callback has ended.


def send_ignored_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python ignored its exception, raised in a finalizer or callback.

    A hook for `sys.unraisablehook`; imports, for example, run such callbacks.
    """
    error = ignored.exc_value
    if isinstance(error, KeyboardInterrupt):
        numbers = [signal.SIGINT]
    else:
        code = error.code if isinstance(error, SystemExit) else None
        numbers = [number for number in ENDING if code == exit_code_of(number)]
    if not numbers:
        sys.__unraisablehook__(ignored)
        return
    threading.Thread(target=_send_after_the_hook, args=numbers, daemon=True).start()


def _send_after_the_hook(number: int) -> None:
    """Send the signal once the main thread has left the hook, where it would be ignored too."""
    inside: FrameType | None
    main_thread = cast(int, threading.main_thread().ident)
    while True:
        time.sleep(_AGAIN_S)
        inside = sys._current_frames().get(main_thread)
        while inside is not None and inside.f_code is not send_ignored_again.__code__:
            inside = inside.f_back
        if inside is None:
            break
    if hasattr(signal, "pthread_kill"):  # ends a blocking call of the main thread
        signal.pthread_kill(main_thread, number)
    else:
        signal.raise_signal(number)


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
    """Defers signals between `begin` and `end`; the first one is delivered at the end."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._came: list[int] = []

    def begin(self) -> None:
        """Defer signals from now on; idempotent.

        A signal that arrives during this call is delivered after all signals are deferred.
        """
        late: BaseException | None = None
        for number in (*ENDING, signal.SIGINT):
            handler = signal.getsignal(number)
            # None: set outside Python, so that it could not be restored.
            if number in self._before or handler is None or handler is signal.SIG_IGN:
                continue
            self._before[number] = handler
            try:
                signal.signal(number, self._note)
            except BaseException as error:  # raised by the handler, which ran just before
                late = error
        if late is not None:
            raise late

    def end(self) -> None:
        """Restore the handlers and deliver the first deferred signal."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        if self._came:
            first, self._came = self._came[0], []
            signal.raise_signal(first)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


@contextmanager
def held_back() -> Iterator[None]:
    """Defer signals within the block; the first one is delivered at its end.

    Intended for the short time in which reports are written. Outside the main thread nothing is
    changed, because Python delivers signals only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold()
    hold.begin()
    try:
        yield
    finally:
        hold.end()


_prepared: _Hold | None = None


@contextmanager
def held_back_from_end_of_workload() -> Iterator[None]:
    """Defer signals from `workload_ended()` to the end of the block.

    While the workload runs in the block, signals go to the workload. After it has ended, nothing
    may interrupt writing the reports, because a launcher sends SIGTERM to all ranks as soon as one
    of them fails.
    """
    global _prepared
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _prepared = _prepared, _Hold()
    hold = _prepared
    try:
        yield
    finally:
        _prepared = outer
        hold.end()


def workload_ended() -> None:
    """Defer signals from now on, if a block of `held_back_from_end_of_workload` is open."""
    if _prepared is not None and threading.current_thread() is threading.main_thread():
        _prepared.begin()
