"""One iteration in numbers: what its marks say, in about thirty bytes a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.tracking.anomalies import Anomalies
from unified_prof.tracking.watch.calls import NO_CALL, NO_REGION, Iteration, Whole
from unified_prof.tracking.watch.device import NO_MARK, Mark
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
    doubtful: NDArray[np.bool_]
    """Whether the times of a call, forward or backward, may hold time that is none of its own."""
    untimed: NDArray[np.bool_]
    """Whether a time of a call, forward or backward, could not be read."""
    whole: Whole | None
    """On a device: how long it takes when operations are not timed."""
    regions: NDArray[np.int32] | None
    """The innermost region around each call, -1 where there is none; None: none was open."""
    opened: Mapping[int, int]
    """How many times each region was opened."""

    def region(self, call: int) -> int:
        """Return the innermost region around a call, -1 where there is none."""
        return NO_REGION if self.regions is None else int(self.regions[call])

    def end_ms(self) -> Floats:
        """Return when each call ended, since the iteration began.

        Put together of short times: a device's long ones have the precision of a float of 32 bits.
        """
        return np.cumsum(np.nan_to_num(self.gap_ms) + np.nan_to_num(self.forward_ms))

    def waited_ms(self, spans: Sequence[Span]) -> float | None:
        """Return how long the thread waited for the processor in `spans`; None: not known."""
        if not self.waits:
            return None
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
    backward_ms, foreign_nodes, doubtful, untimed = _backward(iteration, len(sites))
    forward_ms = clock.work_ms(starts, ends)
    begin, end = _first(iteration, starts), iteration.end
    befores = np.concatenate([np.array([begin], np.int64), ends])
    return Measured(
        sites=sites.astype(np.int32),
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        gap_ms=clock.work_ms(befores[:-1], clock.before_wait(starts)),
        made_nodes=last > first,
        passes=tuple(
            Pass(
                one.calls_before,
                float(np.nan_to_num(clock.elapsed_ms(int(befores[one.calls_before]), one.start))),
                clock.elapsed_ms(one.start, one.end),
            )
            for one in iteration.backwards
        ),
        optimizer_steps=tuple(iteration.optimizer_steps),
        total_ms=clock.elapsed_ms(begin, end),
        begin=begin,
        waits=tuple(iteration.waits),
        with_set_up=iteration.with_set_up,
        begins_with_forward=iteration.begins_with_forward,
        losses=tuple(losses),
        foreign_nodes=foreign_nodes,
        dropped_calls=iteration.dropped_calls,
        doubtful=doubtful | clock.is_doubtful(starts),
        untimed=untimed | np.isnan(forward_ms),
        whole=None if iteration.whole is None else iteration.whole.whole(),
        regions=_regions(iteration, len(sites)),
        opened=Counter(number for number in iteration.regions[2::3] if number != NO_REGION),
    )


def _regions(iteration: Iteration, calls: int) -> NDArray[np.int32] | None:
    """Return the innermost region around each call."""
    if not iteration.regions and iteration.first_region == NO_REGION:
        return None
    changes = np.array(iteration.regions, np.int64).reshape(-1, 3)
    innermost = np.concatenate([[iteration.first_region], changes[:, 1]]).astype(np.int32)
    found: NDArray[np.int32] = innermost[
        np.searchsorted(changes[:, 0], np.arange(calls), side="right")
    ]
    return found


def _first(iteration: Iteration, starts: NDArray[np.int64]) -> Mark:
    """Return the mark of the begin; one that began before its device was touched has none."""
    if iteration.begin == NO_MARK and len(starts):
        return int(starts[0])
    return iteration.begin


def _backward(
    iteration: Iteration, calls: int
) -> tuple[Floats, int, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the backward time of each call, and how many nodes belong to none of this thread.

    And whether the times of each call are to be doubted, or could not be read.
    """
    total = np.full(calls, np.nan)
    doubtful, untimed = np.zeros(calls, np.bool_), np.zeros(calls, np.bool_)
    foreign = 0
    for one in iteration.backwards:
        numbers = np.array(one.numbers, np.int64)
        times = iteration.clock.work_ms(one.starts, one.ends)
        owners = iteration.owners(numbers)
        owned = (owners != NO_CALL) & (numbers >= 0)
        doubtful[owners[owned & iteration.clock.is_doubtful(one.starts)]] = True
        untimed[owners[owned & np.isnan(times)]] = True
        times = np.nan_to_num(times)
        summed = np.bincount(owners[owned], weights=times[owned], minlength=calls)
        ran = np.bincount(owners[owned], minlength=calls) > 0
        total[ran] = np.nan_to_num(total[ran]) + summed[ran]
        unknown = (owners == NO_CALL) & (numbers >= 0)
        elsewhere = (numbers < iteration.first_sequence) | (numbers >= one.last_sequence)
        foreign += int((unknown & elsewhere).sum())
    return total, foreign, doubtful, untimed
