"""Time the nodes of the backward pass, and assign each to the operation that created it.

All calls of the autograd engine go through one Python function of torch. Before each call, the
graph is walked from its roots and every node gets a hook. The sequence number of a node is the
value of its thread's counter when the node was created, which identifies the call that created it.

On the host, one hook per node is enough: the engine runs one node after the other, so the time of a
node ends when the next node starts. It includes the engine's work for the node (passing on
gradients, freeing saved tensors). Nodes that accumulate into `.grad` end the time of the previous
node and belong to no operation. On a device, events are used in the same way, because the device is
kept behind the host and has a separate engine thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import get_ident
from typing import Any, TypeAlias

import numpy as np

from unified_prof.tracking.device import LONG_NS, NO_MARK, Mark, collection_held_off
from unified_prof.tracking.device_clock import EventClock
from unified_prof.tracking.raw_calls import NO_CALL, Backward, Iteration, Recorder

# Replaces `_ACCUMULATE_GRAD`, the sequence number of nodes that write `.grad`.
_ACCUMULATES = -2
_ACCUMULATE_GRAD = 2**64 - 1
_RECOMPUTES = -3  # Replaces the sequence number while a checkpointed function runs again.
_INPUTS = 3  # Position of the engine's argument `inputs`.


class _HostTimers:
    """Times nodes on the host with one hook before each; the hook of the next node ends the time.

    The time of the hooks themselves is between an end and the next start, so it is not counted.
    Nodes share one dictionary of hooks, which is emptied at the end of the run.
    """

    def __init__(self, recorder: Recorder, run: Backward, create_graph: bool, part: bool) -> None:
        self._run = run
        self._recorder = recorder
        self._mark = recorder.mark
        self._internals = recorder.internals
        self._counter = recorder.internals.sequence_number if create_graph else None
        self._counts: list[int] = []
        self._handles: list[Any] = []
        self._shared: dict[int, Any] = {}
        self._hook: Callable[[Any], None] | None = None
        self._hooked = False
        current = None if part else recorder.internals.current_node()
        if current is not None:
            self._hook = recorder.internals.hooking(self._shared)
            self._shared[0] = self._before_any(current)

    def attach(self, nodes: Iterator[tuple[Any, int]]) -> None:
        """Register hooks for `nodes`, given with their numbers."""
        hook, keep = self._hook, self._handles.append
        accumulates = self._before_accumulating()
        for node, number in nodes:
            # The hook dictionary of an accumulating node belongs to its tensor.
            if number == _ACCUMULATES:
                keep(node.register_prehook(accumulates))
                continue
            if hook is not None:
                try:
                    hook(node)
                    self._hooked = True
                    continue
                except Exception as error:
                    self._internals.note("node_hooks", error)
                    hook = None
            keep(node.register_prehook(self._before(functools.partial(int, number))))

    def detach(self) -> None:
        """Remove all hooks."""
        self._shared.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def switch(self, number: int) -> int:
        """Charge the time from now on to node `number`; return the node charged so far."""
        previous = self._run.numbers[-1] if self._run.numbers else NO_CALL
        self._before(lambda: number)(None)
        return previous

    def _note_long(self, end: Mark) -> None:
        """Note how long the thread waited in the interval that ends at `end`, if it was long."""
        recorder = self._recorder
        if recorder.waiting is not None:
            recorder.waiting.note_interval(recorder.iteration.waits, self._run.starts[-1], end)

    def _before(self, number: Callable[[], int]) -> Callable[[Any], None]:
        """Return a hook that records the start of a node and the number of nodes created so far."""
        run, mark, counter, counts = self._run, self._mark, self._counter, self._counts

        def before(_gradients: Any) -> None:
            now = mark()
            run.ends.append(now)
            if run.starts and now - run.starts[-1] > LONG_NS:
                self._note_long(now)
            run.numbers.append(number())
            if counter is not None:
                counts.append(counter())
            run.starts.append(mark())

        return before

    def _before_accumulating(self) -> Callable[[Any], None]:
        """Return the hook for nodes that write `.grad`."""
        if self._counter is not None:
            return self._before(lambda: _ACCUMULATES)
        run, mark, starts = self._run, self._mark, self._run.starts
        end, note, start = run.ends.append, run.numbers.append, run.starts.append

        def before(_gradient: Any) -> None:
            now = mark()
            end(now)
            if starts and now - starts[-1] > LONG_NS:
                self._note_long(now)
            note(_ACCUMULATES)
            start(mark())

        return before

    def _before_any(self, current: Callable[[], Any]) -> Callable[[Any], None]:
        """Return a hook for all nodes that asks torch which node is about to run."""
        number_of = self._internals.node_number
        if self._counter is not None:

            def number() -> int:
                try:
                    return number_of(current())
                except Exception as error:
                    self._internals.note("current_node", error)
                    return NO_CALL

            return self._before(number)
        run, mark, starts = self._run, self._mark, self._run.starts
        end, note, start = run.ends.append, run.numbers.append, run.starts.append

        def before(_gradient: Any) -> None:  # runs for every node of every backward pass
            now = mark()
            end(now)
            if starts and now - starts[-1] > LONG_NS:
                self._note_long(now)
            try:
                note(number_of(current()))
            except Exception as error:  # it must not reach the program's backward pass
                note(NO_CALL)
                self._internals.note("current_node", error)
            start(mark())

        return before

    def finish(self, iteration: Iteration) -> None:
        """Complete the times of the run."""
        run = self._run
        if self._hooked and not any(number > _ACCUMULATES for number in run.numbers):
            self._internals.note("node_hooks", TypeError("node hooks were not called"))
        del run.ends[:1]
        if run.numbers:
            run.ends.append(run.end)
        if self._counter is not None:
            # Nodes created during a node's backward belong to its call (double backward).
            counts = [*self._counts, self._counter()]
            for call, (first, last) in zip(
                iteration.owners(np.array(run.numbers)), pairwise(counts), strict=False
            ):
                if call != NO_CALL and last > first:
                    iteration.claims.append((first, last, int(call)))


class _DeviceTimers:
    """Times nodes on devices with one hook before each; the device's next node ends the time."""

    def __init__(self, events: EventClock, run: Backward) -> None:
        self._run = run
        self._events = events
        self._nodes: list[tuple[int, Mark, Mark]] = []
        self._under_way: dict[int, tuple[int, Mark]] = {}
        """Number and start of the running node by thread; each device has a thread."""
        self._handles: list[Any] = []

    def attach(self, nodes: Iterator[tuple[Any, int]]) -> None:
        """Register hooks for `nodes`, given with their numbers."""
        self._handles += [node.register_prehook(self._before(node, n)) for node, n in nodes]

    def _before(self, node: Any, number: int) -> Callable[[Any], None]:
        kind = type(node)
        return lambda _gradients: self._follow(number, kind)

    def switch(self, number: int) -> int:
        """Charge this thread's time from now on to node `number`; return the previous node."""
        previous = self._under_way.get(get_ident(), (NO_CALL, NO_MARK))[0]
        self._follow(number, self.switch)
        return previous

    def _follow(self, number: int, kind: Any) -> None:
        thread = get_ident()
        previous, start = self._under_way.get(thread, (NO_CALL, NO_MARK))
        end, here = self._events.follow(start, kind)
        if NO_MARK not in (start, end):
            self._nodes.append((previous, start, end))
        self._under_way[thread] = (number, here)

    def detach(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self, iteration: Iteration) -> None:
        """Complete the times of the run."""
        for number, start in self._under_way.values():
            end = self._events.after(start)
            if end != NO_MARK:
                self._nodes.append((number, start, end))
        # Nodes created here are counted by the device thread's counter, so they are not claimed.
        for number, start, end in self._nodes:
            self._run.numbers.append(number)
            self._run.starts.append(start)
            self._run.ends.append(end)


