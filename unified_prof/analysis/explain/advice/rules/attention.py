"""Attention in pieces: scores written to memory between two matrix products."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case, Flags, Ints
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, percent
from unified_prof.analysis.finding import Finding

UNFUSED_ATTENTION = "unfused_attention"

PATTERN_SHARE = 0.05
"""Of the time: the patterns with their matrix products."""
NEAR = 5
"""So many kernels (scale, mask, cast, dropout) may stand between a product and the softmax."""

_PRODUCT = re.compile(r"bmm|matmul|batch_?mat|gemm|cijk_|nvjet", re.IGNORECASE)
_SOFTMAX = re.compile("softmax", re.IGNORECASE)
# A fused kernel of a loss has all that it does in its name, attention's online softmax too;
# torch's kernel for short rows says by its fifth argument that it is a logarithm's.
_OF_LOSS = re.compile(
    r"log_?softmax|nll_?loss|cross_?entropy|softmax_warp_\w+<[^<>]*,\s*\d+,\s*(?:true|\(bool\)1)",
    re.IGNORECASE,
)
_NO_WEIGHTS = re.compile(
    rf"{_OF_LOSS.pattern}|top_?k|sort|gating|routing|multinomial|arg_?max|categorical",
    re.IGNORECASE,
)
"""What is done with probabilities of classes, experts or words, and never with weights."""
_FUSED = re.compile(r"flash|fmha|efficient_attention|FlashAttention", re.IGNORECASE)


def unfused_attention(case: Case) -> Iterator[Finding]:
    """Product, softmax, product on one stream, and what stands between them."""
    kernels = np.flatnonzero(case.pieces.kind == KERNEL)
    kernels = kernels[np.argsort(case.pieces.stream[kernels], kind="stable")]
    stream = case.pieces.stream[kernels]

    def called(pattern: re.Pattern[str]) -> Flags:
        found: Flags = case.named(case.operator, pattern)[kernels]
        return found | case.named(case.kernel, pattern)[kernels]

    fused = called(_FUSED)
    no_weights = called(_NO_WEIGHTS)
    softmax = called(_SOFTMAX) & ~fused & ~no_weights
    product = called(_PRODUCT) & ~fused & ~softmax
    between = np.zeros(len(case.pieces), bool)
    whole = np.zeros(len(case.pieces), bool)
    patterns = 0
    for at in np.flatnonzero(softmax).tolist():
        before = _nearest(product, stream, at, range(at - 1, at - 1 - NEAR, -1))
        after = _nearest(product, stream, at, range(at + 1, at + 1 + NEAR))
        if before is None or after is None or no_weights[before + 1 : after].any():
            continue
        patterns += 1
        between[kernels[before + 1 : after]] = True
        whole[kernels[before : after + 1]] = True
    cost = case.gain(between) if patterns else 0
    share = case.share(case.within(case.pieces.start_ns[whole], case.pieces.end_ns[whole]).total_ns)
    if share < PATTERN_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        UNFUSED_ATTENTION,
        cost,
        f"attention runs in pieces {patterns:,} times ({percent(share)} of the time): scores are "
        "written and read again between its two products",
        advice="torch.nn.functional.scaled_dot_product_attention or flash attention "
        "(torch_npu.npu_fusion_attention), if nothing else needs the weights",
        sure="likely",
        figures={"patterns": patterns, "share": round(share, 4)},
        evidence=case.rows(np.flatnonzero(between)),
    )


def _nearest(product: Flags, stream: Ints, at: int, where: range) -> int | None:
    for place in where:
        if not 0 <= place < len(product) or stream[place] != stream[at]:
            return None
        if product[place]:
            return place
    return None
