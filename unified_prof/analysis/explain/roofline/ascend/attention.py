"""What fused attention of an Ascend costs: which dimension is which is not recorded."""

from __future__ import annotations

from collections.abc import Sequence

from unified_prof.analysis.explain.roofline.ascend.recorded import Laid, Operator
from unified_prof.analysis.explain.roofline.costs.attention import Attention
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import Shape, Tensor, UntoldError

# Attention


def attention(operator: Operator) -> Cost:
    """Return what fused attention costs."""
    return _attention_sizes(operator, operator.outputs).forward()


def attention_backward(operator: Operator) -> Cost:
    """Return what the gradients of fused attention cost."""
    return _attention_sizes(operator, operator.inputs[3:]).backward()


def _attention_sizes(operator: Operator, others: Sequence[Laid]) -> Attention:
    """Return the sizes of fused attention.

    Which dimension is which is not recorded. The maxima of its softmax are B, N, S and 8 times the
    same: they tell the heads from the sequence.
    """
    q, k, v = (operator.input(place).tensor for place in range(3))
    maxima = next(
        (
            one.tensor.shape
            for one in others
            if len(one.tensor.shape) == 4
            and one.tensor.shape[-1] == 8
            and one.tensor.dtype == "fp32"
        ),
        None,
    )
    if maxima is None:
        return _without_maxima(q, k, v)
    batch, heads, queries, _ = maxima
    depth, rest = divmod(q.elements, batch * heads * queries)
    if rest or not depth or not q.elements:
        raise UntoldError("its queries and its softmax do not go together")
    place = _sequence(q.shape, batch, queries, heads)
    keys = k.shape[place]
    key_heads, rest = divmod(k.elements, batch * keys * depth)
    if rest or not key_heads:
        raise UntoldError("its queries and its keys do not go together")
    return Attention(
        batch=batch,
        heads=heads,
        key_heads=key_heads,
        queries=queries,
        keys=keys,
        depth=depth,
        value_depth=v.elements // (batch * keys * key_heads),
        dtype=q.dtype,
        causal_known=False,
    )


def _sequence(shape: Shape, batch: int, queries: int, heads: int) -> int:
    """Return the dimension that is the sequence."""
    if len(shape) == 4:  # B, N, S, D or B, S, N, D
        if shape[2] == queries and shape[1] == heads:
            return 2
        if shape[1] == queries and shape[2] == heads:
            return 1
    if len(shape) == 3:  # B, S, H or S, B, H
        if shape[1] == queries and shape[0] == batch:
            return 1
        if shape[0] == queries and shape[1] == batch:
            return 0
    raise UntoldError("the order of its dimensions cannot be told")


def _without_maxima(q: Tensor, k: Tensor, v: Tensor) -> Attention:
    """Return the sizes of attention of inference, where they do not depend on the order."""
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise UntoldError("the order of its dimensions cannot be told")
    if q.shape[-1] != k.shape[-1]:
        raise UntoldError("its queries and its keys do not go together")
    if q.shape[2] == 1 and q.shape[1] != 1:
        heads_first = True
    elif q.shape[1] == 1 and q.shape[2] != 1:
        heads_first = False
    elif q.shape[1] == q.shape[2] and k.shape[1] == k.shape[2]:
        heads_first = True
    else:
        raise UntoldError("the order of its dimensions cannot be told")
    return Attention.of(
        q, k, v, heads_first=heads_first, causal_known=q.shape[1 + heads_first] == 1
    )
