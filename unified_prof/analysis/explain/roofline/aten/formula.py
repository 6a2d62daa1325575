"""How the cost of an operation is told: by the arguments that were recorded of it."""

from __future__ import annotations

from collections.abc import Callable

from unified_prof.analysis.explain.roofline.arguments import Arguments
from unified_prof.analysis.explain.roofline.costs.cost import Cost

Formula = Callable[[Arguments], Cost]
