"""The places in torch that tracking touches beyond torch's public interface: all of them, here.

A new torch may move any of them. Then the program that is measured must go on as if it were not
watched: a place that is missing, or is no longer what it was, is noted once as an anomaly that
says what the report lacks, and whoever asked for the place does without.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

from unified_prof.tracking.anomalies import Anomalies, in_one_line
from unified_prof.tracking.patches import Patches
from unified_prof.tracking.saved_hooks import PushedHooks, SavedTensorHooks

Wrapper = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A name in torch, and what a report lacks without it."""

    path: str
    """`module:attribute.attribute`, or the bare name of an attribute that objects of torch have."""
    loss: str
    since: tuple[int, int] = (0, 0)
    """The first torch that has it; its absence before that is no news."""


_NO_OPERATIONS = "operations are not seen"
_NO_BACKWARD_OWNER = "backward times belong to no operation"
_NO_ACTIVATIONS = "activations are not measured"
_NO_PEAK = "peak memory is not measured"
_LONGER = "iterations take longer while they are measured, as gradients are set to None"
_NO_COMPILED = "compiled regions are not seen as operations"

PLACES: dict[str, Place] = {
    # Operations.
    "mode_count": Place("torch._C:_len_torch_function_stack", _NO_OPERATIONS),
    "mode_pop": Place("torch._C:_pop_torch_function_stack", _NO_OPERATIONS),
    "mode_push": Place("torch._C:_push_on_torch_function_stack", _NO_OPERATIONS),
    "function_mode": Place("torch.overrides:TorchFunctionMode", _NO_OPERATIONS),
    "device_mode": Place(
        "torch.utils._device:DeviceContext",
        "the mode of torch.set_default_device is known by its name only",
    ),
    "has_torch_function": Place(
        "torch.overrides:has_torch_function",
        "inference fast paths of attention may not be taken while operations are watched",
    ),
    "function_apply": Place(
        "torch.autograd:Function.apply", "autograd functions of the program are not operations"
    ),
    "optimizer_zero_grad": Place("torch.optim:Optimizer.zero_grad", _LONGER),
    "module_zero_grad": Place("torch.nn:Module.zero_grad", _LONGER),
    # The compiler.
    "compile": Place("torch:compile", _NO_COMPILED),
    "compiled_module_call": Place(
        "torch._dynamo.eval_frame:OptimizedModule.__call__", _NO_COMPILED
    ),
    "compiled_original": Place("_orig_mod", "compiled modules are named without their class"),
    "compiler_stance": Place(
        "torch._dynamo.eval_frame:_callback_from_stance",
        "functions compiled before tracking began may be compiled once more",
        since=(2, 6),
    ),
    # The backward pass.
    "backward_engine": Place(
        "torch.autograd.graph:_engine_run_backward", "backward passes of tensors are not timed"
    ),
    "autograd_engine": Place(
        "torch.autograd:_engine_run_backward", "backward passes of torch.autograd are not timed"
    ),
    "sequence_number": Place("torch._C:_autograd._get_sequence_nr", _NO_BACKWARD_OWNER),
    "current_node": Place(
        "torch._C:_current_autograd_node", "backward passes take longer while they are timed"
    ),
    "node_hooks": Place("_register_hook_dict", "backward passes take longer while they are timed"),
    "node_number": Place("_sequence_nr", _NO_BACKWARD_OWNER),
    "functorch_wrapped": Place(
        "torch._C:_functorch.is_functorch_wrapped_tensor",
        "whether the loss is finite is not looked at",
    ),
    # What is saved for it.
    "saved_hooks_push": Place(
        "torch._C:_autograd._push_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_pop": Place(
        "torch._C:_autograd._pop_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_top": Place(
        "torch._C:_autograd._top_saved_tensors_default_hooks",
        "activations are not measured below hooks that were in place before tracking began",
        since=(2, 8),
    ),
    "saved_hooks_enter": Place(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        "what is saved below hooks of the program's own is not seen",
    ),
    "saved_hooks_disable": Place(
        "torch.autograd.graph:disable_saved_tensors_hooks",
        "activations are not measured, as transforms of torch.func would refuse to run",
    ),
    "disable_torch_function": Place(
        "torch._C:DisableTorchFunction", "activations of tensor subclasses may be charged twice"
    ),
    "saved_fields": Place("_raw_saved_", "Python numbers saved by operations are not counted"),
    "storage_address": Place("_cdata", "storages are told apart by the address of their data"),
    "storage_reference": Place(
        "torch.multiprocessing.reductions:StorageWeakRef",
        "a storage that takes the address of an earlier one is not counted",
    ),
    # Peak memory.
    "profiler_enabled": Place("torch.autograd:_profiler_enabled", _NO_PEAK),
    "profiler_prepare": Place("torch.autograd.profiler:profile._prepare_trace", _NO_PEAK),
    "log_level": Place(
        "libc10.so:FLAGS_caffe2_log_level", "torch may warn of blocks that it releases"
    ),
    # Iterations and weights.
    "optimizer_pre_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_pre_hook",
        "the steps of optimizers are not seen: iterations are those of unified_prof.step()",
    ),
    "optimizer_post_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_post_hook",
        "the steps of optimizers are not seen: iterations are those of unified_prof.step()",
    ),
    "scaler_step": Place("torch.amp:GradScaler.step", "steps that a scaler left out are not seen"),
    "module_call": Place(
        "torch.nn:Module.__call__",
        "calls of a model end no iteration: they are those of unified_prof.step()",
    ),
    "tensor_backward": Place(
        "torch:Tensor.backward",
        "backward passes end no iteration: without an optimizer they are those of "
        "unified_prof.step()",
    ),
    "register_parameter": Place(
        "torch.nn:Module.register_parameter", "the lines that registered weights are not known"
    ),
    "module_state": Place(
        "torch.nn:Module.__setstate__", "the lines that copied weights are not known"
    ),
}

