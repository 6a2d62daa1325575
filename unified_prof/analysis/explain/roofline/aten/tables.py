"""Operations that look rows up in tables, or add to them."""

from __future__ import annotations

from math import prod

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import memory
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import Tensor, item_size


def _embedding(args: Arguments) -> Cost:
    table, index = args.tensor(0), args.tensor(1)
    return memory.looked_up(index.elements, prod(table.shape[1:]), table.dtype, index.dtype)


def _index_select(args: Arguments) -> Cost:
    table, index, at = args.tensor(0), args.tensor(2), args.integers(1)
    place = at[0] if at else 0
    width = table.elements // (table.shape[place] or 1) if table.shape else 1
    return memory.looked_up(index.elements, width, table.dtype, index.dtype)


def _embedding_backward(args: Arguments) -> Cost:
    dy, index = args.tensor(0), args.tensor(1)
    (rows, *_) = args.sizes(2)
    return memory.looked_up_backward(dy, index, Tensor((rows, dy.shape[-1]), dy.dtype))


def _gather(args: Arguments) -> Cost:
    table, index = args.tensor(0), args.tensor(2)
    moved = index.bytes + 2 * index.elements * item_size(table.dtype)
    return Cost("copy", table.dtype, 0, moved)


def _scatter(args: Arguments) -> Cost:
    """Return what adding or putting values at indices costs: places are read and written."""
    target, index, source = args.tensor(0), args.tensor(2), args.optional(3)
    values = source.elements if source is not None else index.elements
    rows = memory.looked_up(values, 1, target.dtype, index.dtype)
    more = values * target.bytes // max(target.distinct, 1) if source is not None else 0
    return Cost("vector", target.dtype, values, rows.moved_bytes + more)


FORMULAS: dict[str, Formula] = {
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
