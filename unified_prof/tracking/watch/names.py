"""What an operation is called, as Skyline calls it, and what is no operation at all."""

from __future__ import annotations

import dis
import os
from types import CodeType
from typing import Any

# Never operations: what torch's function mode sees but does not compute a tensor, and what
# Skyline leaves alone. Results are checked as well; this list spares the stack walk.
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
    """.split()
)

# Inference fast paths that torch itself takes for a public module: private, and yet all there is.
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
    """Whether an operation `name`, called by `code`, is no computation.

    Before torch 2.10 its checkpoints make empty tensors, to hang on them what they keep.
    """
    return name == "empty" and code.co_filename.endswith(_CHECKPOINT)


class OperationNames:
    """Names calls; remembers per instruction, as decoding bytecode is slow."""

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
        """Whether `func` is no public call of torch's; Skyline reports none of those."""
        name = str(getattr(func, "__name__", ""))
        private = name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        return private and name not in FAST_PATHS and id(func) not in self._public_aliases

    def name(self, func: Any, code: CodeType, instruction: int) -> str:
        """Return the name of calling `func` from the instruction at offset `instruction`.

        torch says `add_` for `x += y` as well as for `x.add_(y)`: the caller's bytecode tells
        which was written, and Skyline reports `iadd` and `add_`.
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
