"""Qualified names of modules, as `named_modules()` of their root has them.

What one iteration leaves behind, raw: numbers in flat arrays, filled in the hot path.

Whatever a call is beyond numbers (function, place in the program, module) is kept once for all
calls of the same kind, in a `CallSite`. A program of ten thousand operations then leaves no ten
thousand objects that the garbage collector would have to look at again and again.

One iteration in numbers: what its marks say, in about thirty bytes a call.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Floats
from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.code_entries import CodeEntry, Stack
from unified_prof.tracking.device import NO_MARK, Clock, HostClock, Mark, Marks
from unified_prof.tracking.device_clock import EventClock
from unified_prof.tracking.interference import WaitingTime, Waits, waited_ms, waited_within
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies, children_of

_MAX_SEARCHES = 5
"""Searches of the whole heap: they take a moment, and programs may make modules all the time."""


class NamedModule:
    """What is known of one module; it does not keep the module alive."""

    __slots__ = ("class_name", "members", "module", "path", "root", "settled")

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        """Gives the module, None once it is gone."""
        self.class_name = type(module).__name__
        self.path = ""
        self.root: NamedModule = self
        self.members: dict[NamedModule, None] = {}
        """Of a root: itself and the modules below it."""
        self.settled = False
        """Of a root: whether it is known that no other module holds it."""


class ModuleNames:
    """Finds the path of any module of the program below its root.

    A root is a module that no other module holds. Where several roots hold a module, the first
    one given or found names it. A module may be gone before its root was looked for: it is
    named at once, below the outermost module that was running, and anew once the root is found.
    """

    def __init__(self) -> None:
        self.known: dict[int, NamedModule] = {}
        """By `id`, which is good only as long as the module is the one that is named."""
        self._in_making: dict[str, NamedModule] = {}
        """Stands for modules of a class while they, or what will hold them, are being made."""
        self._unsettled: list[NamedModule] = []
        self._searches_left = _MAX_SEARCHES

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; the first name of a shared module counts."""
        self._name_below(root).settled = True

    def find(self, module: Any) -> NamedModule | None:
        """Return what is known of a module."""
        named = self.known.get(id(module))
        return named if named is not None and named.module() is module else None

    def name(self, module: Any, running: Sequence[Any] | None) -> NamedModule:
        """Return what a module is called that runs for the first time.

        Args:
            module: The module.
            running: Modules that are running, the outermost first; None where one is being
                made, so that it cannot be told yet who will hold the module.
        """
        if running is None:
            return self._in_making.setdefault(type(module).__name__, NamedModule(module))
        for holder in running:
            if self.find(holder) is None or holder is module:
                self._unsettled.append(self._name_below(holder))
            if named := self.find(module):
                return named
        # Made for the moment, as in `nn.Softmax(-1)(x)`, or added since its holder was named.
        named = self._name_below(module)
        self._unsettled.append(named)
        return named

    def settle(self) -> None:
        """Look for the roots of what was named since the last time and is still alive."""
        alive = [
            named
            for named in self._unsettled
            if not named.root.settled and named.module() is not None
        ]
        self._unsettled.clear()
        if alive and self._searches_left:
            self._searches_left -= 1
            self._find_roots()

    def path(self, module: Any) -> str:
        """Return what a module is called that need not have run."""
        named = self.find(module)
        return self.name(module, ()).path if named is None else named.path

    def members(self, roots: Iterable[NamedModule]) -> list[Any]:
        """Return all modules below `roots` that are alive, also those added lately."""
        found = []
        for root in roots:
            if (module := root.module()) is not None:
                with suppress(Exception):
                    self._name_below(module)
            found += [one for named in root.members if (one := named.module()) is not None]
        return found

    def _name_below(self, root: Any) -> NamedModule:
        owner = self._named(root)
        for path, module in root.named_modules():
            named = self._named(module)
            # What another root has named keeps its name, unless that turned out to be none.
            if named.root is not owner and not named.root.settled:
                named.path, named.root = path, owner
            if named.root is owner:
                owner.members[named] = None
        return owner

    def _named(self, module: Any) -> NamedModule:
        named = self.find(module)
        if named is None:
            named = self.known[id(module)] = NamedModule(module)
        return named

    def _find_roots(self) -> None:
        from torch.nn import Module

        # By type, not isinstance: that would wake up lazy proxies.
        modules = [item for item in gc.get_objects() if issubclass(type(item), Module)]
        held = {id(child) for module in modules for child in (children_of(module) or {}).values()}
        roots = [
            module
            for module in modules
            if id(module) not in held and children_of(module) is not None
        ]
        for root in roots:
            if (named := self.find(root)) is not None and named.root is named:
                named.settled = True
        for root in roots:
            # Any module of the process comes by here; one may refuse to be walked.
            with suppress(Exception):
                self.add_root(root)


# Calls that a recomputation may leave out between two that it repeats.
_MAX_SKIPPED = 64
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
    """One iteration in which no operation was timed; None marks what is not known."""

    total_ms: float
    forward_ms: float | None
    """None: no module was called before a backward pass."""
    backward_ms: float | None
    waited_ms: float | None
    """Part of the total in which the thread waited for a processor; None on a device."""
    forward_waited_ms: float | None
    backward_waited_ms: float | None