NodeTimers: TypeAlias = _HostTimers | _DeviceTimers


def run_backward(
    recorder: Recorder, engine: Any, roots: Sequence[Any], args: Any, kwargs: Any
) -> Any:
    """Run the autograd engine from `roots`; time the pass and its nodes; return the result."""
    iteration, internals = recorder.iteration, recorder.internals
    create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
    run = Backward(iteration.count, internals.sequence_number(), create_graph)
    # With `inputs`, torch calls the hooks of some nodes without running them.
    part = bool(args[_INPUTS]) if len(args) > _INPUTS else bool(kwargs.get("inputs"))
    timers: NodeTimers
    with internals.plainly():  # each access to a tensor through the function mode takes 1 us
        if recorder.events is None:
            timers = _HostTimers(recorder, run, create_graph, part)
        else:
            timers = _DeviceTimers(recorder.events, run)
    before = recorder.inside, recorder.in_engine, recorder.timers
    recorder.inside = recorder.in_engine = True
    recording_failures = internals.anomalies.recording_failures
    attached = False
    try:
        with collection_held_off():
            with (
                recording_failures("loss_not_read", "check for infinite losses"),
                internals.plainly(),
            ):
                if recorder.events is None or not recorder.events.is_capturing():
                    _keep_loss(recorder, roots)
            with (
                recording_failures(
                    "backward_not_followed", "assignment of backward times to operations"
                ),
                internals.plainly(),
            ):
                if recorder.on_node is not None:
                    _report_nodes(recorder, roots)
                timers.attach(_nodes_below(recorder, roots))
                attached = True
                recorder.timers = timers
            if not attached:
                timers.detach()
            if recorder.on_engine is not None:
                recorder.on_engine(True)
            run.start, waiting = recorder.mark(), recorder.waiting
            if waiting is not None and run.start - iteration.last_mark > LONG_NS:
                waiting.note_interval(iteration.waits, iteration.last_mark, run.start)
                run.start = recorder.mark()
            result = engine(roots, *args, **kwargs)
            run.end = recorder.mark()
            if waiting is not None:
                last_start = run.starts[-1] if run.starts else run.start
                waiting.note_interval(iteration.waits, last_start, run.end)
        if NO_MARK in (run.start, run.end):  # captured in a graph
            return result
        iteration.backwards.append(run)
        if attached:
            with recording_failures(
                "backward_not_followed", "assignment of backward times to operations"
            ):
                timers.finish(iteration)
        return result
    finally:
        recorder.inside, recorder.in_engine, recorder.timers = before
        if recorder.on_engine is not None:
            recorder.on_engine(False)
        timers.detach()


