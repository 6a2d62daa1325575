"""Find the iterations of a training loop from optimizer steps, and drive a session with them.

An iteration lasts from one step of the leading optimizer to its next step. The leader is the
optimizer whose first step came last. If a critic steps five times for each step of the generator,
the generator leads; if two optimizers alternate, the second one leads. Each new optimizer restarts
the measurement, because the iterations found so far were not complete. If each iteration creates an
optimizer (test-time training), the one that steps beside several of them leads from then on.

Without optimizer steps, iterations are inferred. If the program updates parameters itself, an
iteration ends with each backward pass; if it only runs a model, before each call of the outermost
module. An event ends iterations only from its second occurrence on. Backward passes take precedence
over module calls, and optimizer steps over both.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from unified_prof.tracking.activations import optimizers
from unified_prof.tracking.session import Session
from unified_prof.tracking.torch_names import Patches

if TYPE_CHECKING:
    from unified_prof.tracking.interception import Interception


BACKWARD_PASSES = "backward passes"
MODULE_CALLS = "calls of the outermost module"
# Events without a step after which an optimizer with gradients must be shown to be in use.
_PATIENCE = 64


class InferredLoop:
    """Reports the ends of inferred iterations on this thread, until an optimizer steps.

    If backward passes start in several places, or several modules are called, the event that was
    seen last for the first time ends iterations, so that an iteration contains all of them. The
    choice is final after the first measured iteration.

    Args:
        interception: Reports backward passes and calls of compiled code.
        boundary: Called where an iteration ends.
        joined: Called if another event ends iterations from now on; discards measurements.
        measuring: Returns True if an iteration was measured with the current kind of event.
        bottoms: Code objects at which the program's stack ends.
        called: Called after each call of a module if such calls end iterations.
    """

    def __init__(
        self,
        interception: Interception,
        *,
        boundary: Callable[[], None],
        joined: Callable[[], None],
        measuring: Callable[[], bool],
        bottoms: frozenset[CodeType],
        called: Callable[[], None] = lambda: None,
    ) -> None:
        self._called = called
        self._boundary = boundary
        self._joined = joined
        self._measuring = measuring
        self._bottoms = bottoms
        self._interception = interception
        self._thread = get_ident()
        self._patches = Patches()
        self._watching = False
        self._running = False
        """True within a call of a module, where iterations cannot end."""
        self._is_due = False
        """True if the iteration ends before the next call of a module."""
        self._kind: str | None = None
        """Kind of event that ends iterations, or will if it occurs again."""
        self._known: set[Any] = set()
        self._leader: Any = None
        self._awaits_optimizer = False
        self._awaited = 0
        """Events since an optimizer is awaited."""
        self._earlier_optimizers: dict[int, Any] = {}
        self.ended_by: str | None = None
        """Kind of event that ends iterations; None if there is none yet."""
        self.boundaries = 0
        """Number of iterations that ended."""
        self.elsewhere = 0
        """Number of module calls and backward passes in other threads."""

    def install(self) -> None:
        """Start watching module calls and backward passes."""
        if self._bottoms:  # optimizers that existed before the script do not count
            self._earlier_optimizers = {id(one): weakref.ref(one) for one in optimizers()}
        self._watching = True
        self._interception.on_backward = self.engine_ended
        self._interception.hide_from_compiler = self.hide_from_compiler
        self._interception.module_begins = self.call_begins
        self._take_places()

    def remove(self) -> None:
        """Stop watching."""
        self._watching = self._is_due = False
        self._interception.on_backward = None
        self._interception.hide_from_compiler = None
        self._interception.module_begins = None
        self._patches.restore()

    def hide_from_compiler(self, module: Any, call: Callable[[], Any]) -> Any:
        """Run `call`, which calls a compiled module, or a compiled function (`module` is None).

        During the call, `Module.__call__` is not patched. The compiler would otherwise trace the
        patch, which causes graph breaks, or an error with `fullgraph=True`.
        """
        if not self._watching:
            return call()
        elsewhere = get_ident() != self._thread
        self.elsewhere += elsewhere
        is_outermost = not (self._running or elsewhere)
        self._patches.restore()
        if is_outermost:
            self._running = True
        try:
            result = call()
        finally:
            if is_outermost:
                self._running = False
            if self._watching:
                self._take_places()
        if is_outermost and module is not None:
            self._ended(MODULE_CALLS, id(module))
        return result

    def _take_places(self) -> None:
        self._interception.internals.replace(self._patches, "module_call", self._wrap_call)

    def engine_ended(self, frame: FrameType) -> None:
        """Note that the autograd engine has run, called from `frame`."""
        if get_ident() != self._thread:
            self.elsewhere += 1
        elif not self._running:
            self._ended(BACKWARD_PASSES, self._place(frame))

    def _wrap_call(self, call: Any) -> Any:
        watch = self

        # torch.profiler takes the local `self` of `Module.__call__` for the module.
        @functools.wraps(call)
        def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if watch._running:
                return call(self, *args, **kwargs)
            if get_ident() != watch._thread:
                watch.elsewhere += 1
                return call(self, *args, **kwargs)
            watch.call_begins()
            if watch._kind == MODULE_CALLS:
                watch._interception.note_lengths((*args, *kwargs.values()))
            watch._running = True
            try:
                result = call(self, *args, **kwargs)
            finally:
                watch._running = False
            watch._ended(MODULE_CALLS, id(self))
            return result

        return watched_call

    def call_begins(self) -> None:
        """End the iteration before a call of the outermost module."""
        if self._is_due and not self._running and get_ident() == self._thread:
            self._is_due = False
            self._end()

    def _end(self) -> None:
        self.boundaries += 1
        self._boundary()

    def _ended(self, kind: str, place: Any) -> None:
        """Handle an event that may be the end of an iteration."""
        if self._awaits_step() or (kind == MODULE_CALLS and self._kind == BACKWARD_PASSES):
            return
        if kind == self.ended_by == MODULE_CALLS:
            self._called()
        if kind != self._kind:
            self._is_due = False
            self._kind, self._known, self._leader = kind, {place}, place
        elif place not in self._known:
            self._known.add(place)
            if self.ended_by != kind:
                self._leader = place
            elif not self._measuring():
                self._leader = place
                self._joined()
        elif place == self._leader:
            self._repeated(kind)

    def _repeated(self, kind: str) -> None:
        before, self.ended_by = self.ended_by, kind
        if before != kind and self._optimizer_lives():
            self.ended_by = before
            self._awaits_optimizer = True
            self._awaited = 0
        elif before not in (None, kind):
            self._joined()
        elif kind == MODULE_CALLS:
            self._is_due = True
        else:
            self._end()

    def _awaits_step(self) -> bool:
        if self._awaits_optimizer:
            self._awaited += 1
            if self._awaited == _PATIENCE:
                gc.collect()
                self._awaits_optimizer = self._optimizer_lives()
        return self._awaits_optimizer

    def _optimizer_lives(self) -> bool:
        """Return True if the program has an optimizer, so that its first step is awaited."""
        found = [one for one in optimizers() if not self._existed_before(one)]
        if any(_has_gradients(one) for one in found):
            return True
        left = [weakref.ref(one) for one in found]
        del found
        if left:
            gc.collect()  # optimizers are in reference cycles; one may be left over
        return any(one() is not None for one in left)

    def _existed_before(self, optimizer: Any) -> bool:
        before = self._earlier_optimizers.get(id(optimizer))
        return before is not None and before() is optimizer

    def _place(self, frame: FrameType | None) -> tuple[int, ...]:
        """Return a key for the program's call stack at `frame`."""
        place: list[int] = []
        while frame is not None and frame.f_code not in self._bottoms:
            place += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        return tuple(place)


def _has_gradients(optimizer: Any) -> bool:
    """Return True if a parameter of the optimizer has a gradient, as before its first step."""
    groups = optimizer.param_groups
    return any(weight.grad is not None for group in groups for weight in group["params"])


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
