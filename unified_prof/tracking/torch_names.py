"""Find and patch names in torch, most of them outside its public interface.

New versions of torch may move any of these names, which must not affect the program. A missing or
changed name is recorded once as an anomaly that describes what the report lacks, and the caller
continues without it.

This package is excluded from compilation. If a program compiles its optimizer step, the compiled
code contains our hooks; the compiler would trace everything that they call, which causes graph
breaks and errors.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import compress
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from msgspec import Struct

from unified_prof.base.columns import Ledger


class Place(Struct, frozen=True):
    """A name in torch, and a description of what a report lacks without it."""

    path: str
    """`module:attribute.attribute`, or only the name of an attribute of torch's objects."""
    loss: str
    since: tuple[int, int] = (0, 0)
    """First version of torch with this name; its absence in older versions is not reported."""


_NO_OPERATIONS = "operations are not recorded"
_NO_BACKWARD_OWNER = "backward times are not assigned to operations"
_NO_BACKWARD_END = (
    "backward passes end no iteration: without an optimizer, call unified_prof.step()"
)
_NO_TRANSFORM_END = "iterations may end within a transform of torch.func"
_NO_RECOMPUTATION = "recomputed operations are timed as the backward pass of others"
_NO_ACTIVATIONS = "activations are not measured"
_NO_PEAK = "peak memory is not measured"
_LONGER = "measured iterations take longer, because zero_grad is tracked"
_NO_CLIPPING = "the time of gradient clipping is not shown"
_NO_READS = "the time of reading tensors on the host is not shown"
_NO_REGIONS = "regions of record_function are not recorded"
_NO_COMPILED = "compiled regions are not recorded as operations"

