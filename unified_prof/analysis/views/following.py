"""The work of a device in order of its starts, some at a time: what its gaps are explained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.views import idle
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.lookup import NOWHERE, find

Ints = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """Some pieces of work in order of their starts."""

    piece: NDArray[np.int32]
    """Which of all work each is."""
    start_ns: Ints
    kind: NDArray[np.int8]
    stream: Ints
    """UNKNOWN of collectives as a whole."""
    connection: Ints

    def at(self, rows: slice | NDArray[np.intp]) -> Begun:
        """Return some of them."""
        return Begun(
            self.piece[rows],
            self.start_ns[rows],
            self.kind[rows],
            self.stream[rows],
            self.connection[rows],
        )

    def merged(self, other: Begun) -> Begun:
        """Return these and others in order of their starts; of those that begin together, these."""
        both = Begun(
            np.concatenate((self.piece, other.piece)),
            np.concatenate((self.start_ns, other.start_ns)),
            np.concatenate((self.kind, other.kind)),
            np.concatenate((self.stream, other.stream)),
            np.concatenate((self.connection, other.connection)),
        )
        return both.at(np.argsort(both.start_ns, kind="stable"))


class Following:
    """The work of one device, as far as the gaps before it are explained."""

    def __init__(
        self,
        work: Iterator[Begun],
        launched: Callable[[Ints], Ints],
        waits: IntervalSet,
        awaits: NDArray[np.int32],
    ) -> None:
        """Begin before all work.

        Args:
            work: all of it, in order of its starts.
            launched: tells when work was launched by its connection, -1 where that is not known.
            waits: when streams of the device waited for others.
            awaits: the pieces that were launched behind a wait, in rising order.
        """
        self._coming, self._launched = work, launched
        self._waits, self._awaits = waits, awaits
        nothing = np.zeros(0, np.int64)
        self._piece, self._kind = nothing.astype(np.int32), nothing.astype(np.int8)
        self._start_ns = self._launched_ns = nothing

    def ending(self, gaps: IntervalSet) -> tuple[idle.Pieces, NDArray[np.int32]]:
        """Return the pieces that may end some gaps, and which of all work each is.

        Gaps are to be asked about in order of time.
        """
        high = 0
        if len(gaps):
            first, last = int(gaps.end_ns[0]), int(gaps.end_ns[-1])
            self._leave(first)
            while not len(self._start_ns) or self._start_ns[-1] < last:
                read = next(self._coming, None)
                if read is None:
                    break
                self._take(read)
                self._leave(first)
            high = int(np.searchsorted(self._start_ns, last)) + 1
        piece = self._piece[:high]
        awaits = find(self._awaits, piece) != NOWHERE
        pieces = idle.Pieces(
            self._start_ns[:high], self._launched_ns[:high], self._kind[:high], self._waits, awaits
        )
        return pieces, piece

    def _leave(self, before_ns: int) -> None:
        """Forget what starts before a moment."""
        low = int(np.searchsorted(self._start_ns, before_ns))
        if low:
            self._piece, self._kind = self._piece[low:], self._kind[low:]
            self._start_ns, self._launched_ns = self._start_ns[low:], self._launched_ns[low:]

    def _take(self, read: Begun) -> None:
        self._piece = np.concatenate((self._piece, read.piece))
        self._kind = np.concatenate((self._kind, read.kind))
        self._start_ns = np.concatenate((self._start_ns, read.start_ns))
        launched = self._launched(read.connection)
        self._launched_ns = np.concatenate((self._launched_ns, launched))


def awaiting(
    work: Iterable[Begun], launched: Callable[[Ints], Ints], stream: Ints, at_ns: Ints
) -> NDArray[np.int32]:
    """Return the pieces before which their stream was made to wait, in rising order.

    That is: between the launches of the piece before on that stream and of this one.

    Args:
        work: all of a device.
        launched: tells when work was launched by its connection, -1 where that is not known.
        stream: which were made to wait.
        at_ns: when.
    """
    streams = [_Waiting(one, np.sort(at_ns[rows])) for one, rows in by_key(stream)]
    for some in work:
        times = launched(some.connection)
        for one in streams:
            one.look(some, times)
    return np.unique(np.concatenate([np.zeros(0, np.int32), *(one.pieces for one in streams)]))


class _Waiting:
    """The first piece that was launched on a stream after each moment, so far."""

    def __init__(self, stream: int, moments: Ints) -> None:
        self._stream, self._moments = stream, moments
        self._launched_ns = np.full(len(moments), _NEVER)
        self._piece = np.full(len(moments), NOWHERE, np.int32)

    @property
    def pieces(self) -> NDArray[np.int32]:
        found: NDArray[np.int32] = self._piece[self._piece != NOWHERE]
        return found

    def look(self, some: Begun, launched_ns: Ints) -> None:
        own = np.flatnonzero((some.stream == self._stream) & (launched_ns >= 0))
        own = own[np.argsort(launched_ns[own], kind="stable")]
        times = launched_ns[own]
        if not len(own):
            return
        # Both moments and what is known of them rise: few of them can come to know better.
        low = int(np.searchsorted(self._launched_ns, times[0], side="right"))
        high = int(np.searchsorted(self._moments, times[-1], side="right"))
        if low >= high:
            return
        at = np.searchsorted(times, self._moments[low:high])
        better = low + np.flatnonzero(times[at] < self._launched_ns[low:high])
        at = at[better - low]
        self._launched_ns[better], self._piece[better] = times[at], some.piece[own[at]]
