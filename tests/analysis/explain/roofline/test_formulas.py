"""Every formula has the reviewed costs for the same arguments; other tests say why."""

from __future__ import annotations

import pytest

from tests.stored import Values
from unified_prof.explain.roofline.arguments import Arguments, UnknownCostError, parsed
from unified_prof.explain.roofline.aten_formulas import FORMULAS
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.serving_formulas import _FORMULAS, formula_of

HALF, INT = "c10::Half", "long int"
# Shape and type of each argument, and the recorded values.
CALLS: dict[str, tuple[list[tuple[str, str]], str]] = {
    "matrices": ([("6,6", HALF)] * 8, ""),
    "batches": ([("2,3,6,6", HALF)] * 8, ""),
    "wide": ([("4,10", HALF), ("4,20", HALF), ("4,20", "float"), ("4,10", HALF)], ""),
    "indices": ([("9,32", HALF), ("4", INT), ("4", INT), ("4,32", HALF), ("4", INT)], ""),
    "indices first": ([("4", INT), ("4,64", HALF), ("4,32", HALF), ("", "Scalar")], ""),
    "lists": ([("3,4|5", "TensorList")] * 3, ""),
    "dimension": (
        [("3,4,5", HALF), ("", "ScalarList"), ("", "Scalar"), ("", "Scalar")],
        '["", "[1, 2]", "True", "8"]',
    ),
    "windows": (
        [("2,3,8,9", HALF), *[("", "ScalarList")] * 4, ("", "Scalar")],
        '["", "[2, 3]", "[2, 1]", "[1, 0]", "[1, 2]", "False"]',
    ),
    "spectrum": (
        [("4,8,6", "c10::complex<float>"), *[("", "ScalarList")] * 3],
        '["", "[1, 2]", "1", "10"]',
    ),
    "real": ([("4,8,6", "float"), *[("", "ScalarList")] * 3], '["", "[1, 2]", "1", "True"]'),
    "recurrent": (
        [("5,2,7", "float"), *[("", "Scalar")] * 13],
        '["", "", "", "", "", "", "2", "16", "4", "3", "", "", "", "True"]',
    ),
}


def cost(name: str, arguments: Arguments) -> Cost | str:
    formula = formula_of(name)
    assert formula is not None
    try:
        return formula(arguments)
    except UnknownCostError:
        return "unknown"
    except Exception as error:  # these arguments are of another operation
        return type(error).__name__


@pytest.mark.parametrize("call", CALLS)
def test_costs_of_all_operations(call: str) -> None:
    tensors, values = CALLS[call]
    shapes, types = (";".join(part) for part in zip(*tensors, strict=True))
    arguments = parsed(shapes, types, None, values or None)
    known = Values(**{name: cost(name, arguments) for name in sorted({*_FORMULAS, *FORMULAS})})
    assert any(isinstance(one, Cost) for one in vars(known).values())
