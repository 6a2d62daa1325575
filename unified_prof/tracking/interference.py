"""Exclude garbage collection and waiting for a processor from measured times.

For every thread, Linux counts how long it was ready to run but had no processor (`schedstat`,
second field, in nanoseconds). The counter is read at the beginning and end of passes, and after
long intervals, so that the wait time of each pass and each operation is known.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.device import Marks, Milliseconds

_NEVER = (0, 0, 0)

_held: tuple[int, int, int] | None = None  # Thresholds before automatic collection was suspended.


@contextmanager
def collection_held_off() -> Iterator[None]:
    """Suspend automatic garbage collection within the block.

    This sets thresholds instead of calling `gc.disable`, because the program may query and change
    that state. Thresholds that the program sets within the block are kept.
    """
    global _held
    if _held is not None or gc.get_threshold()[0] == 0:  # nested, or suspended by the program
        yield
        return
    _held = gc.get_threshold()
    gc.set_threshold(*_NEVER)
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    global _held
    before, _held = _held, None
    # Python 3.14 has no third threshold and always returns 0 for it.
    if before is not None and gc.get_threshold()[0] == 0:
        gc.set_threshold(*before)


if hasattr(os, "register_at_fork"):  # in a child forked by another thread, the block never ends
    os.register_at_fork(after_in_child=_give_back)


_SCHEDSTAT = Path("/proc/thread-self/schedstat")
# Maximum attempts to take a reading, and the minimum duration of an interrupted attempt.
_READINGS = 3
_UNDISTURBED_NS = 100_000
# Minimum length of intervals after which a reading is taken. A thread that loses its processor
# waits for milliseconds, so shorter intervals contain almost no waiting.
LONG_NS = 500_000


def waited_within(
    waits: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]
) -> float | None:
    """Return how long the thread waited within `spans`, in nanoseconds.

    Returns None if there are fewer than two readings.

    Args:
        waits: Readings; waiting is assumed to be evenly distributed between two readings.
        spans: Disjoint intervals (start, end) on the same clock.
    """
    if len(waits) < 2:
        return None
    moments, waited = zip(*waits, strict=True)
    # Relative to the first reading: floats cannot represent the full numbers exactly.
    known = np.interp(
        [(start - moments[0], end - moments[0]) for start, end in spans] or [(0, 0)],
        [moment - moments[0] for moment in moments],
        [one - waited[0] for one in waited],
    )
    return float((known[:, 1] - known[:, 0]).sum())


# Readings in order: host time, and total wait time of the thread until then, in nanoseconds.
Waits = list[tuple[int, int]]


def waited_ms(waits: Waits, starts: Marks, ends: Marks) -> Milliseconds:
    """Return how long the thread waited in each interval, in ms; 0 with fewer than two readings."""
    if len(waits) < 2 or waits[-1][1] == waits[0][1]:
        return np.zeros(len(starts))
    moments, waited = np.array(waits, np.int64).T
    before, after = (
        np.interp(np.asarray(marks) - moments[0], moments - moments[0], waited - waited[0])
        for marks in (starts, ends)
    )
    found: Milliseconds = (after - before) / NS_PER_MS
    return found


class WaitingTime:
    """Reads the wait time of the thread that created it; a reading takes about 2 us."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another system, or a kernel that does not count
            self._file = None

    def read_ns(self) -> int | None:
        """Return how long the thread has waited so far; None if the system does not report it."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def note(self, waits: Waits) -> int | None:
        """Add a reading to `waits` and return its time; None if the system does not report it."""
        # Retry if interrupted: waiting during the reading would be counted in another interval.
        for _ in range(_READINGS):
            before = perf_counter_ns()
            waited_ns = self.read_ns()
            moment = perf_counter_ns()
            if moment - before < _UNDISTURBED_NS:
                break
        if waited_ns is None:
            return None
        waits.append((moment, waited_ns))
        return moment

    def note_interval(self, waits: Waits, start: int, end: int) -> None:
        """Charge the wait since the last reading to the interval from `start` to `end`."""
        if waits and (waited_ns := self.read_ns()) is not None:
            moment, waited_before_ns = waits[-1]
            waits.append((max(start, moment), waited_before_ns))
            waits.append((max(end, moment), waited_ns))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
