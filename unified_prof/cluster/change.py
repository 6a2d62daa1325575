"""What is otherwise in a run that is walked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """What is otherwise."""

    work: Mapping[int, float] = field(default_factory=dict)
    """Rank (by number) -> what its kernels' time is multiplied with."""
    work_at: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> the same in that step."""
    gap_ns: Mapping[int, float] = field(default_factory=dict)
    """Rank -> what the idle time behind each of its kernels is shortened by."""
    input_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> what its idle time at the step's begin is shortened by."""
    stretch_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, mark) -> what the stretch behind that mark of its partial is shortened by."""

    @property
    def ranks(self) -> set[int]:
        """Those whose own time is otherwise."""
        by_rank = {*self.work, *self.gap_ns}
        return by_rank | {rank for rank, _ in (*self.work_at, *self.input_ns, *self.stretch_ns)}

    transfer: Mapping[int, float] = field(default_factory=dict)
    """Event -> what its transfer is multiplied with."""