@contextmanager
def recomputing(recorder: Recorder, frame: Any) -> Iterator[None]:
    """Record the calls in the block as the recomputation of a checkpointed function.

    Its time is not charged to the node that needs the saved tensor. `frame` is the state of the
    function's first run, kept by `torch.utils.checkpoint`.
    """
    assert recorder.timers is not None
    iteration, timers = recorder.iteration, recorder.timers
    again = Iteration(iteration.clock, waits=iteration.waits)
    before = recorder.inside, recorder.on_call, recorder.repeats
    node = timers.switch(_RECOMPUTES)
    recorder.iteration, recorder.inside, recorder.on_call = again, False, None
    recorder.repeats = recorder.checkpoints.get(frame)
    try:
        yield
    finally:
        iteration.recomputed.append((recorder.repeats, again))
        recorder.iteration = iteration
        recorder.inside, recorder.on_call, recorder.repeats = before
        timers.switch(node)


def _nodes_below(recorder: Recorder, roots: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Yield every node reachable from `roots`, and its number."""
    internals = recorder.internals
    node_number = internals.node_number
    nodes = [
        node
        for root in roots
        if (node := getattr(root, "grad_fn", None) or getattr(root, "node", None)) is not None
    ]
    seen: set[Any] = {None, *nodes}  # None: an input that needs no gradient
    take, note, more = nodes.pop, seen.add, nodes.append
    while nodes:
        node = take()
        try:
            number = node_number(node)
        except AttributeError as error:
            internals.note("node_number", error)
            return
        if number == _ACCUMULATE_GRAD:
            yield node, _ACCUMULATES
            continue
        yield node, number
        for following, _ in node.next_functions:
            if following not in seen:
                note(following)
                more(following)


def _report_nodes(recorder: Recorder, roots: Sequence[Any]) -> None:
    """Pass every node, and the call that created it, to `recorder.on_node`."""
    assert recorder.on_node is not None
    found = list(_nodes_below(recorder, roots))
    owners = recorder.iteration.owners(np.array([number for _, number in found], np.int64))
    for (node, number), call in zip(found, owners.tolist(), strict=True):
        recorder.on_node(node, number if number == _ACCUMULATES else call)


def _keep_loss(recorder: Recorder, roots: Sequence[Any]) -> None:
    """Keep a copy of a scalar loss, so that `measure` can check if it is finite."""
    import torch

    for root in roots:
        scalar = type(root) is torch.Tensor and root.numel() == 1 and root.is_floating_point()
        # A tensor of a torch.func transform is invalid after the transform.
        if scalar and not recorder.internals.is_transformed(root):
            recorder.iteration.losses.append(root.item() if root.is_cpu else root.detach().clone())
