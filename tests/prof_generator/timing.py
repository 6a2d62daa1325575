"""The clocks of a generated recording: moments of the workload to counter values and back.

Moments are nanoseconds since the session's start. Expected times are computed from the written
counter value in integer arithmetic.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.recipe import Recipe

Int64 = NDArray[np.int64]

DURATION_S = 600
_ASSUMED_S = 30 * 60
HOST_COUNTER = 7_000_000_000
DEVICE_COUNTER = 3_000_000_000
_HOST_MONOTONIC_NS = 5_000_000_000_000
_DEVICE_MONOTONIC_NS = 4_000_000_000_000
_BEGIN_US = 1_735_700_000_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    """Origins of all clocks of a recording."""

    recipe: Recipe

    @property
    def begin_us(self) -> int:
        """Start of the session, us since 1970."""
        return _BEGIN_US + self.recipe.seed % 1_000_000 * 131

    @property
    def begin_ns(self) -> int:
        """Start of the session, ns since 1970."""
        return self.begin_us * 1000

    @property
    def end_ns(self) -> int:
        """End of the session, ns since 1970."""
        return self.begin_ns + (DURATION_S if self.recipe.ended else _ASSUMED_S) * 10**9

    @property
    def host_monotonic_ns(self) -> int:
        """The host's monotonic clock at the session's start."""
        return _HOST_MONOTONIC_NS + self.recipe.seed % 1_000_000 * 17

    @property
    def device_monotonic_ns(self) -> int:
        """The device's monotonic clock at the session's start."""
        return _DEVICE_MONOTONIC_NS

    @property
    def host_counter(self) -> int:
        """The host's counter at the session's start."""
        return HOST_COUNTER if self.recipe.host_mhz else self.host_monotonic_ns

    def host_ticks(self, moment_ns: Any) -> NDArray[np.uint64]:
        """Return the host's counter at (about) a moment."""
        moment = np.asarray(moment_ns, np.int64)
        mhz = self.recipe.host_mhz
        ticks = moment * mhz // 1000 if mhz else moment
        return np.asarray(ticks + self.host_counter, np.int64).astype(np.uint64)

    def host_ns(self, ticks: Any) -> Int64:
        """Return the expected times of values of the host's counter."""
        since = np.asarray(ticks).astype(np.int64) - self.host_counter
        if not self.recipe.host_mhz:
            return since + self.begin_ns
        return self._shown(since, self.recipe.host_mhz)

    def device_ticks(self, moment_ns: Any) -> NDArray[np.uint64]:
        """Return the device's counter at (about) a moment."""
        ticks = np.asarray(moment_ns, np.int64) * self.recipe.device_mhz // 1000
        return np.asarray(ticks + DEVICE_COUNTER, np.int64).astype(np.uint64)

    def device_ns(self, ticks: Any) -> Int64:
        """Return the expected times of values of the device's counter."""
        since = np.asarray(ticks).astype(np.int64) - DEVICE_COUNTER
        return self._shown(since, self.recipe.device_mhz)

    def sampled_ns(self, moment_ns: Any) -> Int64:
        """Return the expected times of samples on the device's monotonic clock."""
        return np.asarray(moment_ns, np.int64) + self.begin_ns + int(self.recipe.offset_ns)

    def _shown(self, since: Int64, mhz: int) -> Int64:
        """Cut `since * 1000 / mhz + offset` to whole nanoseconds, after 1970."""
        offset: Fraction = self.recipe.offset_ns
        scale = mhz * offset.denominator
        exact = since * (1000 * offset.denominator) + int(offset * scale)
        return np.asarray(exact // scale + self.begin_ns, np.int64)
