"""What operations cost that only move memory: copies, and rows taken from tables."""

from __future__ import annotations

from collections.abc import Sequence

from unified_prof.analysis.explain.roofline.costs.cost import Cost, bytes_of
from unified_prof.analysis.explain.roofline.tensors import Tensor, UntoldError, item_size


def copied(source: Tensor, target: Tensor | None = None) -> Cost:
    """Return what a copy, a cast or a change of layout costs."""
    target = target or Tensor(source.shape, source.dtype)
    return Cost("copy", target.dtype, 0, source.bytes + target.bytes)


def written(target: Tensor) -> Cost:
    """Return what filling a tensor costs."""
    return Cost("copy", target.dtype, 0, target.bytes)


def joined(parts: Sequence[Tensor]) -> Cost:
    """Return what laying tensors one after another costs."""
    if not parts:
        raise UntoldError("its list of tensors was not recorded")
    size = item_size(parts[0].dtype)
    elements = sum(part.elements for part in parts)
    return Cost("copy", parts[0].dtype, 0, bytes_of(*parts) + elements * size)


def looked_up(rows: int, width: int, dtype: str, index: str = "int64") -> Cost:
    """Return what taking rows of a table costs: the rows, not the table."""
    return Cost("copy", dtype, 0, rows * (item_size(index) + 2 * width * item_size(dtype)))


def looked_up_backward(dy: Tensor, index: Tensor, table: Tensor) -> Cost:
    """Return what the dense gradient of a table costs, of which rows were taken."""
    return Cost("vector", dy.dtype, dy.elements, bytes_of(dy, index, table))
