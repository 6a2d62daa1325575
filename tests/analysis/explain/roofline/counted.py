"""FLOPs of programs as torch counts them and as the roofline formulas count them."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
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
}


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Formats each dispatched call as the profiler records it, and computes its cost."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[tuple[str, Cost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        arguments |= kwargs or {}
        values = [arguments.get(one.name, one.default_value) for one in func._schema.arguments]
        name = func._schema.name
        if (formula := formula_of(name)) is not None:
            self.costs.append((name, formula(arguments_of(values))))
        return func(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        """FLOPs of the matrix units."""
        return sum(cost.flops for _, cost in self.costs if cost.unit == "matrix")


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
    return "Scalar", "", "", str(value)


def torch_and_formula_flops(run: Callable[[], object]) -> tuple[int, int]:
    """Return the FLOPs of a program as torch and as the formulas count them."""
    with FlopCounterMode(display=False) as torch_counter:
        run()
    with Counting() as counting:
        run()
    return torch_counter.get_total_flops(), counting.flops


def costs(run: Callable[[], object]) -> Iterator[tuple[str, Cost]]:
    """Yield the operations of a program that have a formula, with their cost."""
    with Counting() as counting:
        run()
    yield from counting.costs