PLACES: dict[str, Place] = {
    # Operations.
    "mode_count": Place("torch._C:_len_torch_function_stack", _NO_OPERATIONS),
    "mode_pop": Place("torch._C:_pop_torch_function_stack", _NO_OPERATIONS),
    "mode_push": Place("torch._C:_push_on_torch_function_stack", _NO_OPERATIONS),
    "function_mode": Place("torch.overrides:TorchFunctionMode", _NO_OPERATIONS),
    "device_mode": Place(
        "torch.utils._device:DeviceContext",
        "the mode of torch.set_default_device is recognized by its class name",
    ),
    "has_torch_function": Place(
        "torch.overrides:has_torch_function",
        "attention may skip its inference fast path while operations are tracked",
    ),
    "function_apply": Place(
        "torch.autograd:Function.apply", "autograd functions of the program are not recorded"
    ),
    "optimizer_zero_grad": Place("torch.optim:Optimizer.zero_grad", _LONGER),
    "module_zero_grad": Place("torch.nn:Module.zero_grad", _LONGER),
    # Regions that a program marks.
    "region_enter": Place("torch.autograd.profiler:record_function.__enter__", _NO_REGIONS),
    "region_exit": Place("torch.autograd.profiler:record_function.__exit__", _NO_REGIONS),
    "nvtx": Place("torch.cuda.nvtx:_nvtx", "NVTX ranges are not recorded as regions"),
    # The compiler.
    "compile": Place("torch:compile", _NO_COMPILED),
    "script_module_call": Place(
        "torch.jit:RecursiveScriptModule.__call__", "TorchScript modules are not recorded"
    ),
    "compiled_module_call": Place(
        "torch._dynamo.eval_frame:OptimizedModule.__call__", _NO_COMPILED
    ),
    "compilation": Place(
        "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks",
        "the time of compilation is part of the forward pass",
        since=(2, 5),
    ),
    "compiled_original": Place("_orig_mod", "compiled modules are named without their class"),
    "compiler_stance": Place(
        "torch._dynamo.eval_frame:_callback_from_stance",
        "functions compiled before tracking began may be compiled once more",
        since=(2, 6),
    ),
    "compiler_skips": Place(
        "torch._dynamo.trace_rules:add",
        "a compiled optimizer step may have more graphs, and be slower",
    ),
    # The backward pass.
    "backward_engine": Place(
        "torch.autograd.graph:_engine_run_backward", "backward passes of tensors are not timed"
    ),
    "autograd_engine": Place(
        "torch.autograd:_engine_run_backward", "backward passes of torch.autograd are not timed"
    ),
    "tensor_backward": Place("torch:Tensor.backward", _NO_BACKWARD_END),
    "autograd_backward": Place("torch.autograd:backward", _NO_BACKWARD_END),
    "autograd_grad": Place("torch.autograd:grad", _NO_BACKWARD_END),
    "grad_transform": Place("torch._functorch.eager_transforms:grad_impl", _NO_TRANSFORM_END),
    "vmap_transform": Place("torch._functorch.apis:vmap_impl", _NO_TRANSFORM_END),
    "checkpoint": Place("torch.utils.checkpoint:_checkpoint_hook", _NO_RECOMPUTATION),
    "recomputation": Place("torch.utils.checkpoint:_recomputation_hook", _NO_RECOMPUTATION),
    "sequence_number": Place("torch._C:_autograd._get_sequence_nr", _NO_BACKWARD_OWNER),
    "current_node": Place(
        "torch._C:_current_autograd_node", "backward passes take longer while they are timed"
    ),
    "node_hooks": Place("_register_hook_dict", "backward passes take longer while they are timed"),
    "node_number": Place("_sequence_nr", _NO_BACKWARD_OWNER),
    "functorch_wrapped": Place(
        "torch._C:_functorch.is_functorch_wrapped_tensor",
        "infinite and NaN losses are not reported",
    ),
    # Saved tensors.
    "saved_hooks_push": Place(
        "torch._C:_autograd._push_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_pop": Place(
        "torch._C:_autograd._pop_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_top": Place(
        "torch._C:_autograd._top_saved_tensors_default_hooks",
        "activations are not measured below hooks pushed before tracking began",
        since=(2, 8),
    ),
    "saved_hooks_enter": Place(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        "tensors saved below hooks of the program are not counted",
    ),
    "saved_hooks_disable": Place(
        "torch.autograd.graph:disable_saved_tensors_hooks",
        "activations are not measured, because torch.func transforms would raise",
    ),
    "disable_torch_function": Place(
        "torch._C:DisableTorchFunction", "activations of tensor subclasses may be counted twice"
    ),
    "saved_fields": Place("_raw_saved_", "Python numbers saved by operations are not counted"),
    "storage_address": Place("_cdata", "storages are identified by the address of their data"),
    "storage_reference": Place(
        "torch.multiprocessing.reductions:StorageWeakRef",
        "a storage at the address of an earlier one is not counted",
    ),
    # Peak memory.
    "profiler_enabled": Place("torch.autograd:_profiler_enabled", _NO_PEAK),
    "profiler_prepare": Place("torch.autograd.profiler:profile._prepare_trace", _NO_PEAK),
    "log_level": Place(
        "libc10.so:FLAGS_caffe2_log_level", "torch may print warnings about released memory"
    ),
    # Iterations and weights.
    "optimizer_pre_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_pre_hook",
        "optimizer steps are not seen: call unified_prof.step() after each iteration",
    ),
    "optimizer_post_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_post_hook",
        "optimizer steps are not seen: call unified_prof.step() after each iteration",
    ),
    "dataloader_next": Place(
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
        "the time of data loading is not shown",
    ),
    "clip_grad_norm": Place("torch.nn.utils:clip_grad_norm_", _NO_CLIPPING),
    "clip_grad_norm_module": Place("torch.nn.utils.clip_grad:clip_grad_norm_", _NO_CLIPPING),
    "clip_grad_value": Place("torch.nn.utils:clip_grad_value_", _NO_CLIPPING),
    "clip_grad_value_module": Place("torch.nn.utils.clip_grad:clip_grad_value_", _NO_CLIPPING),
    "save": Place("torch:save", "the time of torch.save is not shown"),
    "tensor_item": Place("torch:Tensor.item", _NO_READS),
    "tensor_tolist": Place("torch:Tensor.tolist", _NO_READS),
    "tensor_cpu": Place("torch:Tensor.cpu", _NO_READS),
    "tensor_numpy": Place("torch:Tensor.numpy", _NO_READS),
    "tensor_bool": Place("torch:Tensor.__bool__", _NO_READS),
    "tensor_int": Place("torch:Tensor.__int__", _NO_READS),
    "tensor_index": Place("torch:Tensor.__index__", _NO_READS),
    "scaler_step": Place("torch.amp:GradScaler.step", "steps that a scaler skips are not seen"),
    "module_call": Place(
        "torch.nn:Module.__call__", "calls of a model end no iteration: call unified_prof.step()"
    ),
    "register_parameter": Place(
        "torch.nn:Module.register_parameter", "the source lines of weights are not known"
    ),
    "module_state": Place(
        "torch.nn:Module.__setstate__", "the source lines of copied weights are not known"
    ),
}

