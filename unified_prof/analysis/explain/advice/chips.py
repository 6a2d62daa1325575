"""What rules know of chips that a recording does not say: cores and the highest clock of NPUs.

From the platform files of CANN; a chip that is not here, or whose name stands for several, is
unknown. `Ascend910B` alone is two generations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_prof.analysis.explain.advice.case import Case


@dataclass(frozen=True, slots=True)
class Chip:
    """One NPU."""

    cubes: int
    """Cores with a matrix unit."""
    vectors: int
    """Vector cores, those of the former where it has no others."""
    mhz: int


_CHIPS = {
    "Ascend910B1": Chip(24, 48, 1850),
    "Ascend910B2": Chip(24, 48, 1800),
    "Ascend910B2C": Chip(24, 48, 1800),
    "Ascend910B3": Chip(20, 40, 1800),
    "Ascend910B4": Chip(20, 40, 1500),
    "Ascend910B4-1": Chip(20, 40, 1500),
    "Ascend910_9391": Chip(24, 48, 1850),
    "Ascend910_9392": Chip(24, 48, 1850),
    "Ascend910_9381": Chip(24, 48, 1800),
    "Ascend910_9382": Chip(24, 48, 1800),
    "Ascend910_9372": Chip(20, 40, 1800),
    "Ascend910_9362": Chip(20, 40, 1500),
    "Ascend910_9363": Chip(20, 40, 1500),
    "Ascend910A": Chip(32, 32, 1000),
    "Ascend910ProA": Chip(32, 32, 1100),
    "Ascend910PremiumA": Chip(32, 32, 1220),
    "Ascend310P3": Chip(8, 8, 1060),
    "Ascend310P1": Chip(10, 10, 1060),
}
_NAMED = re.compile(r"\((.*)\)$")


def chip_of(case: Case) -> Chip | None:
    """Return the chip of a device, by the name in NPU_INFO; None: not known."""
    named = _NAMED.search(case.device or "")
    return _CHIPS.get(named[1].strip()) if named else None
