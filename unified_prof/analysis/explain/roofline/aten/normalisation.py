"""Normalisations, softmax, the losses that follow it, dropout."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import vector
from unified_prof.analysis.explain.roofline.costs.cost import Cost


def _norm(kind: str, x: int, *params: int) -> Formula:
    def cost(args: Arguments) -> Cost:
        return vector.normalisation(kind, args.tensor(x), [args.optional(one) for one in params])

    return cost


def _norm_backward(kind: str, x: int, *params: int) -> Formula:
    def cost(args: Arguments) -> Cost:
        given = [args.optional(one) for one in params]
        return vector.normalisation_backward(kind, args.tensor(x), given)

    return cost


def _batch_norm(args: Arguments) -> Cost:
    training = args.flag(5) is not False
    given = [args.optional(one) for one in range(1, 5)]
    # Training writes the running mean and variance as well.
    running = [args.optional(one) for one in (3, 4)] if training else []
    kind = "batch" if training else "batch eval"
    return vector.normalisation(kind, args.tensor(0), [*given, *running])


def _half_to_float(kind: str) -> Formula:
    """Return the formula of softmax, whose result may be wider than its input."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(0)
        found = vector.normalisation(kind, x)
        more = x.elements * 2 if args.flag(2) else 0
        return Cost(found.unit, found.dtype, found.flops, found.moved_bytes + more)

    return cost


def _nll(args: Arguments) -> Cost:
    scores, target = args.tensor(0), args.tensor(1)
    size = scores.bytes // max(scores.distinct, 1)
    return Cost("vector", scores.dtype, target.elements, target.bytes + target.elements * size)


def _nll_backward(args: Arguments) -> Cost:
    return Cost("copy", args.tensor(1).dtype, 0, args.tensor(1).bytes + args.tensor(2).bytes)


def _dropout(args: Arguments) -> Cost:
    x = args.tensor(0)
    return Cost("vector", x.dtype, 2 * x.elements, 2 * x.bytes + x.elements)


FORMULAS: dict[str, Formula] = {
    "native_layer_norm": _norm("layer", 0, 2, 3),
    "native_layer_norm_backward": _norm_backward("layer", 1, 5, 6),
    "native_group_norm": _norm("group", 0, 1, 2),
    "native_group_norm_backward": _norm_backward("group", 1, 4),
    "rms_norm": _norm("rms", 0, 2),
    "_fused_rms_norm": _norm("rms", 0, 2),
    "_fused_rms_norm_backward": _norm_backward("rms", 1, 4),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), _batch_norm),
    "native_batch_norm_backward": _norm_backward("batch", 1, 2),
    "cudnn_batch_norm_backward": _norm_backward("batch", 0, 2),
    "miopen_batch_norm_backward": _norm_backward("batch", 0, 2),
    "_softmax": _half_to_float("softmax"),
    "_log_softmax": _half_to_float("softmax"),
    "_safe_softmax": _norm("softmax", 0),
    "_softmax_backward_data": _norm_backward("softmax", 0),
    "_log_softmax_backward_data": _norm_backward("softmax", 0),
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_backward": _nll_backward,
    "native_dropout": _dropout,
}