# Operations cannot be recorded without these names.
OPERATIONS = tuple(key for key, place in PLACES.items() if place.loss is _NO_OPERATIONS)


def version_of(torch: Any) -> tuple[int, int]:
    """Return the major and minor version of torch; zeros if it cannot be parsed."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parameters_of(module: Any) -> Mapping[str, Any]:
    """Return a module's own parameters by name, without those of its children."""
    return _mapping(getattr(module, "_parameters", None))


def buffers_of(module: Any) -> Mapping[str, Any]:
    """Return a module's own buffers by name, without those of its children."""
    return _mapping(getattr(module, "_buffers", None))


def children_of(module: Any) -> Mapping[str, Any] | None:
    """Return a module's children by name; None while it is under construction."""
    found = vars(module).get("_modules")
    return None if found is None else _mapping(found)


def _mapping(found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    return dict(found.items()) if hasattr(found, "items") else {}  # as in TorchScript modules


def leaf_of(node: Any) -> Any:
    """Return the tensor into whose `.grad` a node accumulates; None for other nodes."""
    return getattr(node, "variable", None)


def sparse_parts(tensor: Any) -> Iterator[Any]:
    """Yield the indices and values of a sparse tensor, coalesced or not."""
    yield from (tensor._indices(), tensor._values())


def accelerator_kind() -> str:
    """Return the type of torch's current accelerator; `cpu` if there is none."""
    import torch

    if hasattr(torch, "accelerator"):
        if torch.accelerator.is_available():
            return str(torch.accelerator.current_accelerator().type)
        return "cpu"
    with suppress(Exception):  # torch 2.4 and 2.5
        return str(torch._C._get_accelerator().type)
    return "cuda" if torch.cuda.is_available() else "cpu"


class Patches:
    """Replaced attributes and their originals, restored in reverse order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`; `restore` also restores descriptors of classes."""
        before = vars(owner).get(name, _INHERITED)
        setattr(owner, name, value)
        self._originals.append((owner, name, before))

    def restore(self) -> None:
        """Restore everything that was replaced."""
        while self._originals:
            owner, name, value = self._originals.pop()
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_INHERITED = object()  # Marks an attribute that the owner inherits instead of defining it.


# The compiler must trace this module: its functions replace functions of torch, so skipping a call
# would cause a graph break.
_COMPILED_MODULE = "unified_prof.tracking.interception"

_told: set[str] = set()

# The compiler's `skip` compiles one pattern of all its paths with this function; for 50 modules,
# that takes 0.2 s.
_UPDATE = "_recompile_re"


def exclude_from_compilation(skip: Callable[[str], None]) -> None:
    """Exclude uprof's modules from compilation with the compiler's `skip`, once per process."""
    rules = getattr(skip, "__globals__", {})
    update = rules.get(_UPDATE)
    if update is not None:
        rules[_UPDATE] = lambda: None
    try:
        for name in _modules():
            if name not in _told:
                skip(name)
                _told.add(name)
    finally:
        if update is not None:
            rules[_UPDATE] = update
            update()


def _modules() -> Iterator[str]:
    """Yield the names of uprof's modules to exclude; a package includes its modules."""
    top = Path(__file__).parents[1]
    for folder in (top, top / "tracking"):
        package = ".".join(folder.relative_to(top.parent).parts)
        for module in iter_modules([str(folder)], f"{package}."):
            if not _COMPILED_MODULE.startswith(module.name):
                yield module.name


class Anomalies(Ledger):
    """Ledger of data that could not be measured or was left out."""

    def recording_failures(self, name: str, what: str) -> RecordingFailures:
        """Return a context manager that records an exception as an anomaly, and suppresses it.

        Args:
            name: Name of the anomaly.
            what: Description of what the report lacks after a failure.
        """
        return RecordingFailures(self, name, what)

    def failed(self, name: str, what: str, error: Exception) -> None:
        """Record a failure, see `recording_failures`."""
        self.add(name, f"{what}: {in_one_line(error)}")


class RecordingFailures:
    """Context manager of `Anomalies.recording_failures`; a generator takes three times as long."""

    __slots__ = ("_anomalies", "_name", "_what")

    def __init__(self, anomalies: Anomalies, name: str, what: str) -> None:
        self._anomalies, self._name, self._what = anomalies, name, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._anomalies.failed(self._name, self._what, error)
        return True


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


Wrapper = Callable[[Any], Any]


def subclasses(*bases: type) -> set[type]:
    """Return the classes, their subclasses, and those of these."""
    classes: set[type] = set()
    new = set(bases)
    while new:
        classes |= new
        found: set[type] = set().union(*map(type.__subclasses__, new))
        new = found - classes
    return classes


def instances(*bases: type) -> list[Any]:
    """Return all objects of the classes and their subclasses; they must be tracked by `gc`.

    Objects are tested by type, not `isinstance`, which would initialize lazy proxies.
    """
    classes = subclasses(*bases)
    items = gc.get_objects()  # a million in a large program
    return list(compress(items, map(classes.__contains__, map(type, items))))


class TorchLookup:
    """Finds and replaces names in torch by key; records each missing one once."""

    def __init__(self, anomalies: Anomalies) -> None:
        self.anomalies = anomalies
        self._noted: set[str] = set()
        self._found: dict[str, Any] = {}

    def has(self, *keys: str) -> bool:
        """Return True if none of these names is known to be missing."""
        return self._noted.isdisjoint(keys)

    def find(self, key: str) -> Any:
        """Return the object at a key; None if it is missing."""
        try:
            return pkgutil.resolve_name(PLACES[key].path)
        except Exception as error:  # importing a part of torch may fail in any way
            self.note(key, error)
            return None

    def find_once(self, key: str) -> Any:
        """Return the same as the first `find` of a key that uprof does not replace."""
        if key not in self._found:
            self._found[key] = self.find(key)
        return self._found[key]

    def note(self, key: str, error: Exception) -> None:
        """Record that a name is missing, and what the report lacks without it."""
        import torch

        place = PLACES[key]
        if key in self._noted:
            return
        self._noted.add(key)
        if version_of(torch) >= place.since:
            name = place.path.replace(":", ".")
            self.anomalies.add(
                f"torch_place_missing_{key}",
                f"{place.loss}: {name} is missing or unsupported in torch {torch.__version__} "
                f"({in_one_line(error)})",
            )

    def is_imported(self, key: str) -> bool:
        """Return True if the module of a name is imported; importing it may take seconds."""
        module = sys.modules.get(PLACES[key].path.partition(":")[0])
        return module is not None and not getattr(module.__spec__, "_initializing", False)

    def replace(self, patches: Patches, key: str, wrap: Wrapper) -> bool:
        """Replace an object by the result of `wrap`; return False if that is impossible.

        Args:
            patches: Restores the object.
            key: Key of the name.
            wrap: Called with the object as found in `vars(owner)`, such as a descriptor.
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
