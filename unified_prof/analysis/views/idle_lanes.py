"""When devices were idle and why, for a timeline: all gaps, or the longest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.views.idle_time import IdleTime

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IdleLane:
    """The idle time of one device, in order of time and without overlaps."""

    device: str
    start_ns: Ints
    """Unix time."""
    duration_ns: Ints
    reason: NDArray[np.int8]
    """Number in `idle.REASONS`."""
    longer_than_ns: int
    """What was shorter or as long is left out; 0: all is there."""
    left_out: int
    left_out_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)


def build(idle_time: IdleTime, devices: Sequence[str], limit: int) -> tuple[IdleLane, ...]:
    """Return a lane for each device; none where no reason can be told.

    Args:
        idle_time: why devices were idle.
        devices: their names.
        limit: at most so many gaps, the same of each device.
    """
    if not idle_time.is_told:
        return ()
    each = max(1, limit // max(1, len(devices)))
    lanes = [_lane(idle_time, device, each) for device in devices]
    return tuple(lane for lane in lanes if len(lane) or lane.left_out)


def _lane(idle_time: IdleTime, device: str, limit: int) -> IdleLane:
    longest, count, total = np.zeros(0, np.int64), 0, 0
    for part in idle_time.parts(device):
        length = part.end_ns - part.start_ns
        count, total = count + len(length), total + int(length.sum())
        longest = np.concatenate((longest, length))
        if len(longest) > limit + 1:
            longest = np.partition(longest, len(longest) - limit - 1)[-limit - 1 :]
    longer_than = int(longest.min()) if count > limit else 0
    starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    reasons = [np.zeros(0, np.int8)]
    for part in idle_time.parts(device):
        length = part.end_ns - part.start_ns
        long = length > longer_than
        starts.append(part.start_ns[long])
        lengths.append(length[long])
        reasons.append(part.reason[long])
    start, duration = np.concatenate(starts), np.concatenate(lengths)
    return IdleLane(
        device=device,
        start_ns=start,
        duration_ns=duration,
        reason=np.concatenate(reasons),
        longer_than_ns=longer_than,
        left_out=count - len(start),
        left_out_ns=total - int(duration.sum()),
    )
