"""Idle time of a device by reason, time that earlier launches would fill, and limits of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import narrow
from unified_prof.arrays.types import Ints
from unified_prof.base.text import TIMES, scaled
from unified_prof.recording.idle import HOST, INPUT, LAUNCHED, SYNCHRONISING
from unified_prof.recording.recording import Recording
from unified_prof.recording.task_rows import FOREVER

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle segments of a device within the analyzed steps, by reason; see `idle.Segments`."""

    start_ns: Ints
    end_ns: Ints
    reason: NDArray[np.int8]
    # Task that ended the gap, -1 if there is none.
    piece: NDArray[np.int32]
    sync: NDArray[np.int32]

    @property
    def length_ns(self) -> Ints:
        """Length of each segment."""
        return self.end_ns - self.start_ns

    def at(self, rows: Flags | slice) -> Idle:
        """Return selected segments."""
        return Idle(*(getattr(self, one.name)[rows] for one in fields(self)))


_NO_TIMES, _NO_ROWS = np.zeros(0, np.int64), np.zeros(0, np.int32)
NO_IDLE = Idle(_NO_TIMES, _NO_TIMES, np.zeros(0, np.int8), _NO_ROWS, _NO_ROWS)


def joined(parts: Iterable[Idle]) -> Idle:
    """Concatenate the segments of at least one part."""
    every = list(parts)
    if len(every) == 1:
        return every[0]
    columns = ([getattr(one, name.name) for one in every] for name in fields(Idle))
    return Idle(*map(np.concatenate, columns))


# Number of steps from which the first is excluded as warm-up.
STEPS_TO_LEAVE_ONE = 3
# Steps longer than this many medians are excluded (warm-up, checkpoint, evaluation).
WARMING_UP = 3.0
# Default minimum share of a step that a finding must cost.
WARN_SHARE = 0.03
# Minimum saving as a share of the time, for rules with another limit on the cause or an uncertain
# gain.
LEAST_SHARE = 0.01
# In a recording without steps, a gap above this share is a pause, not a slow host.
PAUSE_SHARE = 0.10
# Rows of evidence per finding.
ROWS = 5


def duration(time_ns: float) -> str:
    """Format a duration."""
    return scaled(time_ns, TIMES)


def times(count: int) -> str:
    """Format a number of occurrences."""
    return "once" if count == 1 else f"{count:,} times"


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


# Launch latency of an idle device if the recording has no such launch...
LATENCY_NS = 10_000
# ...and the maximum that counts as launch latency.
LONGEST_LATENCY_NS = 100_000
LATENCIES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _Reaching:
    """Idle time in which launches were pending and nothing else was waited for."""

    # Mask of idle segments before launches.
    before: Flags
    # Indices of idle segments with a known launch.
    at: Ints
    # Start of the task that ended the segment.
    start_ns: Ints
    launched_ns: Ints


class _Earlier:
    """Latest start before given timestamps, which must be ascending."""

    def __init__(self, starts: Iterator[Ints]) -> None:
        self._coming = starts
        self._known = np.zeros(0, np.int64)

    def before(self, at_ns: Ints) -> Ints:
        """Return it for each timestamp, FOREVER if there is none."""
        first, last = int(at_ns.min()), int(at_ns.max())
        while not len(self._known) or self._known[-1] < last:
            more = next(self._coming, None)
            if more is None:
                break
            known = np.concatenate((self._known, more))
            self._known = known[max(int(np.searchsorted(known, first)) - 1, 0) :]
        place = np.searchsorted(self._known, at_ns) - 1
        return np.where(place >= 0, np.append(self._known, FOREVER)[place], FOREVER)


def starved(
    recording: Recording,
    idle_windows: Callable[[], Iterable[Idle]],
    starts: Callable[[], Iterator[Ints]],
) -> Iterator[Flags]:
    """Yield a mask of the time that earlier launches would fill, for each window of idle time.

    Args:
        recording: Source of calls and tasks.
        idle_windows: Yields the idle time by reason; a gap is in one window.
        starts: Yields ascending starts of the tasks within the analyzed steps.
    """
    usual_ns: float | None = None  # another way through all of it, which few recordings need
    earlier = _Earlier(starts())
    for one in idle_windows():
        reaching = _reaching(recording, one)
        result = reaching.before.copy()
        if len(reaching.at):
            if usual_ns is None:
                usual_ns = _usual_latency_ns(recording, idle_windows())
            # The previous task was running or finished when this one was launched: nothing else was
            # queued.
            alone = earlier.before(reaching.start_ns) <= reaching.launched_ns
            took = reaching.start_ns - reaching.launched_ns
            result[reaching.at[alone & (took <= LATENCIES * usual_ns)]] = True
        yield result


def _usual_latency_ns(recording: Recording, idle_windows: Iterable[Idle]) -> float:
    """Return the median launch latency of an idle device."""
    took: list[NDArray[np.integer]] = [np.zeros(0, np.int32)]
    for one in idle_windows:
        reaching = _reaching(recording, one)
        dry = np.isin(one.piece[reaching.at], one.piece[reaching.before])
        took.append(narrow((reaching.start_ns - reaching.launched_ns)[dry]))
    times = np.concatenate(took)
    return min(float(np.median(times)), LONGEST_LATENCY_NS) if len(times) else LATENCY_NS


def _reaching(recording: Recording, idle: Idle) -> _Reaching:
    before: Flags = (idle.reason == HOST) & (idle.piece >= 0)
    at = np.flatnonzero((idle.reason == LAUNCHED) & (idle.piece >= 0))
    # Time with another wait is not launch latency.
    waited = np.isin(idle.reason, (SYNCHRONISING, INPUT))
    at = at[~np.isin(idle.piece[at], idle.piece[waited])]
    if not len(at) or not len(recording.host_calls):
        nothing = np.zeros(0, np.int64)
        return _Reaching(before, nothing, nothing, nothing)
    piece = idle.piece[at]
    call = recording.host_calls.launching(recording.work.connection[piece])
    known = call >= 0
    start_ns = recording.work.start_ns[piece[known]]
    return _Reaching(before, at[known], start_ns, recording.host_calls.start_ns[call[known]])
