"""Cost of operations (floating-point operations and bytes) from shapes and dtypes.

A multiply-add is two operations. Bytes are the minimum: every tensor once, in its own dtype,
expanded dimensions once; again after a sum over more than a row, which no kernel keeps.
`Cost.flops` are those of the main unit; bias and softmax of a matrix operation run on the vector
unit (`Cost.vector_flops`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Literal

from msgspec import Struct

from unified_prof.explain.roofline.arguments import (
    Shape,
    Tensor,
    UnknownCostError,
    broadcast,
    item_size,
)

# Unit that does the work: matrix (tensor, cube) cores, other arithmetic, or only memory.
Unit = Literal["matrix", "vector", "copy"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Minimum work of an operation."""

    unit: Unit
    dtype: str  # Dtype of the calculation.
    # Floating-point operations of its unit.
    flops: int
    moved_bytes: int
    vector_flops: int = 0  # Floating-point operations of a matrix operation on the vector unit.
    doubt: str | None = None  # Assumption that may be wrong, and how it would change the figures.
    # Sizes that decide how fast a kernel can be: inner dimensions of the factors and the result of
    # a matrix operation in memory, lengths of Fourier transforms.
    inner: tuple[int, ...] = ()
    # True for a convolution of single channels, which matrix units hardly accelerate.
    depthwise: bool = False


def times(cost: Cost, count: int) -> Cost:
    """Return the cost of several equal operations."""
    flops, moved, vector = cost.flops * count, cost.moved_bytes * count, cost.vector_flops * count
    return replace(cost, flops=flops, moved_bytes=moved, vector_flops=vector)


def bytes_of(*tensors: Tensor | None) -> int:
    """Return the total bytes of some tensors."""
    return sum(tensor.bytes for tensor in tensors if tensor is not None)


def real_parts(dtype: str) -> tuple[str, int]:
    """Return the dtype of the real parts, and the real multiply-adds of one multiply-add."""
    return {"complex64": ("fp32", 4), "complex128": ("fp64", 4)}.get(dtype, (dtype, 1))


def wider_dtype(one: str, other: str) -> str:
    """Return the dtype with more bytes, the first if both have the same."""
    return one if item_size(one) >= item_size(other) else other


# Corner of the triangle of a causal mask, if the numbers of keys and queries differ.
UPPER_LEFT, LOWER_RIGHT = "upper left", "lower right"


def seen_pairs(queries: int, keys: int, causal: str | None) -> int:
    """Return the number of pairs of a query and a key that a causal mask (None: no mask) keeps."""
    if causal is None:
        return queries * keys
    offset = keys - queries if causal == LOWER_RIGHT else 0
    # Query i sees the keys up to i + offset: no key at first, then one more each, then all.
    first = max(0, -offset)
    whole = max(first, min(queries, keys - offset - 1))
    rising = whole - first
    ramp = rising * (first + 1 + offset + whole + offset) // 2
    return ramp + (queries - whole) * keys if whole < queries else ramp


class Attention(Struct, frozen=True):
    """Sizes of scaled dot-product attention; `heads` is the number of heads of the queries."""

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
    def from_tensors(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        heads_first: bool = True,
        causal: str | None = None,
        causal_known: bool = True,
    ) -> Attention:
        """Return the sizes for queries, keys and values of shape B, H, S, D or B, S, H, D."""
        if any(len(one.shape) < 3 for one in (q, k, v)):
            raise UnknownCostError("its queries, keys and values have too few dimensions")
        heads, rows = (-3, -2) if heads_first else (-2, -3)
        if k.shape[rows] != v.shape[rows] or q.shape[-1] != k.shape[-1]:
            raise UnknownCostError("its queries, keys and values do not match")
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

    def cost(self, *, backward: bool = False) -> Cost:
        """Return the cost of fused attention, which never writes its scores, or of its gradients.

        Fused kernels compute the scores again for the gradients.
        """
        planes, depths = self.batch * self.heads, self.depth + self.value_depth
        pairs = planes * seen_pairs(self.queries, self.keys, self.causal)
        moved = (planes * self.queries + self.batch * self.key_heads * self.keys) * depths
        doubt = None
        if not self.causal_known:
            less = seen_pairs(self.queries, self.keys, UPPER_LEFT) / (self.queries * self.keys or 1)
            doubt = (
                f"a causal mask is not recorded; with one, FLOPs would be {less:.2f} times as many"
            )
        return Cost(
            "matrix",
            self.dtype,
            2 * pairs * (2 * depths + self.depth if backward else depths),
            # Backward reads queries, keys, values, result and its gradient, and writes three.
            item_size(self.dtype) * moved * (2 if backward else 1),
            vector_flops=5 * pairs,
            doubt=doubt,
            inner=(self.depth, self.value_depth),
        )


