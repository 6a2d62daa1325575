"""Find the iterations of a program in which no optimizer steps.

It may train with updates written by hand: then an iteration ends with each backward pass. Or it
only runs a model: then one ends with each call of the outermost module. Either is believed only
when it comes for the second time and nothing better was seen, and given up for something better:
a backward pass says more than a call of a module, an optimizer's step more than both.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches

BACKWARD_PASSES = "backward passes"
MODULE_CALLS = "calls of the outermost module"


class UnmarkedLoop:
    """Says where iterations end, on this thread, as long as nothing says it better.

    Where several places go backward, or several modules are called, the one seen last leads: an
    iteration has them all. Nothing takes the lead any more once an iteration was measured.

    Args:
        boundary: Called where an iteration ends.
        joined: Called where another place takes the lead: what was measured does not count.
        measuring: Whether an iteration was measured by the lead that there is.
        bottoms: Code below which the stack is not the program's.
        internals: Where torch is reached.
    """

    def __init__(
        self,
        *,
        boundary: Callable[[], None],
        joined: Callable[[], None],
        measuring: Callable[[], bool],
        bottoms: frozenset[CodeType],
        internals: TorchInternals,
    ) -> None:
        self._boundary = boundary
        self._joined = joined
        self._measuring = measuring
        self._bottoms = bottoms
        self._internals = internals
        self._thread = get_ident()
        self._patches = Patches()
        self._watching = False
        self._running = False
        """Within a module's call: what ends there is no end of its own."""
        self._kind: str | None = None
        """What is waited for to come again, or ends iterations already."""
        self._known: set[Any] = set()
        self._leader: Any = None
        self._awaits_optimizer = False
        self._foreign: dict[int, Any] = {}
        self.ended_by: str | None = None
        """What ends iterations, None as long as nothing does."""
        self.boundaries = 0
        """Iterations ended."""
        self.elsewhere = 0
        """Calls of modules and backward passes in other threads."""

    def install(self) -> None:
        """Begin to watch calls of modules."""
        if self._bottoms:  # what was there before the script is not the script's
            self._foreign = {id(one): weakref.ref(one) for one in _optimizers()}
        self._watching = True
        self._take_places()

    def remove(self) -> None:
        """Stop watching."""
        self._watching = False
        self._patches.restore()

    def beside_compiler(self, module: Any, call: Callable[[], Any]) -> Any:
        """Run what `torch.compile` made of `module`, or of a function (None).

        The compiler would take a replaced `Module.__call__` for the program's and compile that:
        a graph more, broken where it asks for the thread, or an error with `fullgraph=True`.
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
        self._internals.replace(self._patches, "module_call", self._wrap_call)

    def engine_ended(self, frame: FrameType) -> None:
        """Take note of a run of the autograd engine, called from `frame`."""
        if get_ident() != self._thread:
            self.elsewhere += 1
        elif not self._running:
            self._ended(BACKWARD_PASSES, self._place(frame))

    def _wrap_call(self, call: Any) -> Any:
        watch = self

        # torch.profiler takes the local `self` of whatever `Module.__call__` is for the module.
        @functools.wraps(call)
        def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if watch._running:
                return call(self, *args, **kwargs)
            if get_ident() != watch._thread:
                watch.elsewhere += 1
                return call(self, *args, **kwargs)
            watch._running = True
            try:
                result = call(self, *args, **kwargs)
            finally:
                watch._running = False
            watch._ended(MODULE_CALLS, id(self))
            return result

        return watched_call

    def _ended(self, kind: str, place: Any) -> None:
        """Something came to its end that may be the end of an iteration."""
        if self._awaits_optimizer or (kind == MODULE_CALLS and self._kind == BACKWARD_PASSES):
            return
        if kind != self._kind:
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
        elif before not in (None, kind):
            self._joined()
        else:
            self.boundaries += 1
            self._boundary()

    def _optimizer_lives(self) -> bool:
        """Whether the program holds an optimizer: then its first step is worth waiting for."""
        if not any(not self._is_foreign(one) for one in _optimizers()):
            return False
        gc.collect()  # optimizers are parts of cycles: one may be garbage of an earlier training
        return any(not self._is_foreign(one) for one in _optimizers())

    def _is_foreign(self, optimizer: Any) -> bool:
        before = self._foreign.get(id(optimizer))
        return before is not None and before() is optimizer

    def _place(self, frame: FrameType | None) -> tuple[int, ...]:
        """Return where in the program the stack from `frame` on stands."""
        place: list[int] = []
        while frame is not None and frame.f_code not in self._bottoms:
            place += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        return tuple(place)


def _optimizers() -> list[Any]:
    from torch.optim import Optimizer

    return [item for item in gc.get_objects() if issubclass(type(item), Optimizer)]
