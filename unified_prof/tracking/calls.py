"""What one iteration leaves behind, raw: lists filled in the hot path, read afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unified_prof.tracking.device import Mark
from unified_prof.tracking.frames import CodeEntry, Stack
from unified_prof.tracking.modules import NamedModule
from unified_prof.tracking.torch_internals import TorchInternals

MAX_CALLS = 1_000_000
"""Calls kept of one iteration; a whole script without steps may have any number."""


class Call(NamedTuple):
    """One operation as it was called."""

    func: Any
    """torch's function, or the name of what is no function of torch's."""
    caller: CodeEntry
    caller_at: int
    stack: Stack
    in_module: bool
    module: NamedModule | None
    """The innermost one that was running."""
    start: Mark
    end: Mark
    first_node: int
    """Autograd sequence number before and..."""
    last_node: int
    """...after the call: the nodes it made are in between."""


@dataclass(slots=True)
class Iteration:
    """Everything seen during one iteration."""

    begin: Mark = None
    end: Mark = None
    calls: list[Call] = field(default_factory=list)
    nodes: list[tuple[int, Mark, Mark]] = field(default_factory=list)
    """Call index (-1: of no call), start, end of every autograd node that ran."""
    backwards: list[tuple[int, Mark, Mark]] = field(default_factory=list)
    """Number of calls before, start, end of every run of the autograd engine."""
    optimizer_steps: list[int] = field(default_factory=list)
    """Number of calls before each optimizer step."""
    node_starts: list[int] = field(default_factory=list)
    node_ends: list[int] = field(default_factory=list)
    node_calls: list[int] = field(default_factory=list)
    """Ranges of sequence numbers, ascending, and the call that made those nodes."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Moments of the host's clock, in order, and how long this thread had waited for the processor
    until then; empty: not known."""
    with_set_up: bool = False
    """The program sets itself up in it: the first iteration of a script."""
    begins_with_forward: bool = False
    """Nothing but the forward pass runs between its begin and its first operation in a module."""
    losses: list[Any] = field(default_factory=list)
    first_sequence: int = 0
    foreign_nodes: int = 0
    """Nodes made by another thread or in an earlier iteration."""
    dropped_calls: int = 0

    def claim_nodes(self, first: int, last: int, call: int) -> None:
        """Note that the autograd nodes from `first` to before `last` are of call `call`."""
        self.node_starts.append(first)
        self.node_ends.append(last)
        self.node_calls.append(call)


@dataclass(slots=True)
class Recorder:
    """The state that the interceptions share while they record; one thread's."""

    thread: int
    mark: Callable[[], Mark]
    iteration: Iteration
    on_host: bool
    """Whether marks are the host's own time."""
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
