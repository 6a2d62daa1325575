"""Why two runs of devices may not be comparable, in words."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from unified_prof.analysis.calls import UNKNOWN
from unified_prof.analysis.compare.device.side import Side
from unified_prof.analysis.compare.device.tables import Tables
from unified_prof.analysis.compare.doubts import differences

_FACTS_OF_DEVICES: Final = re.compile(
    r"the runs differ in (?:device|backend|cuda|cann|driver|torch)"
)


def doubts_of(tables: Tables, *, same: bool, by_framework: bool) -> list[str]:
    """Return why the two sides may not be comparable."""
    base, new = tables.base, tables.new
    found = [
        said
        for said in differences(base.facts, new.facts)
        if same or not _FACTS_OF_DEVICES.match(said)
    ]
    if (base.steps is None) != (new.steps is None):
        stepped, whole = (base, new) if new.steps is None else (new, base)
        found.append(
            f"the times of {stepped.label} are of one step, those of {whole.label} of the "
            f"whole recording, which has no steps{_guess(tables, stepped, whole)}"
        )
    elif base.steps is None:
        found.append(
            "the recordings have no steps (`profiler.step()`): they are compared as a whole, "
            f"whatever number of iterations each is of{_guess(tables, base, new)}"
        )
    if not by_framework:
        bare = [
            name
            for name, side in (("base", base), ("new", new))
            if not (side.leaves.columns["called"] != UNKNOWN).any()
        ]
        who = f"{bare[0]} has no" if len(bare) == 1 else "neither side has"
        found.append(
            f"{who} framework operations: work is compared by class, kind of kernel and shape"
        )
    return [*found, *base.remarks, *new.remarks]


def _guess(tables: Tables, one: Side, other: Side) -> str:
    """Say how many times as often as in the one the operations of both occur in the other."""
    first, second = (
        (tables.pairing.base, tables.pairing.new)
        if one is tables.base
        else (tables.pairing.new, tables.pairing.base)
    )
    size = len(tables.pairing.keys)
    mine = np.bincount(first, weights=one.leaves.calls, minlength=size) / one.shares
    theirs = np.bincount(second, weights=other.leaves.calls, minlength=size) / other.shares
    both = (mine > 0) & (theirs > 0)
    if not both.any():
        return ""
    times = float(np.median(theirs[both] / mine[both]))
    if times == 1:
        return "; their operations occur equally often"
    return f"; its operations occur {times:.3g} times as often as those of {one.label}"
