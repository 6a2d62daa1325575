"""Reductions and pooling."""

from __future__ import annotations

from math import prod

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import convolutions, vector
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import Shape


def _reduction(dims: int, *, out: str | None = None, results: int = 1) -> Formula:
    """Return the formula of a reduction over the dimensions in argument `dims`."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        if args.optional(1) is not None and dims == 1 and len(args.given) > 1:
            return vector.elementwise(args.tensors(2))
        whole = len(args.given) <= dims + 1
        chosen = args.integers(dims)
        if whole:
            return vector.reduction(x, 1, out=out)
        if chosen is None and not args.values:
            found = vector.reduction(x, 1, out=out)
            doubt = "what it reduces to was not recorded; only reading is counted"
            return Cost("vector", found.dtype, found.flops, found.moved_bytes, doubt=doubt)
        return vector.reduction(x, results * _left(x.shape, chosen or ()), out=out)

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
        y = convolutions.convolved(x.shape[planes:], window, step, args.integers(3) or (0,), spread)
        results = prod(x.shape[:planes]) * prod(y)
        moved = x.bytes + results * (x.bytes // max(x.distinct, 1) + 8 * indices)
        return Cost("vector", x.dtype, results * prod(window), moved)

    return cost


def _pool_backward(args: Arguments) -> Cost:
    dy, x = args.tensor(0), args.tensor(1)
    more = dy.elements * 8 if len(args.given) > 3 else 0
    return Cost("vector", dy.dtype, dy.elements, dy.bytes + x.bytes + more)


FORMULAS: dict[str, Formula] = {
    "batch_norm_stats": lambda args: vector.reduction(args.tensor(0), 2 * args.tensor(0).shape[1]),
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