class Timed(Protocol):
    """Times an iteration as a whole."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of backward passes and of optimizer steps."""

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
    waits: Waits = field(default_factory=list)
    """How long this thread had waited for a processor at some moments; empty: not known."""
    recomputed: list[tuple[int | None, Iteration]] = field(default_factory=list)
    """For each run of a checkpointed function within a backward pass: the number of the first call
    that it repeats (None: a call of another iteration), and the calls of that run."""
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
        repeated = sum(one.count for _, one in self.recomputed)
        return self.count + repeated + sum(len(one.numbers) for one in self.backwards)

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


class NodeTimers(Protocol):
    """Times the nodes of a backward pass."""

    def switch(self, number: int) -> int:
        """Charge the time from now on to node `number`; return the node charged until now."""


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
    waiting: WaitingTime | None = None
    """Reads how long this thread waits for a processor; None on a device."""
    note_waiting: Callable[[], None] | None = None
    """Called at both ends of a backward pass; None on a device."""
    timers: NodeTimers | None = None
    """Time the nodes of the backward pass that runs."""
    checkpoints: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)
    """Frame of `torch.utils.checkpoint` -> number of its first call in this iteration."""
    repeats: int | None = 0
    """Number of the call that the first one in `iteration` repeats, None if it is not known; 0
    outside of a recomputation."""
    mode: Any = None
    """The function mode to take out of the way of a compiler."""
    on_call: Callable[[tuple[Any, ...], dict[str, Any], Any], None] | None = None
    """Told arguments and innermost module of every call, where times do not count."""
    on_node: Callable[[Any, int], None] | None = None
    """Told every autograd node and its call, where times do not count."""
    on_engine: Callable[[bool], None] | None = None
    """Told, before and after, whether the autograd engine runs; where times do not count."""


Span = tuple[float, float]
"""Start and end of a stretch of time, in ms since an iteration began."""


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
    recomputed_ms: Floats | None
    """Time in which a checkpointed function ran the call again; None if none was, NaN if this one
    was not."""
    end_ms: Floats
    """When each call ended, since the iteration began. On a device it is the sum of short times:
    long ones have the precision of a 32-bit float."""
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


def measure(iteration: Iteration, anomalies: Anomalies, sites: Sequence[CallSite]) -> Measured:
    """Turn the marks of an iteration into times; its clock must have been synchronized.

    On the host, times of calls do not contain the time in which the thread waited for a processor.
    """
    losses = []
    for loss in iteration.losses:
        with anomalies.fenced("loss_not_read", "whether the loss is finite"):
            losses.append(float(loss))
    clock = iteration.clock
    numbers, first, last, starts, ends = iteration.columns()
    backward_ms, foreign_nodes, doubtful, untimed = _backward(iteration, len(numbers))
    forward_ms = _work_ms(iteration, starts, ends)
    begin, end = _first(iteration, starts), iteration.end
    befores = np.concatenate([np.array([begin], np.int64), ends])
    gap_ms = _work_ms(iteration, befores[:-1], clock.before_wait(starts))
    if isinstance(clock, HostClock):
        end_ms = clock.all_elapsed_ms(np.full(len(ends), begin), ends)
    else:
        end_ms = np.cumsum(np.nan_to_num(gap_ms) + np.nan_to_num(forward_ms))
    return Measured(
        sites=numbers.astype(np.int32),
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        recomputed_ms=_recomputed(iteration, numbers, sites),
        end_ms=end_ms,
        gap_ms=gap_ms,
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
        whole=_whole(iteration),
        regions=_regions(iteration, len(numbers)),
        opened=Counter(number for number in iteration.regions[2::3] if number != NO_REGION),
    )


def _whole(iteration: Iteration) -> Whole | None:
    """Return the times of the sample's other iteration, None if that is of another kind."""
    counts = len(iteration.backwards), len(iteration.optimizer_steps)
    if iteration.whole is None or iteration.whole.counts != counts:
        return None
    return iteration.whole.whole()


def _work_ms(iteration: Iteration, starts: Marks, ends: Marks) -> Floats:
    """Return how long the work between marks took, without waiting for a processor."""
    times = iteration.clock.work_ms(starts, ends)
    if not iteration.waits:
        return times
    return np.maximum(times - waited_ms(iteration.waits, starts, ends), 0.0)


def _recomputed(
    iteration: Iteration, numbers: Integers, sites: Sequence[CallSite]
) -> Floats | None:
    """Return the time in which checkpointed functions ran each call again.

    A function runs the same calls in the same order again, up to the last one that the backward
    pass needs. A call that is not found among those that follow is of no known operation.
    """
    if not iteration.recomputed:
        return None
    total = np.full(len(numbers), np.nan)
    functions = [sites[number].func for number in numbers.tolist()]
    for first, again in iteration.recomputed:
        if first is None:
            continue
        repeated, _, _, starts, ends = again.columns()
        times = _work_ms(again, starts, ends)
        for number, time_ms in zip(repeated.tolist(), times.tolist(), strict=True):
            try:
                call = functions.index(sites[number].func, first, first + _MAX_SKIPPED)
            except ValueError:
                continue
            first = call + 1
            total[call] = np.nan_to_num(total[call]) + np.nan_to_num(time_ms)
    return total


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
        times = _work_ms(iteration, one.starts, one.ends)
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
