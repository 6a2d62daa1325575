"""How the times of two devices would compare if each worked at its peak.

Matrix work is limited by the matrix units in the type that most of it calculates in, collectives by
the link, and what moves more than it calculates by memory. A small matmul is limited by memory too:
the ratio that the peaks allow lies between the two then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from unified_prof.analysis.calls import UNKNOWN, Labels
from unified_prof.analysis.compare.device.side import Side
from unified_prof.analysis.explain.classes import (
    ATTENTION,
    CLASSES,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    MATMUL,
    REST,
)
from unified_prof.analysis.explain.roofline.peaks import Peak

_MATRIX: Final = (MATMUL, CONVOLUTION, ATTENTION)
_NOTHING_LIMITS: Final = (COPIES, REST)
"""Copies go over buses of hosts, and of the rest nobody knows what it does."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What limits one class of work on both devices."""

    base: Peak
    new: Peak

    @property
    def ratio(self) -> float:
        """Time of the new side over that of the base, each at its peak."""
        return self.base.rate / self.new.rate

    @property
    def uncertain(self) -> bool:
        """Whether one of the peaks is."""
        return self.base.uncertain or self.new.uncertain


def allowed(base: Side, new: Side, texts: Labels) -> Mapping[str, Allowed]:
    """Return the limits by class; a class is missing where a side's peak is not known."""
    found = {}
    for name in CLASSES:
        before, after = (_limit(side, name, texts) for side in (base, new))
        if before is not None and after is not None:
            found[name] = Allowed(before, after)
    return found


def _limit(side: Side, name: str, texts: Labels) -> Peak | None:
    device = side.limits
    if device is None or name in _NOTHING_LIMITS:
        return None
    if name == COLLECTIVES:
        return device.of_link()
    if name not in _MATRIX:
        return device.of_memory()
    dtype = _dtype(side, texts.number(name), texts)
    return None if dtype is None else device.matrix(dtype)


def _dtype(side: Side, class_number: int, texts: Labels) -> str | None:
    """Return the type that a class spends most of its time in, None where it is not recorded."""
    leaves = side.leaves
    dtype = leaves.columns["dtype"]
    rows = np.flatnonzero((leaves.columns["class"] == class_number) & (dtype != UNKNOWN))
    if not len(rows):
        return None
    types, number = np.unique(dtype[rows], return_inverse=True)
    time = np.bincount(number, weights=leaves.total_ns[rows])
    return texts.text(int(types[time.argmax()]))
