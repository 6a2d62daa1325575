"""What one iteration leaves behind, raw: numbers in flat arrays, filled in the hot path.

Whatever a call is beyond numbers (function, place in the program, module) is kept once for all
calls of the same kind, in a `CallSite`. A program of ten thousand operations then leaves no ten
thousand objects that the garbage collector would have to look at again and again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.watch.code_entries import CodeEntry, Stack
from unified_prof.tracking.watch.device import Clock, Mark
from unified_prof.tracking.watch.device_clock import EventClock
from unified_prof.tracking.watch.modules import NamedModule

MAX_CALLS = 1_000_000
"""Calls kept of one iteration; a whole script without steps may have any number."""
NO_CALL = -1
NO_REGION = -1

Integers = NDArray[np.int64]


@dataclass(slots=True)
class CallSite:
    """What calls of one function, from one place in the program, in one module have in common."""

    func: Any
    """torch's function, or the name of what is no function of torch's."""
    caller: CodeEntry
    caller_at: int
    stack: Stack
    in_module: bool
    module: NamedModule | None
    """The innermost one that was running."""


class CallSites:
    """All call sites of a run by their number; the same calls have the same number for good."""

    def __init__(self) -> None:
        self.sites: list[CallSite] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        """By function, caller, instruction, stack and module."""

    def add(self, key: tuple[Any, ...], *, in_module: bool) -> int:
        """Return the number of a new site under `key`."""
        func, caller, caller_at, stack, module = key
        number = self.numbers[key] = len(self.sites)
        self.sites.append(CallSite(func, caller, caller_at, stack, in_module, module))
        return number


@dataclass(slots=True)
class Backward:
    """One run of the autograd engine."""

    calls_before: int
    last_sequence: int
    """Number of autograd nodes made on this thread before it."""
    start: Mark = 0
    end: Mark = 0
    numbers: list[int] = field(default_factory=list)
    """Sequence number of every node that ran, in their order..."""
    starts: list[Mark] = field(default_factory=list)
    ends: list[Mark] = field(default_factory=list)
    """...and when it did."""


@dataclass(frozen=True, slots=True)
class Whole:
    """One iteration on a device, as it is when nothing within it is timed."""

    total_ms: float
    forward_ms: float | None
    """None: no module was called before a backward pass."""
    backward_ms: float | None


class Timed(Protocol):
    """What knows how long an iteration took, once the device was waited for."""

    def whole(self) -> Whole | None:
        """Return the times, None if they are not known."""


@dataclass(slots=True)
class Iteration:
    """Everything seen during one iteration."""

    clock: Clock
    """What its marks are of."""
    begin: Mark = 0
    end: Mark = 0
    rows: array[int] = field(default_factory=lambda: array("q"))
    """For each call five numbers: site, autograd nodes made on this thread before and after it
    (those it made are in between), start, end."""
    backwards: list[Backward] = field(default_factory=list)
    optimizer_steps: list[int] = field(default_factory=list)
    """Number of calls before each optimizer step."""
    claims: list[tuple[int, int, int]] = field(default_factory=list)
    """First node, the node after the last one, call: nodes that a backward pass made."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Moments of the host's clock, in order, and how long this thread had waited for the processor
    until then; empty: not known."""
    with_set_up: bool = False
    """The program sets itself up in it: the first iteration of a script."""
    begins_with_forward: bool = False
    """Nothing but the forward pass runs between its begin and its first operation in a module."""
    whole: Timed | None = None
    """Another iteration, in which nothing was timed but the whole and its passes."""
    regions: array[int] = field(default_factory=lambda: array("q"))
    """For each opening and closing of a region three numbers: calls before it, the innermost
    region after it, the one that was opened."""
    first_region: int = NO_REGION
    """The innermost one that was open when it began."""
    losses: list[Any] = field(default_factory=list)
    first_sequence: int = 0
    dropped_calls: int = 0

    @property
    def count(self) -> int:
        """How many calls there are."""
        return len(self.rows) // 5

    @property
    def size(self) -> int:
        """How many calls and runs of autograd nodes there are."""
        return self.count + sum(len(one.numbers) for one in self.backwards)

    def columns(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """Return site, first node, node after the last, start and end of every call."""
        table = np.array(self.rows, np.int64).reshape(-1, 5)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4]

    def owners(self, numbers: Integers) -> Integers:
        """Return the call that made each node, given their numbers; -1 where none did."""
        _, first, last, _, _ = self.columns()
        calls = np.flatnonzero(last > first)
        starts, ends = first[calls], last[calls]
        if self.claims:
            claimed = np.array(self.claims, np.int64)
            starts, ends, calls = (
                np.concatenate([own, more])
                for own, more in zip((starts, ends, calls), claimed.T, strict=True)
            )
            order = np.argsort(starts, kind="stable")
            starts, ends, calls = starts[order], ends[order], calls[order]
        if not len(calls):
            return np.full(len(numbers), NO_CALL)
        at = np.searchsorted(starts, numbers, side="right") - 1
        return np.where((at >= 0) & (numbers < ends[at]), calls[at], NO_CALL)


@dataclass(slots=True)
class Recorder:
    """The state that the interceptions share while they record; one thread's."""

    thread: int
    mark: Callable[[], Mark]
    iteration: Iteration
    events: EventClock | None
    """What marks are of; None: they are the host's own time."""
    internals: TorchInternals
    inside: bool = False
    """Within an operation or the autograd engine: what is called now is part of it."""
    in_engine: bool = False
    """Within the autograd engine."""
    note_waiting: Callable[[], None] | None = None
    """Called at the ends of a backward pass; None where nobody asks how long this thread waits."""
    mode: Any = None
    """The function mode to take out of the way of a compiler."""
    on_call: Callable[[tuple[Any, ...], dict[str, Any], Any], None] | None = None
    """Told arguments and innermost module of every call, where times do not count."""
    on_node: Callable[[Any, int], None] | None = None
    """Told every autograd node and its call, where times do not count."""
    on_engine: Callable[[bool], None] | None = None
    """Told, before and after, whether the autograd engine runs; where times do not count."""
