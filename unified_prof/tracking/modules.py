"""Parameters of modules: where each was registered, and its memory and that of its gradient."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unified_prof.base.run_spec import WeightRecord
from unified_prof.tracking.activations import tensor_bytes
from unified_prof.tracking.code_entries import Stack, frames_of
from unified_prof.tracking.raw_calls import ModuleNames
from unified_prof.tracking.stack_walker import Scope, StackWalker
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies, Patches, parameters_of


@dataclass(frozen=True, slots=True)
class _Registration:
    """A parameter registered with a module, and the call stack of the registration."""

    module: weakref.ref[Any]
    parameter: weakref.ref[Any]
    name: str
    stack: Stack


@dataclass(frozen=True, slots=True)
class SizedWeight:
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

        Args:
            device: torch device type.
            names: Names of modules.
            used: Modules and parameters in use; None means all parameters that modules hold.
            anomalies: Counts parameters that are excluded.
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
