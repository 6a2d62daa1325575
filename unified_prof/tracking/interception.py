"""Patch the entry points that a function mode does not see.

These are the autograd engine, `autograd.Function.apply`, checkpoints and compiled code. They are
patched before the program starts, because a program may bind `MyFunction.apply` and compiled
functions when it is imported. While nothing is recorded, the patches only forward calls.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import get_ident
from types import FrameType
from typing import Any

from unified_prof.tracking import torch_names
from unified_prof.tracking.backward import recomputing, run_backward
from unified_prof.tracking.function_mode import ModeStack, Runner
from unified_prof.tracking.passes import (
    COMPILATION,
    DATA_LOADING,
    GRADIENT_CLIPPING,
    READS,
    RECOMPUTATION,
    SAVING,
    ZERO_GRAD,
    Passes,
    batch_size,
)
from unified_prof.tracking.raw_calls import Recorder
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches

_MAX_LENGTHS = 1024  # Maximum calls of a model whose sequence lengths are kept.
_ENGINE_ENTRIES = (
    "tensor_backward",
    "autograd_backward",
    "autograd_grad",
    "grad_transform",
    "vmap_transform",
)

_CLIPPING = (
    "clip_grad_norm", "clip_grad_norm_module", "clip_grad_value", "clip_grad_value_module"
)  # fmt: skip
# Methods that wait for the device. Not `__float__`: the compiler breaks its graph at a replacement.
_READS = ("tensor_item", "tensor_tolist", "tensor_bool", "tensor_int", "tensor_index")
_READS_WITH_OPTIONS = ("tensor_cpu", "tensor_numpy")


class Interception:
    """Passes intercepted calls on the tracked thread to the active recorder."""

    def __init__(self, internals: TorchInternals) -> None:
        self.internals = internals
        self._modes = ModeStack(internals)
        self._recorder: Recorder | None = None
        self._run: Runner | None = None
        self._passes: Passes | None = None
        self._patches = Patches()
        self._dynamo_patched = self._records = False
        self.on_read: Callable[[str], None] | None = None
        """Called with the name of each method that reads elements of a tensor."""
        self.on_backward: Callable[[FrameType], None] | None = None
        """Called after the autograd engine has run, with the frame that called it."""
        self._thread = 0
        self._in_entry = False
        """True within a call on the tracked thread in which the engine may run."""
        self._engine_runs = self._engine_ran = False
        self._postponed: list[Callable[[], None]] = []
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that stepped."""
        self.loader_workers: int | None = None
        """Largest number of workers of a data loader that was read; None if none was."""
        self.loader_starts = self.loader_batches = self.largest_batch = 0
        """How often workers started that end with their epoch; batches of all loaders, and the
        samples of the largest one."""
        self.lengths: deque[tuple[int, ...]] = deque(maxlen=_MAX_LENGTHS)
        """Second dimension of each argument of the last calls of a model that is not trained."""
        self.hide_from_compiler: Callable[[Any, Callable[[], Any]], Any] | None = None
        """Runs a call of compiled code (of a module, or of a function: None) without patches that
        the compiler would treat as part of the program."""
        self.module_begins: Callable[[], None] | None = None
        """Called before a call of a compiled module."""
        self.eager_calls = 0
        """Number of calls of functions compiled before tracking began, which ran uncompiled."""

    def install(self) -> None:
        """Patch torch; `remove` undoes it."""
        self._records = True
        self.install_parts()
        replace = self.internals.replace
        replace(self._patches, "checkpoint", self._wrap_checkpoint)
        replace(self._patches, "function_apply", self._wrap_apply)
        replace(self._patches, "save", functools.partial(self._wrap_part, SAVING))
        replace(self._patches, "script_module_call", self._wrap_script_module)
        # Attention refuses its inference fast path if any function mode is active.
        replace(self._patches, "has_torch_function", self._wrap_has_torch_function)
        self.internals.watch_saved_tensor_hooks(self._patches)

    def install_parts(self) -> None:
        """Patch only what `observe` needs; `remove` undoes it."""
        self._thread = get_ident()
        replace = self.internals.replace
        replace(self._patches, "backward_engine", self._wrap_engine)
        replace(self._patches, "autograd_engine", self._wrap_engine)
        for entry in _ENGINE_ENTRIES:
            replace(self._patches, entry, self._wrap_entry)
        replace(self._patches, "recomputation", self._wrap_recomputation)
        replace(self._patches, "compile", self._wrap_compile)
        replace(self._patches, "optimizer_zero_grad", self._wrap_zero_grad)
        replace(self._patches, "module_zero_grad", self._wrap_zero_grad)
        replace(self._patches, "dataloader_next", self._wrap_next)
        for entry in _CLIPPING:
            replace(self._patches, entry, functools.partial(self._wrap_part, GRADIENT_CLIPPING))
        for entry in _READS:
            replace(self._patches, entry, self._wrap_read)
        for entry in _READS_WITH_OPTIONS:
            replace(self._patches, entry, functools.partial(self._wrap_part, READS))

    def remove(self) -> None:
        """Undo all patches."""
        self.deactivate()
        self._patches.restore()
        self._dynamo_patched = False

    def outside_engine(self, action: Callable[[], None]) -> None:
        """Run `action` now, or as soon as the autograd engine has returned to the program.

        Iterations cannot end or begin within the engine, or within a call that torch has passed to
        a function mode, because the mode stack then differs from the program's.
        """
        if not self._in_entry:
            action()
        elif action not in self._postponed:
            self._postponed.append(action)

    def is_tracked_thread(self) -> bool:
        """Return True on the tracked thread, and on engine threads for which it waits."""
        return get_ident() == self._thread or self._engine_runs

    @property
    def is_measuring(self) -> bool:
        """True if something is being recorded."""
        return self._recorder is not None or self._passes is not None

    def activate(self, recorder: Recorder, run: Runner) -> None:
        """Start recording on this thread."""
        self._patch_dynamo()
        self._recorder, self._run = recorder, run
        self._modes.insert(recorder.mode)

    def observe(self, passes: Passes) -> None:
        """Report the beginning and end of passes to `passes`, and record nothing else."""
        self._patch_dynamo()
        self._passes = passes

    def pause(self) -> None:
        """Suspend recording and its overhead until `resume` is called."""
        if self._recorder is not None and not self._recorder.in_engine:
            self._modes.remove(self._recorder.mode)

    def resume(self) -> None:
        """Continue recording after `pause`."""
        if self._recorder is not None and not self._recorder.in_engine:
            self._modes.remove(self._recorder.mode)  # not resumed if an optimizer raised
            self._modes.insert(self._recorder.mode)

    def deactivate(self) -> None:
        """Stop recording."""
        recorder, self._recorder, self._run = self._recorder, None, None
        passes, self._passes = self._passes, None
        if passes is not None:
            passes.give_up()
        if recorder is not None:
            self._modes.remove(recorder.mode)

    def note_lengths(self, arguments: Iterable[Any]) -> None:
        """Note the second dimension of the tensors among the arguments of a model."""
        import torch

        with self.internals.plainly():
            found = [one.shape for one in arguments if type(one) is torch.Tensor]
            self.lengths.append(tuple(shape[1] for shape in found if len(shape) > 1))

    def _active(self) -> Recorder | None:
        recorder = self._recorder
        if recorder is None or recorder.inside or recorder.thread != get_ident():
            return None
        return recorder

    def _wrap_engine(self, engine: Any) -> Any:
        @functools.wraps(engine)
        def tracked_engine(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            recorder, passes = self._active(), self._passes
            if get_ident() != self._thread:
                if self.on_backward is not None:
                    self.on_backward(sys._getframe(1))
                return engine(t_outputs, *args, **kwargs)
            if self._engine_runs:  # within a node's backward
                return engine(t_outputs, *args, **kwargs)
            self._engine_runs = True
            try:
                if passes is not None:
                    return passes.run_backward(engine, t_outputs, args, kwargs)
                if recorder is not None:
                    return run_backward(recorder, engine, t_outputs, args, kwargs)
                return engine(t_outputs, *args, **kwargs)
            finally:
                self._engine_runs, self._engine_ran = False, True

        return self._wrap_entry(tracked_engine)

    def _wrap_entry(self, call: Any) -> Any:
        """Return `call`, an entry point of the autograd engine, followed by postponed actions."""
        import torch

        @functools.wraps(call)
        def entry(*args: Any, **kwargs: Any) -> Any:
            if self._in_entry or torch.compiler.is_compiling() or get_ident() != self._thread:
                return call(*args, **kwargs)
            self._in_entry = True
            try:
                result = call(*args, **kwargs)
            finally:
                self._in_entry = False
                postponed, self._postponed = self._postponed, []
                for action in postponed:
                    action()
                ran, self._engine_ran = self._engine_ran, False
            if not ran or self.on_backward is None:
                return result
            if self._recorder is None or not self._recorder.inside:
                self.on_backward(sys._getframe(1))
            return result

        return entry

    def _wrap_checkpoint(self, hook: Any) -> Any:
        @functools.wraps(hook, updated=())
        def noted_hook(frame: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = self._active()
            if recorder is not None and recorder.repeats is not None:
                recorder.checkpoints[frame] = recorder.repeats + recorder.iteration.count
            return hook(frame, *args, **kwargs)

        return noted_hook

    def _wrap_recomputation(self, hook: Any) -> Any:
        @contextmanager
        def tracked_hook(frame: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            recorder, passes = self._recorder, self._passes
            with ExitStack() as stack:
                entered = stack.enter_context(hook(frame, *args, **kwargs))
                if passes is not None and self.is_tracked_thread():
                    stack.enter_context(passes.part(RECOMPUTATION))
                # Times are not used when memory is measured.
                times = recorder is not None and recorder.inside and recorder.on_node is None
                if recorder is None or recorder.timers is None or not times:
                    yield entered
                    return
                was_there = self._modes.remove(recorder.mode)
                self._modes.insert(recorder.mode)
                try:
                    with recomputing(recorder, frame()):
                        yield entered
                finally:
                    if not was_there:
                        self._modes.remove(recorder.mode)

        return functools.wraps(hook, updated=())(tracked_hook)

    def _wrap_apply(self, apply: Any) -> Any:
        # It may be a classmethod, or another descriptor written in C.
        bind = apply.__get__

        @functools.wraps(getattr(apply, "__func__", apply))
        def tracked_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            original = bind(None, cls)
            if self._active() is None or self._run is None or _is_private_of_torch(cls):
                return original(*args, **kwargs)
            return self._run(cls.__name__, original, sys._getframe(1), args, kwargs)

        return classmethod(tracked_apply)

    def _wrap_compile(self, compile_function: Any) -> Any:
        @functools.wraps(compile_function)
        def tracked_compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            import torch

            # It keeps a reference to the module's current `__call__`.
            compiled = self._run_hidden(None, lambda: compile_function(model, *args, **kwargs))
            self._patch_dynamo()
            if model is None or compiled is model or isinstance(model, torch.nn.Module):
                return compiled
            return self._wrap_compiled(compiled, f"torch.compile({_name_of(model)})")

        return tracked_compile

    def _wrap_compiled(self, compiled: Any, label: str) -> Any:
        @functools.wraps(compiled)
        def tracked_compiled(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            return self._run_hidden(
                None, lambda: self._run_compiled(label, compiled, frame, args, kwargs)
            )

        return tracked_compiled

    def _run_hidden(self, module: Any, call: Callable[[], Any]) -> Any:
        """Run a compiled module or function (None) while patches are hidden from the compiler."""
        passes = self._passes
        here = passes is not None and passes.thread == get_ident()
        if here and passes is not None and module is not None:
            passes.forward_begins()
        awaited = here and passes is not None and passes.give_up()
        try:
            return (
                call() if self.hide_from_compiler is None else self.hide_from_compiler(module, call)
            )
        finally:
            if awaited and passes is not None and passes is self._passes:
                passes.await_forward()

    def _run_compiled(
        self, label: str, compiled: Any, frame: Any, args: Any, kwargs: Any, module: Any = None
    ) -> Any:
        """Run compiled code as one operation, without the function mode."""
        recorder = self._active()
        if recorder is None or self._run is None:
            return compiled(*args, **kwargs)
        self._modes.remove(recorder.mode)
        try:
            return self._run(label, compiled, frame, args, kwargs, module)
        finally:
            if self._recorder is recorder:
                self._modes.insert(recorder.mode)

    def _patch_dynamo(self) -> None:
        """Patch the compiler once it has been imported."""
        if self._dynamo_patched or not self.internals.is_imported("compiled_module_call"):
            return
        self._dynamo_patched = True
        replace = self.internals.replace
        replace(self._patches, "compiled_module_call", self._wrap_optimized_module)
        if self._records:
            replace(self._patches, "compiler_stance", self._wrap_stance)
            replace(self._patches, "compilation", self._wrap_compilation)
        skip = self.internals.find("compiler_skips")
        if skip is not None:
            try:
                torch_names.exclude_from_compilation(skip)
            except Exception as error:  # its interface has changed
                self.internals.note("compiler_skips", error)

    def _wrap_compilation(self, callbacks: Any) -> Any:
        """Wrap the context manager within which code is compiled."""

        @contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[None]:
            passes = self._passes if get_ident() == self._thread else None
            part = nullcontext() if passes is None else passes.part(COMPILATION)
            with part, callbacks(*args, **kwargs):
                yield

        return functools.wraps(callbacks)(timed)

    def _wrap_optimized_module(self, call: Any) -> Any:
        @functools.wraps(call)
        def tracked_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            bound = functools.partial(call, module)
            if self.module_begins is not None:
                self.module_begins()
            if self._active() is None:
                return self._run_hidden(module, lambda: bound(*args, **kwargs))
            label = f"torch.compile({self.internals.original_class(module)})"
            frame = sys._getframe(1)
            return self._run_hidden(
                module, lambda: self._run_compiled(label, bound, frame, args, kwargs, module)
            )

        return tracked_call

    def _wrap_script_module(self, call: Any) -> Any:
        """Wrap the call of a TorchScript module, whose operations Python does not see."""

        @functools.wraps(call)
        def tracked_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._active() is None:
                return call(module, *args, **kwargs)
            label = f"torch.jit({getattr(module, 'original_name', type(module).__name__)})"
            bound, frame = functools.partial(call, module), sys._getframe(1)
            return self._run_compiled(label, bound, frame, args, kwargs, module)

        return tracked_call

    def _wrap_stance(self, callback_from_stance: Callable[[Any], Any]) -> Any:
        @functools.wraps(callback_from_stance)
        def eager_where_recording(callback: Any) -> Any:
            # Only functions compiled before tracking began get here while it records. The compiler
            # must not trace into the function mode, so they run uncompiled. Functions that torch
            # itself excludes from compilation have no callback.
            if not callable(callback) or self._active() is None:
                return callback_from_stance(callback)
            self.eager_calls += 1
            return None

        return eager_where_recording

    def _wrap_zero_grad(self, zero_grad: Any) -> Any:
        """Wrap `zero_grad` so that its many attribute accesses bypass the function mode."""
        import torch

        @functools.wraps(zero_grad)
        def unseen(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # The compiler cannot trace the rest.
                return zero_grad(owner, *args, **kwargs)
            passes = self._passes
            if passes is not None and passes.thread == get_ident():
                with passes.part(ZERO_GRAD):
                    return zero_grad(owner, *args, **kwargs)
            computes = not (args[0] if args else kwargs.get("set_to_none", True))
            if computes or (recorder := self._active()) is None:
                return zero_grad(owner, *args, **kwargs)
            was_there = self._modes.remove(recorder.mode)
            try:
                return zero_grad(owner, *args, **kwargs)
            finally:
                if was_there and self._recorder is recorder:
                    self._modes.insert(recorder.mode)

        return unseen

    def _wrap_read(self, call: Any) -> Any:
        """Wrap a method of tensors that waits for the device; the compiler does not trace it.

        An optimizer reads a step counter per weight, so this must cost less than 0.1 µs there. With
        `*args`, it would take 0.2 µs.
        """

        @functools.wraps(call)
        def read(tensor: Any) -> Any:
            passes = self._passes
            if self.on_read is not None:
                self.on_read(call.__name__)
            if passes is None or not passes.separates_reads or passes.thread != get_ident():
                return call(tensor)
            with passes.part(READS):
                return call(tensor)

        return read

    def _wrap_next(self, call: Any) -> Any:
        """Wrap the method that returns the next batch of a data loader."""
        timed = self._wrap_part(DATA_LOADING, call)

        @functools.wraps(call)
        def next_batch(iterator: Any) -> Any:
            workers = getattr(iterator, "_num_workers", 0)
            self.loader_workers = max(workers, self.loader_workers or 0)
            starts = workers and not getattr(iterator, "_persistent_workers", True)
            if starts and getattr(iterator, "_rcvd_idx", 1) == 0:
                self.loader_starts += 1
            self.loader_batches += 1
            batch = timed(iterator)
            samples, passes = batch_size(batch), self._passes
            self.largest_batch = max(self.largest_batch, samples)
            if passes is not None and passes.thread == get_ident():
                passes.samples += samples
            return batch

        return next_batch

    def _wrap_part(self, part: str, call: Any) -> Any:
        """Wrap a function whose time is a part of the iteration."""
        import torch

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # The compiler cannot trace the rest.
                return call(*args, **kwargs)
            passes = self._passes
            if part == READS and self.on_read is not None:
                self.on_read(call.__name__)
            if passes is None or passes.thread != get_ident():
                return call(*args, **kwargs)
            if part == READS and not passes.separates_reads:
                return call(*args, **kwargs)
            with passes.part(part):
                return call(*args, **kwargs)

        return timed

    def _wrap_has_torch_function(self, has_torch_function: Any) -> Any:
        def ignoring_our_mode(relevant_args: Any) -> Any:
            recorder = self._active()
            if recorder is None:
                return has_torch_function(relevant_args)
            self._modes.remove(recorder.mode)
            try:
                return has_torch_function(relevant_args)
            finally:
                self._modes.insert(recorder.mode)

        return ignoring_our_mode


def _is_private_of_torch(cls: type) -> bool:
    return cls.__name__.startswith("_") and cls.__module__.partition(".")[0] == "torch"


def _name_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)  # module.compile() compiles a bound _call_impl
    if owner is not None:
        return type(owner).__name__
    return str(getattr(function, "__name__", type(function).__name__))
