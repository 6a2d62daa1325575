"""Operations over lists of tensors: the optimizers, and torch's `_foreach_` family."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import vector
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError


def _fused(kind: str) -> Formula:
    def cost(args: Arguments) -> Cost:
        params = args.list(0)
        if not params[0].dtype:
            raise UntoldError("the type of its parameters is not recorded")
        return vector.optimizer(kind, params)

    return cost


def _fused_sgd(args: Arguments) -> Cost:
    with_momentum = len(args.given) > 2 and bool(args.given[2])
    return _fused("momentum" if with_momentum else "sgd")(args)


def foreach(args: Arguments) -> Cost:
    """Return what an operation over lists costs: one operation an element."""
    lists = [one for one in args.given if isinstance(one, tuple)]
    if not lists or not all(lists) or any(not one.dtype for part in lists for one in part):
        raise UntoldError("its lists of tensors were not recorded (torch leaves out more than 30)")
    elements = sum(one.elements for one in lists[0])
    moved = sum(one.bytes for part in lists for one in part) + sum(one.bytes for one in lists[0])
    return Cost("vector", lists[0][0].dtype, elements, moved)


FORMULAS: dict[str, Formula] = {
    "_fused_adam_": _fused("adam"),
    "_fused_adamw_": _fused("adam"),
    "_fused_adagrad_": _fused("adagrad"),
    "_fused_sgd_": _fused_sgd,
}