# Bytes that each rank sends: multiple of the size, and True if only (n - 1) / n of it.
_WIRE = {
    "all_reduce": (2, True),
    **dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all", "scatter", "gather"), (1, True)),
    **dict.fromkeys(("broadcast", "reduce", "send", "receive"), (1, False)),
}


def collective(kind: str, size_bytes: int, ranks: int, dtype: str) -> Cost:
    """Return the cost of a collective on one rank: minimum bytes sent, and additions.

    Args:
        kind: A collective of `_WIRE`.
        size_bytes: Size of the input (of an all_gather: of the output).
        ranks: Number of ranks.
        dtype: Dtype of the elements.

    Raises:
        UnknownCostError: The kind is unknown.
    """
    if kind not in _WIRE or ranks < 1:
        raise UnknownCostError(f"bytes sent by {kind or 'this collective'} are not known")
    factor, without_own = _WIRE[kind]
    part = (ranks - 1) / ranks if without_own else float(ranks > 1)
    reduces = kind in ("all_reduce", "reduce_scatter", "reduce")
    adds = size_bytes // item_size(dtype) * (ranks - 1) // ranks if reduces else 0
    return Cost("copy", dtype, adds, round(size_bytes * factor * part))


def convolution_sizes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    output_padding: Sequence[int] | None = None,
) -> Shape:
    """Return the spatial sizes of the result of a convolution or a pooling.

    With `output_padding`, of a transposed convolution.
    """
    result = []
    for place, (size, window) in enumerate(zip(sizes, kernel, strict=True)):
        step = _of_dimension(stride, place, 1)
        reach = _of_dimension(dilation, place, 1) * (window - 1)
        if isinstance(padding, str):
            added = reach if padding == "same" else 0
        else:
            added = 2 * _of_dimension(padding, place, 0)
        if output_padding is None:
            result.append((size + added - reach - 1) // step + 1)
            if result[-1] <= 0:
                raise UnknownCostError("the window is larger than the input")
        else:
            extra = _of_dimension(output_padding, place, 0)
            result.append((size - 1) * step - added + reach + extra + 1)
    return tuple(result)


def _of_dimension(values: Sequence[int], place: int, default: int) -> int:
    """Return the value of a dimension; a single value is for all dimensions."""
    if not values:
        return default
    return values[0] if len(values) == 1 else values[place]


def copy(source: Tensor, target: Tensor | None = None) -> Cost:
    """Return the cost of a copy, cast or layout conversion."""
    target = target or Tensor(source.shape, source.dtype)
    return Cost("copy", target.dtype, 0, source.bytes + target.bytes)


def concatenation(parts: Sequence[Tensor]) -> Cost:
    """Return the cost of concatenating tensors."""
    if not parts:
        raise UnknownCostError("its list of tensors was not recorded")
    moved = bytes_of(*parts) + sum(part.elements for part in parts) * item_size(parts[0].dtype)
    return Cost("copy", parts[0].dtype, 0, moved)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    out: str | None = None,
    is_summed: bool = False,
) -> Cost:
    """Return the cost of `a @ b + bias`: vectors, matrices or batches, broadcast as in torch.

    The result has the dtype `out`, by default that of `a`; if `is_summed`, it is the sum of the
    products of the batch.
    """
    if not a.shape or not b.shape:
        raise UnknownCostError("an operand has no shape")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    m, k, n = left[-2], left[-1], right[-1]
    if right[-2] != k:
        raise UnknownCostError("the inner sizes of its operands differ")
    batch = prod(broadcast(left[:-2], right[:-2]))
    results = m * n * (1 if is_summed else batch)
    dtype, times = real_parts(wider_dtype(a.dtype, b.dtype))
    moved = bytes_of(a, b, bias) + results * item_size(out or a.dtype)
    vector_flops = results * times if bias is not None else 0
    inner = (*_pitch(a), *_pitch(b), n)
    return Cost("matrix", dtype, 2 * batch * m * n * k * times, moved, vector_flops, inner=inner)


