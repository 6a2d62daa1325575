"""How the cost of an operation is told: by the arguments that were recorded of it.

Fused attention of torch, of other packages and of torch_npu.

Convolutions of torch and their gradients.

Operations that do the same to every element.

Operations over lists of tensors: the optimizers, and torch's `_foreach_` family.

Operations that move memory and calculate nothing.

Normalisations, softmax, the losses that follow it, dropout.

Matrix products of torch.

Reductions and pooling.

Operations that look rows up in tables, or add to them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from unified_prof.explain.roofline import costs
from unified_prof.explain.roofline.arguments import Arguments, Shape, Tensor, UntoldError, item_size
from unified_prof.explain.roofline.costs import LOWER_RIGHT, UPPER_LEFT, Attention, Cost

Formula = Callable[[Arguments], Cost]


def _attention(
    causal: int, *, q: int = 0, heads_first: bool = True, backward: bool = False
) -> Formula:
    """Return the formula of fused attention; `causal` is the place of its flag."""

    def cost(args: Arguments) -> Cost:
        known = args.flag(causal)
        sizes = Attention.of(
            args.tensor(q),
            args.tensor(q + 1),
            args.tensor(q + 2),
            heads_first=heads_first,
            causal=UPPER_LEFT if known else None,
            causal_known=known is not None,
        )
        return sizes.backward() if backward else sizes.forward()

    return cost


def _flash(causal: int, lengths: int | None, *, q: int = 0, backward: bool = False) -> Formula:
    """Return the formula of flash attention's own functions: B, S, H, D."""

    def cost(args: Arguments) -> Cost:
        if lengths is not None and args.optional(lengths) is not None:
            raise UntoldError("the lengths of its sequences are not recorded")
        known = args.flag(causal)
        sizes = Attention.of(
            args.tensor(q),
            args.tensor(q + 1),
            args.tensor(q + 2),
            heads_first=False,
            causal=LOWER_RIGHT if known else None,
            causal_known=known is not None,
        )
        return sizes.backward() if backward else sizes.forward()

    return cost


def _efficient(kind: int, lengths: int, *, q: int = 0, backward: bool = False) -> Formula:
    """Return the formula of memory-efficient attention: B, S, H, D and a kind of mask."""

    def cost(args: Arguments) -> Cost:
        if args.optional(lengths) is not None:
            raise UntoldError("the lengths of its sequences are not recorded")
        number = args.integers(kind)
        masks = {0: None, 1: UPPER_LEFT, 2: LOWER_RIGHT}
        sizes = Attention.of(
            args.tensor(q),
            args.tensor(q + 1),
            args.tensor(q + 2),
            heads_first=False,
            causal=masks.get(number[0]) if number else None,
            causal_known=number is not None,
        )
        return sizes.backward() if backward else sizes.forward()

    return cost


_SEQUENCE = {"BNSD": 2, "BSND": 1, "BSH": 1, "SBH": 0}
"""The dimension that is the sequence, in the layouts of Ascend's attention."""


def _npu_attention(*, backward: bool = False) -> Formula:
    """Return the formula of `npu_fusion_attention`, which names its heads and its layout."""

    def cost(args: Arguments) -> Cost:
        first = 1 if backward else 0  # the gradient stands between value and heads
        q, k, v = (args.tensor(place) for place in range(3))
        heads, layout = args.sizes(3 + first)[0], args.text(4 + first).strip("'\"")
        if layout not in _SEQUENCE or len(q.shape) != len(layout):
            raise UntoldError("the lengths of its sequences are not recorded")
        row = _SEQUENCE[layout]
        batch, queries, keys = q.shape[layout.index("B")], q.shape[row], k.shape[row]
        depth = q.elements // max(batch * heads * queries, 1)
        key_heads = k.elements // max(batch * keys * depth, 1)
        if not depth or not key_heads:
            raise UntoldError("its queries and its keys do not go together")
        # Behind the layout the masks, then scale, dropout, window, prefix and lengths.
        mode = args.integers(_SPARSE_MODE) if not backward else None
        no_mask = not backward and bool(args.values) and args.optional(_ATTENTION_MASK) is None
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
        return sizes.backward() if backward else sizes.forward()

    return cost


_ATTENTION_MASK, _SPARSE_MODE = 7, 16


