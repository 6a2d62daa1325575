"""Find the iterations of a training loop from optimizer steps, and drive a session with them.

An iteration lasts from one step of the leading optimizer to its next step. The leader is the
optimizer whose first step came last. If a critic steps five times for each step of the generator,
the generator leads; if two optimizers alternate, the second one leads. Each new optimizer restarts
the measurement, because the iterations found so far were not complete. If each iteration creates
an optimizer (test-time training), the one that steps beside several of them leads from then on.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from unified_prof.tracking.inferred_iterations import InferredLoop
from unified_prof.tracking.session import Session
from unified_prof.tracking.torch_names import Patches

if TYPE_CHECKING:
    from unified_prof.tracking.interception import Interception

# Number of new optimizers beside which an older one has stepped when it takes the lead for good.
_NEW_BESIDE = 3


class StepWatcher:
    """Watches the optimizers of this thread.

    Args:
        interception: Gets each optimizer that steps.
        boundary: Called after each step of the leader, which ends an iteration.
        joined: Called after the first step of an optimizer that takes the lead from another.
        step_begins: Called before each step, and when a step continues after the program's closure.
        step_ended: Called after each step, and when a step calls the program's closure.
    """

    def __init__(
        self,
        interception: Interception,
        *,
        boundary: Callable[[], None],
        joined: Callable[[], None],
        step_begins: Callable[[], None],
        step_ended: Callable[[], None],
    ) -> None:
        self._is_tracked_thread = interception.is_tracked_thread
        self._internals = interception.internals
        self._anomalies = self._internals.anomalies
        self._optimizers = interception.optimizers
        self._boundary = boundary
        self._joined = joined
        self._step_begins = step_begins
        self._step_ended = step_ended
        self._thread = get_ident()
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Which optimizer was the newest when this one stepped, and how many were so far."""
        self._newest = 0
        self._is_settled = False
        """True if new optimizers do not take the lead."""
        self._leader: weakref.ref[Any] | None = None
        self._open: list[tuple[Any, FrameType]] = []
        self._handles: list[Any] = []
        self._patches = Patches()
        self._marked = False
        self.steps = 0
        self.elsewhere = 0
        """Number of optimizer steps and marks in other threads."""

    def install(self) -> None:
        """Start watching all optimizers of the process."""
        for key, hook in (
            ("optimizer_pre_hook", self._before),
            ("optimizer_post_hook", self._after),
        ):
            register = self._internals.find(key)
            if register is not None:
                try:
                    self._handles.append(register(hook))
                except Exception as error:  # its interface has changed
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
        """Handle a mark of the program; from then on, optimizers no longer end iterations."""
        if not self._is_tracked_thread():
            self._note_thread()
        elif self._marked:
            self._boundary()
        else:
            self._marked = True
            self._join(None)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_tracked_thread():
            return None
        try:
            return self._opened(optimizer, args, kwargs, sys._getframe(1))
        except Exception as error:
            self._note_failure(error)

    def _opened(self, optimizer: Any, args: Any, kwargs: Any, caller: FrameType) -> Any:
        """Note that a step begins; return changed arguments, or None to keep them."""
        if self._open:  # a step around this one, or a step that raised
            running = _frames_below(caller)
            self._open = [entry for entry in self._open if entry[1] in running]
        self._optimizers.add(optimizer)
        is_outermost = not self._open
        self._open.append((optimizer, caller))
        if not is_outermost:
            return None
        self._step_begins()
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._resumed_within(kwargs["closure"])}
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._resumed_within(args[1]), *args[2:]), kwargs
        return None

    def _resumed_within(self, closure: Any) -> Any:
        """Wrap the closure of an optimizer step so that its operations are recorded."""

        @functools.wraps(closure)
        def tracked_closure(*args: Any, **kwargs: Any) -> Any:
            self._step_ended()
            try:
                return closure(*args, **kwargs)
            finally:
                self._step_begins()

        return tracked_closure

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_tracked_thread():
            self._note_thread()
            return
        try:
            if self._open:
                self._open.pop()
            if not self._open:  # not a step within another optimizer's
                self._step_ended()
                self._stepped(optimizer)
        except Exception as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        self._anomalies.failed("steps_not_followed", "detection of iterations", error)

    def _stepped(self, optimizer: Any) -> None:
        self.steps += 1
        if self._marked:
            return
        leader = None if self._leader is None else self._leader()
        if leader is optimizer:
            self._boundary()
        elif optimizer not in self._known:
            self._newest += 1
            self._known[optimizer] = self._newest, 1
            if leader is None or not self._is_settled:
                self._join(optimizer)
        elif not self._is_settled or leader is None:
            newest, count = self._known[optimizer]
            self._known[optimizer] = self._newest, count + (newest != self._newest)
            self._is_settled = self._known[optimizer][1] >= _NEW_BESIDE
            if self._is_settled:
                self._join(optimizer)

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
            "steps_in_another_thread", "an optimizer stepped in a thread that is not tracked"
        )

    def _wrap_scaler_step(self, step: Any) -> Any:
        @functools.wraps(step)
        def tracked_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps
            result = step(scaler, optimizer, *args, **kwargs)
            if self.steps == before and get_ident() == self._thread:
                self._anomalies.add(
                    "optimizer_steps_skipped",
                    "the gradient scaler found an infinite gradient and skipped the step, which "
                    "still ended an iteration",
                )
                try:
                    self._stepped(optimizer)
                except Exception as error:
                    self._note_failure(error)
            return result

        return tracked_step


