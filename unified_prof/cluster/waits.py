"""Waiting, moving data, set-up: what the time in communication was.

All members of a collective leave it together, and whoever came last waited least. So the least
duration is what the collective itself took, and the rest of every other one is waiting. No
common clock is needed. On NPUs the parts of a collective say when data moved; what is left of the
least duration is set-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.matching import Matched
from unified_prof.cluster.partial import NONE, Partial

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Of rows and events of a `Matched`; where nothing is known, NONE."""

    wait: Ints
    """Of each row: waiting for the last comer; known where two members or more are."""
    exposed: Ints
    """Of each row: the part of `wait` that no kernel covers."""
    least: Ints
    """Of each event: the least duration, set-up and transfer."""
    transfer: Ints
    setup: Ints
    last: Ints
    """Of each event: the row that came last."""


def waits(matched: Matched) -> Waits:
    """Divide up the time of all communication."""
    rows, events = matched.rows, matched.events
    duration = rows.end - rows.start
    wait = np.full(len(rows), NONE, np.int64)
    if not len(events):
        return Waits(wait, wait.copy(), *(np.empty(0, np.int64) for _ in range(4)))
    count = int(events.members.sum())
    least = np.minimum.reduceat(duration[:count], events.first)
    spread = np.repeat(least, events.members)
    known = np.repeat(events.members > 1, events.members)
    wait[:count] = np.where(known, duration[:count] - spread, NONE)
    # The first of the rows that have the least duration.
    at_least = np.flatnonzero(duration[:count] == spread)
    owner = rows.event[at_least]
    last = at_least[np.r_[True, owner[1:] != owner[:-1]]]
    moved = np.minimum(rows.move[last], least)
    setup = np.where(moved >= 0, least - moved, NONE)
    return Waits(
        wait=wait,
        exposed=_exposed(matched, wait),
        least=least,
        transfer=np.where(moved >= 0, moved, least),
        setup=setup,
        last=last,
    )


def _exposed(matched: Matched, wait: Ints) -> Ints:
    """Take off each wait what kernels of the same rank cover; a wait is an operation's begin."""
    rows = matched.rows
    exposed = wait.copy()
    partly = np.flatnonzero((wait > 0) & (rows.covered > 0))
    partly = partly[np.argsort(rows.rank[partly], kind="stable")]
    edges = np.searchsorted(rows.rank[partly], np.arange(len(matched.ranks) + 1))
    for index, one in enumerate(matched.partials):
        mine = partly[edges[index] : edges[index + 1]]
        if len(mine):
            covered = Covered(one)
            begin = rows.start[mine]
            hidden = covered.until(begin + wait[mine]) - covered.until(begin)
            exposed[mine] = wait[mine] - np.clip(np.rint(hidden).astype(np.int64), 0, wait[mine])
    return exposed


class Covered:
    """How much kernels cover of a rank's time, from its marks: exact at these, near in between."""

    def __init__(self, one: Partial) -> None:
        marks = one.marks
        self._origin = int(marks["time"][0]) if len(marks["time"]) else 0
        time = marks["time"] - self._origin
        until = np.r_[time[1:], time[-1:] + marks["lead"][-1:] + marks["busy"][-1:]]
        begin = time + marks["lead"]
        end = np.maximum(until - marks["tail"], begin)
        before = np.cumsum(marks["busy"]) - marks["busy"]
        order = np.arange(2 * len(time)) // 2
        self._at = np.where(np.arange(len(order)) % 2, end[order], begin[order])
        self._sum = np.where(
            np.arange(len(order)) % 2, (before + marks["busy"])[order], before[order]
        )

    def until(self, at: Ints) -> NDArray[np.float64]:
        """Return how much of the time before each point kernels cover."""
        if not len(self._at):
            return np.zeros(len(at))
        return np.interp((at - self._origin).astype(np.float64), self._at, self._sum)