FORMULAS: dict[str, Formula] = {
    "scaled_dot_product_attention": _attention(5),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_fused_attention_overrideable": _attention(5),
    "_scaled_dot_product_flash_attention_backward": _attention(11, q=1, backward=True),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, q=1, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(14, q=1, backward=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(7, q=1, backward=True),
    "_flash_attention_forward": _flash(8, 3),
    "_flash_attention_backward": _flash(11, 6, q=1, backward=True),
    "_efficient_attention_forward": _efficient(9, 4),
    "_efficient_attention_backward": _efficient(14, 6, q=1, backward=True),
    "flash_attn::_flash_attn_forward": _flash(5, None),
    "flash_attn::_flash_attn_backward": _flash(11, None, q=1, backward=True),
    "FlashAttnFunc": _flash(5, None),
    "flash_attn_3::fwd": _flash(24, 7),
    **{
        f"aiter::{name}": _flash(5, None)
        for name in ("_flash_attn_forward", "mha_fwd", "fmha_v3_fwd")
    },
    "aiter::wrapper_fmha_v3_fwd": _flash(6, None, q=1),
    "aiter::_flash_attn_backward": _flash(12, None, q=1, backward=True),
    "aiter::mha_bwd": _flash(8, None, q=1, backward=True),
    "aiter::wrapper_fmha_v3_bwd": _flash(9, None, q=1, backward=True),
    "npu::npu_fusion_attention": _npu_attention(),
    "npu::npu_fusion_attention_grad": _npu_attention(backward=True),
}


def _conv(
    stride: int,
    padding: int,
    dilation: int,
    *,
    weight: int = 1,
    bias: int | None = 2,
    transposed: int | bool = False,
    output_padding: int | None = None,
    groups: int | None = None,
) -> Formula:
    """Return the formula of a convolution whose arguments have these places."""

    def cost(args: Arguments) -> Cost:
        x, w = args.tensor(0), args.tensor(weight)
        window = w.shape[2:]
        turned = transposed if isinstance(transposed, bool) else args.flag(transposed) is True
        sizes = x.shape[len(x.shape) - len(window) :]
        step, spread = args.sizes(stride), args.sizes(dilation)
        text = args.text(padding).strip("'\"")
        if turned:
            extra = () if output_padding is None else args.sizes(output_padding)
            y = costs.transposed_sizes(sizes, window, step, args.sizes(padding), spread, extra)
        else:
            around = text if text in ("same", "valid") else args.sizes(padding)
            y = costs.convolved(sizes, window, step, around, spread)
        number = None if groups is None else args.integers(groups)
        return costs.convolution(
            x,
            w,
            y,
            bias=None if bias is None else args.optional(bias),
            transposed=turned,
            groups=number[0] if number else 1,
        )

    return cost


def _conv_backward(args: Arguments) -> Cost:
    mask = args.flags(10)
    found = costs.convolution_backward(
        args.tensor(0),
        args.tensor(1),
        args.tensor(2),
        transposed=args.flag(7) is True,
        mask=mask or (True, True, False),
    )
    if mask is not None:
        return found
    doubt = "which gradients were asked for was not recorded; both are counted"
    return Cost(found.unit, found.dtype, found.flops, found.moved_bytes, found.beside, doubt)


def _conv_of_gradient(args: Arguments) -> Cost:
    """Return what old releases' gradient of the input costs: its sizes, dy, the weight."""
    dy, weight = args.tensor(1), args.tensor(2)
    flop = 2 * dy.elements * prod(weight.shape[1:])
    doubt = "the size of its result was not recorded; only what it reads is counted"
    return Cost("matrix", dy.dtype, flop, dy.bytes + weight.bytes, doubt=doubt)


FORMULAS_CONVOLUTIONS: dict[str, Formula] = {
    **{name: _conv(3, 4, 5, groups=6) for name in ("conv1d", "conv2d", "conv3d")},
    **{
        name: _conv(3, 4, 5, transposed=6, output_padding=7, groups=8)
        for name in ("convolution", "_convolution", "convolution_overrideable")
    },
    **{
        name: _conv(3, 4, 7, transposed=True, output_padding=5, groups=6)
        for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    },
    "cudnn_convolution": _conv(3, 2, 4, bias=None, groups=5),
    "cudnn_convolution_relu": _conv(3, 4, 5, groups=6),
    "cudnn_convolution_add_relu": _conv(5, 6, 7, bias=4, groups=8),
    "cudnn_convolution_transpose": _conv(
        4, 2, 5, bias=None, transposed=True, output_padding=3, groups=6
    ),
    # Their bias is added by an `add_` of its own within them.
    "miopen_convolution": _conv(4, 3, 5, bias=None, groups=6),
    "miopen_depthwise_convolution": _conv(4, 3, 5, bias=None, groups=6),
    "miopen_convolution_relu": _conv(3, 4, 5, groups=6),
    "miopen_convolution_transpose": _conv(5, 3, 6, transposed=True, output_padding=4, groups=7),
    "mkldnn_convolution": _conv(4, 3, 5, groups=6),
    "_conv_depthwise2d": _conv(4, 5, 6, bias=3),
    "conv_depthwise3d": _conv(4, 5, 6, bias=3),
    "slow_conv_dilated2d": _conv(4, 5, 6, bias=3),
    "slow_conv_dilated3d": _conv(4, 5, 6, bias=3),
    "convolution_backward": _conv_backward,
    "convolution_backward_overrideable": _conv_backward,
    "cudnn_convolution_backward_input": _conv_of_gradient,
}


def _elementwise(inputs: int, operations: int, out: str | None = None) -> Formula:
    def cost(args: Arguments) -> Cost:
        return costs.elementwise(args.tensors(inputs), operations=operations, out=out)

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

FORMULAS_ELEMENTWISE: dict[str, Formula] = {
    name: _elementwise(inputs, operations)
    for (inputs, operations), names in _ELEMENTWISE.items()
    for name in names.split()
} | {
    name: _elementwise(inputs, operations, "bool")
    for inputs, operations, names in _COMPARISONS
    for name in names.split()
}


def _fused(kind: str) -> Formula:
    def cost(args: Arguments) -> Cost:
        params = args.list(0)
        if not params[0].dtype:
            raise UntoldError("the type of its parameters is not recorded")
        return costs.optimizer(kind, params)

    return cost


def _fused_sgd(args: Arguments) -> Cost:
    with_momentum = len(args.given) > 2 and bool(args.given[2])
    return _fused("momentum" if with_momentum else "sgd")(args)


def foreach(args: Arguments) -> Cost:
    """Return what an operation over lists costs: one operation an element."""
    lists = [one for one in args.given if isinstance(one, tuple)]
    if not lists or not all(lists) or any(not one.dtype for part in lists for one in part):
        raise UntoldError("its lists of tensors were not recorded (torch leaves out more than 30)")
    elements = sum(one.elements for one in lists[0])
    moved = sum(one.bytes for part in lists for one in part) + sum(one.bytes for one in lists[0])
    return Cost("vector", lists[0][0].dtype, elements, moved)


FORMULAS_LISTS: dict[str, Formula] = {
    "_fused_adam_": _fused("adam"),
    "_fused_adamw_": _fused("adam"),
    "_fused_adagrad_": _fused("adagrad"),
    "_fused_sgd_": _fused_sgd,
}


def _copy(args: Arguments) -> Cost:
    return costs.copied(args.tensor(1), args.tensor(0))


def _duplicate(args: Arguments) -> Cost:
    return costs.copied(args.tensor(0))


def _fill(args: Arguments) -> Cost:
    return costs.written(args.tensor(0))


def _cat(args: Arguments) -> Cost:
    parts = args.list(0)
    if not parts[0].dtype:
        raise UntoldError("the type of its list of tensors is not recorded")
    return costs.joined(parts)


FORMULAS_MEMORY: dict[str, Formula] = {
    "copy_": _copy,
    "_copy_from": lambda args: costs.copied(args.tensor(0), args.tensor(1)),
    **dict.fromkeys(
        ("clone", "contiguous", "_to_copy", "roll", "flip", "tril", "triu"), _duplicate
    ),
    **dict.fromkeys(
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ log_normal_".split(), _fill
    ),
    "cat": _cat,
    "stack": _cat,
}


def _norm(kind: str, x: int, *params: int) -> Formula:
    def cost(args: Arguments) -> Cost:
        return costs.normalisation(kind, args.tensor(x), [args.optional(one) for one in params])

    return cost


def _norm_backward(kind: str, x: int, *params: int) -> Formula:
    def cost(args: Arguments) -> Cost:
        given = [args.optional(one) for one in params]
        return costs.normalisation_backward(kind, args.tensor(x), given)

    return cost


def _batch_norm(args: Arguments) -> Cost:
    training = args.flag(5) is not False
    given = [args.optional(one) for one in range(1, 5)]
    # Training writes the running mean and variance as well.
    running = [args.optional(one) for one in (3, 4)] if training else []
    kind = "batch" if training else "batch eval"
    return costs.normalisation(kind, args.tensor(0), [*given, *running])


def _half_to_float(kind: str) -> Formula:
    """Return the formula of softmax, whose result may be wider than its input."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        found = costs.normalisation(kind, x)
        more = x.elements * 2 if args.flag(2) else 0
        return Cost(found.unit, found.dtype, found.flops, found.moved_bytes + more)

    return cost


def _nll(args: Arguments) -> Cost:
    scores, target = args.tensor(0), args.tensor(1)
    size = scores.bytes // max(scores.distinct, 1)
    return Cost("vector", scores.dtype, target.elements, target.bytes + target.elements * size)


def _nll_backward(args: Arguments) -> Cost:
    return Cost("copy", args.tensor(1).dtype, 0, args.tensor(1).bytes + args.tensor(2).bytes)


def _dropout(args: Arguments) -> Cost:
    x = args.tensor(0)
    return Cost("vector", x.dtype, 2 * x.elements, 2 * x.bytes + x.elements)


FORMULAS_NORMALISATION: dict[str, Formula] = {
    "native_layer_norm": _norm("layer", 0, 2, 3),
    "native_layer_norm_backward": _norm_backward("layer", 1, 5, 6),
    "native_group_norm": _norm("group", 0, 1, 2),
    "native_group_norm_backward": _norm_backward("group", 1, 4),
    "rms_norm": _norm("rms", 0, 2),
    "_fused_rms_norm": _norm("rms", 0, 2),
    "_fused_rms_norm_backward": _norm_backward("rms", 1, 4),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), _batch_norm),
    "native_batch_norm_backward": _norm_backward("batch", 1, 2),
    "cudnn_batch_norm_backward": _norm_backward("batch", 0, 2),
    "miopen_batch_norm_backward": _norm_backward("batch", 0, 2),
    "_softmax": _half_to_float("softmax"),
    "_log_softmax": _half_to_float("softmax"),
    "_safe_softmax": _norm("softmax", 0),
    "_softmax_backward_data": _norm_backward("softmax", 0),
    "_log_softmax_backward_data": _norm_backward("softmax", 0),
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_backward": _nll_backward,
    "native_dropout": _dropout,
}


def _mm(a: int, b: int, bias: int | None = None) -> Formula:
    def cost(args: Arguments) -> Cost:
        added = None if bias is None else args.optional(bias)
        return costs.matmul(args.tensor(a), args.tensor(b), bias=added)

    return cost


def _linear(args: Arguments) -> Cost:
    return costs.linear(args.tensor(0), args.tensor(1), args.optional(2))


def _scaled_mm(args: Arguments) -> Cost:
    out = args.scalar_type(6) or "bf16"
    return costs.matmul(args.tensor(0), args.tensor(1), bias=args.optional(4), out=out)


def _grouped_mm(args: Arguments) -> Cost:
    a, b = args.tensor(0), args.tensor(1)
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        return costs.grouped_matmul([a.shape[0], *[0] * (groups - 1)], n, k, a.dtype)
    return costs.matmul(a, b)


def _int_mm(args: Arguments) -> Cost:
    return costs.matmul(args.tensor(0), args.tensor(1), out="int32")


FORMULAS_PRODUCTS: dict[str, Formula] = {
    "mm": _mm(0, 1),
    "bmm": _mm(0, 1),
    "mv": _mm(0, 1),
    "dot": _mm(0, 1),
    "vdot": _mm(0, 1),
    "matmul": _mm(0, 1),
    "addmm": _mm(1, 2, 0),
    "addmm_": _mm(1, 2, 0),
    "_addmm_activation": _mm(1, 2, 0),
    "addmv": _mm(1, 2, 0),
    "baddbmm": _mm(1, 2, 0),
    "baddbmm_": _mm(1, 2, 0),
    "addbmm": lambda args: costs.batch_sum(args.tensor(1), args.tensor(2), args.optional(0)),
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_scaled_mm": _scaled_mm,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "_int_mm": _int_mm,
}


def _reduction(dims: int, *, out: str | None = None, results: int = 1) -> Formula:
    """Return the formula of a reduction over the dimensions in argument `dims`."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        if args.optional(1) is not None and dims == 1 and len(args.given) > 1:
            return costs.elementwise(args.tensors(2))
        whole = len(args.given) <= dims + 1
        chosen = args.integers(dims)
        if whole:
            return costs.reduction(x, 1, out=out)
        if chosen is None and not args.values:
            found = costs.reduction(x, 1, out=out)
            doubt = "what it reduces to was not recorded; only reading is counted"
            return Cost("vector", found.dtype, found.flops, found.moved_bytes, doubt=doubt)
        return costs.reduction(x, results * _left(x.shape, chosen or ()), out=out)

    return cost


def _left(shape: Shape, dims: Shape) -> int:
    """Return how many elements are left of a shape without some dimensions, none: without all."""
    if not dims or not shape:
        return 1
    gone = {one % len(shape) for one in dims}
    return prod(size for place, size in enumerate(shape) if place not in gone)


def _pool(indices: bool) -> Formula:
    def cost(args: Arguments) -> Cost:
        x, window = args.tensor(0), args.sizes(1)
        planes = len(x.shape) - (2 if len(window) == 1 else len(window))
        window = window * (len(x.shape) - planes) if len(window) == 1 else window
        step = args.integers(2) or window
        spread = (args.integers(4) or (1,)) if indices else (1,)
        y = costs.convolved(x.shape[planes:], window, step, args.integers(3) or (0,), spread)
        results = prod(x.shape[:planes]) * prod(y)
        moved = x.bytes + results * (x.bytes // max(x.distinct, 1) + 8 * indices)
        return Cost("vector", x.dtype, results * prod(window), moved)

    return cost


def _pool_backward(args: Arguments) -> Cost:
    dy, x = args.tensor(0), args.tensor(1)
    more = dy.elements * 8 if len(args.given) > 3 else 0
    return Cost("vector", dy.dtype, dy.elements, dy.bytes + x.bytes + more)


FORMULAS_REDUCTIONS: dict[str, Formula] = {
    "batch_norm_stats": lambda args: costs.reduction(args.tensor(0), 2 * args.tensor(0).shape[1]),
    **{name: _reduction(1) for name in ("sum", "nansum", "mean", "prod", "amax", "amin")},
    **{name: _reduction(1, out="bool") for name in ("any", "all")},
    **{name: _reduction(1, out="int64") for name in ("argmax", "argmin")},
    **{name: _reduction(1) for name in ("max", "min", "logsumexp", "var", "std")},
    **{name: _reduction(1, results=2) for name in ("var_mean", "std_mean")},
    **{name: _reduction(2) for name in ("norm", "linalg_vector_norm")},
    "max_pool2d_with_indices": _pool(True),
    "max_pool3d_with_indices": _pool(True),
    "avg_pool2d": _pool(False),
    "avg_pool3d": _pool(False),
    "max_pool2d_with_indices_backward": _pool_backward,
    "avg_pool2d_backward": _pool_backward,
    "_adaptive_avg_pool2d_backward": _pool_backward,
}


def _embedding(args: Arguments) -> Cost:
    table, index = args.tensor(0), args.tensor(1)
    return costs.looked_up(index.elements, prod(table.shape[1:]), table.dtype, index.dtype)


def _index_select(args: Arguments) -> Cost:
    table, index, at = args.tensor(0), args.tensor(2), args.integers(1)
    place = at[0] if at else 0
    width = table.elements // (table.shape[place] or 1) if table.shape else 1
    return costs.looked_up(index.elements, width, table.dtype, index.dtype)


def _embedding_backward(args: Arguments) -> Cost:
    dy, index = args.tensor(0), args.tensor(1)
    (rows, *_) = args.sizes(2)
    return costs.looked_up_backward(dy, index, Tensor((rows, dy.shape[-1]), dy.dtype))


def _gather(args: Arguments) -> Cost:
    table, index = args.tensor(0), args.tensor(2)
    moved = index.bytes + 2 * index.elements * item_size(table.dtype)
    return Cost("copy", table.dtype, 0, moved)


def _scatter(args: Arguments) -> Cost:
    """Return what adding or putting values at indices costs: places are read and written."""
    target, index, source = args.tensor(0), args.tensor(2), args.optional(3)
    values = source.elements if source is not None else index.elements
    rows = costs.looked_up(values, 1, target.dtype, index.dtype)
    more = values * target.bytes // max(target.distinct, 1) if source is not None else 0
    return Cost("vector", target.dtype, values, rows.moved_bytes + more)


FORMULAS_TABLES: dict[str, Formula] = {
    "embedding": _embedding,
    "index_select": _index_select,
    "embedding_dense_backward": _embedding_backward,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_": _scatter,
    "scatter_add": _scatter,
    "scatter_add_": _scatter,
    "index_add_": _scatter,
}
