"""Splits the host records into windows such that no operator crosses a boundary.

Records are sorted by thread and time and belong to the calls that enclose them. A window ends where
a call begins and no NODE or communication call is open, so each window can be decoded separately.
Open calls of outer levels are carried over into the next window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.host_calls import (
    ACL,
    COMMUNICATION,
    MODEL,
    NODE,
    CallNames,
    CallTree,
    Intervals,
    concatenate_intervals,
    without_overlaps,
)
from unified_prof.decoders.spool import Rows, Spool, copied, stacked, windows


@dataclass(frozen=True, slots=True)
class HostWindow:
    """Host records of one window; each kind is sorted by key."""

    calls: Rows
    tree: CallTree
    others: tuple[Rows, ...]
    """Rows of the other spools, in the order of the arguments."""


def host_windows(
    calls: Spool, others: Sequence[Spool], names: CallNames, window_rows: int
) -> Iterator[HostWindow]:
    """Yield the rows of the spools in windows."""
    levels = names.level()
    inner = (levels == NODE) | (levels == COMMUNICATION)
    trees = _Trees(names)
    held: list[Rows] = [np.zeros(0, spool.dtype) for spool in (calls, *others)]
    number = 1
    enough = 0
    for found in windows(calls, *others, window_rows=window_rows):
        more_calls = copied(found[0])
        more_calls["connection_id"] = np.arange(number, number + len(more_calls), dtype=np.uint64)
        number += len(more_calls)
        held = [
            stacked((before, more)) if len(before) else more
            for before, more in zip(held, (more_calls, *found[1:]), strict=True)
        ]
        if len(held[0]) < enough:
            continue
        if not len(held[0]):
            yield HostWindow(held[0], trees.tree(held[0], None), tuple(held[1:]))
            held = [rows[:0] for rows in held]
            continue
        place = _last_gap(held[0], inner)
        if place == 0:  # no gap: a call is open all the time; retry with twice the rows
            enough = 2 * len(held[0])
            continue
        enough = 0
        until = held[0]["key"][place]
        # A record at the begin of a call is outside it, but may be in the call before.
        cuts = [place, *(np.searchsorted(rows["key"], until, side="right") for rows in held[1:])]
        parts = [rows[:cut] for rows, cut in zip(held, cuts, strict=True)]
        held = [rows[cut:] for rows, cut in zip(held, cuts, strict=True)]
        yield HostWindow(parts[0], trees.tree(parts[0], until), tuple(parts[1:]))
    if any(len(rows) for rows in held):
        yield HostWindow(held[0], trees.tree(held[0], None), tuple(held[1:]))


def _last_gap(calls: Rows, inner: NDArray[np.bool_]) -> int:
    """Return the last call that begins when no inner call is open, or 0."""
    if not len(calls):
        return 0
    begin = calls["key"]
    ends = np.where(inner[calls["type_index"]], calls["end"], np.uint64(0))
    reach = np.maximum.accumulate(ends)
    free = np.flatnonzero((begin[1:] >= reach[:-1]) & (begin[1:] > begin[:-1]))
    return int(free[-1]) + 1 if len(free) else 0


class _Trees:
    """Builds the call trees of consecutive windows."""

    def __init__(self, names: CallNames) -> None:
        self._names = names
        self._open: dict[int, Intervals] = {}

    def tree(self, calls: Rows, until: np.uint64 | None) -> CallTree:
        """Return the calls of a window and the calls still open from earlier windows, by level."""
        outer = {level: self._outer(calls, level, until) for level in (ACL, MODEL)}
        return CallTree(
            outer[ACL],
            outer[MODEL],
            self._names.intervals(calls, NODE),
            without_overlaps(self._names.intervals(calls, COMMUNICATION)),
        )

    def _outer(self, calls: Rows, level: int, until: np.uint64 | None) -> Intervals:
        found = self._names.intervals(calls, level)
        if level in self._open:
            found = concatenate_intervals(self._open.pop(level), found)
        found = without_overlaps(found)
        if until is not None:
            still = np.flatnonzero(found.end > until)
            if len(still):
                self._open[level] = found.take(still)
        return found
