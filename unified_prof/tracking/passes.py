"""Time an iteration and its forward and backward passes, without timing operations.

Timing every operation slows a program down. The durations of an iteration and its passes are
therefore measured in a separate iteration, in which only a few marks are recorded and no function
mode is active. A hook detects the first module call. Replacing a method of the class instead would
invalidate Python's attribute caches of all modules, which costs up to 15 % of a step of small
operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter_ns, process_time_ns
from typing import Any

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.device import Clock, Moment
from unified_prof.tracking.interference import WaitingTime, Waits, waited_within
from unified_prof.tracking.raw_calls import IterationTimes

# Parts of an iteration outside of its passes.
OPTIMIZER, ZERO_GRAD, DATA_LOADING = "optimizer", "zero_grad", "data_loading"
_Span = tuple[Moment, Moment]


class Passes:
    """Records when the passes of one iteration begin and end, on the thread that created it.

    Args:
        clock: Clock of the device; it must be synchronized before its times are read.
        waiting: Reads how long the thread waits for a processor; None on a device, because device
            times do not depend on it.
    """

    def __init__(self, clock: Clock, waiting: WaitingTime | None) -> None:
        self.thread = get_ident()
        self._clock = clock
        self._waiting = waiting
        self._waits: Waits = []
        # Readings of the CPU time of all threads of the process.
        self._cpu: Waits = []
        # The hook, as long as it waits for the first module call.
        self._first_call: Any = None
        self._begin: Moment = {}
        self._end: Moment = {}
        self._forward_begin: Moment | None = None
        self._forward: list[_Span] = []
        self._backward: list[_Span] = []
        self._in_backward = False
        # Parts within a backward pass, for example of an optimizer that steps in a hook.
        self._within_backward: list[_Span] = []
        self._optimizer_steps = 0
        self._parts: dict[str, list[_Span]] = {}
        self._step_begin: Moment | None = None

    def begin(self) -> None:
        """Begin the iteration."""
        self._begin = self._moment()
        self.await_forward()

    def end(self) -> None:
        """End the iteration."""
        self.give_up()
        self._end = self._moment()
        self._forward_ends(self._end)

    def await_forward(self) -> None:
        """Wait for the first call of a module."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.give_up()
        if self._in_backward:
            return
        self._first_call = register_module_forward_pre_hook(self._called)

    def give_up(self) -> bool:
        """Remove the hook; return True if it was waiting for a forward pass."""
        hook, self._first_call = self._first_call, None
        if hook is not None:
            hook.remove()
        return hook is not None

    def forward_begins(self) -> None:
        """Note the first call of a module since a backward pass or an optimizer step."""
        self.give_up()
        if self._forward_begin is None:
            self._forward_begin = self._moment()

    def run_backward(self, engine: Any, roots: Any, args: Any, kwargs: Any) -> Any:
        """Run the autograd engine and return its result.

        Module calls and engine runs within it (activation checkpointing) are part of the pass.
        """
        if self._in_backward:
            return engine(roots, *args, **kwargs)
        begin = self._moment()
        self._forward_ends(begin)
        self.give_up()
        self._in_backward = True
        try:
            return engine(roots, *args, **kwargs)
        finally:
            self._in_backward = False
            self._backward.append((begin, self._moment()))
            self.await_forward()

    def optimizer_steps(self) -> None:
        """Note that an optimizer step begins, which ends a forward pass."""
        self._optimizer_steps += 1
        if self._forward_begin is not None:
            self._forward_ends(self._moment())
        self._step_begin = self._moment()
        self.await_forward()

    def optimizer_ended(self) -> None:
        """Note that an optimizer step, or its part up to a closure, ends."""
        begin, self._step_begin = self._step_begin, None
        if begin is not None:
            self._add_part(OPTIMIZER, begin)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block as part `name` of the iteration; ends the current forward pass."""
        begin = self._moment()
        if self._forward_begin is not None:
            self._forward_ends(begin)
            self.await_forward()
        try:
            yield
        finally:
            self._add_part(name, begin)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of backward passes and of optimizer steps."""
        return len(self._backward), self._optimizer_steps

    def times(self) -> IterationTimes | None:
        """Return the times; None if they are unknown. The device must be synchronized first."""
        total = self._clock.elapsed_between_ms(self._begin, self._end)
        if math.isnan(total):
            return None
        return IterationTimes(
            total,
            self._sum(self._forward),
            _difference(self._sum(self._backward), self._sum(self._within_backward)),
            self._waited_ms([(self._begin, self._end)]),
            self._waited_ms(self._forward),
            _difference(self._waited_ms(self._backward), self._waited_ms(self._within_backward)),
            self._within(self._cpu, [(self._begin, self._end)]),
            self._within(self._cpu, self._forward),
            _difference(
                self._within(self._cpu, self._backward),
                self._within(self._cpu, self._within_backward),
            ),
            {name: ms for name, spans in self._parts.items() if (ms := self._sum(spans))},
        )

    def _add_part(self, name: str, begin: Moment) -> None:
        span = (begin, self._moment())
        self._parts.setdefault(name, []).append(span)
        if self._in_backward:
            self._within_backward.append(span)

    def _called(self, module: Any, args: Any) -> None:
        if get_ident() == self.thread:
            self.forward_begins()

    def _moment(self) -> Moment:
        if self._waiting is not None:
            self._waiting.note(self._waits)
            self._cpu.append((perf_counter_ns(), process_time_ns()))
        return self._clock.moment()

    def _sum(self, spans: Sequence[_Span]) -> float | None:
        durations = [self._clock.elapsed_between_ms(*span) for span in spans]
        known = [duration for duration in durations if not math.isnan(duration)]
        return sum(known) if known else None

    def _waited_ms(self, spans: Sequence[_Span]) -> float | None:
        return self._within(self._waits, spans)

    def _within(self, readings: Waits, spans: Sequence[_Span]) -> float | None:
        """Return by how much a counter of the host rose within spans, in ms; None if unknown."""
        if not spans or self._waiting is None:
            return None
        found_ns = waited_within(readings, [(start[0], end[0]) for start, end in spans])
        return None if found_ns is None else found_ns / NS_PER_MS

    def _forward_ends(self, end: Moment) -> None:
        if self._forward_begin is not None:
            self._forward.append((self._forward_begin, end))
            self._forward_begin = None


def _difference(total_ms: float | None, part_ms: float | None) -> float | None:
    """Return a time without a part of it; None if the time is unknown."""
    return None if total_ms is None else max(total_ms - (part_ms or 0.0), 0.0)
