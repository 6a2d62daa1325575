"""Convolutions of torch and their gradients."""

from __future__ import annotations

from math import prod

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import convolutions
from unified_prof.analysis.explain.roofline.costs.cost import Cost


def _conv(
    stride: int,
    padding: int,
    dilation: int,
    *,
    weight: int = 1,
    bias: int | None = 2,
    transposed: int | bool = False,
    output_padding: int | None = None,
    groups: int | None = None,
) -> Formula:
    """Return the formula of a convolution whose arguments have these places."""

    def cost(args: Arguments) -> Cost:
        x, w = args.tensor(0), args.tensor(weight)
        window = w.shape[2:]
        turned = transposed if isinstance(transposed, bool) else args.flag(transposed) is True
        sizes = x.shape[len(x.shape) - len(window) :]
        step, spread = args.sizes(stride), args.sizes(dilation)
        text = args.text(padding).strip("'\"")
        if turned:
            extra = () if output_padding is None else args.sizes(output_padding)
            y = convolutions.transposed_sizes(
                sizes, window, step, args.sizes(padding), spread, extra
            )
        else:
            around = text if text in ("same", "valid") else args.sizes(padding)
            y = convolutions.convolved(sizes, window, step, around, spread)
        number = None if groups is None else args.integers(groups)
        return convolutions.convolution(
            x,
            w,
            y,
            bias=None if bias is None else args.optional(bias),
            transposed=turned,
            groups=number[0] if number else 1,
        )

    return cost


def _conv_backward(args: Arguments) -> Cost:
    mask = args.flags(10)
    found = convolutions.convolution_backward(
        args.tensor(0),
        args.tensor(1),
        args.tensor(2),
        transposed=args.flag(7) is True,
        mask=mask or (True, True, False),
    )
    if mask is not None:
        return found
    doubt = "which gradients were asked for was not recorded; both are counted"
    return Cost(found.unit, found.dtype, found.flops, found.moved_bytes, found.beside, doubt)


def _conv_of_gradient(args: Arguments) -> Cost:
    """Return what old releases' gradient of the input costs: its sizes, dy, the weight."""
    dy, weight = args.tensor(1), args.tensor(2)
    flop = 2 * dy.elements * prod(weight.shape[1:])
    doubt = "the size of its result was not recorded; only what it reads is counted"
    return Cost("matrix", dy.dtype, flop, dy.bytes + weight.bytes, doubt=doubt)


FORMULAS: dict[str, Formula] = {
    **{name: _conv(3, 4, 5, groups=6) for name in ("conv1d", "conv2d", "conv3d")},
    **{
        name: _conv(3, 4, 5, transposed=6, output_padding=7, groups=8)
        for name in ("convolution", "_convolution", "convolution_overrideable")
    },
    **{
        name: _conv(3, 4, 7, transposed=True, output_padding=5, groups=6)
        for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    },
    "cudnn_convolution": _conv(3, 2, 4, bias=None, groups=5),
    "cudnn_convolution_relu": _conv(3, 4, 5, groups=6),
    "cudnn_convolution_add_relu": _conv(5, 6, 7, bias=4, groups=8),
    "cudnn_convolution_transpose": _conv(
        4, 2, 5, bias=None, transposed=True, output_padding=3, groups=6
    ),
    # Their bias is added by an `add_` of its own within them.
    "miopen_convolution": _conv(4, 3, 5, bias=None, groups=6),
    "miopen_depthwise_convolution": _conv(4, 3, 5, bias=None, groups=6),
    "miopen_convolution_relu": _conv(3, 4, 5, groups=6),
    "miopen_convolution_transpose": _conv(5, 3, 6, transposed=True, output_padding=4, groups=7),
    "mkldnn_convolution": _conv(4, 3, 5, groups=6),
    "_conv_depthwise2d": _conv(4, 5, 6, bias=3),
    "conv_depthwise3d": _conv(4, 5, 6, bias=3),
    "slow_conv_dilated2d": _conv(4, 5, 6, bias=3),
    "slow_conv_dilated3d": _conv(4, 5, 6, bias=3),
    "convolution_backward": _conv_backward,
    "convolution_backward_overrideable": _conv_backward,
    "cudnn_convolution_backward_input": _conv_of_gradient,
}