OPERATIONS = tuple(key for key, place in PLACES.items() if place.loss is _NO_OPERATIONS)
"""Without one of these no operation is seen."""


class TorchInternals:
    """The places as this torch has them; `anomalies` is told, once, of each that is not there."""

    def __init__(self, anomalies: Anomalies) -> None:
        self.anomalies = anomalies
        self._noted: set[str] = set()
        self._saved_fields: dict[Any, tuple[str, ...]] = {}
        self._pushed_hooks: PushedHooks | None = None
        self._carrier = _plain_tensor()
        self.sequence_number: Callable[[], int] = self._probed_counter()
        """Number of the autograd nodes that this thread made; always 0 where torch does not say."""
        self.node_number: Callable[[Any], int] = methodcaller(PLACES["node_number"].path)
        """The count that stood in `sequence_number` when a node was made."""
        self.storage_key: Callable[[Any], int] = self._storage_key()
        """What tells storages apart as long as both are alive."""

    def has(self, *keys: str) -> bool:
        """Whether none of these places was found to be missing."""
        return self._noted.isdisjoint(keys)

    def find(self, key: str) -> Any:
        """Return what is at a place, None where nothing is."""
        try:
            return pkgutil.resolve_name(PLACES[key].path)
        except Exception as error:  # importing a part of torch may fail in any way
            self.note(key, error)
            return None

    def note(self, key: str, error: Exception) -> None:
        """Say in the report what is not seen without a place, and why that is."""
        import torch

        place = PLACES[key]
        if key in self._noted:
            return
        self._noted.add(key)
        if version_of(torch) >= place.since:
            name = place.path.replace(":", ".")
            self.anomalies.add(
                f"torch_place_missing_{key}",
                f"{place.loss}: torch {torch.__version__} has no {name} of the kind that uprof "
                f"knows ({in_one_line(error)})",
            )

    def is_imported(self, key: str) -> bool:
        """Whether the module of a place is there already; importing it may take seconds."""
        module = sys.modules.get(PLACES[key].path.partition(":")[0])
        return module is not None and not getattr(module.__spec__, "_initializing", False)

    def replace(self, patches: Patches, key: str, wrap: Wrapper) -> bool:
        """Put what `wrap` makes of a place in its stead; return whether that could be done.

        Args:
            patches: What gives the place back.
            key: The place.
            wrap: Given what is there, as `vars` of its owner has it: a descriptor of a class.
        """
        module, _, path = PLACES[key].path.partition(":")
        owner_path, _, name = path.rpartition(".")
        try:
            owner: Any = importlib.import_module(module)
            if owner_path:
                owner = attrgetter(owner_path)(owner)
            patches.replace(owner, name, wrap(inspect.getattr_static(owner, name)))
        except Exception as error:
            self.note(key, error)
            return False
        return True

    def mode_stack(self) -> tuple[Callable[[], int], Callable[[], Any], Callable[[Any], None]]:
        """Return how to count, pop and push the function modes of this thread.

        Where that is not known the stack looks empty, and nothing is ever pushed.
        """
        count, pop, push = (self.find(f"mode_{name}") for name in ("count", "pop", "push"))
        base = self.mode_type()
        if None in (count, pop, push, base):
            return _nothing_there
        try:
            with base() as trial:
                before = count()
                if before < 1 or pop() is not trial:
                    raise TypeError("what is popped is not what was pushed")
                try:
                    push(trial)
                except Exception:
                    trial.__enter__()
                    raise
                if count() != before:
                    raise TypeError("its length is not what was pushed")
        except Exception as error:
            self.note("mode_push", error)
            return _nothing_there
        return count, pop, push

    def watch_saved_tensor_hooks(self, patches: Patches) -> None:
        """Note which hooks are pushed from now on, where torch does not show them."""
        if self.find("saved_hooks_top") is not None:
            return
        disable = self.find("saved_hooks_disable")
        pushed = PushedHooks(disable)
        if (
            disable is not None
            and self.replace(patches, "saved_hooks_pop", pushed.wrap_pop)
            and self.replace(patches, "saved_hooks_push", pushed.wrap_push)
        ):
            self._pushed_hooks = pushed

    def saved_tensor_hooks(self) -> SavedTensorHooks | None:
        """Return this thread's stack of saved-tensor hooks, None where it cannot be reached."""
        push, pop, top = (self.find(f"saved_hooks_{name}") for name in ("push", "pop", "top"))
        if top is None and self._pushed_hooks is not None:
            top = self._pushed_hooks.top
        if None in (push, pop, top):
            return None
        from torch.autograd.graph import saved_tensors_hooks

        hooks = SavedTensorHooks(push, pop, top)
        trial = saved_tensors_hooks(_same, _same)
        try:
            with trial:
                if hooks.top() != (_same, _same):
                    raise TypeError("what is on top is not what was pushed")
                pop()
                try:
                    push(_same, _same)
                except Exception:
                    trial.__enter__()
                    raise
        except Exception as error:
            self.note("saved_hooks_push", error)
            return None
        return hooks

    def mode_type(self) -> Any:
        """Return the base class of function modes, None where there is none."""
        found = self.find("function_mode")
        if found is not None and not isinstance(found, type):
            self.note("function_mode", TypeError("it is no class"))
            return None
        return found

    def without_torch_function(self) -> Callable[[], Any]:
        """Return the context in which no function mode and no subclass sees torch's calls."""
        found = self.find("disable_torch_function")
        try:
            with found():
                pass
        except Exception as error:
            self.note("disable_torch_function", error)
            return nullcontext
        return found  # type: ignore[no-any-return]

    def current_node(self) -> Callable[[], Any] | None:
        """Return what gives the autograd node that is about to run, None where nothing does."""
        found = self.find("current_node")
        try:
            found()  # there is none
        except Exception as error:
            self.note("current_node", error)
            return None
        return found  # type: ignore[no-any-return]

    def hooking(self, hooks: dict[int, Any]) -> Callable[[Any], None] | None:
        """Return what makes an autograd node call `hooks` before it runs, None where nothing does.

        Nodes keep the dictionary itself, so what is taken out of it later is called no more. torch
        has this for the hooks of a node's tensor, and takes the dictionary from a tensor.
        """
        if not self.has("node_hooks") or self._carrier is None:
            return None
        try:
            self._carrier._backward_hooks = hooks
        except Exception as error:
            self.note("node_hooks", error)
            return None
        return methodcaller(PLACES["node_hooks"].path, self._carrier)

    def weak_storage(self, storage: Any) -> Any:
        """Return what keeps the address of `storage` from being used again, but not its data."""
        make = self.find("storage_reference")
        try:
            return make(storage)
        except Exception as error:
            self.note("storage_reference", error)
            return None

    def saved_fields(self, node_type: Any) -> tuple[str, ...]:
        """Return the names under which nodes of a type keep what they saved, as it was packed."""
        fields = self._saved_fields.get(node_type)
        if fields is None:
            prefix, names = PLACES["saved_fields"].path, dir(node_type)
            fields = tuple(name for name in names if name.startswith(prefix))
            self._saved_fields[node_type] = fields
            if not fields and "_saved_self" in names:
                self.note("saved_fields", AttributeError(f"{node_type.__name__} has none"))
        return fields

    def unpacked(self, node: Any, *, hooked_by_program: bool) -> Iterator[Any]:
        """Yield what a node saved and no hook of the program's packed.

        Args:
            node: An autograd node.
            hooked_by_program: Whether the program's hooks packed anything of its call: torch
                before 2.10 does not say of what, and to read it would call their unpack hooks.
        """
        for field in self.saved_fields(type(node)):
            saved = getattr(node, field)
            try:
                if not hasattr(saved, "register_hooks"):  # a list of them
                    continue
                if hasattr(saved, "unpack_hook"):
                    tensor = None if saved.unpack_hook is not None else saved.data
                else:
                    tensor = None if hooked_by_program else getattr(node, field[len("_raw") :])
            except RuntimeError:  # released
                continue
            if tensor is not None:
                yield tensor

    def original_class(self, compiled: Any) -> str:
        """Return the name of the class that a compiled module was made of."""
        try:
            return type(attrgetter(PLACES["compiled_original"].path)(compiled)).__name__
        except AttributeError as error:
            self.note("compiled_original", error)
            return "Module"

    def is_device_mode(self, mode: Any) -> bool:
        """Whether a function mode is that of `torch.set_default_device`."""
        found = self.find("device_mode")
        if isinstance(found, type):
            return isinstance(mode, found)
        self.note("device_mode", TypeError("it is no class"))
        return type(mode).__name__ == "DeviceContext"

    def is_transformed(self, tensor: Any) -> bool:
        """Whether a tensor only exists within a transform of torch.func; True where not known."""
        function = self.find("functorch_wrapped")
        try:
            return bool(function(tensor))
        except Exception as error:
            self.note("functorch_wrapped", error)
            return True

    def profiler_enabled(self) -> bool:
        """Whether torch's profiler is running in this process; False where torch does not say."""
        found = self.find("profiler_enabled")
        try:
            return bool(found())
        except Exception as error:
            self.note("profiler_enabled", error)
            return False

    def set_log_level(self, level: int | None) -> int | None:
        """Set torch's C++ log level and return the one before; None leaves or finds it unknown."""
        import torch

        if level is None:
            return None
        library, _, name = PLACES["log_level"].path.partition(":")
        try:
            loaded = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))
            flag = ctypes.c_int.in_dll(loaded, name)
        except (OSError, ValueError) as error:
            self.note("log_level", error)
            return None
        before, flag.value = flag.value, level
        return before

    def _probed_counter(self) -> Callable[[], int]:
        found = self.find("sequence_number")
        try:
            if not isinstance(found(), int):
                raise TypeError("it gives no number")
        except Exception as error:
            self.note("sequence_number", error)
            return _always_0
        return found  # type: ignore[no-any-return]

    def _storage_key(self) -> Callable[[Any], int]:
        key: Callable[[Any], int] = attrgetter(PLACES["storage_address"].path)

        def key_or_address(storage: Any) -> int:
            try:
                return key(storage)
            except AttributeError as error:
                self.note("storage_address", error)
                return int(storage.data_ptr())

        return key_or_address


