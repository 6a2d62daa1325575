"""Measure the bytes of tensors: those saved for the backward pass, parameters and gradients.

Saved bytes are measured with torch's saved-tensor hooks. A storage is charged once, in full, to the
first operation that saves a view of it, because that operation keeps its memory allocated.
Parameters and buffers are excluded, and so are tensors that no backward pass needs: these are freed
with the operation's result. Parameters of modules are reported where they were registered.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct

from unified_prof.base.run_spec import WeightRecord
from unified_prof.tracking.code_entries import Stack, frames_of
from unified_prof.tracking.raw_calls import NO_CALL, ModuleNames, Recorder
from unified_prof.tracking.stack_walker import Scope, StackWalker
from unified_prof.tracking.torch_internals import (
    SavedTensorHooks,
    TorchInternals,
    UnknownHooksError,
)
from unified_prof.tracking.torch_names import (
    Anomalies,
    Patches,
    buffers_of,
    in_one_line,
    instances,
    leaf_of,
    parameters_of,
    sparse_parts,
    subclasses,
)


def plain_tensors(tensor: Any) -> Iterator[Any]:
    """Yield the tensors that hold the memory of `tensor`: usually `tensor` itself.

    For a wrapper subclass these are its inner tensors, for a sparse tensor its indices and values.
    """
    import torch

    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None and type(tensor) is not torch.Tensor:
        for name in flatten()[0]:
            yield from plain_tensors(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from sparse_parts(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def tensor_bytes(tensor: Any) -> int:
    """Return the size of the elements of `tensor` in bytes; for a view, only of its elements."""
    return sum(part.numel() * part.element_size() for part in plain_tensors(tensor))


def storage_of(tensor: Any) -> Any | None:
    """Return the storage of a plain tensor; None if it has no accessible storage."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # opaque layouts, functorch wrappers
        return None


def optimizers() -> list[Any]:
    """Return all optimizers of the process."""
    from torch.optim import Optimizer

    # torch wraps the `step` of a class when it creates the first object; a search takes 50 ms.
    any_exists = any(hasattr(getattr(one, "step", None), "hooked") for one in subclasses(Optimizer))
    return instances(Optimizer) if any_exists else []


def untrained_calls(nodes: Sequence[tuple[Any, int]], stepped: Iterable[Any]) -> set[int]:
    """Return the calls in a graph whose gradients reach only parameters in no optimizer.

    Args:
        nodes: Nodes of a graph and their calls; negative if unknown.
        stepped: Optimizers that have stepped; without any, nothing is known.
    """
    import torch

    def trained(some: Iterable[Any]) -> set[int]:
        return {id(one) for each in some for group in each.param_groups for one in group["params"]}

    leaves = {node: leaf for node, _ in nodes if (leaf := leaf_of(node)) is not None}
    known, parameter = trained(stepped), torch.nn.Parameter
    if not known or all(id(leaf) in known for leaf in leaves.values()):
        return set()
    known |= trained(optimizers())
    is_other = {
        node
        for node, leaf in leaves.items()
        if isinstance(leaf, parameter) and id(leaf) not in known
    }
    users: dict[Any, list[Any]] = {}
    for node, _ in nodes:
        for following, _ in node.next_functions:
            users.setdefault(following, []).append(node)
    needed = set(leaves) - is_other
    queue = [*needed]
    while queue:
        for user in users.get(queue.pop(), ()):
            if user not in needed:
                needed.add(user)
                queue.append(user)
    return {call for _, call in nodes if call >= 0} - {
        call for node, call in nodes if node in needed
    }


def optimizer_state_bytes(
    optimizers: Iterable[Any], device: str, storage_key: Callable[[Any], int]
) -> int:
    """Return the bytes of the storages on `device` in the state of optimizers."""
    import torch

    storages: dict[int, int] = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if not isinstance(tensor, torch.Tensor):
                        continue
                    for part in plain_tensors(tensor):
                        storage = storage_of(part)
                        if storage is not None and storage.device.type == device:
                            storages[storage_key(storage)] = storage.nbytes()
    return sum(storages.values())


def program_settings(optimizers: Iterable[Any], loader_workers: int | None) -> dict[str, str]:
    """Return settings of optimizers, and the workers of data loaders, as facts of a report."""
    found = [
        {
            "class": type(one).__name__,
            "foreach": any(group.get("foreach") for group in one.param_groups),
            "fused": any(group.get("fused") for group in one.param_groups),
            "parameters": sum(len(group["params"]) for group in one.param_groups),
            "sparse": any(
                weight.grad is not None and weight.grad.is_sparse
                for group in one.param_groups
                for weight in group["params"]
            ),
        }
        for one in optimizers
        if any(group["params"] for group in one.param_groups)
    ]
    facts = {} if loader_workers is None else {"data_loader_workers": str(loader_workers)}
    return facts | ({"optimizers": json.dumps(found)} if found else {})


