"""What convolutions cost: a window for every result; and how large their results are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from unified_prof.analysis.explain.roofline.costs.cost import Cost, bytes_of, real_parts, wider
from unified_prof.analysis.explain.roofline.tensors import Shape, Tensor, UntoldError, item_size

# Convolutions


def convolved(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
) -> Shape:
    """Return the spatial sizes of what a convolution (or a pooling) makes."""
    result = []
    for place, (size, window) in enumerate(zip(sizes, kernel, strict=True)):
        step, spread = _at(stride, place, 1), _at(dilation, place, 1)
        reach = spread * (window - 1)
        if padding == "same":
            added = reach
        elif isinstance(padding, str):
            added = 0
        else:
            added = 2 * _at(padding, place, 0)
        result.append((size + added - reach - 1) // step + 1)
    if any(size <= 0 for size in result):
        raise UntoldError("its window is larger than its input")
    return tuple(result)


def transposed_sizes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> Shape:
    """Return the spatial sizes of what a transposed convolution makes."""
    return tuple(
        (size - 1) * _at(stride, place, 1)
        - 2 * _at(padding, place, 0)
        + _at(dilation, place, 1) * (window - 1)
        + _at(output_padding, place, 0)
        + 1
        for place, (size, window) in enumerate(zip(sizes, kernel, strict=True))
    )


def _at(values: Sequence[int], place: int, default: int) -> int:
    """Return one of values of which a single one is for all places."""
    if not values:
        return default
    return values[0] if len(values) == 1 else values[place]


def convolution(
    x: Tensor,
    weight: Tensor,
    y_sizes: Sequence[int],
    *,
    bias: Tensor | None = None,
    transposed: bool = False,
    groups: int = 1,
) -> Cost:
    """Return what a convolution of any number of dimensions costs.

    Args:
        x: N, C, sizes; N may be missing.
        weight: C_out, C / groups, window; transposed: C, C_out / groups, window.
        y_sizes: spatial sizes of the result.
        bias: of C_out.
        transposed: whether windows are spread, not gathered.
        groups: of a transposed one; else they are in the weight's shape.
    """
    spatial = len(weight.shape) - 2
    if spatial < 1 or len(x.shape) not in (spatial + 1, spatial + 2):
        raise UntoldError("its input and its weight do not go together")
    leading = x.shape[: len(x.shape) - spatial - 1]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    y = Tensor((*leading, channels, *y_sizes), x.dtype)
    dtype, times = real_parts(wider(x.dtype, weight.dtype))
    flops = 2 * _windows(x, weight, y, transposed) * times
    beside = y.elements * times if bias is not None else 0
    return Cost("matrix", dtype, flops, bytes_of(x, weight, bias, y), beside)


def _windows(x: Tensor, weight: Tensor, y: Tensor, transposed: bool) -> int:
    """Return the multiply-adds of a convolution, the same in either direction."""
    return (x if transposed else y).elements * prod(weight.shape[1:])


def convolution_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    *,
    transposed: bool = False,
    mask: Sequence[bool] = (True, True, False),
) -> Cost:
    """Return what the gradients of a convolution cost: of input, weight and bias, as asked.

    Each of the first two is as much work as the convolution itself, whatever its groups.
    """
    of_x, of_weight, of_bias = (*mask, False, False, False)[:3]
    dtype, times = real_parts(wider(dy.dtype, weight.dtype))
    once = 2 * _windows(x, weight, dy, transposed) * times
    moved = dy.bytes
    moved += x.bytes * (of_x + of_weight) + weight.bytes * (of_x + of_weight)
    if of_bias:
        channels = weight.shape[0] if not transposed else dy.shape[1 - len(weight.shape)]
        moved += channels * item_size(dy.dtype)
    beside = dy.elements if of_bias else 0
    return Cost("matrix", dtype, once * (of_x + of_weight), moved, beside)
