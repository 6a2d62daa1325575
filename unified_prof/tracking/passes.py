"""Divide an iteration into its parts, without timing operations.

Timing every operation slows a program down. The durations of an iteration and its parts are
therefore measured in a separate iteration, in which only a few marks are recorded and no function
mode is active. Each mark begins a part and ends the one before, so that the parts add up to the
iteration. A hook detects the first module call. Replacing a method of the class instead would
invalidate Python's attribute caches of all modules, which costs up to 15 % of a step of small
operations.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from itertools import pairwise
from threading import get_ident
from time import perf_counter_ns, process_time_ns
from types import FrameType
from typing import Any

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.device import LONG_NS, Moment, WaitingTime, Waits, waited_within
from unified_prof.tracking.device_clock import Clock
from unified_prof.tracking.raw_calls import IterationTimes

FORWARD, BACKWARD, OTHER = "forward", "backward", "other"
# Parts of an iteration outside of its passes.
OPTIMIZER, ZERO_GRAD, DATA_LOADING = "optimizer", "zero_grad", "data_loading"
GRADIENT_CLIPPING, READS = "gradient_clipping", "synchronizing_reads"
RECOMPUTATION = "recomputation"
FORWARD_WITHOUT_GRADIENTS = "forward_without_gradients"
COMPILATION, SAVING = "compilation", "saving"
SEPARATE_READS = (FORWARD, FORWARD_WITHOUT_GRADIENTS, OTHER)
_Span = tuple[Moment, Moment]
_LISTS = (list, tuple)
_CONTAINERS = (*_LISTS, Mapping)


@functools.cache
def _hooks_of_modules() -> tuple[MutableMapping[int, Any], int]:
    """Return torch's hooks before the calls of all modules, and the key of ours.

    Setting and removing an entry takes a tenth of the time of registering a hook.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    handle = register_module_forward_pre_hook(lambda _module, _args: None)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return hooks, handle.id


