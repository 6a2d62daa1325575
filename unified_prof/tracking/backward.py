"""Time the nodes of the real backward pass and say which operation each belongs to.

Every way into the autograd engine goes through one Python function of torch's. Around it, the
graph is walked once from its roots and its nodes get hooks. A node carries the sequence number
that its thread's counter had when the forward made it, so it belongs to the call during which
the counter stood there.

On the host one hook a node is enough: the engine runs nodes one after the other, so a node's
time ends where the next one starts, and holds what the engine does for it (handing gradients
on, freeing what was saved). Nodes that accumulate into `.grad` end the time of the one before
and belong to no operation. On a device a pair of hooks records a pair of events around what
the node itself puts on the stream; the gaps between nodes are the host's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from unified_prof.tracking.calls import Iteration, Recorder
from unified_prof.tracking.device import Mark

NO_CALL = -1
_ACCUMULATES = -2
_ACCUMULATE_GRAD = 2**64 - 1
"""Sequence number of the nodes that write `.grad`."""

_Hook = Callable[..., None]


class _HostTimers:
    """One hook before each node; the next one's is its end.

    What the hooks themselves take lies between an end and the next start, as far as it can.
    """

    def __init__(self, recorder: Recorder, counter: Callable[[], int], create_graph: bool) -> None:
        self._mark = recorder.mark
        self._counter = counter
        self._create_graph = create_graph
        self._calls: list[int] = []
        self._ends: list[Mark] = []
        self._starts: list[Mark] = []
        self._numbers: list[int] = []
        self._hooks: dict[int, _Hook] = {}

    def attach(self, node: Any, call: int) -> list[Any]:
        hook = self._hooks.get(call)
        if hook is None:
            hook = self._hooks[call] = self._make(call)
        return [node.register_prehook(hook)]

    def _make(self, call: int) -> _Hook:
        mark, counter, create_graph = self._mark, self._counter, self._create_graph
        end, start = self._ends.append, self._starts.append
        note_call, note_number = self._calls.append, self._numbers.append

        def before(_gradients: Any) -> None:
            end(mark())
            note_call(call)
            if create_graph:
                note_number(counter())
            start(mark())

        return before

    def finish(self, iteration: Iteration, end: Mark) -> None:
        ends = [*self._ends[1:], end]
        for call, start, stop in zip(self._calls, self._starts, ends, strict=True):
            if call != _ACCUMULATES:
                iteration.nodes.append((call, start, stop))
        # What a node's backward made belongs to its call, for a backward through it.
        numbers = [*self._numbers, self._counter()]
        for call, (first, last) in zip(self._calls, pairwise(numbers), strict=False):
            if call >= 0 and last > first:
                iteration.claim_nodes(first, last, call)


class _DeviceTimers:
    """A hook before and one after each node, whichever thread runs it."""

    def __init__(self, recorder: Recorder, counter: Callable[[], int], create_graph: bool) -> None:
        self._mark = recorder.mark
        self._nodes: list[tuple[int, Mark, Mark]] = []

    def attach(self, node: Any, call: int) -> list[Any]:
        if call == _ACCUMULATES:
            return []
        mark, append = self._mark, self._nodes.append
        start: Mark = None

        def before(_gradients: Any) -> None:
            nonlocal start
            start = mark()

        def after(_outputs: Any, _inputs: Any) -> None:
            append((call, start, mark()))

        return [node.register_prehook(before), node.register_hook(after)]

    def finish(self, iteration: Iteration, end: Mark) -> None:
        # Nodes made by this backward are counted by the device's thread: they stay unclaimed.
        iteration.nodes += self._nodes


def run_backward(
    recorder: Recorder, engine: Any, roots: Sequence[Any], args: Any, kwargs: Any
) -> Any:
    """Run the autograd engine from `roots` and time it, whole and by node."""
    iteration = recorder.iteration
    retain_graph = bool(args[1]) if len(args) > 1 else bool(kwargs.get("keep_graph"))
    create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
    counter = recorder.internals.sequence_number
    timers = (_HostTimers if recorder.on_host else _DeviceTimers)(recorder, counter, create_graph)
    recorder.inside = recorder.in_engine = True
    lasting: list[Any] = []
    passing: list[Any] = []
    fenced = recorder.internals.anomalies.fenced
    attached = False
    try:
        with fenced("loss_not_read", "whether the loss is finite"):
            _keep_loss(recorder, roots)
        with fenced("backward_not_followed", "the operations of a backward pass"):
            for node, call in _nodes_below(recorder, roots, counter()):
                if recorder.on_node is not None:
                    recorder.on_node(node, call)
                (lasting if call == _ACCUMULATES else passing).extend(timers.attach(node, call))
            attached = True
        if not attached:
            for handle in lasting + passing:
                handle.remove()
        calls_before = len(iteration.calls)
        if recorder.note_waiting is not None:
            recorder.note_waiting()
        start = recorder.mark()
        result = engine(roots, *args, **kwargs)
        end = recorder.mark()
        if recorder.note_waiting is not None:
            recorder.note_waiting()
        iteration.backwards.append((calls_before, start, end))
        if attached:
            with fenced("backward_not_followed", "the operations of a backward pass"):
                timers.finish(iteration, end)
        return result
    finally:
        recorder.inside = recorder.in_engine = False
        # The graph goes away with its hooks, unless it was asked for again; the nodes that
        # accumulate may stay, held by what reduces gradients between processes.
        for handle in lasting + passing if retain_graph or create_graph else lasting:
            handle.remove()


def _nodes_below(
    recorder: Recorder, roots: Sequence[Any], last_sequence: int
) -> list[tuple[Any, int]]:
    """Return every node reachable from `roots`, and the index of the call that made it."""
    iteration, internals = recorder.iteration, recorder.internals
    node_number, known = internals.node_number, internals.has("sequence_number")
    starts, ends, calls = iteration.node_starts, iteration.node_ends, iteration.node_calls
    first_sequence = iteration.first_sequence
    nodes = [
        node
        for root in roots
        if (node := getattr(root, "grad_fn", None) or getattr(root, "node", None)) is not None
    ]
    seen = set(nodes)
    found = []
    while nodes:
        node = nodes.pop()
        try:
            number = node_number(node)
        except AttributeError as error:
            internals.note("node_number", error)
            return []
        if number == _ACCUMULATE_GRAD:
            found.append((node, _ACCUMULATES))
            continue
        position = bisect_right(starts, number) - 1
        if position >= 0 and number < ends[position]:
            found.append((node, calls[position]))
        else:
            found.append((node, NO_CALL))
            if known and not first_sequence <= number < last_sequence:
                iteration.foreign_nodes += 1
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


def _keep_loss(recorder: Recorder, roots: Sequence[Any]) -> None:
    """Keep a copy of a scalar that is differentiated, to be looked at when all is over."""
    import torch

    for root in roots:
        scalar = type(root) is torch.Tensor and root.numel() == 1 and root.is_floating_point()
        # One of a transform of torch.func is of no use once the transform has ended.
        if scalar and not recorder.internals.is_transformed(root):
            recorder.iteration.losses.append(root.detach().clone())
