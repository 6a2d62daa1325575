"""What torch itself counts, and what the formulas make of the same calls, printed as recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from unified_prof.explain.roofline.arguments import parsed
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
    """Takes every call that reaches a kernel as a profiler would print it, and prices it."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[tuple[str, Cost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        given |= kwargs or {}
        values = [given.get(one.name, one.default_value) for one in func._schema.arguments]
        name = func._schema.name
        if (formula := formula_of(name)) is not None:
            shown = [_shown(one) for one in values]
            texts = [";\r\n".join(part) for part in list(zip(*shown, strict=True))[:3]]
            concrete = json.dumps([one[3] for one in shown])
            self.costs.append((name, formula(parsed(texts[1], texts[0], texts[2], concrete))))
        return func(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        """What matrix units do."""
        return sum(cost.flops for _, cost in self.costs if cost.unit == "matrix")


def _shown(value: Any) -> tuple[str, str, str, str]:
    """Return type, shape, strides and value as torch.profiler's trace has them in our tables."""
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


def both(run: Callable[[], object]) -> tuple[int, int]:
    """Return the FLOPs that torch counts of a program, and what the formulas count."""
    with FlopCounterMode(display=False) as theirs:
        run()
    with Counting() as ours:
        run()
    return theirs.get_total_flops(), ours.flops


def costs(run: Callable[[], object]) -> Iterator[tuple[str, Cost]]:
    """Yield the operations of a program that have a formula."""
    with Counting() as counting:
        run()
    yield from counting.costs
