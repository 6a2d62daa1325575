"""Threads and times of the host packed into keys that sort by thread, then time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.pool import Pool
from unified_prof.errors import RawFormatError

Keys = NDArray[np.uint64]

_TIME_BITS = 48
_TIME_MASK = np.uint64((1 << _TIME_BITS) - 1)
_BEFORE_START = 1 << 46
_MAX_THREADS = 1 << (64 - _TIME_BITS)


class Timeline:
    """Packs (thread, host counter) into sortable keys: thread in the high bits, time below.

    Times far from the start of the recording (about 8 days before to 24 days after it at 100 MHz,
    a tenth of that with counters in ns) do not fit; genuine ones are never there.
    """

    def __init__(self, origin_ticks: int) -> None:
        self.base = max(0, origin_ticks - _BEFORE_START)
        self.threads = Pool()
        # Differences of unsigned times wrap: what is before the base is far above this.
        self._most = np.uint64(min(int(_TIME_MASK), (1 << 64) - 1 - self.base))

    def fits(self, ticks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which times can be packed."""
        return np.asarray(ticks - np.uint64(self.base) <= self._most)

    def pack(self, thread_id: NDArray[Any], ticks: NDArray[np.uint64]) -> Keys:
        """Return the keys of times that fit; others are cut to the nearest time that does.

        Raises:
            RawFormatError: more threads than a process can have.
        """
        rank = self.threads.index_of(thread_id).astype(np.uint64)
        if len(self.threads) > _MAX_THREADS:
            raise RawFormatError(
                f"records of more than {_MAX_THREADS} threads, which cannot be",
                slug="damaged-recording",
            )
        return rank << np.uint64(_TIME_BITS) | self._relative(ticks)

    def move(self, keys: Keys, ticks: NDArray[np.uint64]) -> Keys:
        """Return the keys of other times of the same threads."""
        return (keys & ~_TIME_MASK) | self._relative(ticks)

    def ticks(self, keys: Keys) -> NDArray[np.uint64]:
        """Return the times of keys."""
        return (keys & _TIME_MASK) + np.uint64(self.base)

    def thread_ids(self, keys: Keys) -> NDArray[np.int64]:
        """Return the thread ids of keys."""
        ranks = keys >> np.uint64(_TIME_BITS)
        return np.asarray(self.threads.values[ranks], np.int64)

    def _relative(self, ticks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base = np.uint64(self.base)
        relative = ticks - base
        if len(relative) and relative.max() > self._most:
            relative = np.minimum(np.maximum(ticks, base) - base, _TIME_MASK)
        return np.asarray(relative, np.uint64)
