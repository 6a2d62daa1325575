"""What was found in one recording of GPUs: what every decoder of them tells besides its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """Its numbers."""

    events: int
    """All of them, of whatever kind."""
    counts: Mapping[str, int]
    """Events by kind."""
    tasks: int
    """Kernels, copies, memory sets and replays of graphs."""
    tasks_joined: int
    """Those whose launching call was found."""
    operations: int
    facts: Mapping[str, Any]
    """Provenance."""
    rank: int | None = None
    """The process of a distributed run that was recorded, where the recording says it."""
