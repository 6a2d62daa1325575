"""What an operation has to do: floating-point operations and bytes.

A multiply-add is two operations. Bytes are those that no implementation can avoid: every tensor
once, by its own type, expanded dimensions once. `Cost.flops` are those of the unit that does the
operation; bias and softmax of a matrix operation stand apart (`beside`), on the vector unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unified_prof.analysis.explain.roofline.tensors import Tensor, item_size

Unit = Literal["matrix", "vector", "copy"]
"""What does the work: matrix (tensor, cube) cores, other arithmetic, or only memory."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation has to do, whoever does it."""

    unit: Unit
    dtype: str
    """Type that it calculates with."""
    flops: int
    """Floating-point operations of its unit."""
    moved_bytes: int
    beside: int = 0
    """Floating-point operations of a matrix operation that are no matrix product."""
    doubt: str | None = None
    """What may be otherwise, and how it would change the figures."""


def bytes_of(*tensors: Tensor | None) -> int:
    """Return the bytes of those tensors that there are."""
    return sum(tensor.bytes for tensor in tensors if tensor is not None)


def real_parts(dtype: str) -> tuple[str, int]:
    """Return the type of the parts, and how many real multiply-adds one is."""
    return {"complex64": ("fp32", 4), "complex128": ("fp64", 4)}.get(dtype, (dtype, 1))


def wider(one: str, other: str) -> str:
    """Return the type with more bytes, the first of two alike."""
    return one if item_size(one) >= item_size(other) else other
