"""Recorded calls of an iteration, and their conversion to times.

Recording stores only numbers in flat arrays. Everything else about a call (function, position in
the program, module) is stored once per call site, in a `CallSite`, so that the garbage collector
does not visit an object per call. A `MeasuredIteration` takes about 40 bytes per call.
`ModuleNames` determines the qualified names of modules, as in `named_modules()` of their root.
"""

from __future__ import annotations

import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints
from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.code_entries import CodeEntry, Stack
from unified_prof.tracking.device import (
    NO_MARK,
    HostClock,
    Mark,
    Marks,
    WaitingTime,
    Waits,
    waited_ms,
    waited_within,
)
from unified_prof.tracking.device_clock import Clock, EventClock
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies, children_of, instances

if TYPE_CHECKING:
    from unified_prof.tracking.backward import NodeTimers
    from unified_prof.tracking.passes import Passes

# Maximum number of searches of the whole heap, which are slow; programs may create modules in
# every iteration.
_MAX_SEARCHES = 5


class NamedModule:
    """Name of a module; does not keep the module alive."""

    __slots__ = ("class_name", "members", "module", "path", "root", "settled")

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        """Returns the module, or None after it was deleted."""
        self.class_name = type(module).__name__
        self.path = ""
        self.root: NamedModule = self
        self.members: dict[NamedModule, None] = {}
        """For a root: the root and all modules below it."""
        self.settled = False
        """For a root: True if no other module contains it."""


