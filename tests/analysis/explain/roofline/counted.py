"""Bytes and FLOPs of operations that torch runs, and those that the roofline formulas count."""

import json
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from unified_prof.explain.roofline.arguments import Arguments, parsed
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.serving_formulas import formula_of

_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
# Numbers by which recordings name a dtype.
_NUMBERS: dict[Any, int] = {
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bfloat16: 15,
}
# Operations of which formulas count only the elements that an index picks, or only the first
# result and no statistics of rows; that write their first argument without reading it; and that
# read only the shape of `self`.
_PICK = {"embedding", "gather", "index_select"}
_FIRST_RESULT = {"native_layer_norm", "native_group_norm", "log_sigmoid_forward"}
_FIRST_RESULT |= {"_scaled_dot_product_flash_attention_for_cpu"}
_ROW_STATISTICS = {"mean", "rstd", "save_mean", "save_invstd", "logsumexp"}
_OVERWRITE = set("copy_ fill_ zero_ normal_ uniform_ bernoulli_ exponential_".split())
_SHAPE_ONLY = {"max_pool2d_with_indices_backward", "avg_pool2d_backward"}
_SHAPE_ONLY |= {"_adaptive_avg_pool2d_backward"}
# Arguments that a second kernel reads, after sums over them or for gradients of weights.
_AGAIN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("native_group_norm", "native_batch_norm"), ("input",)),
    "native_layer_norm_backward": ("grad_out", "input"),
}


class Call(NamedTuple):
    """A dispatched operation: its cost by the formula, and the size of its tensors."""

    name: str
    cost: Cost
    moved_bytes: int


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Formats each dispatched call as the profiler records it, and computes its cost."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        arguments |= kwargs or {}
        values = [arguments.get(one.name, one.default_value) for one in func._schema.arguments]
        name, cost = func._schema.name.removeprefix("aten::"), None
        if (formula := formula_of(name)) is not None:
            cost = formula(arguments_of(values))
        result = func(*args, **(kwargs or {}))
        if cost is not None:
            self.calls.append(Call(name, cost, _size_of_tensors(name, arguments, result)))
        return result

    @property
    def flops(self) -> int:
        """FLOPs of the matrix units."""
        return sum(call.cost.flops for call in self.calls if call.cost.unit == "matrix")


def _size_of_tensors(name: str, arguments: dict[str, Any], result: Any) -> int:
    """Return the bytes of all tensors that are read and written, each element in memory once.

    Elements of which a kernel computes sums of several rows are read again.
    """
    results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    if name in _PICK:
        index = arguments["indices" if name == "embedding" else "index"]
        return int(index.nbytes + 2 * results[0].nbytes)
    if name in ("scatter", "scatter_add"):  # Elements of the target are read and written.
        return int(arguments["index"].nbytes + 3 * arguments["src"].nbytes)
    if name.startswith("nll_loss"):  # One score of each target is read, or all gradients written.
        scores, target = arguments["self"], arguments["target"]
        elements = target.numel() if "forward" in name else scores.numel()
        return int(target.nbytes + elements * scores.element_size())
    read = {key for key in arguments if key not in _ROW_STATISTICS}
    if name in _OVERWRITE or name in _SHAPE_ONLY:
        read.remove("self")
    tensors = [*tree_leaves([arguments[key] for key in read])]
    tensors += results[:1] if name in _FIRST_RESULT else results
    if arguments.get("training", arguments.get("weight") is not None):
        tensors += [arguments[key] for key in _AGAIN.get(name, ())]
    passes = len(arguments["dim"]) if name.startswith("_fft") else 1
    found: Iterable[Any] = (one for one in tensors if isinstance(one, torch.Tensor))
    size = sum(
        prod(size for size, step in zip(one.shape, one.stride(), strict=True) if step or not size)
        * int(one.element_size())
        for one in found
    )
    return int(passes * size)


def arguments_of(values: Sequence[object]) -> Arguments:
    """Return the arguments of a call as a recording has them."""
    recorded = [_recorded_text(one) for one in values]
    texts = [";\r\n".join(part) for part in list(zip(*recorded, strict=True))[:3]]
    return parsed(texts[1], texts[0], texts[2], json.dumps([one[3] for one in recorded]))


def _recorded_text(value: Any) -> tuple[str, str, str, str]:
    """Return type, shape, strides and value as torch.profiler records them."""
    if isinstance(value, torch.Tensor):
        shape, strides = (",".join(map(str, one)) for one in (value.shape, value.stride()))
        return _TYPES[value.dtype], shape, strides, ""
    if value is None:
        return "", "", "", ""
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], torch.Tensor):
            shapes = "|".join(",".join(map(str, one.shape)) for one in value)
            return "TensorList", shapes, "", ""
        return "ScalarList", "", "", str(list(value))
    return "Scalar", "", "", str(_NUMBERS.get(value, value))


def torch_and_formula_flops(run: Callable[[], object]) -> tuple[int, int]:
    """Return the FLOPs of a program as torch and as the formulas count them."""
    with FlopCounterMode(display=False) as torch_counter:
        run()
    with Counting() as counting:
        run()
    return torch_counter.get_total_flops(), counting.flops


def calls_of(programs: Iterable[str], **tensors: object) -> list[Call]:
    """Return the operations that have a formula in expressions and in their gradients."""
    names = {"torch": torch, "F": torch.nn.functional, **tensors}
    found: list[Call] = []
    for program in programs:
        with Counting() as counting:
            results = [one for one in tree_leaves(eval(program, names)) if one.requires_grad]
            scaled = [
                (torch.view_as_real(one) if one.is_complex() else one).mul(2) for one in results
            ]
            if results:
                torch.autograd.backward([one.sum() for one in scaled])
        assert counting.calls, program
        found += counting.calls
    return found
