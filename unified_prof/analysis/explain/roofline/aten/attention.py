"""Fused attention of torch, of other packages and of torch_npu."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs.attention import (
    LOWER_RIGHT,
    UPPER_LEFT,
    Attention,
)
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError


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
