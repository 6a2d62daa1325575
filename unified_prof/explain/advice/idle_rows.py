"""Idle time of a device, by reason: columns of stretches.

Limits and words that rules share, of recordings and of tracked workloads alike.

Which idle time a host that launched earlier would fill.

That is until the launch of what comes next, and then what the launch takes to reach a device that
has nothing else to do: a host that is ahead by one launch hides both.
"""

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


STEPS_TO_LEAVE_ONE = 3
"""From so many steps on the first is left out, as one that warms up."""
WARMING_UP = 3.0
"""A step that is longer than so many medians warms up, or saves or evaluates: not judged."""
WARN_SHARE = 0.03
"""Share of a step from which a cost is worth a word where a rule has no limit of its own."""
LEAST_SHARE = 0.01
"""Of the time: what would save less is not worth a word where the share of the cause is limited
otherwise, or where nothing but the gain is uncertain."""
PAUSE_SHARE = 0.10
"""Of a recording without steps: a gap that is longer is a pause between phases, not a slow host."""
ROWS = 5
"""Rows of evidence that a finding shows."""


def duration(time_ns: float) -> str:
    """Return a time in words, as tables have it."""
    return scaled(time_ns, TIMES)


def times(count: int) -> str:
    """Return how often, in words."""
    return "once" if count == 1 else f"{count:,} times"


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


LATENCY_NS = 10_000
"""What a launch takes to reach an idle device, where the recording has no such launch..."""
LONGEST_LATENCY_NS = 100_000
"""...and the most that counts as that; of both, launches that take up to so many still do."""
LATENCIES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _Reaching:
    """Idle time in which launches were under way and nobody waited for anything else."""

    before: Flags
    """Which idle time lies before launches."""
    at: Ints
    """Which idle time it is, those of known launches only."""
    start_ns: Ints
    """When what ended it began."""
    launched_ns: Ints


class _Earlier:
    """The last start before moments, which are asked about in rising order."""

    def __init__(self, starts: Iterator[Ints]) -> None:
        self._coming = starts
        self._known = np.zeros(0, np.int64)

    def before(self, at_ns: Ints) -> Ints:
        """Return it for each moment, FOREVER where nothing began before."""
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
    """Yield for each window of idle time which of it that is.

    Args:
        recording: whose calls and work are asked.
        idle_windows: gives the idle time by reason; what one piece ended lies in one of them.
        starts: gives when the work of the judged time began, in rising order.
    """
    usual_ns: float | None = None  # another way through all of it, which few recordings need
    earlier = _Earlier(starts())
    for one in idle_windows():
        reaching = _reaching(recording, one)
        result = reaching.before.copy()
        if len(reaching.at):
            if usual_ns is None:
                usual_ns = _usual_latency_ns(recording, idle_windows())
            # The work before was running, or over, when this was launched: nothing else was queued.
            alone = earlier.before(reaching.start_ns) <= reaching.launched_ns
            took = reaching.start_ns - reaching.launched_ns
            result[reaching.at[alone & (took <= LATENCIES * usual_ns)]] = True
        yield result


def _usual_latency_ns(recording: Recording, idle_windows: Iterable[Idle]) -> float:
    """Return what a launch takes to reach a device that waits for it."""
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
    # What somebody waited for besides is not the launch's.
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