class ModuleNames:
    """Finds the path of a module below its root.

    A root is a module that no other module contains. If several roots contain a module, it is named
    by the first root that was added or found. Because a module may be deleted before its root is
    found, it is first named relative to the outermost running module, and renamed later.
    """

    def __init__(self) -> None:
        self.known: dict[int, NamedModule] = {}
        """Names by `id` of the module; check that the module is still the same."""
        self._under_construction: dict[str, NamedModule] = {}
        """By class name: stands for modules of a class that are under construction or whose holder
        is."""
        self._unsettled: list[NamedModule] = []
        self._searches_left = _MAX_SEARCHES

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; a shared module keeps its first name."""
        self._name_below(root).settled = True

    def find(self, module: Any) -> NamedModule | None:
        """Return the name of a module; None if it has none."""
        named = self.known.get(id(module))
        return named if named is not None and named.module() is module else None

    def name(self, module: Any, running: Sequence[Any] | None) -> NamedModule:
        """Name a module that runs for the first time, within `running` modules, outermost first.

        `running` is None if one of them is under construction, so that the parent is unknown.
        """
        if running is None:
            return self._under_construction.setdefault(type(module).__name__, NamedModule(module))
        for holder in running:
            if self.find(holder) is None or holder is module:
                self._unsettled.append(self._name_below(holder))
            if named := self.find(module):
                return named
        # A temporary module, as in `nn.Softmax(-1)(x)`, or one added after its parent was named.
        named = self._name_below(module)
        self._unsettled.append(named)
        return named

    def settle(self) -> None:
        """Find the roots of modules that were named since the last call and still exist."""
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
        """Return the path of a module, even if it has not run."""
        named = self.find(module)
        return self.name(module, ()).path if named is None else named.path

    def members(self, roots: Iterable[NamedModule]) -> list[Any]:
        """Return all existing modules below `roots`, including modules added later."""
        found = []
        for root in roots:
            if (module := root.module()) is not None:
                with suppress(Exception):
                    self._name_below(module)
            found += [one for named in root.members if (one := named.module()) is not None]
        return found

    def _name_below(self, root: Any) -> NamedModule:
        owner = self._record_of(root)
        for path, module in root.named_modules():
            named = self._record_of(module)
            # A module named by another root keeps its name, unless that is not a root.
            if named.root is not owner and not named.root.settled:
                named.path, named.root = path, owner
            if named.root is owner:
                owner.members[named] = None
        return owner

    def _record_of(self, module: Any) -> NamedModule:
        named = self.find(module)
        if named is None:
            named = self.known[id(module)] = NamedModule(module)
        return named

    def _find_roots(self) -> None:
        from torch.nn import Module

        modules = instances(Module)
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
            # This visits all modules of the process; some raise errors.
            with suppress(Exception):
                self.add_root(root)


# Maximum number of calls that a recomputation may skip between two repeated calls.
_MAX_SKIPPED = 64
# Upper limit of what an iteration without calls takes in memory, in units of a call.
_FIXED_SIZE = 200
# Maximum number of calls of one iteration, because a whole script without steps may have millions.
MAX_CALLS = 1_000_000
NO_CALL = -1
NO_REGION = -1


class CallSite(Struct):
    """Identifies calls of one function from one position of the program in one module."""

    func: Any
    """Function of torch, or a label."""
    caller: CodeEntry
    caller_at: int
    stack: Stack
    in_module: bool
    module: NamedModule | None
    """Innermost running module."""


class CallSites:
    """All call sites of a run; equal call sites have one number in all iterations."""

    def __init__(self) -> None:
        self.sites: list[CallSite] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        """Numbers by function, caller, instruction, stack and module."""

    def add(self, key: tuple[Any, ...], *, in_module: bool) -> int:
        """Add a call site under `key` and return its number."""
        func, caller, caller_at, stack, module = key
        number = self.numbers[key] = len(self.sites)
        self.sites.append(CallSite(func, caller, caller_at, stack, in_module, module))
        return number


class Backward(Struct):
    """One run of the autograd engine."""

    calls_before: int
    last_sequence: int
    """Number of autograd nodes created on this thread before the run."""
    creates_graph: bool = False
    """True if the result can be differentiated again, which needs the graph of this run."""
    start: Mark = 0
    end: Mark = 0
    numbers: list[int] = field(default_factory=list)
    """Sequence numbers of the nodes that ran, in order of execution."""
    starts: list[Mark] = field(default_factory=list)
    ends: list[Mark] = field(default_factory=list)
    """End marks of these nodes."""


class IterationTimes(Struct, frozen=True):
    """One iteration in which no operation was timed; None marks unknown values."""

    total_ms: float
    forward_ms: float | None
    """Time of the forward pass; None if no module was called before a backward pass."""
    backward_ms: float | None
    waited_ms: float | None
    """Part of the total in which the thread waited for a processor; None on a device."""
    forward_waited_ms: float | None
    backward_waited_ms: float | None
    cpu_ms: float | None
    """CPU time of all threads of the process within the total; None on a device."""
    forward_cpu_ms: float | None
    backward_cpu_ms: float | None
    parts_ms: Mapping[str, float]
    """Times outside of the passes by part, such as optimizer, without waiting for a processor."""


class Iteration(Struct):
    """Recording of one iteration."""

    clock: Clock
    """Clock of the iteration's marks."""
    begin: Mark = 0
    end: Mark = 0
    number: int = 0
    """Number of the sample in the run."""
    rows: array[int] = field(default_factory=lambda: array("q"))
    """Five numbers per call: site, autograd nodes created on this thread before and after it,
    start, end."""
    backwards: list[Backward] = field(default_factory=list)
    optimizer_steps: list[int] = field(default_factory=list)
    """Number of calls before each optimizer step."""
    claims: list[tuple[int, int, int]] = field(default_factory=list)
    """Ranges of nodes created by backward passes: first node, node after the last one, call."""
    waits: Waits = field(default_factory=list)
    """Readings of the thread's wait time; empty if it is unknown."""
    recomputed: list[tuple[int | None, Iteration]] = field(default_factory=list)
    """Recomputations within backward passes: number of the first repeated call (None if it is of
    another iteration), and the calls of the recomputation."""
    with_setup: bool = False
    """True if the iteration contains the program's setup: the first iteration of a script."""
    begins_with_forward: bool = False
    """True if the iteration begins with the forward pass, without other work before it."""
    untracked: list[Passes] = field(default_factory=list)
    """Times of the sample's other iterations, in which only the passes were timed."""
    regions: array[int] = field(default_factory=lambda: array("q"))
    """Three numbers per change of the open regions: number of calls before it, innermost region
    after it, opened region."""
    first_region: int = NO_REGION
    """Innermost region at the beginning of the iteration."""
    losses: list[Any] = field(default_factory=list)
    first_sequence: int = 0
    dropped_calls: int = 0

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self.rows) // 5

    @property
    def last_mark(self) -> Mark:
        """End of the last call, or the beginning of the iteration."""
        return self.rows[-1] if self.rows else self.begin

    @property
    def size(self) -> int:
        """Number of calls and of runs of autograd nodes."""
        repeated = sum(one.count for _, one in self.recomputed)
        return self.count + repeated + sum(len(one.numbers) for one in self.backwards)

    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Return site, first node, node after the last, start and end of every call."""
        table = np.array(self.rows, np.int64).reshape(-1, 5)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4]

    def owners(self, numbers: Ints) -> Ints:
        """Return the call that created each node; NO_CALL if unknown."""
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


class Recorder(Struct):
    """Shared state of the interception while a thread is recorded."""

    thread: int
    mark: Callable[[], Mark]
    iteration: Iteration
    events: EventClock | None
    """Clock of the marks; None if they are host times."""
    internals: TorchInternals
    inside: bool = False
    """True within an operation or the autograd engine; nested calls are part of it."""
    in_engine: bool = False
    """True within the autograd engine."""
    waiting: WaitingTime | None = None
    """Reads how long this thread waits for a processor; None on a device."""
    timers: NodeTimers | None = None
    """Timers of the nodes of the running backward pass."""
    checkpoints: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)
    """Frame of `torch.utils.checkpoint` -> number of its first call in this iteration."""
    repeats: int | None = 0
    """Number of the original call that the first call of `iteration` repeats; None if unknown, 0 if
    this is not a recomputation."""
    mode: Any = None
    """Function mode; it is removed while compiled code runs."""
    on_call: Callable[[tuple[Any, ...], dict[str, Any], Any], None] | None = None
    """Called with the arguments and innermost module of every call; only if times are not used."""
    on_node: Callable[[Any, int], None] | None = None
    """Called with every autograd node and its call; only if times are not used."""
    on_engine: Callable[[bool], None] | None = None
    """Called with True before and False after a run of the engine; only if times are not used.
    """


Span = tuple[float, float]  # Start and end of an interval, in ms since the iteration began.


class Pass(Struct, frozen=True):
    """One run of the autograd engine."""

    calls_before: int
    after_ms: float
    """Time from the previous call (or the beginning of the iteration) to the start of the pass."""
    ms: float


class MeasuredIteration(Struct, frozen=True, eq=False):
    """One complete iteration; arrays have one element per call."""

    sites: NDArray[np.int32]
    """Numbers in `CallSites`."""
    forward_ms: Floats
    backward_ms: Floats
    """Backward time of each call; NaN if the call took no part in a backward pass."""
    recomputed_ms: Floats | None
    """Time in which each call was recomputed; NaN if it was not recomputed, None if no call was."""
    end_ms: Floats
    """End of each call, relative to the beginning of the iteration. On a device it is a sum of
    short times, because long times have only the precision of a 32-bit float."""
    gap_ms: Floats
    """Time from the end of the previous call, or the beginning of the iteration, to the call. It
    can be negative on a device, where events on two streams may be recorded out of order."""
    made_nodes: Bools
    """True if the call created autograd nodes."""
    passes: tuple[Pass, ...]
    optimizer_steps: tuple[int, ...]
    """Number of calls before each optimizer step."""
    number: int
    """Number of the sample in the run."""
    total_ms: float
    begin: int
    """Beginning of the iteration: host time or number of an event."""
    waits: tuple[tuple[int, int], ...]
    """See `Iteration`."""
    with_setup: bool
    begins_with_forward: bool
    losses: tuple[float, ...]
    foreign_nodes: int
    """Number of executed nodes that another thread or an earlier iteration created."""
    repeated_ms: float
    """Time of nodes in further passes through the same graph, but for derivatives of gradients."""
    dropped_calls: int
    doubtful: Bools
    """True if the forward or backward time of the call may contain other time."""
    untimed: Bools
    """True if the forward or backward time of the call could not be read."""
    untracked: tuple[IterationTimes, ...]
    """Times of iterations without timed operations."""
    regions: NDArray[np.int32] | None
    """Innermost region around each call, -1 outside of regions; None if there are no regions."""
    opened: Mapping[int, int]
    """Number of times that each region was opened."""

    @property
    def size(self) -> int:
        """Memory that it takes, in units of a call, which takes about 45 bytes."""
        return len(self.sites) + _FIXED_SIZE * (1 + len(self.untracked))

    def region(self, call: int) -> int:
        """Return the innermost region around a call; -1 outside of regions."""
        return NO_REGION if self.regions is None else int(self.regions[call])

    def waited_ms(self, spans: Sequence[Span]) -> float | None:
        """Return how long the thread waited within `spans`; None if unknown."""
        if not self.waits:
            return None
        moments = [
            (self.begin + round(start * NS_PER_MS), self.begin + round(end * NS_PER_MS))
            for start, end in spans
        ]
        waited_ns = waited_within(self.waits, moments)
        # A wait is counted at the next reading, which may be in a later and shorter span.
        length_ms = sum(end - start for start, end in spans)
        return None if waited_ns is None else min(waited_ns / NS_PER_MS, length_ms)


def measure(
    iteration: Iteration, anomalies: Anomalies, sites: Sequence[CallSite]
) -> MeasuredIteration:
    """Convert the marks of an iteration to times; its clock must be synchronized.

    On the host, times of calls exclude the time in which the thread waited for a processor.
    """
    losses = []
    for loss in iteration.losses:
        with anomalies.recording_failures("loss_not_read", "check for infinite losses"):
            losses.append(float(loss))
    clock = iteration.clock
    numbers, first, last, starts, ends = iteration.columns()
    backward_ms, foreign_nodes, repeated_ms, doubtful, untimed = _backward(iteration, len(numbers))
    forward_ms = _work_ms(iteration, starts, ends)
    # Until the first call, the device was not in use.
    begin = int(starts[0]) if iteration.begin == NO_MARK and len(starts) else iteration.begin
    end = iteration.end
    counts = len(iteration.backwards), len(iteration.optimizer_steps)
    previous_calls = np.concatenate([np.array([begin], np.int64), ends])
    gap_ms = _work_ms(iteration, previous_calls[:-1], clock.before_wait(starts))
    if isinstance(clock, HostClock):
        end_ms = clock.all_elapsed_ms(np.full(len(ends), begin), ends)
    else:
        end_ms = np.cumsum(np.nan_to_num(gap_ms) + np.nan_to_num(forward_ms))
    return MeasuredIteration(
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
                float(
                    np.nan_to_num(
                        clock.elapsed_ms(int(previous_calls[one.calls_before]), one.start)
                    )
                ),
                clock.elapsed_ms(one.start, one.end),
            )
            for one in iteration.backwards
        ),
        optimizer_steps=tuple(iteration.optimizer_steps),
        number=iteration.number,
        total_ms=clock.elapsed_ms(begin, end),
        begin=begin,
        waits=tuple(iteration.waits),
        with_setup=iteration.with_setup,
        begins_with_forward=iteration.begins_with_forward,
        losses=tuple(losses),
        foreign_nodes=foreign_nodes,
        repeated_ms=repeated_ms,
        dropped_calls=iteration.dropped_calls,
        doubtful=doubtful | clock.is_doubtful(starts),
        untimed=untimed | np.isnan(forward_ms),
        untracked=tuple(
            times
            for one in iteration.untracked
            if one.counts == counts and (times := one.times()) is not None
        ),
        regions=_regions(iteration, len(numbers)),
        opened=Counter(number for number in iteration.regions[2::3] if number != NO_REGION),
    )


def _work_ms(iteration: Iteration, starts: Marks, ends: Marks) -> Floats:
    """Return the duration of the work between marks, without waiting for a processor."""
    times = iteration.clock.work_ms(starts, ends)
    if not iteration.waits:
        return times
    return np.maximum(times - waited_ms(iteration.waits, starts, ends), 0.0)


def _recomputed(iteration: Iteration, numbers: Ints, sites: Sequence[CallSite]) -> Floats | None:
    """Return the time in which checkpointed functions recomputed each call.

    A recomputation repeats the calls in the same order, up to the last one that the backward pass
    needs. Repeated calls that are not found among the next original calls are ignored.
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