class _Saved(Struct):
    """A saved storage, and the calls that saved it in order."""

    storage: Any
    """Weak reference; prevents another storage from getting the same address."""
    size_bytes: int
    calls: list[int]
    is_result: bool
    """True if an operation with gradients returned it, unlike inputs and constants."""


class SavedTensors:
    """Measures the bytes that each call saves between `start` and `stop`."""

    def __init__(self, device: str, recorder: Recorder) -> None:
        self._device = device
        self._recorder = recorder
        self._internals = recorder.internals
        self._hooks: SavedTensorHooks | None = None
        self._plainly = self._internals.plainly
        self._seen: dict[int, _Saved] = {}
        self._alive: list[_Saved] = []
        self.most_bytes = 0
        """Most saved bytes that existed at once: each backward pass frees its own."""
        self._excluded: dict[int, Any] = {}
        self._packed_by_program: set[int] = set()
        """Calls for which the program's own hooks packed something."""
        self._disabled = False
        """True if our hooks are removed for a transform of torch.func."""
        self._patches = Patches()

    def start(self, parameters: Iterable[Any], modules: Iterable[Any]) -> None:
        """Start measuring; exclude storages of `parameters` and of the state of `modules`.

        Raises UnknownHooksError if the program's hooks are unknown, so nothing can be measured.
        """
        for tensor in parameters:
            self._exclude(tensor)
        for module in modules:
            self.exclude_state_of(module)
        hooks = self._internals.saved_tensor_hooks()
        if hooks is None:
            return
        replace = self._internals.replace
        # torch.func.grad and vmap refuse to run below any hooks.
        if not replace(self._patches, "saved_hooks_disable", self._wrap_disable):
            return
        self._hooks = hooks
        # Only the innermost pair of hooks is called, so the program's hooks must call ours.
        replace(self._patches, "saved_hooks_enter", self._wrap_enter)
        try:
            self._insert()
        except UnknownHooksError:
            self._hooks = None
            raise

    def stop(self, in_backward: Collection[int] | None = None) -> dict[int, int] | None:
        """Stop measuring; return {call index: saved bytes}.

        Bytes that no call saved have the key -1. Returns None if torch does not report saved
        tensors. Calls that took part in a backward pass (`in_backward`) are in the result; None
        means that there was no backward pass yet, so every call may take part in a later one.
        """
        if self._hooks is None:
            self._patches.restore()
            return None
        self._count_alive()
        self._take_out()
        self._patches.restore()
        self._hooks = None
        found = dict.fromkeys(in_backward or (), 0)
        for saved in self._seen.values():
            calls = saved.calls
            if in_backward is not None:
                calls = [call for call in calls if call in in_backward]
            call = calls[0] if calls else NO_CALL
            found[call] = found.get(call, 0) + saved.size_bytes
        self._seen.clear()
        self._excluded.clear()
        return found

    def kept_bytes(self) -> int:
        """Return the bytes of results saved by operations that still exist."""
        self._count_alive()
        return sum(one.size_bytes for one in self._alive if one.storage and one.is_result)

    def pause(self) -> None:
        """Suspend measuring while the autograd engine runs; its threads inherit the hooks."""
        if self._hooks is not None:
            self._count_alive()
            self._take_out()

    def resume(self) -> None:
        """Continue measuring after `pause`, also if `start` was called within the engine."""
        if self._hooks is not None and not self._disabled:
            self._take_out()
            self._insert()

    def exclude_parameters(self, arguments: Iterable[Any]) -> None:
        """Exclude parameters among a call's arguments; with FSDP, some exist only during it."""
        import torch

        for argument in arguments:
            if isinstance(argument, torch.nn.Parameter):
                self._exclude(argument)

    def exclude_state_of(self, module: Any) -> None:
        """Exclude the current state of `module`, including parameters added after the start."""
        if module is not None:
            for tensor in (*parameters_of(module).values(), *buffers_of(module).values()):
                if tensor is not None:
                    self._exclude(tensor)

    def saved_numbers(self, node: Any, call: int) -> None:
        """Charge the Python numbers that a node saves to `call`, 8 bytes each as in Skyline.

        torch saves them as CPU tensors and calls no hook for them.
        """
        if self._device != "cpu" or call == NO_CALL:
            return
        hooked = call in self._packed_by_program
        for tensor in self._internals.unpacked(node, hooked_by_program=hooked):
            if tensor.dim() == 0 and not tensor.requires_grad:
                self._charge(tensor, call)

    def _count_alive(self) -> None:
        self._alive = [
            one for one in self._alive if one.storage is None or not one.storage.expired()
        ]
        self.most_bytes = max(self.most_bytes, sum(one.size_bytes for one in self._alive))

    def _insert(self) -> None:
        """Insert our hooks below the program's, because the program pops its own from the top."""
        assert self._hooks is not None
        program = self._hooks.pop_all()
        self._hooks.push(self._pack, lambda packed: packed)
        for pack, unpack in reversed(program):
            self._hooks.push(self._noting(pack), unpack)

    def _take_out(self) -> bool:
        """Remove our hooks from any position in the stack; return True if they were found."""
        assert self._hooks is not None
        try:
            hooks = self._hooks.pop_all()
        except UnknownHooksError:  # the stack of another thread, which does not have ours
            return False
        for pack, unpack in reversed(hooks):
            if pack != self._pack:
                self._hooks.push(getattr(pack, "__wrapped__", pack), unpack)
        return any(pack == self._pack for pack, _ in hooks)

    def _pack(self, tensor: Any) -> Any:
        with self._plainly():  # without our function mode and functions of tensor subclasses
            self._note_safely(tensor)
            if tensor.grad_fn is None:
                return tensor
            # An output that its own node saves: the tensor itself would be a reference cycle.
            return tensor.detach()

    def _note_safely(self, packed: Any) -> None:
        try:
            self._note(packed)
        except Exception as error:  # in the middle of the program's forward pass
            self._internals.anomalies.add("saved_tensor_not_counted", in_one_line(error))

    def _note(self, packed: Any) -> None:
        import torch

        if isinstance(packed, torch.Tensor):
            recorder = self._recorder
            if recorder.in_engine:
                return
            self._charge(packed, recorder.iteration.count if recorder.inside else NO_CALL)
        elif isinstance(packed, (tuple, list)):
            for item in packed:
                self._note(item)

    def _charge(self, tensor: Any, call: int) -> None:
        for part in plain_tensors(tensor):
            storage = None if part.device.type != self._device else storage_of(part)
            if storage is None:
                continue
            key = self._internals.storage_key(storage)
            if key in self._excluded:
                continue
            saved = self._seen.get(key)
            if saved is None:
                weak = self._internals.weak_storage(storage)
                is_result = tensor.grad_fn is not None
                self._seen[key] = saved = _Saved(weak, storage.nbytes(), [call], is_result)
                self._alive.append(saved)
            elif saved.calls[-1] != call:
                saved.calls.append(call)

    def _exclude(self, tensor: Any) -> None:
        for part in plain_tensors(tensor):
            storage = storage_of(part)
            if storage is not None:
                key = self._internals.storage_key(storage)
                if key not in self._excluded:
                    self._excluded[key] = self._internals.weak_storage(storage)

    def _noting(self, pack_hook: Any) -> Any:
        """Wrap a pack hook of the program so that the packed bytes are counted."""

        @functools.wraps(pack_hook)
        def pack(tensor: Any) -> Any:
            packed = pack_hook(tensor)
            if self._recorder.inside:
                self._packed_by_program.add(self._recorder.iteration.count)
            with self._plainly():
                self._note_safely(packed)
            return packed

        pack.__wrapped__ = pack_hook
        return pack

    def _wrap_enter(self, enter: Any) -> Any:
        @functools.wraps(enter)
        def composed_enter(hooks: Any) -> Any:
            if self._hooks is None:
                return enter(hooks)
            pack = hooks.pack_hook
            hooks.pack_hook = self._noting(pack)
            try:
                return enter(hooks)
            finally:
                hooks.pack_hook = pack

        return composed_enter

    def _wrap_disable(self, disable: Any) -> Any:
        @contextlib.contextmanager
        def disable_without_ours(error_message: str) -> Any:
            taken_out = self._hooks is not None and self._take_out()
            self._disabled |= taken_out
            try:
                with disable(error_message):
                    yield
            finally:
                if taken_out:
                    self._disabled = False
                    if self._hooks is not None:
                        self._insert()

        return disable_without_ours


