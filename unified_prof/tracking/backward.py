"""Time the nodes of the real backward pass and say which operation each belongs to.

Every way into the autograd engine goes through one Python function of torch's. Around it, the
graph is walked once from its roots and every node gets a hook before and one after. A node
carries the sequence number that its thread's counter had when the forward made it, so it
belongs to the call during which the counter stood there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from unified_prof.tracking.calls import Iteration, Recorder
from unified_prof.tracking.device import Mark

NO_CALL = -1
_ACCUMULATE_GRAD = 2**64 - 1
"""Sequence number of the nodes that write `.grad`: they belong to no operation."""


class _Run:
    """One run of the engine; hooks of an earlier run on the same nodes stay silent."""

    __slots__ = ("active", "iteration", "mark", "sequence_number")

    def __init__(self, iteration: Iteration, mark: Callable[[], Mark], counter: Any) -> None:
        self.active = True
        self.iteration = iteration
        self.mark = mark
        self.sequence_number = counter


class _NodeTimer:
    """The two hooks of one node."""

    __slots__ = ("call", "run", "start")

    def __init__(self, run: _Run, call: int) -> None:
        self.run = run
        self.call = call
        self.start: Mark = None

    def before(self, _gradients: Any) -> None:
        self.start = self.run.mark()

    def after(self, _outputs: Any, _inputs: Any) -> None:
        run = self.run
        if run.active:
            run.iteration.nodes.append((self.call, self.start, run.mark()))


class _GraphNodeTimer(_NodeTimer):
    """Also claims the nodes made by this one's backward, for a backward through it."""

    __slots__ = ("first_node",)

    def before(self, _gradients: Any) -> None:
        self.first_node = self.run.sequence_number()
        self.start = self.run.mark()

    def after(self, _outputs: Any, _inputs: Any) -> None:
        run = self.run
        if not run.active:
            return
        iteration = run.iteration
        iteration.nodes.append((self.call, self.start, run.mark()))
        last_node = run.sequence_number()
        # Another thread (a device's) counts on its own: its numbers say nothing here.
        previous = iteration.node_ends[-1] if iteration.node_ends else 0
        if self.call != NO_CALL and last_node > self.first_node >= previous:
            iteration.node_starts.append(self.first_node)
            iteration.node_ends.append(last_node)
            iteration.node_calls.append(self.call)


def run_backward(
    recorder: Recorder, engine: Any, roots: Sequence[Any], args: Any, kwargs: Any
) -> Any:
    """Run the autograd engine from `roots` and time it, whole and by node."""
    import torch

    iteration = recorder.iteration
    retain_graph = bool(args[1]) if len(args) > 1 else bool(kwargs.get("keep_graph"))
    create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
    run = _Run(iteration, recorder.mark, torch._C._autograd._get_sequence_nr)
    recorder.inside = recorder.in_engine = True
    handles: list[Any] = []
    try:
        _keep_loss(iteration, roots)
        _hook_graph(run, roots, handles, create_graph, recorder.on_node)
        calls_before = len(iteration.calls)
        start = recorder.mark()
        result = engine(roots, *args, **kwargs)
        iteration.backwards.append((calls_before, start, recorder.mark()))
        return result
    finally:
        run.active = False
        recorder.inside = recorder.in_engine = False
        if retain_graph or create_graph:  # else the graph goes away, and the hooks with it
            for handle in handles:
                handle.remove()


def _hook_graph(
    run: _Run,
    roots: Sequence[Any],
    handles: list[Any],
    create_graph: bool,
    on_node: Callable[[Any, int], None] | None,
) -> None:
    iteration = run.iteration
    starts, ends, calls = iteration.node_starts, iteration.node_ends, iteration.node_calls
    first, last = iteration.first_sequence, run.sequence_number()
    timer_type = _GraphNodeTimer if create_graph else _NodeTimer
    nodes = [
        node
        for root in roots
        if (node := getattr(root, "grad_fn", None) or getattr(root, "node", None)) is not None
    ]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        number = node._sequence_nr()
        if number == _ACCUMULATE_GRAD:
            continue
        position = bisect_right(starts, number) - 1
        if position >= 0 and number < ends[position]:
            timer = timer_type(run, calls[position])
        else:
            timer = timer_type(run, NO_CALL)
            if not first <= number < last:
                iteration.foreign_nodes += 1
        if on_node is not None:
            on_node(node, timer.call)
        handles.append(node.register_prehook(timer.before))
        handles.append(node.register_hook(timer.after))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _keep_loss(iteration: Iteration, roots: Sequence[Any]) -> None:
    """Keep a copy of a scalar that is differentiated, to be looked at when all is over."""
    import torch

    for root in roots:
        if type(root) is torch.Tensor and root.numel() == 1 and root.is_floating_point():
            iteration.losses.append(root.detach().clone())
