"""Ranks' timelines on the common clock, cut to a step: what a merged trace is written from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.base import OverTime
from unified_prof.analysis.model import Series
from unified_prof.analysis.views.tracks import Track
from unified_prof.cluster.common_clock import CommonClock
from unified_prof.cluster.stored import Rank, Run
from unified_prof.errors import UsageError

Window = tuple[int, int]
"""Begin and end of what is wanted, by the rank's own clock, ns."""


class Shifted:
    """A report whose times are moved to another clock and cut to a window.

    Slices that reach into the window are kept whole: a cut one would tell a wrong duration.
    """

    def __init__(
        self, timeline: OverTime, clock: CommonClock, window: Window | None = None
    ) -> None:
        self._timeline = timeline
        self._clock = clock
        self._window = window

    @property
    def path(self) -> str:
        """The report."""
        return self._timeline.path

    def tracks(self) -> Iterator[Track]:
        """Yield the streams and threads that have something in the window."""
        for track in self._timeline.tracks():
            kept = self._kept(track.start_ns, track.end_ns)
            if kept.any():
                yield self._track(track, kept)

    def _track(self, track: Track, kept: NDArray[np.bool_]) -> Track:
        several = len(track.category) > 1
        return replace(
            track,
            start_ns=self._clock.common(track.start_ns[kept]),
            end_ns=self._clock.common(track.end_ns[kept]),
            label=track.label[kept],
            category=[track.category[index] for index in np.flatnonzero(kept).tolist()]
            if several
            else track.category,
            flow_in=track.flow_in[kept],
            flow_first=track.flow_first[kept],
            flow_count=track.flow_count[kept],
        )

    def memory_series(self) -> tuple[Series, ...]:
        """Return the memory over time within the window."""
        return self._series(self._timeline.memory_series())

    def counter_series(self) -> tuple[Series, ...]:
        """Return the counters within the window."""
        return self._series(self._timeline.counter_series())

    def _series(self, found: tuple[Series, ...]) -> tuple[Series, ...]:
        moved = []
        for one in found:
            kept = self._kept(one.time_ns, one.time_ns)
            if kept.any():
                time_ns = self._clock.common(one.time_ns[kept])
                moved.append(replace(one, time_ns=time_ns, value=one.value[kept]))
        return tuple(moved)

    def _kept(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._window is None:
            return np.ones(len(start_ns), bool)
        begin, end = self._window
        return np.asarray((end_ns >= begin) & (start_ns < end))


def window_of(run: Run, rank: Rank, step: int | None) -> Window | None:
    """Return where a step of a rank lies by its own clock; None: all of it is wanted.

    Raises:
        UsageError: the rank has no such step.
    """
    if step is None:
        return None
    table = run.steps
    rows = np.flatnonzero((table.step == step) & (table.rank == rank.rank))
    if not len(rows):
        known = np.unique(table.step[table.rank == rank.rank]).tolist()
        told = f"its steps: {known[0]} to {known[-1]}" if known else rank.why or "it has none"
        raise UsageError(
            f"rank {rank.rank} of {run.path} has no step {step}", hint=told, slug="no-such-step"
        )
    return int(table.start_ns[rows[0]]), int(table.end_ns[rows[0]])


def islands(ranks: list[Rank]) -> dict[int | None, list[int]]:
    """Return the ranks by the clock that they share; None: their clock is not known."""
    found: dict[int | None, list[int]] = {}
    for one in ranks:
        found.setdefault(one.clock_island, []).append(one.rank)
    return found
