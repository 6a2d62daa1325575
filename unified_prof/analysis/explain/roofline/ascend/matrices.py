"""What matrix products and convolutions of an Ascend cost.

Private formats pad the sizes of matrix operations; where the framework's operation says the sizes
without padding, those count, else the cost says that it is padded.
"""

from __future__ import annotations

from math import prod

from unified_prof.analysis.explain.roofline.ascend.recorded import Laid, Operator
from unified_prof.analysis.explain.roofline.aten.formulas import formula_of
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError

_PADDED = "sizes are padded by the layout: FLOPs are at most these"


# Matrix products


def matmul(operator: Operator) -> Cost:
    """Return what a product costs: rows and columns of the result, the rest of the left factor."""
    a, b, result = operator.input(0), operator.input(1), operator.output()
    sizes = result.sizes
    if len(sizes) < 2:
        raise UntoldError("its result is no matrix")
    m, n = sizes[-2:]
    k = _inner(a, m)
    # A factor without the batch is one for all of it.
    if _inner(b, n) != k:
        raise UntoldError("the inner sizes of its factors differ")
    moved = operator.moved_bytes
    dtype = a.tensor.dtype
    flops = 2 * prod(sizes) * k
    if not (a.is_padded or b.is_padded or result.is_padded):
        return Cost("matrix", dtype, flops, moved)
    exact = _of_framework(operator, _PRODUCTS)
    # The sizes of an operation that launches several products are not those of one.
    if exact is not None and flops / 4096 <= exact <= flops:
        return Cost("matrix", dtype, exact, moved)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


def _inner(factor: Laid, other: int) -> int:
    sizes = factor.sizes
    if len(sizes) < 2 or not other:
        raise UntoldError("a factor is no matrix")
    rows, columns = sizes[-2:]
    if rows == other:
        return columns
    if columns == other:
        return rows
    raise UntoldError("its factors and its result do not go together")


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv"})


def _of_framework(operator: Operator, names: frozenset[str]) -> int | None:
    """Return the FLOPs of the framework's operation if it is one of these."""
    around = operator.framework
    if around is None or around.name not in names:
        return None
    formula = formula_of(around.name)
    assert formula is not None, f"{around.name} has a formula"
    try:
        return formula(around.arguments).flops
    except UntoldError:
        return None


def grouped_matmul(operator: Operator) -> Cost:
    """Return what the products of groups of rows cost, each with a factor of its own."""
    x, result = operator.input(0), operator.output()
    if len(x.tensor.shape) < 2:
        raise UntoldError("a factor is no matrix")
    flops = 2 * result.tensor.elements * x.sizes[-1]
    return Cost("matrix", x.tensor.dtype, flops, operator.moved_bytes)


# Convolutions


def convolution(operator: Operator) -> Cost:
    """Return what a convolution costs."""
    return _windows(operator, operator.input(0), operator.input(1), operator.output())


def convolution_input(operator: Operator) -> Cost:
    """Return what the gradient of its input costs."""
    *_, weight, dy = operator.inputs if len(operator.inputs) >= 2 else (operator.input(1),) * 2
    return _windows(operator, dy, weight, dy)


def convolution_weight(operator: Operator) -> Cost:
    """Return what the gradient of its weight costs."""
    dy = operator.input(len(operator.inputs) - 1)
    return _windows(operator, operator.input(0), operator.output(), dy)


def _windows(operator: Operator, data: Laid, weight: Laid, y: Laid) -> Cost:
    """Return what a convolution or one of its gradients costs: a window for every result."""
    dtype = data.tensor.dtype
    moved = operator.moved_bytes
    if not (weight.is_padded or y.is_padded):
        flops = 2 * y.tensor.elements * prod(weight.tensor.shape[1:])
        return Cost("matrix", dtype, flops, moved)
    around = operator.framework
    if around is not None and (place := _WEIGHT_OF.get(around.name)) is not None:
        given = around.arguments.optional(place)
        if given is not None and len(given.shape) > 2:
            positions = _positions(y)
            flops = 2 * positions * prod(given.shape)
            return Cost("matrix", dtype, flops, moved)
    shape = weight.tensor.shape
    if len(shape) != 4:
        raise UntoldError(f"the layout {weight.layout or 'of its weight'} is not known")
    # Window and input channels in the first and the last, output channels in the others.
    flops = 2 * _positions(y) * prod(shape)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


_WEIGHT_OF = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "npu_conv2d"), 1),
    "convolution_backward": 2,
    "npu_convolution_backward": 2,
}


def _positions(y: Laid) -> int:
    """Return the results of a convolution without their channels."""
    shape = y.tensor.shape
    if y.layout == "NC1HWC0" and len(shape) == 5:
        return shape[0] * shape[2] * shape[3]
    if y.layout == "NDC1HWC0" and len(shape) == 6:
        return shape[0] * shape[1] * shape[3] * shape[4]
    if y.layout in ("NHWC", "NDHWC"):
        return prod(shape[:-1])
    if y.is_padded or len(shape) < 3:
        raise UntoldError(f"the layout {y.layout or 'of its result'} is not known")
    return shape[0] * prod(shape[2:])
