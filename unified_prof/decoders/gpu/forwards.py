"""Remembers which call chain each forward operation had, for the backward one to ask."""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.arrays.nesting import NONE
from unified_prof.decoders.gpu.numbers import Int64s

REMEMBERED = 1 << 18
"""Forward operations kept: more than any iteration has, whatever the trace's length."""

_AMBIGUOUS = -2


class Forwards:
    """Autograd sequence number -> call chain of the operation that made the node.

    An operation records the number that the next node will get. Several in a row may record the
    same one; the node belongs to the last of them to start.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        empty = np.empty(0, dtype=np.int64)
        self._sequence, self._chain, self._thread = empty, empty, empty

    def add(self, sequence: Int64s, chain: Int64s, thread: Int64s) -> None:
        """Remember forward operations, given in the order of their start."""
        if not len(sequence):
            return
        sequence = np.concatenate((self._sequence, sequence))
        chain = np.concatenate((self._chain, chain))
        thread = np.concatenate((self._thread, thread))
        order = np.argsort(sequence, kind="stable")
        sequence, chain, thread = sequence[order], chain[order], thread[order]
        last = np.append(sequence[1:] != sequence[:-1], True)
        # Sequence numbers count per thread: the same one on two threads means two nodes.
        clash = np.append(False, (sequence[1:] == sequence[:-1]) & (thread[1:] != thread[:-1]))
        clashing = np.unique(sequence[clash])
        sequence, chain, thread = sequence[last], chain[last], thread[last]
        chain[np.isin(sequence, clashing)] = _AMBIGUOUS
        # Numbers only grow, so the smallest ones are the oldest.
        keep = slice(max(0, len(sequence) - self._remembered), None)
        self._sequence, self._chain, self._thread = sequence[keep], chain[keep], thread[keep]

    def find(self, sequence: Int64s) -> tuple[Int64s, int]:
        """Return the call chains of forward operations, and how many were ambiguous."""
        if not len(self._sequence):
            return np.full(len(sequence), NONE), 0
        at = find(self._sequence, sequence)
        chain = np.where(at != NOWHERE, self._chain[at], NONE)
        ambiguous = chain == _AMBIGUOUS
        chain[ambiguous] = NONE
        return chain, int(np.count_nonzero(ambiguous))
