"""Time the nodes of the real backward pass and say which operation each belongs to.

Every way into the autograd engine goes through one Python function of torch's. Around it, the
graph is walked once from its roots and its nodes get hooks. A node carries the sequence number
that its thread's counter had when the forward made it, so it belongs to the call during which
the counter stood there.

On the host one hook for all nodes is enough: the engine runs nodes one after the other, so a
node's time ends where the next one starts, and holds what the engine does for it (handing
gradients on, freeing what was saved). Nodes that accumulate into `.grad` end the time of the one
before and belong to no operation. On a device it is the same, with events, as the device is kept
behind the host; it has a thread of the engine's to itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import get_ident
from typing import Any

import numpy as np

from unified_prof.tracking.device import NO_MARK, Mark
from unified_prof.tracking.device_clock import EventClock
from unified_prof.tracking.interference import LONG_NS, collection_held_off
from unified_prof.tracking.raw_calls import NO_CALL, Backward, Iteration, Recorder

_ACCUMULATES = -2
"""In place of the sequence number of the nodes that write `.grad`, which is..."""
_ACCUMULATE_GRAD = 2**64 - 1
_RECOMPUTES = -3
"""In place of the sequence number: a checkpointed function runs again."""
_INPUTS = 3
"""Position of the engine's argument `inputs`."""


class _HostTimers:
    """One hook before each node; the next one's is its end.

    What the hooks themselves take lies between an end and the next start, as far as it can. Nodes
    share one dictionary of hooks, which is emptied in the end: no node need be found again.
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
        """Hook `nodes`, given with their numbers."""
        hook, keep = self._hook, self._handles.append
        accumulates = self._before_accumulating()
        for node, number in nodes:
            # What a node that accumulates is told by the dictionary is its tensor's, not its own.
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
        """Take all hooks away."""
        self._shared.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def switch(self, number: int) -> int:
        """Charge the time from now on to node `number`; return the node charged until now."""
        previous = self._run.numbers[-1] if self._run.numbers else NO_CALL
        self._before(lambda: number)(None)
        return previous

    def _note_long(self, end: Mark) -> None:
        """Read how long the thread waited in the interval that ends now."""
        recorder = self._recorder
        if recorder.waiting is not None:
            recorder.waiting.note_interval(recorder.iteration.waits, self._run.starts[-1], end)

    def _before(self, number: Callable[[], int]) -> Callable[[Any], None]:
        """Return a hook that notes when a node begins, and the count of nodes before it."""
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
        """Return a hook for all nodes, which asks torch before which one it is called."""
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

        def before(_gradient: Any) -> None:  # for every node of every backward pass: no detours
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
        """Complete the run's times."""
        run = self._run
        if self._hooked and not any(number > _ACCUMULATES for number in run.numbers):
            self._internals.note("node_hooks", TypeError("the hooks of nodes were not called"))
        del run.ends[:1]
        if run.numbers:
            run.ends.append(run.end)
        if self._counter is not None:
            # What a node's backward made belongs to its call, for a backward through it.
            counts = [*self._counts, self._counter()]
            for call, (first, last) in zip(
                iteration.owners(np.array(run.numbers)), pairwise(counts), strict=False
            ):
                if call != NO_CALL and last > first:
                    iteration.claims.append((first, last, int(call)))


class _DeviceTimers:
    """One hook before each node; the next one on its device, or the engine's end, is its end."""

    def __init__(self, events: EventClock, run: Backward) -> None:
        self._run = run
        self._events = events
        self._nodes: list[tuple[int, Mark, Mark]] = []
        self._under_way: dict[int, tuple[int, Mark]] = {}
        """Number and start of the node that runs, by its thread: each device has one."""
        self._handles: list[Any] = []

    def attach(self, nodes: Iterator[tuple[Any, int]]) -> None:
        """Hook `nodes`, given with their numbers."""
        self._handles += [node.register_prehook(self._before(node, n)) for node, n in nodes]

    def _before(self, node: Any, number: int) -> Callable[[Any], None]:
        kind = type(node)
        return lambda _gradients: self._follow(number, kind)

    def switch(self, number: int) -> int:
        """Charge this thread's time from now on to node `number`; return the one until now."""
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
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self, iteration: Iteration) -> None:
        """Complete the run's times."""
        for number, start in self._under_way.values():
            end = self._events.after(start)
            if end != NO_MARK:
                self._nodes.append((number, start, end))
        # Nodes made by this backward are counted by the device's thread: they stay unclaimed.
        for number, start, end in self._nodes:
            self._run.numbers.append(number)
            self._run.starts.append(start)
            self._run.ends.append(end)


