"""Cost of torch operations and of other packages' fused attention, from recorded arguments.

`FORMULAS` maps the name of an operation to a function of its arguments. Names are those of the
`aten` namespace without `aten::`, others in full.
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
from unified_prof.explain.roofline.costs import LOWER_RIGHT, UPPER_LEFT, Attention, Cost, Unit

Formula = Callable[[Arguments], Cost]

_NO_LENGTHS = "the lengths of its sequences are not recorded"
_Work = tuple[int, int]  # Floating-point operations, and bytes moved.
_NO_LIST = "its lists of tensors were not recorded (torch omits lists of more than 30)"


def of_tensors(unit: Unit, work: Callable[..., _Work], *places: int) -> Formula:
    """Return the formula for the work with the tensors at some places; the first has the dtype."""

    def cost(args: Arguments) -> Cost:
        tensors = [args.tensor(place) for place in places]
        return Cost(unit, tensors[0].dtype, *work(*tensors))

    return cost


def _attention(
    *,
    q: int = 0,
    causal: int | None = None,
    mask_kind: int | None = None,
    corner: str = LOWER_RIGHT,
    bias: int | None = None,
    lengths: int | None = None,
    heads_first: bool = False,
    backward: bool = False,
) -> Formula:
    """Return the formula of fused attention, by the positions of its arguments.

    Args:
        q: Queries, followed by keys and values.
        causal: Flag of a causal mask.
        mask_kind: Number of the kind of mask instead: 0 none, 1 causal from the upper left corner,
            2 from the lower right one.
        corner: Corner of the causal mask if `causal` is set.
        bias: Bias or mask that is added to the scores.
        lengths: Lengths of sequences; if they are given, the cost is unknown.
        heads_first: True if tensors are B, H, S, D; False if B, S, H, D.
        backward: True for the gradients.
    """

    def cost(args: Arguments) -> Cost:
        if args.optional(lengths) is not None:
            raise UnknownCostError(_NO_LENGTHS)
        kind, flag = args.integers(mask_kind), args.flag(causal)
        mask = {1: UPPER_LEFT, 2: LOWER_RIGHT}.get(kind[0]) if kind else corner if flag else None
        sizes = Attention.from_tensors(
            *(args.tensor(place) for place in range(q, q + 3)),
            heads_first=heads_first,
            causal=mask,
            causal_known=kind is not None or flag is not None,
        )
        result = sizes.cost(backward=backward)
        moved = result.moved_bytes + costs.bytes_of(args.optional(bias))
        return replace(result, moved_bytes=moved)

    return cost


# Position of the sequence in the layouts of Ascend's attention.
_SEQUENCE = {"BNSD": 2, "BSND": 1, "BSH": 1, "SBH": 0}
_NPU_MASK, _NPU_SPARSE_MODE = 7, 16


def _npu_attention(args: Arguments, *, backward: bool = False) -> Cost:
    """Return the cost of `npu_fusion_attention`, whose arguments name heads and layout."""
    first = 4 if backward else 3  # the gradient is between value and heads
    q, k, v = (args.tensor(place) for place in range(3))
    heads, layout = args.sizes(first)[0], args.text(first + 1).strip("'\"")
    if layout not in _SEQUENCE or len(q.shape) != len(layout):
        raise UnknownCostError(_NO_LENGTHS)
    row = _SEQUENCE[layout]
    batch, queries, keys = q.shape[layout.index("B")], q.shape[row], k.shape[row]
    depth = q.elements // max(batch * heads * queries, 1)
    key_heads = k.elements // max(batch * keys * depth, 1)
    if not depth or not key_heads:
        raise UnknownCostError("its queries and its keys do not match")
    # The layout is followed by masks, scale, dropout, window, prefix and lengths.
    mode = None if backward else args.integers(_NPU_SPARSE_MODE)
    no_mask = not backward and bool(args.values) and args.optional(_NPU_MASK) is None
    causal = {2: UPPER_LEFT, 3: LOWER_RIGHT}.get(mode[0]) if mode else None
    sizes = Attention(
        batch=batch,
        heads=heads,
        key_heads=key_heads,
        queries=queries,
        keys=keys,
        depth=depth,
        value_depth=v.elements // max(batch * keys * key_heads, 1),
        dtype=q.dtype,
        causal=causal,
        causal_known=causal is not None or no_mask,
    )
    return sizes.cost(backward=backward)


# torch's own attention; its gradients start with dy.
_sdpa = partial(_attention, corner=UPPER_LEFT, heads_first=True)
_sdpa_backward = partial(_sdpa, q=1, backward=True)

_ATTENTION: dict[str, Formula] = {
    "scaled_dot_product_attention": _sdpa(causal=5, bias=3),
    "_scaled_dot_product_flash_attention": _sdpa(causal=4),
    "_scaled_dot_product_efficient_attention": _sdpa(causal=6, bias=3),
    "_scaled_dot_product_cudnn_attention": _sdpa(causal=6, bias=3),
    "_scaled_dot_product_flash_attention_for_cpu": _sdpa(causal=4, bias=5),
    "_scaled_dot_product_fused_attention_overrideable": _sdpa(causal=5, bias=3),
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward(causal=11),
    "_scaled_dot_product_efficient_attention_backward": _sdpa_backward(causal=11, bias=4),
    "_scaled_dot_product_cudnn_attention_backward": _sdpa_backward(causal=14, bias=8),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa_backward(causal=7, bias=8),
    "_flash_attention_forward": _attention(causal=8, lengths=3),
    "_flash_attention_backward": _attention(q=1, causal=11, lengths=6, backward=True),
    "_efficient_attention_forward": _attention(mask_kind=9, bias=3, lengths=4),
    "_efficient_attention_backward": _attention(
        q=1, mask_kind=14, bias=4, lengths=6, backward=True
    ),
    **dict.fromkeys(
        (
            "flash_attn::_flash_attn_forward",
            "FlashAttnFunc",
            "aiter::_flash_attn_forward",
            "aiter::mha_fwd",
            "aiter::fmha_v3_fwd",
        ),
        _attention(causal=5),
    ),
    "flash_attn::_flash_attn_backward": _attention(q=1, causal=11, backward=True),
    "flash_attn_3::fwd": _attention(causal=24, lengths=7),
    "aiter::wrapper_fmha_v3_fwd": _attention(q=1, causal=6),
    "aiter::_flash_attn_backward": _attention(q=1, causal=12, backward=True),
    "aiter::mha_bwd": _attention(q=1, causal=8, backward=True),
    "aiter::wrapper_fmha_v3_bwd": _attention(q=1, causal=9, backward=True),
    "npu::npu_fusion_attention": _npu_attention,
    "npu::npu_fusion_attention_grad": lambda args: _npu_attention(args, backward=True),
}


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
    """Return the formula of a convolution, by the positions of its arguments."""

    def cost(args: Arguments) -> Cost:
        x, w = args.tensor(0), args.tensor(1)
        window = w.shape[2:]
        is_transposed = transposed if isinstance(transposed, bool) else args.flag(transposed)
        added = args.text(padding).strip("'\"")
        extra: Shape | None = None
        if is_transposed:
            extra = () if output_padding is None else args.sizes(output_padding)
        y = costs.convolution_sizes(
            x.shape[len(x.shape) - len(window) :],
            window,
            args.sizes(stride),
            added if added in ("same", "valid") and not is_transposed else args.sizes(padding),
            args.sizes(dilation),
            extra,
        )
        number = args.integers(groups)
        return costs.convolution(
            x,
            w,
            y,
            bias=args.optional(bias),
            transposed=bool(is_transposed),
            groups=number[0] if number else 1,
        )

    return cost


def _conv_backward(args: Arguments) -> Cost:
    mask = args.flags(10)
    result = costs.convolution_backward(
        *(args.tensor(place) for place in range(3)),
        transposed=args.flag(7) is True,
        mask=mask or (True, True, False),
    )
    doubt = "the requested gradients were not recorded; those of input and weight are counted"
    return result if mask is not None else replace(result, doubt=doubt)


def _conv_input_gradient(args: Arguments) -> Cost:
    """Return the cost of the input gradient; old releases pass its sizes, dy and the weight."""
    dy, weight = args.tensor(1), args.tensor(2)
    flops = 2 * dy.elements * prod(weight.shape[1:])
    doubt = "the size of the result was not recorded; only the bytes that it reads are counted"
    return Cost("matrix", dy.dtype, flops, dy.bytes + weight.bytes, doubt=doubt)


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
    "convolution_backward_overrideable": _conv_backward,
    "cudnn_convolution_backward_input": _conv_input_gradient,
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
    (2, 7, None): "silu_backward hardswish_backward elu_backward binary_cross_entropy_with_logits",
    (2, 10, None): "gelu_backward",
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


_MEMORY: dict[str, Formula] = {
    "copy_": lambda args: costs.copy(args.tensor(1), args.tensor(0)),
    "_copy_from": lambda args: costs.copy(args.tensor(0), args.tensor(1)),
    **dict.fromkeys(
        "clone contiguous _to_copy roll flip tril triu".split(),
        lambda args: costs.copy(args.tensor(0)),
    ),
    **dict.fromkeys(
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ log_normal_".split(),
        of_tensors("copy", lambda x: (0, x.bytes), 0),
    ),
    **dict.fromkeys(("cat", "stack"), _list(costs.concatenation)),
}


def norm(kind: str, x: int, *params: int, backward: bool = False) -> Formula:
    """Return the formula of a normalization, by the positions of its arguments."""
    return lambda args: costs.normalization(
        kind, args.tensor(x), [*map(args.optional, params)], backward=backward
    )


def _batch_norm(args: Arguments) -> Cost:
    training = args.flag(5) is not False
    # Training writes the running mean and variance as well.
    params = (1, 2, 3, 4, 3, 4) if training else (1, 2, 3, 4)
    return norm("batch" if training else "batch eval", 0, *params)(args)


def _softmax(args: Arguments) -> Cost:
    """Return the cost of softmax, whose result may be wider than its input."""
    x = args.tensor(0)
    result = costs.normalization("softmax", x)
    more = x.elements * 2 if args.flag(2) else 0
    return replace(result, moved_bytes=result.moved_bytes + more)


_NORMALIZATIONS: dict[str, Formula] = {
    "native_layer_norm": norm("layer", 0, 2, 3),
    "native_layer_norm_backward": norm("layer", 1, 5, 6, backward=True),
    "native_group_norm": norm("group", 0, 1, 2),
    "native_group_norm_backward": norm("group", 1, 4, backward=True),
    "rms_norm": norm("rms", 0, 2),
    "_fused_rms_norm": norm("rms", 0, 2),
    "_fused_rms_norm_backward": norm("rms", 1, 4, backward=True),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), _batch_norm),
    "native_batch_norm_backward": norm("batch", 1, 2, backward=True),
    "cudnn_batch_norm_backward": norm("batch", 0, 2, backward=True),
    "miopen_batch_norm_backward": norm("batch", 0, 2, backward=True),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_safe_softmax": norm("softmax", 0),
    "_softmax_backward_data": norm("softmax", 0, backward=True),
    "_log_softmax_backward_data": norm("softmax", 0, backward=True),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        of_tensors(
            "vector",
            lambda scores, target: (
                target.elements,
                target.bytes + target.elements * item_size(scores.dtype),
            ),
            *(0, 1),
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
        groups, k, n = b.shape
        return costs.grouped_matmul([a.shape[0], *[0] * (groups - 1)], n, k, a.dtype, out=out)
    return costs.matmul(a, b, out=out)


_PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys("mm bmm mv dot vdot matmul".split(), product()),
    **dict.fromkeys(
        "addmm addmm_ _addmm_activation addmv addmv_ baddbmm baddbmm_".split(), product(1, 2, 0)
    ),
    "addbmm": lambda args: costs.batch_sum(args.tensor(1), args.tensor(2), args.optional(0)),
    **dict.fromkeys(("linear", "mkldnn_linear"), product(bias=2, is_linear=True)),
    "_scaled_mm": product(bias=4, out=lambda args: args.scalar_type(6) or "bf16"),
    "_grouped_mm": lambda args: _grouped_mm(args, 4),
    # fp8 factors have a bf16 result.
    "_scaled_grouped_mm": lambda args: _grouped_mm(args, 7, "bf16"),
    "_int_mm": product(out="int32"),
}


def _reduction(dims: int, *, out: str | None = None, results: int = 1) -> Formula:
    """Return the formula of a reduction over the dimensions in argument `dims`."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        if args.optional(1) is not None and dims == 1:
            return costs.elementwise(args.tensors(2))
        if len(args.given) <= dims + 1:
            return costs.reduction(x, 1, out=out)
        reduced = args.integers(dims)
        if reduced is None and not args.values:
            doubt = "the reduced dimensions were not recorded; only reading is counted"
            return replace(costs.reduction(x, 1, out=out), doubt=doubt)
        return costs.reduction(x, results * _remaining(x.shape, reduced or ()), out=out)

    return cost


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
    dy, x = args.tensor(0), args.tensor(1)
    more = dy.elements * 8 if len(args.given) > 3 else 0
    return Cost("vector", dy.dtype, dy.elements, dy.bytes + x.bytes + more)


_REDUCTIONS: dict[str, Formula] = {
    "batch_norm_stats": lambda args: costs.reduction(args.tensor(0), 2 * args.tensor(0).shape[1]),
    **dict.fromkeys(
        "sum nansum mean prod amax amin max min logsumexp var std".split(), _reduction(1)
    ),
    **dict.fromkeys(("any", "all"), _reduction(1, out="bool")),
    **dict.fromkeys(("argmax", "argmin"), _reduction(1, out="int64")),
    **dict.fromkeys(("var_mean", "std_mean"), _reduction(1, results=2)),
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
    size = prod(x.shape[place] for place in args.sizes(1))
    return costs.transforms(x, x, size, x.elements // max(size, 1), 5)


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
    size = prod(real.shape[place] for place in dims)
    return costs.transforms(spectrum, real, size, real.elements // max(size, 1), 2.5)


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
    **_ATTENTION,
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
        *(0, 2),
    ),
    **dict.fromkeys("scatter scatter_ scatter_add scatter_add_ index_add_".split(), _scatter),
}
