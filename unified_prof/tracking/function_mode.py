"""The function mode that intercepts calls of torch's public interface: the tracker's hot path.

The mode is inserted below the program's own modes. With `with mode:`, it would be on top of the
stack. If tracking then begins or ends within a `with` block of the program, the block would pop the
wrong mode at its end.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from unified_prof.tracking.code_entries import KnownFrame
from unified_prof.tracking.device import LONG_NS, NO_MARK
from unified_prof.tracking.raw_calls import MAX_CALLS, CallSites, ModuleNames, Recorder
from unified_prof.tracking.stack_walker import StackWalker
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import in_one_line


class ModeStack:
    """The stack of function modes of the calling thread."""

    def __init__(self, internals: TorchInternals) -> None:
        self._is_device_mode = internals.is_device_mode
        self._count, self._pop, self._push = internals.mode_stack()

    def insert(self, mode: Any) -> None:
        """Insert `mode` below all modes, but above torch's own device mode.

        torch requires the mode of `torch.set_default_device` at the bottom of the stack.
        """
        if not self._count():
            self._push(mode)
            return
        others = self._pop_all()
        if self._is_device_mode(others[-1]):
            self._push_all([*others[:-1], mode, others[-1]])
        else:
            self._push_all([*others, mode])

    def remove(self, mode: Any) -> bool:
        """Remove `mode` from the stack; return True if it was found."""
        count = self._count()
        if not count:
            return False
        if count == 1:
            top = self._pop()
            if top is not mode:
                self._push(top)
            return top is mode
        others = self._pop_all()
        self._push_all([other for other in others if other is not mode])
        return any(other is mode for other in others)

    def _pop_all(self) -> list[Any]:
        """Empty the stack and return its modes, top first."""
        return [self._pop() for _ in range(self._count())]

    def _push_all(self, modes: list[Any]) -> None:
        for mode in reversed(modes):
            self._push(mode)


# Calls that are not operations: they compute no tensor, or Skyline ignores them. Results are
# checked as well; this list only avoids the stack walk.
NOT_OPERATIONS = frozenset(
    """
    __get__ __set__ __delete__ __len__ __bool__ __nonzero__ __float__ __int__ __index__ __complex__
    __hash__ __repr__ __format__ __str__ __dir__ __contains__ __deepcopy__ __reduce_ex__ __reduce__
    __setstate__ __array__ __array_wrap__ __dlpack__ __dlpack_device__ __iter__
    __cuda_array_interface__ size dim ndimension numel nelement stride storage_offset element_size
    tolist item numpy data_ptr is_contiguous is_pinned is_floating_point is_complex is_signed
    is_conj is_neg is_inference is_storage is_tensor is_nonzero is_same_size is_coalesced is_shared
    is_set_to is_distributed get_device dense_dim sparse_dim has_names untyped_storage storage
    storage_type equal allclose result_type can_cast register_hook retain_grad backward grad
    register_post_accumulate_grad_hook has_torch_function as_subclass _set_grad_enabled
    _record_function_enter_new _record_function_exit _record_function_exit._RecordFunction
    """.split()
)

# Private functions that torch calls instead of public ones for the inference fast paths of modules.
FAST_PATHS = frozenset({"_native_multi_head_attention", "_transformer_encoder_layer_fwd"})

_CHECKPOINT = "/torch/utils/checkpoint.py".replace("/", os.sep)

_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod",
    "**": "pow", "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_BEFORE_3_11 = {
    "ADD": "+", "SUBTRACT": "-", "MULTIPLY": "*", "TRUE_DIVIDE": "/", "FLOOR_DIVIDE": "//",
    "MODULO": "%", "POWER": "**", "MATRIX_MULTIPLY": "@", "AND": "&", "OR": "|", "XOR": "^",
    "LSHIFT": "<<", "RSHIFT": ">>",
}  # fmt: skip
_FUNCTIONS_OF_OPERATORS = frozenset(
    """
    add sub mul div remainder floor_divide pow matmul add_ sub_ mul_ div_ remainder_ floor_divide_
    pow_ __floordiv__ __ifloordiv__ __and__ __iand__ __or__ __ior__ __xor__ __ixor__
    __lshift__ __ilshift__ __rshift__ __irshift__ __rsub__ __rdiv__ __rpow__ __rfloordiv__
    """.split()
)


def is_placeholder(name: str, code: CodeType) -> bool:
    """Return True if the operation `name`, called by `code`, is only a placeholder.

    Before torch 2.10, checkpoints create empty tensors to attach their state to them.
    """
    return name == "empty" and code.co_filename.endswith(_CHECKPOINT)


class OperationNames:
    """Determines the names of calls; caches them by instruction, as decoding bytecode is slow."""

    def __init__(self) -> None:
        import torch

        self._tensor = torch.Tensor
        functional = vars(torch.nn.functional)
        self._public_aliases = {
            id(value)
            for name, value in functional.items()
            if callable(value) and not name.startswith("_")
        }
        self._operators: dict[int, tuple[CodeType, dict[int, str]]] = {}

    def is_private(self, func: Any) -> bool:
        """Return True if `func` is not public in torch; Skyline reports no such calls."""
        name = str(getattr(func, "__name__", ""))
        private = name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        return private and name not in FAST_PATHS and id(func) not in self._public_aliases

    def name(self, func: Any, code: CodeType, instruction: int) -> str:
        """Return the name of a call of `func` by the instruction at offset `instruction` of `code`.

        torch calls `add_` for both `x += y` and `x.add_(y)`, which Skyline reports as `iadd` and
        `add_`. The caller's bytecode distinguishes them.
        """
        raw = str(getattr(func, "__name__", type(func).__name__))
        if raw in _FUNCTIONS_OF_OPERATORS:
            symbol = self._symbols(code).get(instruction)
            if symbol is not None and (name := self._operator_name(raw, symbol)):
                return name
        if raw == "__reversed__":
            return "flip"
        if raw.startswith("__") and raw.endswith("__"):
            return raw.strip("_")
        if "." in raw:  # an overload of torch.ops, such as relu.default
            return raw.partition(".")[0]
        return raw.removesuffix("_with_indices") if "max_pool" in raw else raw

    def _operator_name(self, raw: str, symbol: str) -> str | None:
        base = _OPERATORS.get(symbol.rstrip("="))
        if base is None or (raw.startswith("__r") and raw != "__rshift__"):
            return None
        in_place = (raw.endswith("_") and not raw.endswith("__")) or raw.startswith("__i")
        if symbol.endswith("=") and in_place:
            method = getattr(self._tensor, f"__i{base}__", None)
        else:
            method = getattr(self._tensor, f"__{base}__", None)
        spelled = getattr(method, "__name__", base)
        # torch writes x /= y as __idiv__; pow and matmul have no dunder name of their own.
        return str(spelled).strip("_") if spelled != "pow_" else "pow_"

    def _symbols(self, code: CodeType) -> dict[int, str]:
        known = self._operators.get(id(code))
        if known is None:
            symbols = {}
            for instruction in dis.get_instructions(code):
                if instruction.opname == "BINARY_OP":
                    symbols[instruction.offset] = instruction.argrepr
                    continue
                kind, _, rest = instruction.opname.partition("_")
                if kind in ("BINARY", "INPLACE") and rest in _BEFORE_3_11:
                    symbols[instruction.offset] = _BEFORE_3_11[rest] + "=" * (kind == "INPLACE")
            known = self._operators[id(code)] = (code, symbols)
        return known[1]


Runner = Callable[..., Any]
_MAX_ROWS = 5 * MAX_CALLS


def make_runner(
    recorder: Recorder, walker: StackWalker, modules: ModuleNames, sites: CallSites
) -> Runner:
    """Return `run(label, func, frame, args, kwargs)`, which calls `func` and records operations.

    A call is an operation if it returns one or more tensors; `label` identifies the operation. If a
    compiled module is called as a whole, it is an additional last argument.
    """
    import torch

    tensor_type = torch.Tensor
    sequence_number = recorder.internals.sequence_number
    walk, locate = walker.walk, walker.locate
    mark, find, numbers, new_site = recorder.mark, modules.find, sites.numbers, sites.add
    events, waiting = recorder.events, recorder.waiting

    def gives_tensors(result: Any) -> bool:
        if isinstance(result, tensor_type):
            return True
        return isinstance(result, (tuple, list)) and any(map(gives_tensors, result))

    def note_failure(error: Exception) -> None:
        recorder.internals.anomalies.add(
            "operation_not_recorded", f"a call of torch: {in_one_line(error)}"
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
                known = frame.f_trace
                if type(known) is KnownFrame and known.walker is walker:
                    way = (label, frame.f_lasti)
                elif (found := locate(frame, find)) is not None:
                    known, way = found[0], (label, *found[1])
                if way is not None:
                    site = known.sites.get(way)
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
            with recorder.internals.anomalies.recording_failures(
                "arguments_not_looked_at", "the arguments of a call"
            ):
                recorder.on_call(args, kwargs, module)
        recorder.inside = True
        first_node = sequence_number()
        start = mark() if events is None else events.before(args, kwargs, label)
        if waiting is not None:
            previous = recorder.iteration.last_mark
            if start - previous > LONG_NS:
                waiting.note_interval(recorder.iteration.waits, previous, start)
                start = mark()
        try:
            result = func(*args, **kwargs)
        except Exception:
            # A recomputation ends with an exception once the last tensor that it needs is saved.
            if recorder.in_engine and NO_MARK not in (
                start,
                end := mark() if events is None else events.after(start),
            ):
                if site is None:
                    key = (label, caller, caller_at, stack, named)
                    site = numbers.get(key)
                    site = new_site(key, in_module=in_module) if site is None else site
                recorder.iteration.rows.extend((site, first_node, first_node, start, end))
            raise
        finally:
            end = mark() if events is None else events.after(start)
            recorder.inside = False
        if start == NO_MARK or end == NO_MARK:  # captured in a graph, or not on the device
            return result
        try:
            if isinstance(result, tensor_type) or gives_tensors(result) or label == "setitem":
                last_node = sequence_number()
                if site is None:
                    key = (label, caller, caller_at, stack, named)
                    site = numbers.get(key)
                    if site is None:
                        site = new_site(key, in_module=in_module)
                    # Modules under construction share one record per class.
                    if way is not None:
                        known.sites[way] = site
                    elif (
                        compiled is None
                        and named is not None
                        and named.module() is module
                        and (found := locate(frame, find)) is not None
                    ):
                        found[0].sites[(label, *found[1])] = site
                iteration = recorder.iteration
                rows = iteration.rows
                if waiting is not None and end - start > LONG_NS:
                    waiting.note_interval(iteration.waits, start, end)
                if len(rows) < _MAX_ROWS:
                    rows.extend((site, first_node, last_node, start, end))
                else:
                    iteration.dropped_calls += 1
        except Exception as error:  # a sequence whose elements cannot be read
            note_failure(error)
        return result

    return run


def make_mode(recorder: Recorder, run: Runner) -> Any:
    """Return a function mode that passes every outermost call of torch to `run`.

    Returns None if torch has no function modes.
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
    """Return the label with which a call of `func` is recorded; None if it is not an operation."""
    name = getattr(func, "__name__", None)
    if name in NOT_OPERATIONS:
        return None
    return "setitem" if name == "__setitem__" else func
