"""Operations that move memory and calculate nothing."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import memory
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError


def _copy(args: Arguments) -> Cost:
    return memory.copied(args.tensor(1), args.tensor(0))


def _duplicate(args: Arguments) -> Cost:
    return memory.copied(args.tensor(0))


def _fill(args: Arguments) -> Cost:
    return memory.written(args.tensor(0))


def _cat(args: Arguments) -> Cost:
    parts = args.list(0)
    if not parts[0].dtype:
        raise UntoldError("the type of its list of tensors is not recorded")
    return memory.joined(parts)


FORMULAS: dict[str, Formula] = {
    "copy_": _copy,
    "_copy_from": lambda args: memory.copied(args.tensor(0), args.tensor(1)),
    **dict.fromkeys(
        ("clone", "contiguous", "_to_copy", "roll", "flip", "tril", "triu"), _duplicate
    ),
    **dict.fromkeys(
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ log_normal_".split(), _fill
    ),
    "cat": _cat,
    "stack": _cat,
}
