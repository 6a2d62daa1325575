"""Operations that do the same to every element."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import vector
from unified_prof.analysis.explain.roofline.costs.cost import Cost


def _elementwise(inputs: int, operations: int, out: str | None = None) -> Formula:
    def cost(args: Arguments) -> Cost:
        return vector.elementwise(args.tensors(inputs), operations=operations, out=out)

    return cost


# How many arguments are its inputs, operations an element: the names.
_ELEMENTWISE: dict[tuple[int, int], str] = {
    (1, 1): "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh erf erfc"
    " reciprocal sign floor ceil round trunc relu relu6 hardtanh square frac asin acos atan"
    " bitwise_not cumsum",
    (1, 2): "clamp_min clamp_max leaky_relu elu hardsigmoid softplus celu selu log_sigmoid_forward",
    (3, 2): "clamp",
    (1, 4): "sigmoid hardswish mish",
    (1, 5): "silu gelu",
    (2, 1): "add sub rsub mul div pow maximum minimum fmod remainder floor_divide atan2"
    " bitwise_and bitwise_or bitwise_xor __and__ __or__ threshold_backward true_divide",
    (2, 2): "mse_loss l1_loss leaky_relu_backward hardtanh_backward prelu"
    " native_dropout_backward masked_scale",
    (2, 3): "tanh_backward sigmoid_backward smooth_l1_loss huber_loss",
    (2, 7): "silu_backward hardswish_backward elu_backward binary_cross_entropy_with_logits",
    (2, 10): "gelu_backward",
    (3, 3): "addcmul addcdiv lerp mse_loss_backward",
    (3, 1): "where",
    (5, 4): "batch_norm_elemt",
    (2, 0): "masked_fill",
}
_COMPARISONS = (
    (2, 1, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    (1, 1, "isnan isinf isfinite logical_not"),
)

FORMULAS: dict[str, Formula] = {
    name: _elementwise(inputs, operations)
    for (inputs, operations), names in _ELEMENTWISE.items()
    for name in names.split()
} | {
    name: _elementwise(inputs, operations, "bool")
    for inputs, operations, names in _COMPARISONS
    for name in names.split()
}
