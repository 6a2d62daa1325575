"""What torch's operations cost, by their names and recorded arguments.

Only operations whose kernels do what the name says stand here; one that calls others is charged
where it launches kernels itself. Names are those of the `aten` namespace, others in full.
"""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.aten import (
    attention,
    convolutions,
    elementwise,
    lists,
    memory,
    normalisation,
    products,
    reductions,
    served,
    tables,
)
from unified_prof.analysis.explain.roofline.aten.formula import Formula
from unified_prof.analysis.explain.roofline.costs import vector
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError

_FAMILIES = (
    attention,
    convolutions,
    elementwise,
    lists,
    memory,
    normalisation,
    products,
    reductions,
    served,
    tables,
)
_FORMULAS: dict[str, Formula] = {
    name: formula for family in _FAMILIES for name, formula in family.FORMULAS.items()
}
_TRITON = ("triton_poi_", "triton_red_", "triton_per_")


def formula_of(name: str) -> Formula | None:
    """Return how an operation's cost is calculated, None where that is not known."""
    plain = served.plain(name).removeprefix("aten::")
    if (found := _FORMULAS.get(plain)) is not None:
        return found
    if plain.startswith("_foreach_"):
        return lists.foreach
    if plain.endswith("_") and not plain.endswith("__"):
        # In place: the same work.
        return elementwise.FORMULAS.get(plain[:-1])
    if plain.startswith(_TRITON):
        return _generated
    return None


def _generated(args: Arguments) -> Cost:
    """Return what a kernel of torch.compile moves; what it calculates is not recorded."""
    tensors = args.tensors()
    if not tensors:
        raise UntoldError("the shapes of its arguments were not recorded")
    moved = sum(one.bytes for one in tensors)
    doubt = "each argument is counted once; what a compiled kernel calculates is not recorded"
    return Cost("copy", vector.result_type(tensors), 0, moved, doubt=doubt)
