"""Cost of fused attention and of operations of language-model servers, and `formula_of` for all.

Kernels of servers write into tensors that are passed in, so results are among the arguments.
Their attention reads an unknown part of a cache; vLLM and SGLang write the lengths of a batch's
sequences into the name of a range around it, as sums over the sequences of queries, keys, queries
squared and queries times keys:
`execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)`.

Only operations whose kernels do what the name says have a formula; an operation that calls others
counts where it launches kernels itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from math import prod

from msgspec import Struct

from unified_prof.explain.roofline import aten_formulas, costs
from unified_prof.explain.roofline.arguments import Arguments, Tensor, UnknownCostError, item_size
from unified_prof.explain.roofline.aten_formulas import Formula, norm, of_tensors, product
from unified_prof.explain.roofline.costs import LOWER_RIGHT, UPPER_LEFT, Attention, Cost

# SGLang's recorder appends the line of a function to its name.
_NUMBERED = re.compile(r"^(sglang_profiler::.*?)_\d+$")
_BATCH = re.compile(
    r"(?:context|generation)_\d+[_(]sq(?P<sq>\d+)sk(?P<sk>\d+)sqsq(?P<sqsq>\d+)sqsk(?P<sqsk>\d+)"
)
# Older form: tokens of new prompts and their squares.
_NEW_PROMPTS = re.compile(r"context_\d+\((?P<sq>\d+)_(?P<sqsq>\d+)\)_generation_0\(0\)")


def plain_name(name: str) -> str:
    """Return the name of an operation without what recorders append."""
    numbered = _NUMBERED.match(name)
    return name if numbered is None else numbered[1]


class Batch(Struct, frozen=True):
    """Lengths of the sequences of a batch, summed up."""

    keys: int
    pairs: int  # Pairs of a query and a key that it sees: the keys before it and its own.

    @classmethod
    def parse(cls, range_name: str) -> Batch | None:
        """Return the lengths in the name of a range, or None."""
        if (new := _NEW_PROMPTS.search(range_name)) is not None:
            tokens = int(new["sq"])
            return cls(tokens, (int(new["sqsq"]) + tokens) // 2)
        parts = [
            {name: int(value) for name, value in part.groupdict().items()}
            for part in _BATCH.finditer(range_name)
        ]
        if not parts:
            return None
        pairs = sum(part["sqsk"] - (part["sqsq"] - part["sq"]) // 2 for part in parts)
        return cls(sum(part["sk"] for part in parts), pairs)


def needs_lengths(name: str) -> bool:
    """Return True if the cost of an operation depends on the lengths of sequences alone."""
    return plain_name(name) in _CACHED_ATTENTION


_NO_LENGTHS = "the lengths of its sequences are not recorded"


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

_FUSED_ATTENTION: dict[str, Formula] = {
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


def _cached_attention(q: int, k: int, result: int) -> Formula:
    """Return the formula of attention over a cache, by the positions of its arguments.

    New keys have the dtype of the calculation: an 8-bit cache has 8-bit queries.
    """

    def cost(args: Arguments) -> Cost:
        queries, keys = args.tensor(q), args.tensor(k)
        batch = Batch.parse(args.around)
        if batch is None:
            raise UnknownCostError(_NO_LENGTHS)
        if len(queries.shape) < 3 or len(keys.shape) < 3 or queries.shape[-1] != keys.shape[-1]:
            raise UnknownCostError("its queries and its keys do not match")
        heads, key_heads, depth = queries.shape[-2], keys.shape[-2], queries.shape[-1]
        size = min(item_size(queries.dtype), item_size(keys.dtype))
        read = 2 * batch.keys * key_heads * depth * size
        written = args.optional(result) or queries
        return Cost(
            "matrix",
            queries.dtype,
            4 * heads * depth * batch.pairs,
            queries.bytes + written.elements * item_size(written.dtype) + read,
            vector_flops=5 * heads * batch.pairs,
            doubt="every key of the sequences is counted; with a sliding window, fewer are read",
        )

    return cost


_CACHED_ATTENTION = {
    "vllm::unified_attention_with_output": _cached_attention(0, 1, 3),
    "sglang_profiler::attention_paged_attention_ragged": _cached_attention(2, 3, 0),
}


def _result_dtype(args: Arguments) -> str:
    """Return the dtype of the result of an 8-bit product, which may be passed in."""
    result = args.optional(4)
    return result.dtype if result is not None and len(result.shape) == 2 else "bf16"


def _int4_mm(x: Tensor, packed: Tensor, scales: Tensor) -> tuple[int, int]:
    """Return the work of a product with packed 4-bit weights."""
    rows, k, n = prod(x.shape[:-1]), x.shape[-1], scales.shape[1]
    return 2 * rows * k * n, costs.bytes_of(x, packed, scales) + rows * n * item_size(x.dtype)


def _topk(args: Arguments) -> Cost:
    """Return the cost of top-k along the last dimension: values and int64 indices are written."""
    x, (k, *_) = args.tensor(0), args.sizes(1)
    results = prod(x.shape[:-1]) * k
    return Cost("vector", x.dtype, x.elements, x.bytes + results * (item_size(x.dtype) + 8))


def _written_first(operations: int) -> Formula:
    """Return the formula of writing the first argument with some operations per element."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(1)
        moved = sum(tensor.bytes for tensor in args.tensors())
        return Cost("vector", x.dtype, operations * args.tensor(0).elements, moved)

    return cost


