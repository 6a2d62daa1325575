"""How much memory of a device is in use, before its history and after every action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unified_prof.decoders.memory_snapshot.values import ALIVE, NONE, blocks_of, whole

_MOST_BYTES = 2**53
"""No memory has that many: such totals come of a damaged file, and are not known."""
_WAITING = ("active_awaiting_free", "active_pending_free")

# What each action does to what is allocated, reserved and active.
CHANGES = {
    "alloc": (1, 0, 1),
    "free_requested": (-1, 0, 0),
    "free_completed": (0, 0, -1),
    "segment_alloc": (0, 1, 0),
    "segment_map": (0, 1, 0),
    "segment_free": (0, -1, 0),
    "segment_unmap": (0, -1, 0),
}


@dataclass(slots=True)
class Totals:
    """Bytes of one device at one moment."""

    allocated: int
    reserved: int
    active: int

    def take(self, action: str, size: int) -> None:
        """Follow an action of `CHANGES`."""
        allocated, reserved, active = CHANGES[action]
        self.allocated += allocated * size
        self.reserved += reserved * size
        self.active += active * size

    def row(self) -> tuple[int | None, int | None, int | None]:
        """Return all three, None where it cannot be."""
        allocated, reserved, active = (
            total if total is not None and 0 <= total < _MOST_BYTES else None
            for total in (self.allocated, self.reserved, self.active)
        )
        return allocated, reserved, active


def totals_before(history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> Totals:
    """Return what was in use before the first action: what is at the end, less all of them."""
    sums = [0, 0, 0]
    for segment in segments:
        sums[1] += max(0, whole(segment.get("total_size"), 0))
        for block, _ in blocks_of(segment):
            size, state = max(0, whole(block.get("size"), 0)), block.get("state")
            sums[0] += size if state == ALIVE else 0
            sums[2] += size if state == ALIVE or state in _WAITING else 0
    lowest, running = [0, 0, 0], [0, 0, 0]
    for entry in history:
        action = entry.get("action")
        size = whole(entry.get("size"), NONE)
        if not isinstance(action, str) or action not in CHANGES or size < 0:
            continue
        for at, sign in enumerate(CHANGES[action]):
            running[at] += sign * size
            lowest[at] = min(lowest[at], running[at])
    # At least what went away was there, should the end not be known or contradict the history.
    before = [end - change for end, change in zip(sums, running, strict=True)]
    return Totals(*(max(one, -low) for one, low in zip(before, lowest, strict=True)))