class Passes:
    """Records when the parts of one iteration begin and end, on the thread that created it.

    Args:
        clock: Clock of the device; it must be synchronized before its times are read.
        waiting: Reads how long the thread waits for a processor; None on a device, because device
            times do not depend on it.
        note_line: Called with the name of a part and the running frame when the part begins.
        noted: Parts for which `note_line` was already called.
    """

    def __init__(
        self,
        clock: Clock,
        waiting: WaitingTime | None,
        note_line: Callable[[str, FrameType], None] = lambda _part, _frame: None,
        noted: Container[str] = (),
    ) -> None:
        self.thread = get_ident()
        self._clock = clock
        self._waiting = waiting
        self._note_line = note_line
        self._noted = noted
        self._waits: Waits = []
        # Readings of the CPU time of all threads of the process.
        self._cpu: Waits = []
        self._last_ns = 0  # when the current part began
        self._awaits_forward = False
        # The part that begins at each mark; the last mark ends the iteration. Two lists, and on a
        # CPU plain integers: Python's garbage collector, which a tuple or dict per mark would make
        # run within the iteration, ignores both.
        self._marks: list[Moment | int] = []
        self._parts: list[str] = []
        self._part = OTHER
        self.separates_reads = True
        """False within parts that reads belong to: an optimizer reads its step counters."""
        self._ends = self._is_over = False
        self._in_backward = False
        self._backward_passes = self._optimizer_steps = 0
        self.samples = 0
        """Samples that data loaders returned."""
        self.is_training = False
        """True if forward passes without gradients (evaluation, a teacher) are a separate part."""
        self.detects_anomalies = False
        """True if a backward pass ran with `torch.autograd.set_detect_anomaly`."""

    def begin(self) -> None:
        """Begin the iteration."""
        self.switch(OTHER)
        self.await_forward()

    def end(self) -> None:
        """End the iteration."""
        self.give_up()
        self._ends = True
        self.switch(OTHER)
        self._is_over = True

    def await_forward(self) -> None:
        """Wait for the first call of a module."""
        if not (self._in_backward or self._awaits_forward or self._is_over):
            hooks, key = _hooks_of_modules()
            hooks[key] = self._called
            self._awaits_forward = True

    def give_up(self) -> bool:
        """Remove the hook; return True if it was waiting for a forward pass."""
        awaited, self._awaits_forward = self._awaits_forward, False
        if awaited:
            hooks, key = _hooks_of_modules()
            hooks.pop(key, None)
        return awaited

    def forward_begins(self) -> None:
        """Note the first call of a module since a backward pass or an optimizer step."""
        import torch

        if self.is_training and not torch.is_grad_enabled():
            if self._part == OTHER:
                self.switch(FORWARD_WITHOUT_GRADIENTS)
            return
        self.give_up()
        if self._part in (OTHER, FORWARD_WITHOUT_GRADIENTS):
            self.switch(FORWARD)

    def forward_ended(self) -> None:
        """Note that a call of the model ended, which no backward pass follows."""
        if self._part == FORWARD:
            self.switch(OTHER)
            self.await_forward()

    def run_backward(self, engine: Any, roots: Any, args: Any, kwargs: Any) -> Any:
        """Run the autograd engine and return its result.

        Module calls and engine runs within it (activation checkpointing) are part of the pass.
        """
        import torch

        if self._in_backward or self._part == COMPILATION:  # the compiler traces a backward pass
            return engine(roots, *args, **kwargs)
        self.detects_anomalies |= torch.is_anomaly_enabled()
        self.give_up()
        self.switch(BACKWARD)
        self._in_backward = True
        try:
            return engine(roots, *args, **kwargs)
        finally:
            self._in_backward = False
            self._backward_passes += 1
            self.switch(OTHER)
            self.await_forward()

    def optimizer_steps(self) -> None:
        """Note that an optimizer step begins, which ends a forward pass."""
        self._optimizer_steps += 1
        self.switch(OPTIMIZER)
        self.await_forward()

    def optimizer_ended(self) -> None:
        """Note that an optimizer step, or its part up to a closure, ends."""
        if self._part == OPTIMIZER:
            self.switch(BACKWARD if self._in_backward else OTHER)

    def part(self, name: str) -> _Part:
        """Time a `with` block as part `name` of the iteration; data loading ends a forward pass."""
        return _Part(self, name)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of backward passes and of optimizer steps."""
        return self._backward_passes, self._optimizer_steps

    def times(self) -> IterationTimes | None:
        """Return the times; None if they are unknown. The device must be synchronized first."""
        marks = [{0: mark} if isinstance(mark, int) else mark for mark in self._marks]
        first, last = marks[0], marks[-1]
        total = self._clock.elapsed_between_ms(first, last)
        if math.isnan(total):
            return None
        spans: dict[str, list[_Span]] = {}
        for part, span in zip(self._parts, pairwise(marks), strict=False):
            spans.setdefault(part, []).append(span)
        forward, backward = spans.pop(FORWARD, []), spans.pop(BACKWARD, [])
        spans.pop(OTHER, None)  # what remains of the total
        return IterationTimes(
            total,
            self._sum(forward),
            self._sum(backward),
            self._waited_ms([(first, last)]),
            self._waited_ms(forward),
            self._waited_ms(backward),
            self._within(self._cpu, [(first, last)]),
            self._within(self._cpu, forward),
            self._within(self._cpu, backward),
            {
                name: max(ms - (self._waited_ms(some) or 0.0), 0.0)
                for name, some in spans.items()
                if (ms := self._sum(some))
            },
        )

    def begin_part(self, name: str) -> str:
        """Begin a part; return the part to continue with after it."""
        before = self._part
        if name == DATA_LOADING and before in (FORWARD, FORWARD_WITHOUT_GRADIENTS):
            before = OTHER
            self.await_forward()
        self.switch(name)
        return before

    def _called(self, module: Any, args: Any) -> None:
        if get_ident() == self.thread:
            self.forward_begins()

    def switch(self, part: str) -> None:
        """Begin `part` and end the current one."""
        if self._is_over:  # within a block that began in this iteration
            return
        if self._waiting is None:
            self._marks.append(self._clock.moment())
        else:
            now = perf_counter_ns()
            is_long = now - self._last_ns > LONG_NS
            if is_long or self._ends:
                now = self._read(self._waiting, is_long=is_long)
            self._last_ns = now
            self._marks.append(now)
        self._parts.append(part)
        self._part, self.separates_reads = part, part in SEPARATE_READS
        if part != OTHER and part not in self._noted:
            self._note_line(part, sys._getframe())

    def _read(self, waiting: WaitingTime, *, is_long: bool) -> int:
        """Read the waiting and CPU time at the end of a part; return when the next one begins.

        A reading takes as long as a small operation, so it follows long parts only. In the short
        parts before, the thread did not wait, and the CPU time was the elapsed time.
        """
        waits, cpu, last_ns = self._waits, self._cpu, self._last_ns
        if is_long and waits:
            waits.append((last_ns, waits[-1][1]))
        now = waiting.note(waits) or perf_counter_ns()  # waiting from now on is the next part's
        cpu_ns = process_time_ns()
        if is_long and cpu:
            cpu.append((last_ns, min(cpu[-1][1] + last_ns - cpu[-1][0], cpu_ns)))
        cpu.append((now, cpu_ns))
        return now

    def _sum(self, spans: Sequence[_Span]) -> float | None:
        durations = [self._clock.elapsed_between_ms(*span) for span in spans]
        known = [duration for duration in durations if not math.isnan(duration)]
        return sum(known) if known else None

    def _waited_ms(self, spans: Sequence[_Span]) -> float | None:
        # A wait is counted at the next reading, which may be in a later and shorter span.
        waited_ms, length_ms = self._within(self._waits, spans), self._sum(spans)
        return waited_ms if waited_ms is None else min(waited_ms, length_ms or 0.0)

    def _within(self, readings: Waits, spans: Sequence[_Span]) -> float | None:
        """Return by how much a counter of the host rose within spans, in ms; None if unknown."""
        if not spans or self._waiting is None:
            return None
        found_ns = waited_within(readings, [(start[0], end[0]) for start, end in spans])
        return None if found_ns is None else found_ns / NS_PER_MS


class _Part:
    """Context manager of a part; a generator would take twice as long."""

    __slots__ = ("_before", "_name", "_passes")

    def __init__(self, passes: Passes, name: str) -> None:
        self._passes, self._name = passes, name

    def __enter__(self) -> None:
        self._before = self._passes.begin_part(self._name)

    def __exit__(self, *_: object) -> None:
        self._passes.switch(self._before)


def batch_size(batch: Any) -> int:
    """Return the size of the first dimension of the first tensor in a batch; 0 if unknown.

    Only containers are searched: an iterator of the program must not be advanced.
    """
    try:
        for _ in range(8):
            if (shape := getattr(batch, "shape", None)) is not None:
                return int(shape[0]) if len(shape) else 1
            if not isinstance(batch, _CONTAINERS) or not len(batch):
                break
            batch = batch[0] if isinstance(batch, _LISTS) else next(iter(batch.values()))
        return 0
    except Exception:  # a container of the program that does not behave like one
        return 0
