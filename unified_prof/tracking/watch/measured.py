"""One iteration in numbers: what its marks say, in about thirty bytes a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.tracking.anomalies import Anomalies
from unified_prof.tracking.watch.calls import NO_CALL, Iteration
from unified_prof.tracking.watch.waiting import waited_within
from unified_prof.units import NS_PER_MS

Span = tuple[float, float]
"""Start and end of a stretch of time, in ms since an iteration began."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of the autograd engine."""

    calls_before: int
    after_ms: float
    """How long after the last call before it (or the iteration's begin) it began."""
    ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One complete iteration; the arrays run along its calls."""

    sites: NDArray[np.int32]
    """Numbers in `CallSites`."""
    forward_ms: Floats
    backward_ms: Floats
    """NaN: the call took no part in a backward pass."""
    gap_ms: Floats
    """From the end of the call before, or the iteration's begin, to the call. Events of a device
    may be recorded out of order on two streams: then it is negative."""
    made_nodes: NDArray[np.bool_]
    """Whether the call made autograd nodes."""
    passes: tuple[Pass, ...]
    optimizer_steps: tuple[int, ...]
    """Number of calls before each."""
    total_ms: float
    begin: int
    """The moment it began, by the host's clock or as a device counts its events."""
    waits: tuple[tuple[int, int], ...]
    """As in `Iteration`."""
    with_set_up: bool
    begins_with_forward: bool
    losses: tuple[float, ...]
    foreign_nodes: int
    """Nodes of the graph that ran and were made by another thread or in an earlier iteration."""
    dropped_calls: int

    def end_ms(self) -> Floats:
        """Return when each call ended, since the iteration began.

        Put together of short times: a device's long ones have the precision of a float of 32 bits.
        """
        return np.cumsum(self.gap_ms + self.forward_ms)

    def waited_ms(self, spans: Sequence[Span]) -> float | None:
        """Return how long the thread waited for the processor in `spans`; None: not known."""
        moments = [
            (self.begin + round(start * NS_PER_MS), self.begin + round(end * NS_PER_MS))
            for start, end in spans
        ]
        waited_ns = waited_within(self.waits, moments)
        return None if waited_ns is None else waited_ns / NS_PER_MS

    @property
    def pass_starts(self) -> tuple[int, ...]:
        """The calls that are the first of a forward pass."""
        return (0, *self.optimizer_steps, *(one.calls_before for one in self.passes))


def measure(iteration: Iteration, anomalies: Anomalies) -> Measured:
    """Turn the marks of an iteration into times; its clock must have been synchronised."""
    losses = []
    for loss in iteration.losses:
        with anomalies.fenced("loss_not_read", "whether the loss is finite"):
            losses.append(float(loss))
    clock = iteration.clock
    sites, first, last, starts, ends = iteration.columns()
    backward_ms, foreign_nodes = _backward(iteration, len(sites))
    befores = np.concatenate([np.array([iteration.begin], np.int64), ends])
    return Measured(
        sites=sites.astype(np.int32),
        forward_ms=clock.all_elapsed_ms(starts, ends),
        backward_ms=backward_ms,
        gap_ms=clock.all_elapsed_ms(befores[:-1], starts),
        made_nodes=last > first,
        passes=tuple(
            Pass(
                one.calls_before,
                clock.elapsed_ms(int(befores[one.calls_before]), one.start),
                clock.elapsed_ms(one.start, one.end),
            )
            for one in iteration.backwards
        ),
        optimizer_steps=tuple(iteration.optimizer_steps),
        total_ms=clock.elapsed_ms(iteration.begin, iteration.end),
        begin=iteration.begin,
        waits=tuple(iteration.waits),
        with_set_up=iteration.with_set_up,
        begins_with_forward=iteration.begins_with_forward,
        losses=tuple(losses),
        foreign_nodes=foreign_nodes,
        dropped_calls=iteration.dropped_calls,
    )


def _backward(iteration: Iteration, calls: int) -> tuple[Floats, int]:
    """Return the backward time of each call, and how many nodes belong to none of this thread."""
    total = np.full(calls, np.nan)
    foreign = 0
    for one in iteration.backwards:
        numbers = np.array(one.numbers, np.int64)
        times = iteration.clock.all_elapsed_ms(one.starts, one.ends)
        owners = iteration.owners(numbers)
        owned = (owners != NO_CALL) & (numbers >= 0)
        summed = np.bincount(owners[owned], weights=times[owned], minlength=calls)
        ran = np.bincount(owners[owned], minlength=calls) > 0
        total[ran] = np.nan_to_num(total[ran]) + summed[ran]
        unknown = (owners == NO_CALL) & (numbers >= 0)
        elsewhere = (numbers < iteration.first_sequence) | (numbers >= one.last_sequence)
        foreign += int((unknown & elsewhere).sum())
    return total, foreign
