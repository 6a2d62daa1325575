"""What matrix products cost, by the shapes and types of their factors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from unified_prof.analysis.explain.roofline.costs.cost import Cost, bytes_of, real_parts, wider
from unified_prof.analysis.explain.roofline.tensors import Tensor, UntoldError, broadcast, item_size

# Matrix products


def matmul(a: Tensor, b: Tensor, *, bias: Tensor | None = None, out: str | None = None) -> Cost:
    """Return what `a @ b` costs: vectors, matrices, batches, broadcast as torch does.

    Args:
        a: left.
        b: right.
        bias: what is added to it.
        out: type of the result; as `a` unless said.
    """
    if not a.shape or not b.shape:
        raise UntoldError("a factor has no shape")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    m, k, n = left[-2], left[-1], right[-1]
    if right[-2] != k:
        raise UntoldError("the inner sizes of its factors differ")
    batch = prod(broadcast(left[:-2], right[:-2]))
    return _product(batch * m, n, k, (a, b), batch * m * n, bias, out)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: str | None = None
) -> Cost:
    """Return what `x @ weight.T + bias` costs; leading dimensions of `x` are rows."""
    if not x.shape or len(weight.shape) not in (1, 2):
        raise UntoldError("a factor has no shape")
    n = weight.shape[0] if len(weight.shape) == 2 else 1
    k, m = x.shape[-1], prod(x.shape[:-1])
    if weight.shape[-1] != k:
        raise UntoldError("the inner sizes of its factors differ")
    return _product(m, n, k, (x, weight), m * n, bias, out)


def batch_sum(a: Tensor, b: Tensor, bias: Tensor | None) -> Cost:
    """Return what `addbmm` costs: products of a batch, all added up."""
    batch, m, k = a.shape
    n = b.shape[-1]
    return _product(batch * m, n, k, (a, b), m * n, bias, None)


def grouped_matmul(
    rows: Sequence[int], n: int, k: int, dtype: str, *, out: str | None = None
) -> Cost:
    """Return what products of groups of rows with a matrix each cost (mixture of experts)."""
    size, m = item_size(dtype), sum(rows)
    moved = size * (m * k + len(rows) * k * n) + item_size(out or dtype) * m * n
    return Cost("matrix", dtype, 2 * m * n * k, moved)


def _product(
    rows: int,
    n: int,
    k: int,
    factors: tuple[Tensor, Tensor],
    result: int,
    bias: Tensor | None,
    out: str | None,
) -> Cost:
    dtype, times = real_parts(wider(factors[0].dtype, factors[1].dtype))
    moved = bytes_of(*factors, bias) + result * item_size(out or factors[0].dtype)
    beside = result * times if bias is not None else 0
    return Cost("matrix", dtype, 2 * rows * n * k * times, moved, beside)