class _Registration(Struct, frozen=True):
    """A parameter registered with a module, and the call stack of the registration."""

    module: weakref.ref[Any]
    parameter: weakref.ref[Any]
    name: str
    stack: Stack


class SizedWeight(Struct, frozen=True):
    """A weight and its sizes (a record without frames), and the call stack of its registration."""

    record: WeightRecord
    stack: Stack
    dtype: str  # Such as `float32`.

    def shown_in(self, scope: Scope) -> WeightRecord:
        """Return the record with the frames that the scope shows."""
        return replace(self.record, frames=frames_of(scope.frames(self.stack)))


class InUse:
    """The modules and parameters that an iteration used."""

    def __init__(self, modules: Sequence[Any], parameters: Collection[int]) -> None:
        self.modules = modules
        self._parameters = parameters
        self._ids = {id(module) for module in modules}
        self._shared = {
            id(parameter) for module in modules for parameter in parameters_of(module).values()
        }

    def has(self, module: Any, parameter: Any) -> bool:
        """Return True if the iteration used a parameter of `module`, or shares it."""
        key = id(parameter)
        return id(module) in self._ids or key in self._shared or key in self._parameters


class Weights:
    """Records the registration of parameters after `install`, and lists the parameters in use.

    Copied and unpickled modules (such as the layers of `nn.TransformerEncoder`) register nothing;
    their parameters are recorded when their state is set.
    """

    def __init__(self, walker: StackWalker, internals: TorchInternals) -> None:
        self._internals = internals
        self._walker = walker
        self._patches = Patches()
        self._slots: dict[tuple[int, str], _Registration] = {}
        self._first: dict[int, _Registration] = {}

    def install(self) -> None:
        """Start watching; `remove` ends it."""
        self._internals.replace(self._patches, "register_parameter", self._wrap_register)
        self._internals.replace(self._patches, "module_state", self._wrap_set_state)

    def remove(self) -> None:
        """Stop watching; registrations seen so far are kept."""
        self._patches.restore()

    def _wrap_register(self, register: Any) -> Any:
        @functools.wraps(register)
        def tracked_register(module: Any, name: str, param: Any) -> None:
            register(module, name, param)
            if param is not None:
                self._note(module, name, param, sys._getframe(1))

        return tracked_register

    def _wrap_set_state(self, set_state: Any) -> Any:
        @functools.wraps(set_state)
        def tracked_set_state(module: Any, state: Any) -> None:
            set_state(module, state)
            for name, param in parameters_of(module).items():
                if param is not None:
                    self._note(module, name, param, sys._getframe(1))

        return tracked_set_state

    def _note(self, module: Any, name: str, parameter: Any, frame: Any) -> None:
        with self._internals.anomalies.recording_failures(
            "weights_not_listed", "the source line of a weight"
        ):
            self._keep(module, name, parameter, self._walker.walk(frame)[2])

    def _keep(self, module: Any, name: str, parameter: Any, stack: Stack) -> None:
        seen = _Registration(weakref.ref(module), weakref.ref(parameter), name, stack)
        self._slots[id(module), name] = seen
        first = self._first.get(id(parameter))
        if first is None or first.parameter() is not parameter:
            self._first[id(parameter)] = seen

    def parameters(self) -> list[Any]:
        """Return every registered parameter that a module still holds."""
        return [parameter for _, _, parameter, _ in self._held(())]

    def records(
        self, device: str, names: ModuleNames, used: InUse | None, anomalies: Anomalies
    ) -> tuple[SizedWeight, ...]:
        """Return the parameters in use on `device`, each once, in order of registration.

        `used` None means all parameters that modules hold; `anomalies` counts excluded ones.
        """
        from torch.nn.parameter import UninitializedParameter

        records = []
        for module, name, parameter, stack in self._held(used.modules if used else ()):
            if used is not None and not used.has(module, parameter):
                continue
            if isinstance(parameter, UninitializedParameter):
                anomalies.add("weights_never_initialised", f"{type(module).__name__}.{name}")
                continue
            if parameter.device.type != device:
                detail = f"{type(module).__name__}.{name} is on {parameter.device}"
                anomalies.add("weights_on_another_device", detail)
                continue
            gradient = parameter.grad
            record = WeightRecord(
                name=name,
                module_path=names.path(module),
                module_class=type(module).__name__,
                size_bytes=tensor_bytes(parameter),
                grad_size_bytes=0 if gradient is None else tensor_bytes(gradient),
                frames=(),
            )
            records.append(SizedWeight(record, stack, str(parameter.dtype).removeprefix("torch.")))
        return tuple(records)

    def _held(self, more_modules: Iterable[Any]) -> list[tuple[Any, str, Any, Stack]]:
        """Return module, name, parameter and stack; tied parameters appear as first registered."""
        found = []
        seen: set[int] = set()
        slots = [
            (module, slot.name, slot.stack)
            for slot in self._slots.values()
            if (module := slot.module()) is not None
        ]
        slots += [
            (module, name, ())
            for module in more_modules
            for name in parameters_of(module)
            if (id(module), name) not in self._slots
        ]
        for module, name, stack in slots:
            parameter = parameters_of(module).get(name)
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            first = self._first.get(id(parameter))
            if first is not None and first.parameter() is parameter:
                owner = first.module()
                # If the first owner no longer holds the parameter, use the current owner. Keep the
                # name: the weight of a parametrized layer is called `weight`, as in Skyline.
                if owner is not None and parameters_of(owner).get(first.name) is parameter:
                    module = owner
                name, stack = first.name, first.stack
            found.append((module, name, parameter, stack))
        return found
