"""Find the iterations of a training script from the steps of its optimizers.

One iteration is everything from one step of the leading optimizer to its next. The leader is
the optimizer that joined last: where one optimizer steps, that one; where a critic steps five
times for each step of the generator, the generator; where two alternate, the second. Each
optimizer seen for the first time starts the count anew, as the loop was not understood before.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import FrameType
from typing import Any

from unified_prof.tracking.anomalies import Anomalies
from unified_prof.tracking.patches import Patches
from unified_prof.tracking.torch_internals import TorchInternals


class StepWatcher:
    """Says what the optimizers of this thread do.

    Args:
        boundary: Called after each step of the leader: an iteration ends.
        joined: Called after the first step of an optimizer that takes the lead from another.
        step_begins: Called before each step; told whether it runs a closure of the program's.
        step_ended: Called after each step.
        anomalies: Where steps are counted that cannot be followed.
        internals: Where torch tells of steps.
    """

    def __init__(
        self,
        *,
        boundary: Callable[[], None],
        joined: Callable[[], None],
        step_begins: Callable[[bool], None],
        step_ended: Callable[[], None],
        anomalies: Anomalies,
        internals: TorchInternals,
    ) -> None:
        self._internals = internals
        self._boundary = boundary
        self._joined = joined
        self._step_begins = step_begins
        self._step_ended = step_ended
        self._anomalies = anomalies
        self._thread = get_ident()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._leader: weakref.ref[Any] | None = None
        self._open: list[tuple[Any, FrameType]] = []
        self._handles: list[Any] = []
        self._patches = Patches()
        self._marked = False
        self.steps = 0
        self.elsewhere = 0
        """Steps and marks in other threads."""

    def install(self) -> None:
        """Begin to watch all optimizers of the process."""
        for key, hook in (
            ("optimizer_pre_hook", self._before),
            ("optimizer_post_hook", self._after),
        ):
            register = self._internals.find(key)
            if register is not None:
                try:
                    self._handles.append(register(hook))
                except Exception as error:  # it wants something else than it did
                    self._internals.note(key, error)
        self._internals.replace(self._patches, "scaler_step", self._wrap_scaler_step)

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.restore()
        self._open.clear()

    def marked(self) -> None:
        """Take a mark of the program's own; from now on optimizers end no iteration."""
        if get_ident() != self._thread:
            self._note_thread()
        elif self._marked:
            self._boundary()
        else:
            self._marked = True
            self._join(None)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self._thread:
            return
        with self._fenced():
            self._opened(optimizer, args, kwargs, sys._getframe(1))

    def _opened(self, optimizer: Any, args: Any, kwargs: Any, caller: FrameType) -> None:
        running = _frames_below(caller)
        self._open = [entry for entry in self._open if entry[1] in running]  # others raised
        if not self._open:
            closure = kwargs.get("closure") or next(iter(args[1:]), None)
            self._step_begins(closure is not None)
        self._open.append((optimizer, caller))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self._thread:
            self._note_thread()
            return
        with self._fenced():
            if self._open:
                self._open.pop()
            if not self._open:  # not a step within another optimizer's
                self._step_ended()
                self._stepped(optimizer)

    def _fenced(self) -> AbstractContextManager[None]:
        return self._anomalies.fenced("steps_not_followed", "where iterations end")

    def _stepped(self, optimizer: Any) -> None:
        self.steps += 1
        if self._marked:
            return
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._join(optimizer)
        elif self._leader is not None and self._leader() is optimizer:
            self._boundary()

    def _join(self, leader: Any) -> None:
        first = self._leader is None and self.steps <= 1
        self._leader = None if leader is None else weakref.ref(leader)
        if first:
            self._boundary()
        else:
            self._joined()

    def _note_thread(self) -> None:
        self.elsewhere += 1
        self._anomalies.add(
            "steps_in_another_thread",
            "an optimizer stepped in another thread than the one that is tracked",
        )

    def _wrap_scaler_step(self, step: Any) -> Any:
        @functools.wraps(step)
        def tracked_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps
            result = step(scaler, optimizer, *args, **kwargs)
            if self.steps == before and get_ident() == self._thread:
                self._anomalies.add(
                    "optimizer_steps_skipped",
                    "the gradient scaler found an infinite gradient and left out the step; the "
                    "iteration ended all the same",
                )
                with self._fenced():
                    self._stepped(optimizer)
            return result

        return tracked_step


def _frames_below(frame: FrameType | None) -> set[FrameType]:
    found = set()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found
