"""Cost of torch operations, from recorded arguments; `serving_formulas` has fused attention.

`FORMULAS` maps the name of an operation in the namespace `aten` to a function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from unified_prof.explain.roofline import costs
from unified_prof.explain.roofline.arguments import (
    Arguments,
    Shape,
    Tensor,
    UnknownCostError,
    item_size,
)
from unified_prof.explain.roofline.costs import Cost, Unit

Formula = Callable[[Arguments], Cost]

_Work = tuple[int, int]  # Floating-point operations, and bytes moved.
_NO_LIST = "its lists of tensors were not recorded (torch omits lists of more than 30)"


def of_tensors(unit: Unit, work: Callable[..., _Work], *places: int) -> Formula:
    """Return the formula for the work with the tensors at some places; the first has the dtype."""

    def cost(args: Arguments) -> Cost:
        tensors = [args.tensor(place) for place in places]
        return Cost(unit, tensors[0].dtype, *work(*tensors))

    return cost


def _conv(
    stride: int,
    padding: int,
    dilation: int,
    *,
    bias: int | None = 2,
    transposed: int | bool = False,
    output_padding: int | None = None,
    groups: int | None = None,
) -> Formula:
    """Return the formula of a convolution, by the positions of its arguments.

    They begin with the input N, C, sizes (N may be missing) and the weight C_out, C / groups,
    window, of a transposed convolution C, C_out / groups, window.
    """

    def cost(args: Arguments) -> Cost:
        x, w, b = args.tensor(0), args.tensor(1), args.optional(bias)
        window, spatial = w.shape[2:], len(w.shape) - 2
        if spatial < 1 or len(x.shape) not in (spatial + 1, spatial + 2):
            raise UnknownCostError("its input and its weight do not match")
        is_transposed = transposed if isinstance(transposed, bool) else args.flag(transposed)
        added = args.text(padding).strip("'\"")
        extra: Shape | None = None
        if is_transposed:
            extra = () if output_padding is None else args.sizes(output_padding)
        sizes = costs.convolution_sizes(
            x.shape[len(x.shape) - len(window) :],
            window,
            args.sizes(stride),
            added if added in ("same", "valid") and not is_transposed else args.sizes(padding),
            args.sizes(dilation),
            extra,
        )
        number = args.integers(groups) or (1,)
        channels = w.shape[1] * number[0] if is_transposed else w.shape[0]
        y = Tensor((*x.shape[: len(x.shape) - spatial - 1], channels, *sizes), x.dtype)
        dtype, times = costs.real_parts(costs.wider_dtype(x.dtype, w.dtype))
        flops = 2 * (x if is_transposed else y).elements * prod(w.shape[1:]) * times
        vector_flops = y.elements * times if b is not None else 0
        moved = costs.bytes_of(x, w, b, y)
        inner = _channels(x, w, is_transposed)
        alone = not inner and w.shape[1] == 1
        return Cost("matrix", dtype, flops, moved, vector_flops, inner=inner, depthwise=alone)

    return cost


def _channels(x: Tensor, weight: Tensor, is_transposed: bool | None) -> Shape:
    """Return the channels of input and result of a convolution; none if it has groups."""
    channels = weight.shape[:2]
    is_dense = x.shape[1 - len(weight.shape)] == channels[0 if is_transposed else 1]
    return channels if is_dense else ()


def _conv_backward(args: Arguments, transposed: int = 7) -> Cost:
    """Return the cost of the requested gradients of input, weight and bias.

    Each of the first two takes as many operations as the convolution itself. `transposed` is the
    position of that flag; the mask of gradients is three further.
    """
    dy, x, w = (args.tensor(place) for place in range(3))
    mask, is_transposed = args.flags(transposed + 3), args.flag(transposed) is True
    of_x, of_weight, of_bias = (*(mask or (True, True)), False, False, False)[:3]
    dtype, times = costs.real_parts(costs.wider_dtype(dy.dtype, w.dtype))
    once = 2 * (x if is_transposed else dy).elements * prod(w.shape[1:]) * times
    moved = dy.bytes + (x.bytes + w.bytes) * (of_x + of_weight)
    if of_bias:
        channels = dy.shape[1 - len(w.shape)] if is_transposed else w.shape[0]
        moved += channels * item_size(dy.dtype)
    doubt = "the requested gradients were not recorded; those of input and weight are counted"
    inner = _channels(x, w, is_transposed)
    return Cost(
        "matrix",
        dtype,
        once * (of_x + of_weight),
        moved,
        vector_flops=dy.elements if of_bias else 0,
        doubt=doubt if mask is None else None,
        inner=inner,
        depthwise=not inner and w.shape[1] == 1,
    )


def _conv_gradient(args: Arguments, *, of_weight: bool) -> Cost:
    """Return the cost of one gradient in releases before torch 1.11.

    The arguments are input, dy and weight of the operation around it (`with_arguments_around`), or
    the size of the gradient, dy, and the weight or the input.
    """
    first, dy, last = args.optional(0), args.tensor(1), args.tensor(2)
    shape = args.sizes(0) if of_weight and first is None else last.shape
    size = prod(shape) if of_weight else None if first is None else first.elements
    read = first if of_weight and first is not None else last
    moved = dy.bytes + read.bytes + (size or 0) * item_size(dy.dtype)
    doubt = "the size of the result was not recorded; only the bytes that it reads are counted"
    flops = 2 * dy.elements * prod(shape[1:])
    return Cost("matrix", dy.dtype, flops, moved, doubt=doubt if size is None else None)


# Operations whose arguments lack a size that the operation around them has.
_GRADIENTS = [(library, one) for library in ("cudnn", "miopen") for one in ("input", "weight")]


def with_arguments_around(name: str) -> str | None:
    """Return the operation whose arguments determine the cost of one that it calls, if any."""
    outer, _, inner = name.partition("_convolution_backward_")
    known = (outer.removeprefix("aten::"), inner) in _GRADIENTS
    return f"{outer}_convolution_backward" if known else None


_CONVOLUTIONS: dict[str, Formula] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv(3, 4, 5, groups=6)),
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable"),
        _conv(3, 4, 5, transposed=6, output_padding=7, groups=8),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _conv(3, 4, 7, transposed=True, output_padding=5, groups=6),
    ),
    "cudnn_convolution": _conv(3, 2, 4, bias=None, groups=5),
    "cudnn_convolution_add_relu": _conv(5, 6, 7, bias=4, groups=8),
    "cudnn_convolution_transpose": _conv(
        4, 2, 5, bias=None, transposed=True, output_padding=3, groups=6
    ),
    **dict.fromkeys(
        ("cudnn_convolution_relu", "miopen_convolution_relu"), _conv(3, 4, 5, groups=6)
    ),
    # An `add_` within them adds the bias.
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution"), _conv(4, 3, 5, bias=None, groups=6)
    ),
    "miopen_convolution_transpose": _conv(5, 3, 6, transposed=True, output_padding=4, groups=7),
    "mkldnn_convolution": _conv(4, 3, 5, groups=6),
    **dict.fromkeys(
        ("_conv_depthwise2d", "conv_depthwise3d", "slow_conv_dilated2d", "slow_conv_dilated3d"),
        _conv(4, 5, 6, bias=3),
    ),
    "convolution_backward": _conv_backward,
    "convolution_backward_overrideable": partial(_conv_backward, transposed=6),
    **{
        f"{library}_convolution_backward_{one}": partial(_conv_gradient, of_weight=one == "weight")
        for library, one in _GRADIENTS
    },
}


def _elementwise(inputs: int, operations: int, out: str | None = None) -> Formula:
    return lambda args: costs.elementwise(args.tensors(inputs), operations=operations, out=out)


# Number of inputs, operations per element, dtype of the result if it is not that of the inputs.
_ELEMENTWISE: dict[tuple[int, int, str | None], str] = {
    (1, 1, None): "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh erf erfc"
    " reciprocal sign floor ceil round trunc relu relu6 hardtanh square frac asin acos atan"
    " bitwise_not cumsum",
    (1, 2, None): "clamp_min clamp_max leaky_relu elu hardsigmoid softplus celu selu"
    " log_sigmoid_forward",
    (3, 2, None): "clamp",
    (1, 4, None): "sigmoid hardswish mish",
    (1, 5, None): "silu gelu",
    (2, 1, None): "add sub rsub mul div pow maximum minimum fmod remainder floor_divide atan2"
    " bitwise_and bitwise_or bitwise_xor __and__ __or__ threshold_backward true_divide",
    (2, 2, None): "mse_loss l1_loss leaky_relu_backward hardtanh_backward prelu"
    " native_dropout_backward masked_scale",
    (2, 3, None): "tanh_backward sigmoid_backward smooth_l1_loss huber_loss",
    (2, 7, None): "silu_backward hardswish_backward binary_cross_entropy_with_logits",
    (2, 10, None): "gelu_backward",
    (6, 7, None): "elu_backward",
    (3, 3, None): "addcmul addcdiv lerp mse_loss_backward",
    (3, 1, None): "where",
    (5, 4, None): "batch_norm_elemt",
    (2, 0, None): "masked_fill",
    (2, 1, "bool"): "eq ne lt le gt ge logical_and logical_or logical_xor",
    (1, 1, "bool"): "isnan isinf isfinite logical_not",
}
ELEMENTWISE: dict[str, Formula] = {
    name: _elementwise(*key) for key, names in _ELEMENTWISE.items() for name in names.split()
}


def _list(formula: Callable[[Sequence[Tensor]], Cost]) -> Formula:
    """Return the formula of an operation on a list of tensors, fp32 if their dtype is unknown."""

    def cost(args: Arguments) -> Cost:
        tensors = args.list(0)
        if tensors[0].dtype:
            return formula(tensors)
        result = formula([Tensor(one.shape, "fp32") for one in tensors])
        return replace(result, doubt="the dtype of its lists was not recorded; fp32 is assumed")

    return cost


def _fused(kind: str) -> Formula:
    """Return the formula of a fused optimizer."""
    return _list(partial(costs.optimizer, kind))


def foreach(args: Arguments) -> Cost:
    """Return the cost of an operation on lists of tensors: one operation per element."""
    lists = [one for one in args.given if isinstance(one, tuple)]
    if not lists or not all(lists) or any(not one.dtype for part in lists for one in part):
        raise UnknownCostError(_NO_LIST)
    elements = sum(one.elements for one in lists[0])
    moved = sum(one.bytes for part in lists for one in part) + sum(one.bytes for one in lists[0])
    return Cost("vector", lists[0][0].dtype, elements, moved)


def _to_copy(args: Arguments) -> Cost:
    x = args.tensor(0)
    return costs.copy(x, Tensor(x.shape, args.scalar_type(1) or x.dtype))


_MEMORY: dict[str, Formula] = {
    "_to_copy": _to_copy,
    "copy_": lambda args: costs.copy(args.tensor(1), args.tensor(0)),
    "_copy_from": lambda args: costs.copy(args.tensor(0), args.tensor(1)),
    **dict.fromkeys(
        "clone contiguous roll flip tril triu".split(),
        lambda args: costs.copy(args.tensor(0)),
    ),
    **dict.fromkeys(
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ log_normal_".split(),
        of_tensors("copy", lambda x: (0, x.bytes), 0),
    ),
    **dict.fromkeys(("cat", "stack"), _list(costs.concatenation)),
}


def norm(kind: str, x: int, *params: int, mask: int | None = None) -> Formula:
    """Return the formula of a normalization, by the positions of its arguments.

    Gradients have a `mask` of those requested; another kernel than that for the gradient of the
    input adds up those of the parameters of a row.
    """

    def cost(args: Arguments) -> Cost:
        given, requested = [*map(args.optional, params)], args.flags(mask or 0)
        also = any(given) and (requested is None or any(requested[1:]))
        return costs.normalization(
            kind,
            args.tensor(x),
            given,
            backward=mask is not None,
            also=2 * (also and mask is not None and kind in ("layer", "rms", "batch eval")),
        )

    return cost


def _batch_norm(args: Arguments) -> Cost:
    training = args.flag(5) is not False
    # Training writes the running mean and variance as well.
    params = (1, 2, 3, 4, 3, 4) if training else (1, 2, 3, 4)
    return norm("batch" if training else "batch eval", 0, *params)(args)


def _batch_norm_backward(args: Arguments) -> Cost:
    return norm("batch eval" if args.flag(7) is False else "batch", 1, 2, mask=9)(args)


def _softmax(args: Arguments) -> Cost:
    """Return the cost of softmax, whose result may be wider than its input."""
    x = args.tensor(0)
    result = costs.normalization("softmax", x)
    more = x.elements * 2 if args.flag(2) else 0
    return replace(result, moved_bytes=result.moved_bytes + more)


def _softmax_backward(args: Arguments) -> Cost:
    """Return the cost of the gradient of softmax, which may be narrower than the result."""
    result = costs.normalization("softmax", x := args.tensor(0), backward=True)
    less = x.elements * (item_size(x.dtype) - item_size(args.scalar_type(3) or x.dtype))
    return replace(result, moved_bytes=result.moved_bytes - less)


_NORMALIZATIONS: dict[str, Formula] = {
    "native_layer_norm": norm("layer", 0, 2, 3),
    "native_layer_norm_backward": norm("layer", 1, 5, 6, mask=7),
    "native_group_norm": norm("group", 0, 1, 2),
    "native_group_norm_backward": norm("group", 1, 4, mask=9),
    "rms_norm": norm("rms", 0, 2),
    "_fused_rms_norm": norm("rms", 0, 2),
    "_fused_rms_norm_backward": norm("rms", 1, 4, mask=5),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), _batch_norm),
    "native_batch_norm_backward": _batch_norm_backward,
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), norm("batch", 0, 2, mask=9)
    ),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_safe_softmax": norm("softmax", 0),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        of_tensors(
            "vector",
            lambda scores, target: (
                target.elements,
                target.bytes + target.elements * item_size(scores.dtype),
            ),
            0,
            1,
        ),
    ),
    **dict.fromkeys(
        ("nll_loss_backward", "nll_loss2d_backward"),
        of_tensors("copy", lambda scores, target: (0, scores.bytes + target.bytes), 1, 2),
    ),
    "native_dropout": of_tensors("vector", lambda x: (2 * x.elements, 2 * x.bytes + x.elements), 0),
}


def product(
    a: int = 0,
    b: int = 1,
    bias: int | None = None,
    *,
    is_linear: bool = False,
    out: str | Callable[[Arguments], str | None] | None = None,
    scales: tuple[int, ...] = (),
) -> Formula:
    """Return the formula of a matrix product, by the positions of its arguments.

    Args:
        a: Left factor.
        b: Right factor; transposed if `is_linear`.
        bias: Tensor that is added.
        is_linear: True for `x @ weight.T`.
        out: Dtype of the result, by default that of `a`.
        scales: Tensors that scale the factors.
    """

    def cost(args: Arguments) -> Cost:
        result = (costs.linear if is_linear else costs.matmul)(
            args.tensor(a),
            args.tensor(b),
            bias=args.optional(bias),
            out=out(args) if callable(out) else out,
        )
        more = costs.bytes_of(*map(args.optional, scales))
        return replace(result, moved_bytes=result.moved_bytes + more)

    return cost


def _grouped_mm(args: Arguments, dtype: int, default: str | None = None) -> Cost:
    """Return the cost of products of groups; argument `dtype` is the type of the result."""
    a, b, out = args.tensor(0), args.tensor(1), args.scalar_type(dtype) or default
    if len(a.shape) == 2 and len(b.shape) == 3:
        (m, _), (groups, k, n) = a.shape, b.shape
        moved = (m * k + groups * k * n) * item_size(a.dtype) + m * n * item_size(out or a.dtype)
        return Cost("matrix", a.dtype, 2 * m * n * k, moved)
    return costs.matmul(a, b, out=out)


_PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys("mm bmm mv dot vdot matmul".split(), product()),
    **dict.fromkeys(
        "addmm addmm_ _addmm_activation addmv addmv_ baddbmm baddbmm_".split(), product(1, 2, 0)
    ),
    "addbmm": lambda args: costs.matmul(
        args.tensor(1), args.tensor(2), bias=args.optional(0), is_summed=True
    ),
    **dict.fromkeys(("linear", "mkldnn_linear"), product(bias=2, is_linear=True)),
    "_scaled_mm": product(bias=4, out=lambda args: args.scalar_type(6) or "bf16"),
    "_grouped_mm": lambda args: _grouped_mm(args, 4),
    # fp8 factors have a bf16 result.
    "_scaled_grouped_mm": lambda args: _grouped_mm(args, 7, "bf16"),
    "_int_mm": product(out="int32"),
}


def _reduction(dims: int, *out: str) -> Formula:
    """Return the formula of a reduction over the dimensions in argument `dims`.

    `out` are the dtypes of the results, by default that of the input ("").
    """

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        if args.optional(1) is not None and dims == 1:
            return costs.elementwise(args.tensors(2))
        if len(args.given) <= dims + 1:
            return costs.reduction(x, 1, *out[:1])
        reduced = args.integers(dims)
        if reduced is None and not args.values:
            doubt = "the reduced dimensions were not recorded; only reading is counted"
            return replace(costs.reduction(x, 1, *out), doubt=doubt)
        return costs.reduction(x, _remaining(x.shape, reduced or ()), *out)

    return cost


def _sum(args: Arguments) -> Cost:
    x = args.tensor(0)
    is_float = "int" not in x.dtype and x.dtype != "bool"
    return _reduction(1, args.scalar_type(3) or (x.dtype if is_float else "int64"))(args)


def _remaining(shape: Shape, dims: Shape) -> int:
    """Return the number of elements after a reduction over `dims`; over all if it is empty."""
    if not dims or not shape:
        return 1
    reduced = {dim % len(shape) for dim in dims}
    return prod(size for place, size in enumerate(shape) if place not in reduced)


def _pool(indices: bool) -> Formula:
    def cost(args: Arguments) -> Cost:
        x, window = args.tensor(0), args.sizes(1)
        planes = len(x.shape) - (2 if len(window) == 1 else len(window))
        window = window * (len(x.shape) - planes) if len(window) == 1 else window
        step = args.integers(2) or window
        spread = (args.integers(4) or (1,)) if indices else (1,)
        y = costs.convolution_sizes(
            x.shape[planes:], window, step, args.integers(3) or (0,), spread
        )
        results = prod(x.shape[:planes]) * prod(y)
        moved = x.bytes + results * (x.bytes // max(x.distinct, 1) + 8 * indices)
        return Cost("vector", x.dtype, results * prod(window), moved)

    return cost


def _pool_backward(args: Arguments) -> Cost:
    dy, x, indices = args.tensor(0), args.tensor(1), args.optional(7)
    moved = costs.bytes_of(dy, indices) + x.elements * item_size(x.dtype)
    return Cost("vector", dy.dtype, dy.elements, moved)


_REDUCTIONS: dict[str, Formula] = {
    "batch_norm_stats": lambda args: costs.reduction(args.tensor(0), 2 * args.tensor(0).shape[1]),
    **dict.fromkeys(("sum", "nansum", "prod"), _sum),
    **dict.fromkeys("mean amax amin logsumexp var std".split(), _reduction(1)),
    **dict.fromkeys(("max", "min"), _reduction(1, "", "int64")),
    **dict.fromkeys(("any", "all"), _reduction(1, "bool")),
    **dict.fromkeys(("argmax", "argmin"), _reduction(1, "int64")),
    **dict.fromkeys(("var_mean", "std_mean"), _reduction(1, "", "")),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _reduction(2)),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _pool(True)),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _pool(False)),
    "max_pool2d_with_indices_backward": _pool_backward,
    "avg_pool2d_backward": _pool_backward,
    "_adaptive_avg_pool2d_backward": _pool_backward,
}


def _gathered(width: int, table: Tensor, index: Tensor) -> _Work:
    """Return the work of gathering rows of a table: the rows, not the table."""
    return 0, index.elements * (item_size(index.dtype) + 2 * width * item_size(table.dtype))


def _index_select(args: Arguments) -> Cost:
    table, index, at = args.tensor(0), args.tensor(2), args.integers(1)
    place = at[0] if at else 0
    width = table.elements // (table.shape[place] or 1) if table.shape else 1
    return Cost("copy", table.dtype, *_gathered(width, table, index))


def _embedding_backward(args: Arguments) -> Cost:
    dy, index = args.tensor(0), args.tensor(1)
    (rows, *_) = args.sizes(2)
    table = Tensor((rows, dy.shape[-1]), dy.dtype)
    return Cost("vector", dy.dtype, dy.elements, costs.bytes_of(dy, index, table))


def _scatter(args: Arguments) -> Cost:
    """Return the cost of adding or writing values at indices."""
    target, index, source = args.tensor(0), args.tensor(2), args.optional(3)
    values = source.elements if source is not None else index.elements
    size = item_size(target.dtype)
    moved = values * (item_size(index.dtype) + (3 if source is not None else 2) * size)
    return Cost("vector", target.dtype, values, moved)


def _fft(args: Arguments) -> Cost:
    """Return the cost of complex transforms: 5 N log2(N) FLOPs each, the usual convention."""
    x = args.tensor(0)
    return costs.transforms(x, x, tuple(x.shape[one] for one in args.sizes(1)), x.elements, 5)


def _fft_real(args: Arguments, *, inverse: bool = False) -> Cost:
    """Return the cost of transforms of real values, half of that of complex ones.

    One side has `n // 2 + 1` complex values in the last dimension, the other n real ones.
    """
    given, dims = args.tensor(0), args.sizes(1)
    if inverse:
        spectrum, (length, *_) = given, args.sizes(3)
    else:
        length = given.shape[dims[-1]]
        kept = length // 2 + 1 if args.flag(3) is not False else length
        spectrum = Tensor(_resized(given.shape, dims[-1], kept), _COMPLEX[given.dtype])
    dtype, _ = costs.real_parts(spectrum.dtype)
    real = Tensor(_resized(given.shape, dims[-1], length), dtype)
    lengths = tuple(real.shape[place] for place in dims)
    return costs.transforms(spectrum, real, lengths, real.elements, 2.5)


_COMPLEX = {"fp32": "complex64", "fp64": "complex128"}


def _resized(shape: Shape, place: int, size: int) -> Shape:
    sizes = list(shape)
    sizes[place] = size
    return tuple(sizes)


# Gates of a cell by `mode` of torch's recurrent operations: ReLU, tanh, LSTM, GRU.
_GATES = (1, 1, 4, 3)


def _cudnn_rnn(args: Arguments) -> Cost:
    """Return the cost of the products of a recurrent network with dense sequences."""
    x, (mode, hidden, layers) = args.tensor(0), (args.sizes(place)[0] for place in (6, 7, 9))
    projected, directions = (args.integers(8) or (0,))[0], 2 if args.flag(13) else 1
    width, weights = x.shape[-1], 0
    steps, inside = x.elements // width, projected or hidden
    for _ in range(layers):
        weights += directions * hidden * (_GATES[mode] * (width + inside) + projected)
        width = directions * inside
    moved = x.bytes + (weights + steps * width) * item_size(x.dtype)
    return Cost("matrix", x.dtype, 2 * steps * weights, moved)


FORMULAS: dict[str, Formula] = {
    **_CONVOLUTIONS,
    **ELEMENTWISE,
    **_MEMORY,
    **_NORMALIZATIONS,
    **_PRODUCTS,
    **_REDUCTIONS,
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), _fused("adam")),
    "_fft_c2c": _fft,
    "_fft_r2c": _fft_real,
    "_fft_c2r": lambda args: _fft_real(args, inverse=True),
    "_cudnn_rnn": _cudnn_rnn,
    "_fused_adagrad_": _fused("adagrad"),
    # The third argument is the list of momenta.
    "_fused_sgd_": lambda args: _fused("momentum" if any(args.given[2:3]) else "sgd")(args),
    "embedding": of_tensors(
        "copy", lambda table, index: _gathered(prod(table.shape[1:]), table, index), 0, 1
    ),
    "index_select": _index_select,
    "embedding_dense_backward": _embedding_backward,
    "gather": of_tensors(
        "copy",
        lambda table, index: (0, index.bytes + 2 * index.elements * item_size(table.dtype)),
        0,
        2,
    ),
    **dict.fromkeys("scatter scatter_ scatter_add scatter_add_ index_add_".split(), _scatter),
}
