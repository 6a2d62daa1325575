"""Rows of a comparison of devices: the same work on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unified_prof.analysis.calls import UNKNOWN


@dataclass(frozen=True, slots=True)
class Amount:
    """Work of one side under one row."""

    calls: int
    """Operations that launched it."""
    runs: int
    """Kernels, copies and collectives."""
    total_ns: int


Both = tuple[Amount | None, Amount | None]
"""Base and new."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row: the same work on both sides."""

    name: str
    base: Amount | None
    """None: the side has none of it."""
    new: Amount | None
    class_name: str = ""
    """Class of its work; empty: of several."""
    base_name: str | None = None
    """What the side's own framework calls it, where that is another name."""
    new_name: str | None = None
    modules: tuple[str, ...] = ()
    """The modules that spend most of it, without the numbers that tell those of a kind apart."""
    lines: tuple[str, ...] = ()
    """The source lines that spend most of it."""
    shapes: tuple[Line, ...] = ()
    """The same by input shape (of collectives: by size); empty: not known."""
    number: int = UNKNOWN
    """Which pair of operations it is of; UNKNOWN: of none."""

    @property
    def side(self) -> Literal["both", "base", "new"]:
        """Which side has it."""
        if self.base is None:
            return "new"
        return "base" if self.new is None else "both"