def _frames_below(frame: FrameType | None) -> set[FrameType]:
    found = set()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found


# Report fact: kind of event that ended iterations if the program marked none.
ENDED_BY = "iterations_end_with"


class TrackedLoop:
    """Drives a session with the optimizer steps or marks of a running program."""

    def __init__(
        self,
        session: Session,
        on_finished: Callable[[], None] | None = None,
        bottoms: frozenset[CodeType] = frozenset(),
    ) -> None:
        self._session = session
        self._on_finished = on_finished
        self.driver = session.driver(setup_first=True)
        self._whole = True
        self._steps = StepWatcher(
            session.interception,
            boundary=self._marked,
            joined=self._rejoined,
            step_begins=session.optimizer_begins,
            step_ended=session.optimizer_ended,
        )
        self._unmarked = InferredLoop(
            session.interception,
            boundary=self._unmarked_boundary,
            joined=self._restart,
            measuring=lambda: bool(session.run_time.count or session.memory.count),
            bottoms=bottoms,
            called=session.run_time.note_model_ended,
        )
        session.on_abandon += [self.driver.abandon, self._steps.remove, self._unmarked.remove]

    def begin(self) -> None:
        """Start watching on this thread; the session must be installed."""
        self._steps.install()
        self._unmarked.install()
        self.driver.begin()

    def mark(self, samples: int | None = None) -> None:
        """End an iteration, as marked by the program."""
        self._steps.marked()

    def ended(self) -> None:
        """Note that the program ended normally; without a step, it is one iteration."""
        if self.driver.finished:
            return
        if self._whole:
            self._session.note_whole_program()
            self.driver.boundary()
        elif self._unmarked.boundaries == 1 and self._unmarked.ended_by is not None:
            self._session.note_whole_program()  # the first iteration lacks only the end

    def close(self) -> None:
        """Stop watching."""
        self.driver.close()
        self._stop_watching()
        self._session.remove()

    def _stop_watching(self) -> None:
        self._session.untracked_work.in_threads = self._steps.elsewhere + self._unmarked.elsewhere
        self._steps.remove()
        self._unmarked.remove()

    def _marked(self) -> None:
        """Handle an optimizer step or mark; other events no longer end iterations."""
        self._unmarked.remove()
        if self._unmarked.ended_by is None:
            self._boundary()
        else:
            self._rejoined()

    def _rejoined(self) -> None:
        self._unmarked.remove()
        self._unmarked.ended_by = None
        self._session.facts.pop(ENDED_BY, None)
        self._restart()

    def _unmarked_boundary(self) -> None:
        if self._unmarked.boundaries == 1:
            self._session.spec.progress(
                f"no optimizer steps: iterations end with {self._unmarked.ended_by}"
            )
        self._session.facts[ENDED_BY] = str(self._unmarked.ended_by)
        self._boundary()

    def _boundary(self) -> None:
        if not self.driver.finished:  # the program may go on marking its steps
            self._session.interception.outside_engine(self._end_iteration)

    def _end_iteration(self) -> None:
        if self._session.device.is_capturing:  # nothing runs at this time, so no iteration ends
            return
        self._whole = False
        self.driver.boundary()
        self._session.discard_setup()
        if self.driver.finished:
            self._stop_watching()
            self._session.measured()
            if self._on_finished is not None:
                self._on_finished()

    def _restart(self) -> None:
        self._session.interception.outside_engine(self._restart_measuring)

    def _restart_measuring(self) -> None:
        if not (self.driver.finished or self._session.device.is_capturing):
            self._session.restarted()
            self.driver.restart(stage=1)