def _rotary(args: Arguments) -> Cost:
    """Return the cost of rotating queries and keys in place; only rows of the table are read."""
    positions, table = args.tensor(0), args.tensor(4)
    rotated = [one for one in (args.tensor(1), args.optional(2)) if one is not None]
    size = args.integers(3)
    # A row of the table has sines and cosines for half of the rotated elements of a head.
    share = min(1.0, table.shape[-1] / size[0]) if size and size[0] else 1.0
    elements = round(sum(one.elements for one in rotated) * share)
    moved = round(2 * sum(one.bytes for one in rotated) * share)
    rows = positions.elements * table.shape[-1] * item_size(table.dtype)
    return Cost("vector", rotated[0].dtype, 3 * elements, moved + rows + positions.bytes)


# Minimum mean number of tokens of an expert from which each one is assumed to have some.
EVERY_EXPERT = 16


def _experts(args: Arguments) -> Cost:
    """Return the cost of fused experts: two products for each token and each of its experts.

    The weights of the first product may include those of a gate. Routing decides which weights are
    read; with few tokens, these are assumed to be those of equally popular experts.
    """
    x, first, second, chosen = (args.tensor(place) for place in range(4))
    if len(first.shape) != 3 or len(second.shape) != 3 or len(chosen.shape) != 2:
        raise UnknownCostError("its arguments are not those of fused experts")
    (tokens, per_token), (experts, columns, hidden) = chosen.shape, first.shape
    inner = second.shape[2]
    packed = hidden != x.shape[-1] or second.shape[:2] != (experts, hidden)
    if packed or columns not in (inner, 2 * inner) or not experts:
        raise UnknownCostError("the weights of its experts are packed in another layout")
    used = 1.0 - (1.0 - min(1.0, per_token / experts)) ** tokens
    weights = first.bytes + second.bytes
    doubt = None
    if tokens * per_token < EVERY_EXPERT * experts:
        doubt = f"{used:.0%} of the experts are assumed to be used; the routing is not recorded"
    flops = 2 * tokens * per_token * hidden * (columns + inner)
    moved = 2 * x.bytes + chosen.bytes + round(used * weights)
    return Cost("matrix", first.dtype, flops, moved, doubt=doubt)


def _into_cache(sources: int) -> Formula:
    """Return the formula of writing rows of some sources into caches, at given positions."""

    def cost(args: Arguments) -> Cost:
        rows = [args.tensor(place) for place in range(sources)]
        cache = args.tensor(sources)
        places = next((one for one in args.tensors() if one.dtype in ("int64", "int32")), None)
        written = sum(row.elements for row in rows) * item_size(cache.dtype)
        moved = sum(row.bytes for row in rows) + written
        return Cost("copy", cache.dtype, 0, moved + (places.bytes if places is not None else 0))

    return cost


