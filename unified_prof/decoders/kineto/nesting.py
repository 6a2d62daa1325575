"""Finds, for intervals of threads, the innermost interval around each: a call stack from times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.kineto.numbers import Int64s

NONE = -1


def preorder(thread: Int64s, start: Int64s, end: Int64s, rank: Int64s) -> Int64s:
    """Return the order in which an interval comes before everything inside it.

    Args:
        thread: Interval only nest on the same thread.
        start: In ns, sorted already or nearly so.
        end: In ns.
        rank: Which of two equal intervals is outside: the one of smaller rank.
    """
    return np.lexsort((rank, -end, start, thread))


def parents(thread: Int64s, end: Int64s) -> Int64s:
    """Return the index of the innermost interval that contains each one wholly, or `NONE`.

    Args:
        thread: Of intervals in `preorder`.
        end: Of the same, in ns.

    It is the nearest interval before it, on the same thread, that does not end earlier.
    Candidates jump from one to the candidate's own candidate, all at once: what lies between
    is known to end earlier, so nothing is missed and the distance doubles in each round.
    """
    count = len(end)
    candidate = np.arange(-1, count - 1, dtype=np.int64)
    first = np.empty(count, dtype=bool)
    if count:
        first[0] = True
        np.not_equal(thread[1:], thread[:-1], out=first[1:])
        candidate[first] = NONE
    active = np.flatnonzero(candidate != NONE)
    while len(active):
        at = candidate[active]
        active = active[(end[at] < end[active])]
        if not len(active):
            break
        candidate[active] = candidate[candidate[active]]
        active = active[candidate[active] != NONE]
    return candidate


def inherit(values: NDArray[Any], parent: Int64s) -> NDArray[Any]:
    """Give each interval without a value (`NONE`) that of the nearest interval around it."""
    result = values.copy()
    ancestor = parent.copy()
    active = np.flatnonzero((result == NONE) & (ancestor != NONE))
    while len(active):
        above = ancestor[active]
        found = result[above]
        result[active] = found
        ancestor[active] = ancestor[above]
        active = active[(found == NONE) & (ancestor[active] != NONE)]
    return result
