"""See every call of torch's public interface: the hot path of the tracker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from unified_prof.tracking.anomalies import in_one_line
from unified_prof.tracking.watch.calls import MAX_CALLS, CallSites, Recorder
from unified_prof.tracking.watch.device import NO_MARK
from unified_prof.tracking.watch.known_frames import KnownFrame
from unified_prof.tracking.watch.modules import ModuleNames
from unified_prof.tracking.watch.names import NOT_OPERATIONS
from unified_prof.tracking.watch.stack_walker import StackWalker

Runner = Callable[..., Any]
_MAX_ROWS = 5 * MAX_CALLS


def make_runner(
    recorder: Recorder, walker: StackWalker, modules: ModuleNames, sites: CallSites
) -> Runner:
    """Return `run(label, func, frame, args, kwargs)`: call `func` and record it if it is one.

    A call is an operation if it gives a tensor, or tensors; `label` is what it is named after.
    A last argument is a module that is called as a whole, compiled.
    """
    import torch

    tensor_type = torch.Tensor
    sequence_number = recorder.internals.sequence_number
    walk, know, way_from_project = walker.walk, walker.know, walker.way_from_project
    mark, find, numbers, new_site = recorder.mark, modules.find, sites.numbers, sites.add
    events = recorder.events

    def gives_tensors(result: Any) -> bool:
        if isinstance(result, tensor_type):
            return True
        return isinstance(result, (tuple, list)) and any(map(gives_tensors, result))

    def note_failure(error: Exception) -> None:
        recorder.internals.anomalies.add(
            "operation_not_recorded", f"a call of torch's: {in_one_line(error)}"
        )

    def run(
        label: Any,
        func: Any,
        frame: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        compiled: Any = None,
    ) -> Any:
        site = way = None
        try:
            if compiled is None and recorder.on_call is None:
                known_frame = frame.f_trace
                if type(known_frame) is KnownFrame:
                    way = (label, frame.f_lasti)
                elif (found := way_from_project(frame)) is not None:
                    known_frame, steps, module = found
                    if module is None:
                        way = (label, *steps)
                    elif (named := find(module)) is not None:
                        way = (label, *steps, named)
                if way is not None and known_frame is not None and known_frame.walker is walker:
                    site = known_frame.sites.get(way)
            if site is None:
                caller, caller_at, stack, in_module, module = walk(frame)
                if compiled is not None:
                    in_module, module = True, compiled
                named = None
                if module is not None:
                    named = find(module) or modules.name(module, walker.running_modules(frame))
        except Exception as error:
            note_failure(error)
            return func(*args, **kwargs)
        if recorder.on_call is not None:
            with recorder.internals.anomalies.fenced("arguments_not_looked_at", "those of a call"):
                recorder.on_call(args, kwargs, module)
        recorder.inside = True
        first_node = sequence_number()
        start = mark() if events is None else events.before(args, kwargs, label)
        try:
            result = func(*args, **kwargs)
        finally:
            end = mark() if events is None else events.after(start)
            recorder.inside = False
        if start == NO_MARK or end == NO_MARK:  # an operation of a graph, or none of the device
            return result
        try:
            if isinstance(result, tensor_type) or gives_tensors(result) or label == "setitem":
                last_node = sequence_number()
                if site is None:
                    key = (label, caller, caller_at, stack, named)
                    site = numbers.get(key)
                    if site is None:
                        site = new_site(key, in_module=in_module)
                    # A module in the making stands under a name that it shares with others.
                    if compiled is None and (named is None or named.module() is module):
                        known_frame = know(frame, find)
                        if known_frame is not None and way is not None:
                            known_frame.sites[way] = site
                rows = recorder.iteration.rows
                if len(rows) < _MAX_ROWS:
                    rows.extend((site, first_node, last_node, start, end))
                else:
                    recorder.iteration.dropped_calls += 1
        except Exception as error:  # a result that is no list, but says so
            note_failure(error)
        return result

    return run


def make_mode(recorder: Recorder, run: Runner) -> Any:
    """Return a function mode that hands every outermost call of torch to `run`.

    None where torch has no such thing.
    """
    mode_type: Any = recorder.internals.mode_type()
    if mode_type is None:
        return None
    labels: dict[Any, Any] = {}
    getframe = sys._getframe

    class OperationMode(mode_type):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if recorder.inside:
                return func(*args, **(kwargs or {}))
            try:
                label = labels[func]
            except KeyError:
                label = labels[func] = _label(func)
            if label is None:
                return func(*args, **(kwargs or {}))
            return run(label, func, getframe(1), args, kwargs or {})

    return OperationMode()


def _label(func: Any) -> Any:
    """Return what a call of `func` is recorded under, None if it can be no operation."""
    name = getattr(func, "__name__", None)
    if name in NOT_OPERATIONS:
        return None
    return "setitem" if name == "__setitem__" else func
