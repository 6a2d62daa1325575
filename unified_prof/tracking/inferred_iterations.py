"""Infer the iterations of a program without optimizer steps.

If the program updates parameters itself, an iteration ends with each backward pass; if it only runs
a model, before each call of the outermost module. An event ends iterations only from its second
occurrence on. Backward passes take precedence over module calls, and optimizer steps over both.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from unified_prof.tracking.activations import optimizers
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
