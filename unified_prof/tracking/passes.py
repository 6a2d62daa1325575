"""One iteration on a device as a whole: where its passes begin and end, and nothing in between.

What times every operation slows down a program that its device waits for. So how long such an
iteration takes, forward and backward, is seen in another one, in which only a handful of events
are recorded and no function mode is on. The first call of a module is seen by a hook: a method
that is replaced in the class would have Python forget all it knows of every module's attributes,
which took 15 % of a step of small operations.
"""

from __future__ import annotations

import math
from threading import get_ident
from typing import Any

from unified_prof.tracking.device import Moment
from unified_prof.tracking.device_clock import EventClock
from unified_prof.tracking.raw_calls import Whole

_Span = tuple[Moment, Moment]


class Passes:
    """Records the moments of one iteration, on the thread that made it."""

    def __init__(self, clock: EventClock) -> None:
        self.thread = get_ident()
        self._clock = clock
        self._first_call: Any = None
        """The hook, while it waits for the first call of a module."""
        self._begin: Moment = {}
        self._end: Moment = {}
        self._forward_begin: Moment | None = None
        self._forward: list[_Span] = []
        self._backward: list[_Span] = []

    def begin(self) -> None:
        """The iteration begins."""
        self._begin = self._clock.moment()
        self.await_forward()

    def end(self) -> None:
        """The iteration is complete."""
        self.give_up()
        self._end = self._clock.moment()
        self._forward_ends(self._end)

    def give_up(self) -> bool:
        """Leave torch as it was found; return whether a forward pass was waited for."""
        waited = self._first_call is not None
        if self._first_call is not None:
            self._first_call.remove()
            self._first_call = None
        return waited

    def forward_begins(self) -> None:
        """A module is called, the first one since a backward pass or an optimizer's step."""
        self.give_up()
        if self._forward_begin is None:
            self._forward_begin = self._clock.moment()

    def run_backward(self, engine: Any, roots: Any, args: Any, kwargs: Any) -> Any:
        """Run the autograd engine."""
        begin = self._clock.moment()
        self._forward_ends(begin)
        try:
            return engine(roots, *args, **kwargs)
        finally:
            self._backward.append((begin, self._clock.moment()))
            self.await_forward()

    def optimizer_steps(self) -> None:
        """An optimizer begins its step: what ran before was forward."""
        if self._forward_begin is not None:
            self._forward_ends(self._clock.moment())
        self.await_forward()

    def whole(self) -> Whole | None:
        """Return the times; the device must have been waited for. None: they are not known."""
        total = self._clock.elapsed_between_ms(self._begin, self._end)
        if math.isnan(total):
            return None
        return Whole(total, self._sum(self._forward), self._sum(self._backward))

    def _sum(self, spans: list[_Span]) -> float | None:
        found = [self._clock.elapsed_between_ms(*span) for span in spans]
        known = [one for one in found if not math.isnan(one)]
        return sum(known) if known else None

    def _forward_ends(self, end: Moment) -> None:
        if self._forward_begin is not None:
            self._forward.append((self._forward_begin, end))
            self._forward_begin = None

    def await_forward(self) -> None:
        """Wait for the first call of a module."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.give_up()
        self._first_call = register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, args: Any) -> None:
        if get_ident() == self.thread:
            self.forward_begins()
