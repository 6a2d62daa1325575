"""From the time of a rank's own clock to that of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CommonClock:
    """What takes a rank's times to the common clock."""

    offset_ns: int = 0
    drift: float = 0.0
    """By how much it goes slow: seconds that it loses in one."""
    at_ns: int = 0
    """When the offset is `offset_ns`."""

    def common(self, times: Ints) -> Ints:
        """Return times of the rank's clock as those of the common one."""
        moved = times + self.offset_ns
        if self.drift:
            moved = moved + np.rint((times - self.at_ns) * self.drift).astype(np.int64)
        return moved

    def common_at(self, time: int) -> int:
        """Return one time as that of the common clock."""
        return int(self.common(np.array([time], np.int64))[0])
