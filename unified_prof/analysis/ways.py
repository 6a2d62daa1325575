"""How a breakdown is made of an msprof database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from unified_prof.analysis.kinds import By, Kind
from unified_prof.analysis.model import Breakdown
from unified_prof.analysis.recording import Recording


@dataclass(frozen=True, slots=True)
class Way:
    """One way to divide a recording."""

    offered: Callable[[Recording], bool]
    """Whether the recording has what it needs; asked of every report, so it is cheap."""
    made: Callable[[Recording], Breakdown]
    quick: Callable[[Recording], bool] = lambda _: True
    """Whether it costs so little that reports have it that do not ask for it by name."""


def way_of(kind: Kind) -> Way:
    """Return how a breakdown is made; its module is imported now, and not before."""
    module = import_module(f"unified_prof.analysis.explain.{kind.module}")
    return cast(dict[By, Way], module.WAYS)[kind.by]