def version_of(torch: Any) -> tuple[int, int]:
    """Return the major and minor version of torch, zeros where it has another form."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parameters_of(module: Any) -> Mapping[str, Any]:
    """Return name -> parameter, or None, of what a module itself holds."""
    return _mapping(getattr(module, "_parameters", None))


def buffers_of(module: Any) -> Mapping[str, Any]:
    """Return name -> buffer, or None, of what a module itself holds."""
    return _mapping(getattr(module, "_buffers", None))


def children_of(module: Any) -> Mapping[str, Any] | None:
    """Return name -> module, or None, of what a module holds; None if it is not made yet."""
    found = vars(module).get("_modules")
    return None if found is None else _mapping(found)


def _mapping(found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    return dict(found.items()) if hasattr(found, "items") else {}  # as TorchScript's modules have


def leaf_of(node: Any) -> Any:
    """Return the tensor into whose `.grad` a node accumulates, None if it is no such node."""
    return getattr(node, "variable", None)


def sparse_parts(tensor: Any) -> Iterator[Any]:
    """Yield indices and values of a sparse tensor, coalesced or not."""
    yield from (tensor._indices(), tensor._values())


def accelerator_kind() -> str:
    """Return the type of torch's current accelerator, `cpu` where there is none."""
    import torch

    if hasattr(torch, "accelerator"):
        if torch.accelerator.is_available():
            return str(torch.accelerator.current_accelerator().type)
        return "cpu"
    with suppress(Exception):  # of torch 2.4 and 2.5; the CPU where there is none
        return str(torch._C._get_accelerator().type)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _nothing_there_count() -> int:
    return 0


def _nothing_there_push(_mode: Any) -> None:
    pass


_nothing_there = (_nothing_there_count, _nothing_there_count, _nothing_there_push)


def _plain_tensor() -> Any:
    try:
        import torch

        return torch.empty(0, device="cpu")
    except Exception:  # a torch that has no tensors has no nodes either
        return None


def _same(value: Any) -> Any:
    return value


def _always_0() -> int:
    return 0