def _backward(iteration: Iteration, calls: int) -> tuple[Floats, int, float, Bools, Bools]:
    """Return backward times, foreign nodes, repeated time, and doubtful and untimed calls."""
    total = np.full(calls, np.nan)
    doubtful, untimed = np.zeros(calls, np.bool_), np.zeros(calls, np.bool_)
    foreign, repeated_ms = 0, 0.0
    ran_before = np.zeros(0, np.int64)
    for one in iteration.backwards:
        numbers = np.array(one.numbers, np.int64)
        times = _work_ms(iteration, one.starts, one.ends)
        owners = iteration.owners(numbers)
        owned = (owners != NO_CALL) & (numbers >= 0)
        doubtful[owners[owned & iteration.clock.is_doubtful(one.starts)]] = True
        untimed[owners[owned & np.isnan(times)]] = True
        times = np.nan_to_num(times)
        if not one.creates_graph:
            repeated_ms += float(times[np.isin(numbers, ran_before)].sum())
            ran_before = np.concatenate([ran_before, numbers[numbers >= 0]])
        summed = np.bincount(owners[owned], weights=times[owned], minlength=calls)
        ran = np.bincount(owners[owned], minlength=calls) > 0
        total[ran] = np.nan_to_num(total[ran]) + summed[ran]
        unknown = (owners == NO_CALL) & (numbers >= 0)
        elsewhere = (numbers < iteration.first_sequence) | (numbers >= one.last_sequence)
        foreign += int((unknown & elsewhere).sum())
    return total, foreign, repeated_ms, doubtful, untimed
