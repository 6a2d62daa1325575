"""What everything costs that calculates, but on no matrix unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from unified_prof.analysis.explain.roofline.costs.cost import Cost, bytes_of, wider
from unified_prof.analysis.explain.roofline.tensors import Tensor, UntoldError, broadcast, item_size

# Everything that no matrix unit does


def elementwise(inputs: Iterable[Tensor], *, operations: int = 1, out: str | None = None) -> Cost:
    """Return what an element-wise operation costs, its inputs broadcast.

    Args:
        inputs: all tensors; in place, the first is read and written.
        operations: floating-point operations an element; exp, tanh and erf are one each.
        out: type of the result, the widest of its inputs unless said.
    """
    tensors = tuple(inputs)
    if not tensors:
        raise UntoldError("no tensor of it was recorded")
    dtype = result_type(tensors)
    elements = prod(broadcast(*(one.shape for one in tensors)))
    moved = bytes_of(*tensors) + elements * item_size(out or dtype)
    return Cost("vector" if operations else "copy", dtype, operations * elements, moved)


def result_type(tensors: Sequence[Tensor]) -> str:
    """Return the type that torch promotes tensors to: dimensions go before numbers alone."""
    shaped = [one for one in tensors if one.shape] or list(tensors)
    floating = [one for one in shaped if "int" not in one.dtype and one.dtype != "bool"]
    result = (floating or shaped)[0].dtype
    for one in floating or shaped:
        if {one.dtype, result} == {"bf16", "fp16"}:
            return "fp32"
        result = wider(result, one.dtype)
    return result


def reduction(x: Tensor, results: int, *, operations: int = 1, out: str | None = None) -> Cost:
    """Return what reducing a tensor to `results` elements costs."""
    moved = x.bytes + results * item_size(out or x.dtype)
    return Cost("vector", x.dtype, operations * x.elements, moved)


_NORM = {  # kind: forward and backward operations an element, tensors moved forward and backward
    "layer": (8, 14, 2, 3),
    "group": (8, 14, 2, 3),
    "instance": (8, 14, 2, 3),
    "rms": (5, 10, 2, 3),
    "batch": (7, 11, 2, 3),
    "batch eval": (2, 4, 2, 3),
    "softmax": (5, 4, 2, 3),
}


def normalisation(kind: str, x: Tensor, params: Iterable[Tensor | None] = ()) -> Cost:
    """Return what a normalisation costs: layer, rms, group, batch, batch eval or softmax."""
    operations, _, tensors, _ = _NORM[kind]
    return Cost("vector", x.dtype, operations * x.elements, tensors * x.bytes + bytes_of(*params))


def normalisation_backward(kind: str, x: Tensor, params: Iterable[Tensor | None] = ()) -> Cost:
    """Return what the gradients of a normalisation cost: read x, dy and params, write theirs."""
    _, operations, _, tensors = _NORM[kind]
    moved = tensors * x.bytes + 2 * bytes_of(*params)
    return Cost("vector", x.dtype, operations * x.elements, moved)


def optimizer(kind: str, params: Sequence[Tensor]) -> Cost:
    """Return what one fused step costs; gradients and state are of the parameters' type.

    Args:
        kind: sgd, momentum, adagrad or adam.
        params: the parameters.
    """
    if not params:
        raise UntoldError("its list of parameters was not recorded (torch leaves out more than 30)")
    operations, states = {"sgd": (2, 0), "momentum": (4, 1), "adagrad": (6, 1), "adam": (12, 2)}[
        kind
    ]
    elements = sum(one.elements for one in params)
    dtype = params[0].dtype
    # Parameters are read and written, gradients read, each state read and written.
    return Cost(
        "vector", dtype, operations * elements, elements * (3 + 2 * states) * item_size(dtype)
    )
