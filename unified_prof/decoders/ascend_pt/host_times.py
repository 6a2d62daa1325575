"""Time stamps of FRAMEWORK/ to ns since 1970."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.ascend_pt.folder import HostClock

Ints = NDArray[np.int64]

_LATEST = 1 << 62


def epoch_ns(raw: NDArray[np.int64] | NDArray[np.uint64], clock: HostClock) -> Ints:
    """Return the times; what is beyond 64 bits becomes the latest or earliest possible time.

    As torch_npu computes them: ticks times ns a tick as float64, truncated.
    """
    stamps = raw.astype(np.int64)
    if not clock.counts:
        return _moved(stamps, clock.offset_ns)
    ticks = _moved(stamps, -clock.start_count).astype(np.float64)
    passed = np.clip(ticks * (1000 / clock.mhz), -float(_LATEST), float(_LATEST))
    return _moved(passed.astype(np.int64), clock.start_monotonic_ns + clock.offset_ns)


def _moved(times: Ints, by: int) -> Ints:
    by = max(-_LATEST, min(by, _LATEST))
    return np.clip(times, -_LATEST, _LATEST) + by
