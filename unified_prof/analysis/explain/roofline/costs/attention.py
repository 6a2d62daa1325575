"""What scaled dot-product attention costs, fused and causal or not."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import Tensor, UntoldError, item_size

UPPER_LEFT, LOWER_RIGHT = "upper left", "lower right"
"""Where the triangle of a causal mask is, if there are not as many keys as queries."""


# Attention


def seen_pairs(queries: int, keys: int, causal: str | None) -> int:
    """Return how many pairs of a query and a key a mask lets through.

    Args:
        queries: number of queries.
        keys: number of keys.
        causal: where the triangle of a causal mask is; None: there is no mask.
    """
    if causal is None:
        return queries * keys
    offset = keys - queries if causal == LOWER_RIGHT else 0
    # Query i sees the keys up to i + offset: 0 of them at first, then one more each, then all.
    first = max(0, -offset)
    whole = max(first, min(queries, keys - offset - 1))
    rising = whole - first
    ramp = rising * (first + 1 + offset + whole + offset) // 2
    return ramp + (queries - whole) * keys if whole < queries else ramp


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of scaled dot-product attention: heads are those of the queries."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    dtype: str
    causal: str | None = None
    causal_known: bool = True

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        heads_first: bool = True,
        causal: str | None = None,
        causal_known: bool = True,
    ) -> Attention:
        """Return the sizes of queries, keys and values of B, H, S, D or B, S, H, D each."""
        if any(len(one.shape) < 3 for one in (q, k, v)):
            raise UntoldError("its queries, keys and values have too few dimensions")
        heads, rows = (-3, -2) if heads_first else (-2, -3)
        if k.shape[rows] != v.shape[rows] or q.shape[-1] != k.shape[-1]:
            raise UntoldError("its queries, keys and values do not go together")
        return cls(
            batch=prod(q.shape[:-3]),
            heads=q.shape[heads],
            key_heads=k.shape[heads],
            queries=q.shape[rows],
            keys=k.shape[rows],
            depth=q.shape[-1],
            value_depth=v.shape[-1],
            dtype=q.dtype,
            causal=causal,
            causal_known=causal_known,
        )

    def forward(self) -> Cost:
        """Return what fused attention costs: its scores are never written."""
        return self._cost(self.depth + self.value_depth, 1)

    def backward(self) -> Cost:
        """Return what its gradients cost; fused kernels calculate the scores once more."""
        return self._cost(3 * self.depth + 2 * self.value_depth, 2)

    def _cost(self, depths: int, passes: int) -> Cost:
        planes, size = self.batch * self.heads, item_size(self.dtype)
        pairs = planes * seen_pairs(self.queries, self.keys, self.causal)
        own = planes * self.queries * (self.depth + self.value_depth)
        others = self.batch * self.key_heads * self.keys * (self.depth + self.value_depth)
        doubt = None
        if not self.causal_known:
            less = seen_pairs(self.queries, self.keys, UPPER_LEFT) / (self.queries * self.keys or 1)
            doubt = f"whether it is causal was not recorded; if so, FLOPs are {less:.2f} of these"
        return Cost(
            "matrix",
            self.dtype,
            2 * pairs * depths,
            # Backward reads queries, keys, values, result and its gradient, and writes three.
            size * (own + others) * passes,
            beside=5 * pairs,
            doubt=doubt,
        )