def _pitch(factor: Tensor) -> Shape:
    """Return the elements between rows (or columns) of a matrix in memory, empty if unknown."""
    *_, rows, columns = (0, 0, *(factor.strides or ()))
    return (rows,) * (columns == 1) or (columns,) * (rows == 1)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: str | None = None
) -> Cost:
    """Return the cost of `x @ weight.T + bias`; leading dimensions of `x` are rows."""
    if len(weight.shape) not in (1, 2):
        raise UnknownCostError("an operand has no shape")
    strides = (weight.strides or (weight.shape[-1], 1)[-len(weight.shape) :])[::-1]
    return matmul(x, Tensor(weight.shape[::-1], weight.dtype, strides), bias=bias, out=out)


def elementwise(inputs: Iterable[Tensor], *, operations: int = 1, out: str | None = None) -> Cost:
    """Return the cost of an element-wise operation on broadcast inputs.

    Args:
        inputs: All tensors; in place, the first is read and written.
        operations: Floating-point operations per element; exp, tanh and erf count as one.
        out: Dtype of the result, by default the promoted type of the inputs.
    """
    tensors = tuple(inputs)
    if not tensors:
        raise UnknownCostError("none of its tensors was recorded")
    dtype = result_type(tensors)
    elements = prod(broadcast(*(tensor.shape for tensor in tensors)))
    moved = bytes_of(*tensors) + elements * item_size(out or dtype)
    return Cost("vector" if operations else "copy", dtype, operations * elements, moved)


def result_type(tensors: Sequence[Tensor]) -> str:
    """Return the dtype that torch promotes to.

    Floating point decides over integers and these over bool, then tensors with dimensions over
    those without.
    """
    highest = max(_category(one.dtype) for one in tensors)
    decisive = [one for one in tensors if _category(one.dtype) == highest]
    decisive = [one for one in decisive if one.shape] or decisive
    result = decisive[0].dtype
    for one in decisive:
        if {one.dtype, result} == {"bf16", "fp16"}:
            return "fp32"
        result = wider_dtype(result, one.dtype)
    return result


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2


def reduction(x: Tensor, results: int, *out: str) -> Cost:
    """Return the cost of reducing a tensor to `results` elements of each dtype in `out`.

    The default, and the meaning of "", is the dtype of `x`.
    """
    written = results * sum(item_size(one or x.dtype) for one in out or ("",))
    return Cost("vector", x.dtype, x.elements, x.bytes + written)


# Operations per element, and how often a tensor is read or written: forward, backward. Statistics
# of a batch or group are a kernel, sums for the gradients as well; the next reads tensors again.
_NORM = {
    "layer": ((8, 2), (14, 3)),
    "rms": ((5, 2), (10, 3)),
    "group": ((8, 3), (14, 5)),
    "batch": ((7, 3), (11, 5)),
    "batch eval": ((2, 2), (4, 2)),
    "softmax": ((5, 2), (4, 3)),
}


def normalization(
    kind: str,
    x: Tensor,
    params: Iterable[Tensor | None] = (),
    *,
    backward: bool = False,
    also: int = 0,
) -> Cost:
    """Return the cost of a normalization (a key of `_NORM`) or of its gradients.

    `also` is how often another kernel, for the gradients of `params`, reads a tensor.
    """
    operations, passes = _NORM[kind][backward]
    # Only `x` may be expanded. Gradients also write those of `params`.
    others = (passes + also - 1) * x.elements * item_size(x.dtype)
    moved = x.bytes + others + (1 + backward) * bytes_of(*params)
    return Cost("vector", x.dtype, operations * x.elements, moved)


def transforms(one: Tensor, other: Tensor, lengths: Shape, points: int, per_point: float) -> Cost:
    """Return the cost of Fourier transforms between two tensors; each dimension is a pass."""
    size = prod(lengths)
    flops = round(per_point * size * log2(max(size, 1))) * (points // max(size, 1))
    moved = len(lengths) * bytes_of(one, other)
    return Cost("vector", real_parts(one.dtype)[0], flops, moved, inner=lengths)


def optimizer(kind: str, params: Sequence[Tensor]) -> Cost:
    """Return the cost of one fused step; gradients and state have the dtype of the parameters.

    `kind` is sgd, momentum, adagrad or adam.
    """
    if not params:
        raise UnknownCostError(
            "its list of parameters was not recorded (torch omits lists of more than 30)"
        )
    operations, states = {"sgd": (2, 0), "momentum": (4, 1), "adagrad": (6, 1), "adam": (12, 2)}[
        kind
    ]
    elements = sum(param.elements for param in params)
    dtype = params[0].dtype
    # Parameters are read and written, gradients read, each state read and written.
    return Cost(
        "vector", dtype, operations * elements, elements * (3 + 2 * states) * item_size(dtype)
    )