_PLACES = ("inplace", "outplace")

_FORMULAS: dict[str, Formula] = {
    **aten_formulas.FORMULAS,
    **_FUSED_ATTENTION,
    **_CACHED_ATTENTION,
    **dict.fromkeys(
        ("vllm::rocm_unquantized_gemm", "aiter::gemm_a16w16"), product(bias=2, is_linear=True)
    ),
    # x, weight, both scales, and perhaps the result.
    **{
        f"aiter::gemm_a8w8{variant}": product(is_linear=True, out=_result_dtype, scales=(2, 3))
        for variant in (
            *("", "_ck", "_bpreshuffle", "_bpreshuffle_ck"),
            *("_blockscale", "_blockscale_ck"),
        )
    },
    # Result, both factors, their scales, bias.
    "_C::cutlass_scaled_mm": product(1, 2, 5, out=lambda args: args.tensor(0).dtype, scales=(3, 4)),
    "_weight_int4pack_mm": of_tensors("matrix", _int4_mm, 0, 1, 3),  # The group size is third.
    # Activations, weights of both products, weights and numbers of the chosen experts.
    **dict.fromkeys(
        (
            "vllm::rocm_aiter_fused_moe",
            *(f"{space}::{kind}_fused_experts" for space in ("vllm", "sglang") for kind in _PLACES),
        ),
        _experts,
    ),
    "topk": _topk,
    "_C::rms_norm": _written_first(5),
    "aiter::rmsnorm": _written_first(5),
    # Input and residual, both in place, and weight.
    "_C::fused_add_rms_norm": of_tensors(
        "vector",
        lambda x, other, w: (6 * x.elements, 2 * (x.bytes + other.bytes) + w.bytes),
        0,
        1,
        2,
    ),
    **{
        f"aiter::{name}": norm("rms", 0, 1)
        for name in ("rms_norm", "rmsnorm2d_fwd", "rmsnorm2d_fwd_ck")
    },
    # Result, input, residual, the sum of both, weight.
    **{
        f"aiter::{name}": _written_first(6)
        for name in ("add_rmsnorm", "rmsnorm2d_fwd_with_add", "rmsnorm2d_fwd_with_add_ck")
    },
    **{
        f"{space}::{name}": _written_first(6)
        for space in ("_C", "sgl_kernel", "aiter")
        for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
    },
    "_C::static_scaled_fp8_quant": _written_first(1),
    **dict.fromkeys(("_C::rotary_embedding", "sgl_kernel::rotary_embedding"), _rotary),
    **dict.fromkeys(
        (
            "sglang::store_cache",
            "_C_cache_ops::reshape_and_cache",
            "_C_cache_ops::reshape_and_cache_flash",
            "_C_cache_ops::concat_and_cache_mla",
        ),
        _into_cache(2),
    ),
}

# Prefixes of kernels that torch.compile generates.
_TRITON = ("triton_poi_", "triton_red_", "triton_per_")


def formula_of(name: str) -> Formula | None:
    """Return the formula for the cost of an operation, or None if there is none."""
    plain = plain_name(name).removeprefix("aten::")
    if (formula := _FORMULAS.get(plain)) is not None:
        return formula
    if plain.startswith("_foreach_"):
        return aten_formulas.foreach
    if plain.endswith("_") and not plain.endswith("__"):
        # The in-place variant does the same work.
        return aten_formulas.ELEMENTWISE.get(plain[:-1])
    return _generated if plain.startswith(_TRITON) else None


def _generated(args: Arguments) -> Cost:
    """Return the bytes that a generated kernel moves; its FLOPs are unknown."""
    tensors = args.tensors()
    if not tensors:
        raise UnknownCostError("the shapes of its arguments were not recorded")
    moved = sum(tensor.bytes for tensor in tensors)
    doubt = "each argument is counted once; operations of compiled kernels are not recorded"
    return Cost("copy", costs.result_type(tensors), 0, moved, doubt=doubt)
