"""Pieces of each stream in the order in which they were launched."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.explain.schedule.device_pieces import Pieces
from unified_prof.analysis.explain.schedule.graph import Ints
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays.lookup import NOWHERE


class Launched:
    """Pieces of each stream in the order of their launches."""

    def __init__(self, pieces: Pieces) -> None:
        known = np.flatnonzero(pieces.call >= 0)
        order = np.lexsort(
            (pieces.moment_ns[known], pieces.launched_ns[known], pieces.stream[known])
        )
        self._rows = known[order]
        self._stream = pieces.stream[self._rows]
        self._launched = pieces.launched_ns[self._rows]

    def before(self, stream: Ints, at_ns: Ints) -> Ints:
        """Return the last piece that was launched on a stream before a time, or NOWHERE."""
        low, place = self._places(stream, at_ns)
        found = place > low
        return np.where(found, np.append(self._rows, NOWHERE)[place - 1], NOWHERE)

    def after(self, stream: Ints, at_ns: Ints) -> Ints:
        """Return the first piece that was launched on a stream at a time or later, or NOWHERE."""
        _, place = self._places(stream, at_ns)
        high = np.searchsorted(self._stream, stream, side="right")
        return np.where(place < high, np.append(self._rows, NOWHERE)[place], NOWHERE)

    def _places(self, stream: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
        low = np.searchsorted(self._stream, stream, side="left")
        place = np.empty(len(stream), np.int64)
        for one, rows in by_key(stream):
            begin = int(np.searchsorted(self._stream, one, side="left"))
            end = int(np.searchsorted(self._stream, one, side="right"))
            launched = self._launched[begin:end]
            place[rows] = begin + np.searchsorted(launched, at_ns[rows], side="left")
        return low.astype(np.int64), place


TRIES = 256
"""So many pieces that ended before a call returned are looked at for the one it waited for."""