def run_backward(
    recorder: Recorder, engine: Any, roots: Sequence[Any], args: Any, kwargs: Any
) -> Any:
    """Run the autograd engine from `roots` and time it, whole and by node."""
    iteration, internals = recorder.iteration, recorder.internals
    create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
    run = Backward(iteration.count, internals.sequence_number())
    # Of nodes that are only on the way to a given input, torch calls hooks but does not run all.
    part = bool(args[_INPUTS]) if len(args) > _INPUTS else bool(kwargs.get("inputs"))
    timers: _HostTimers | _DeviceTimers
    if recorder.events is None:
        timers = _HostTimers(recorder, run, create_graph, part)
    else:
        timers = _DeviceTimers(recorder.events, run)
    before = recorder.inside, recorder.in_engine, recorder.timers
    recorder.inside = recorder.in_engine = True
    fenced = internals.anomalies.fenced
    attached = False
    try:
        with collection_held_off():
            with fenced("loss_not_read", "whether the loss is finite"):
                if recorder.events is None or not recorder.events.is_capturing():
                    _keep_loss(recorder, roots)
            with fenced("backward_not_followed", "the operations of a backward pass"):
                if recorder.on_node is not None:
                    _tell_nodes(recorder, roots)
                timers.attach(_nodes_below(recorder, roots))
                attached = True
                recorder.timers = timers
            if not attached:
                timers.detach()
            if recorder.on_engine is not None:
                recorder.on_engine(True)
            if recorder.note_waiting is not None:
                recorder.note_waiting()
            run.start = recorder.mark()
            result = engine(roots, *args, **kwargs)
            run.end = recorder.mark()
            if recorder.waiting is not None and run.starts:
                recorder.waiting.note_interval(iteration.waits, run.starts[-1], run.end)
            if recorder.note_waiting is not None:
                recorder.note_waiting()
        if NO_MARK in (run.start, run.end):  # it went into a graph
            return result
        iteration.backwards.append(run)
        if attached:
            with fenced("backward_not_followed", "the operations of a backward pass"):
                timers.finish(iteration)
        return result
    finally:
        recorder.inside, recorder.in_engine, recorder.timers = before
        if recorder.on_engine is not None:
            recorder.on_engine(False)
        timers.detach()


@contextmanager
def recomputing(recorder: Recorder, frame: Any) -> Iterator[None]:
    """Record the block's calls as those of a checkpointed function that runs again.

    Its time does not count for the node whose saved tensor is needed.

    Args:
        recorder: In the midst of a backward pass.
        frame: What `torch.utils.checkpoint` keeps of the function's first run.
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
    seen: set[Any] = {None, *nodes}  # no node: no gradient goes there
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


def _tell_nodes(recorder: Recorder, roots: Sequence[Any]) -> None:
    """Tell who asked for it every node and the call that made it."""
    assert recorder.on_node is not None
    found = list(_nodes_below(recorder, roots))
    owners = recorder.iteration.owners(np.array([number for _, number in found], np.int64))
    for (node, number), call in zip(found, owners.tolist(), strict=True):
        recorder.on_node(node, number if number == _ACCUMULATES else call)


def _keep_loss(recorder: Recorder, roots: Sequence[Any]) -> None:
    """Keep a copy of a scalar that is differentiated, to be looked at when all is over."""
    import torch

    for root in roots:
        scalar = type(root) is torch.Tensor and root.numel() == 1 and root.is_floating_point()
        # One of a transform of torch.func is of no use once the transform has ended.
        if scalar and not recorder.internals.is_transformed(root):
            recorder.iteration.losses.append(root.detach().clone())
