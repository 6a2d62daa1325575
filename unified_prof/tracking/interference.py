"""Hold off Python's garbage collector while many objects are made that will not be garbage.

How long this thread was ready to run while other programs had the processor.

Linux counts it for every thread (`schedstat`, second field, nanoseconds). Taken off the time of an
iteration it leaves what the program itself took, also on a machine that others use. It is read
where passes begin and end, so that it is known of each of them.
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

_held: tuple[int, int, int] | None = None
"""What the thresholds were before, while it is held off."""


@contextmanager
def collection_held_off() -> Iterator[None]:
    """Start no automatic collection within the block.

    By the thresholds, not by `gc.disable`: that is the program's own switch, which it may turn
    within the block, and ask for. Thresholds that the program sets within the block stay.
    """
    global _held
    if _held is not None or gc.get_threshold()[0] == 0:  # nested, or the program's own wish
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
    # Python 3.14 knows no third threshold and always gives 0 for it.
    if before is not None and gc.get_threshold()[0] == 0:
        gc.set_threshold(*before)


if hasattr(os, "register_at_fork"):  # a child of another thread's has no end of the block
    os.register_at_fork(after_in_child=_give_back)


_SCHEDSTAT = Path("/proc/thread-self/schedstat")
# Attempts at a reading that nothing interrupts; a longer one was interrupted.
_READINGS = 3
_UNDISTURBED_NS = 100_000
# Intervals above this length get a reading of their own: a thread that loses its processor waits
# for milliseconds, so shorter intervals hold no waiting.
LONG_NS = 500_000


def waited_within(
    waits: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]
) -> float | None:
    """Return how long the thread waited within `spans` (start, end), in nanoseconds.

    Args:
        waits: moments and how long it had waited until then, in order; in between it is taken to
            have waited evenly.
        spans: disjoint stretches of the same clock.

    Returns:
        None where it was not read at least twice.
    """
    if len(waits) < 2:
        return None
    moments, waited = zip(*waits, strict=True)
    # Counted from the first: the sum of two such numbers would not be exact as floats.
    known = np.interp(
        [(start - moments[0], end - moments[0]) for start, end in spans] or [(0, 0)],
        [moment - moments[0] for moment in moments],
        [one - waited[0] for one in waited],
    )
    return float((known[:, 1] - known[:, 0]).sum())


Waits = list[tuple[int, int]]
"""Readings in order: moment of the host's clock, and the nanoseconds that the thread had waited."""


def waited_ms(waits: Waits, starts: Marks, ends: Marks) -> Milliseconds:
    """Return how long the thread waited in each interval; 0 if it was not read twice."""
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
    """Reads the waiting time of the thread that made it; about two microseconds a reading."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another system, or a kernel that does not count
            self._file = None

    def read_ns(self) -> int | None:
        """Return the time waited since the thread began, None where the system does not say."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def note(self, waits: Waits) -> None:
        """Add a reading to `waits`; does nothing where the system does not count."""
        for _ in range(_READINGS):  # waiting between the two would count for another interval
            before = perf_counter_ns()
            waited_ns = self.read_ns()
            moment = perf_counter_ns()
            if moment - before < _UNDISTURBED_NS:
                break
        if waited_ns is not None:
            waits.append((moment, waited_ns))

    def note_interval(self, waits: Waits, start: int, end: int) -> None:
        """Charge what the thread waited since the last reading to the interval `start` to `end`."""
        if waits and (waited_ns := self.read_ns()) is not None:
            moment, waited_before_ns = waits[-1]
            waits.append((max(start, moment), waited_before_ns))
            waits.append((max(end, moment), waited_ns))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
