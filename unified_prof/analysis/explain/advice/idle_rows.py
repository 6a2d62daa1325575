"""Idle time of a device, by reason: columns of stretches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle time of the device within the judged steps, by reason; as of `views.idle.Segments`."""

    start_ns: Ints
    end_ns: Ints
    reason: NDArray[np.int8]
    piece: NDArray[np.int32]
    """The piece of all work that ended the gap, -1 where none came."""
    sync: NDArray[np.int32]

    @property
    def length_ns(self) -> Ints:
        """Length of each stretch."""
        return self.end_ns - self.start_ns

    def at(self, rows: Flags | slice) -> Idle:
        """Return some of it."""
        return Idle(*(getattr(self, one.name)[rows] for one in fields(self)))


_NO_TIMES, _NO_ROWS = np.zeros(0, np.int64), np.zeros(0, np.int32)
NO_IDLE = Idle(_NO_TIMES, _NO_TIMES, np.zeros(0, np.int8), _NO_ROWS, _NO_ROWS)


def joined(parts: Iterable[Idle]) -> Idle:
    """Return the stretches of all parts, of which there is at least one."""
    every = list(parts)
    if len(every) == 1:
        return every[0]
    columns = ([getattr(one, name.name) for one in every] for name in fields(Idle))
    return Idle(*map(np.concatenate, columns))
