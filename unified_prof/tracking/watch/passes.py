"""One iteration on a device as a whole: where its passes begin and end, and nothing in between.

What times every operation slows down a program that its device waits for. So how long such an
iteration takes, forward and backward, is seen in another one, in which only a handful of events
are recorded and no function mode is on.
"""

from __future__ import annotations

import functools
import math
from threading import get_ident
from typing import Any

from unified_prof.tracking.patches import Patches
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.watch.calls import Whole
from unified_prof.tracking.watch.device import Moment
from unified_prof.tracking.watch.device_clock import EventClock

_Span = tuple[Moment, Moment]


class Passes:
    """Records the moments of one iteration, on the thread that made it."""

    def __init__(self, clock: EventClock, internals: TorchInternals) -> None:
        self.thread = get_ident()
        self._clock = clock
        self._internals = internals
        self._first_call = Patches()
        self._begin: Moment = {}
        self._end: Moment = {}
        self._forward_begin: Moment | None = None
        self._forward: list[_Span] = []
        self._backward: list[_Span] = []

    def begin(self) -> None:
        """The iteration begins."""
        self._begin = self._clock.moment()
        self._await_forward()

    def end(self) -> None:
        """The iteration is complete."""
        self._first_call.restore()
        self._end = self._clock.moment()
        self._forward_ends(self._end)

    def give_up(self) -> None:
        """Leave torch as it was found."""
        self._first_call.restore()

    def forward_begins(self) -> None:
        """A module is called, the first one since a backward pass or an optimizer's step."""
        self._first_call.restore()
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
            self._await_forward()

    def optimizer_steps(self) -> None:
        """An optimizer begins its step: what ran before was forward."""
        if self._forward_begin is not None:
            self._forward_ends(self._clock.moment())
        self._await_forward()

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

    def _await_forward(self) -> None:
        self._first_call.restore()
        self._internals.replace(self._first_call, "module_call", self._wrap_call)

    def _wrap_call(self, call: Any) -> Any:
        @functools.wraps(call)
        def first_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() == self.thread:
                self.forward_begins()
            return call(module, *args, **kwargs)

        return first_call
