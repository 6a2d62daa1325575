"""Matrix products of torch."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import products
from unified_prof.analysis.explain.roofline.costs.cost import Cost


def _mm(a: int, b: int, bias: int | None = None) -> Formula:
    def cost(args: Arguments) -> Cost:
        added = None if bias is None else args.optional(bias)
        return products.matmul(args.tensor(a), args.tensor(b), bias=added)

    return cost


def _linear(args: Arguments) -> Cost:
    return products.linear(args.tensor(0), args.tensor(1), args.optional(2))


def _scaled_mm(args: Arguments) -> Cost:
    out = args.scalar_type(6) or "bf16"
    return products.matmul(args.tensor(0), args.tensor(1), bias=args.optional(4), out=out)


def _grouped_mm(args: Arguments) -> Cost:
    a, b = args.tensor(0), args.tensor(1)
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        return products.grouped_matmul([a.shape[0], *[0] * (groups - 1)], n, k, a.dtype)
    return products.matmul(a, b)


def _int_mm(args: Arguments) -> Cost:
    return products.matmul(args.tensor(0), args.tensor(1), out="int32")


FORMULAS: dict[str, Formula] = {
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
    "addbmm": lambda args: products.batch_sum(args.tensor(1), args.tensor(2), args.optional(0)),
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_scaled_mm": _scaled_mm,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "_int_mm": _int_mm,
}
