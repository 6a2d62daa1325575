"""Idle time of a device by reason, which is what the task after each gap waited for.

A gap ends with the start of the next task. Until that task was launched, the gap is host-bound: the
host was fetching input, was in a synchronizing call, or launched too slowly. After the launch, the
reason is a wait for a stream or event, a wait for other ranks in a collective, or launch latency,
unless the host waits for the device until the gap ends: the device probably ran unrecorded work.
`docs/figures.md` has the definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.recording.calls import COMMUNICATION

REASONS: Final = (
    "host",
    "input",
    "synchronising",
    "stream",
    "communication",
    "launched",
    "unrecorded",
    "unknown",
)
HOST, INPUT, SYNCHRONIZING, STREAM, COLLECTIVE, LAUNCHED, UNRECORDED, NOT_KNOWN = range(
    len(REASONS)
)

LATE_NS: Final = 1_000_000  # A launch latency of this or more has another cause.
# The device runs unrecorded work if a blocking call covers this share of a gap and returns at most
# this long before its end.
BLOCKED_SHARE: Final = 0.9
_RETURN_NS: Final = 100_000

IN_WORDS: Final[Mapping[str, str]] = {
    "host": "host-bound",
    "input": "input wait",
    "synchronising": "synchronization",
    "stream": "stream or event wait",
    "communication": "collective wait",
    "launched": "launch latency",
    "unrecorded": "unrecorded work",
    "unknown": "unknown launch",
}

_NEVER: Final = np.iinfo(np.int64).max


class DeviceTasks(Struct, frozen=True, eq=False):
    """Tasks of one device in order of start, with their launches."""

    start_ns: Ints
    launched_ns: Ints  # Start of the launch call; -1: unknown.
    kind: NDArray[np.integer]
    waits: IntervalSet  # Intervals in which streams waited for another stream before a task.
    # Mask of the tasks launched after a wait of their stream for an event of another stream.
    awaits: Bools


class HostSide(Struct, frozen=True, eq=False):
    """Host ranges that a device may have waited for."""

    input: IntervalSet
    # Union of the synchronizing calls on threads that launch tasks or run operations.
    sync: IntervalSet
    # Label of each interval of `sync`, a number in the caller's labels.
    sync_label: NDArray[np.integer]
    # Union of the calls on these threads that may wait for the device and take about `LATE_NS` or
    # more.
    blocked: IntervalSet = intervals.EMPTY


class IdleReasons(Struct, frozen=True):
    """Idle time of one device by reason; the reasons add up to the idle time."""

    device: str
    step: str | None  # None: all steps, or the window without steps.
    idle_ns: int
    host_ns: int
    input_ns: int
    synchronising_ns: int
    stream_ns: int
    communication_ns: int
    launched_ns: int
    unrecorded_ns: int
    unknown_ns: int

    def reason_ns(self, reason: str) -> int:
        """Return the time of a reason in REASONS."""
        result: int = getattr(self, f"{reason}_ns")
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Segments(Frame):
    """Idle intervals with their reasons, in order and without overlaps."""

    start_ns: Ints
    end_ns: Ints
    reason: NDArray[np.int8]
    next_task: NDArray[np.int32]  # Index of the task that ended the gap; -1: none.
    # Index of the synchronizing call in `HostSide.sync`; -1: not the reason.
    sync: NDArray[np.int32]


def unexplained(idle: IntervalSet) -> Segments:
    """Return all gaps with the reason NOT_KNOWN, for recordings without host data."""
    nothing = np.full(len(idle), -1, np.int32)
    reason = np.full(len(idle), NOT_KNOWN, np.int8)
    return Segments(idle.start_ns, idle.end_ns, reason, nothing, nothing)


def explain(idle: IntervalSet, tasks: DeviceTasks, host: HostSide) -> Segments:
    """Split gaps of one device by reason.

    Each gap ends with the start of a task or at the end of the analyzed time; `tasks` are all tasks
    of the device, or only those that end these gaps.
    """
    begin, end = idle.start_ns, idle.end_ns
    following = np.searchsorted(tasks.start_ns, end, side="left")
    has_next = following < len(tasks.start_ns)
    task = np.where(has_next, following, -1)
    launched = np.append(tasks.launched_ns, _NEVER)[task]
    unknown = has_next & (launched < 0)
    # Without a further launch, the whole gap is host-bound.
    ready = np.where(unknown, end, np.clip(launched, begin, end))
    own = IntervalSet(begin, np.where(unknown, begin, ready))
    parts = [
        _segment(begin[unknown], end[unknown], NOT_KNOWN, task[unknown]),
        *_split_before_launch(own, task, host),
        *_split_after_launch(np.where(unknown, end, ready), end, task, tasks, host.blocked),
    ]
    joined = [np.concatenate([part[index] for part in parts]) for index in range(5)]
    start, stop, reason, after, sync = joined
    kept = stop > start
    order = np.flatnonzero(kept)[np.argsort(start[kept], kind="stable")]
    return Segments(
        start[order],
        stop[order],
        reason[order].astype(np.int8),
        after[order].astype(np.int32),
        sync[order].astype(np.int32),
    )


_Segment = tuple[Ints, Ints, Ints, Ints, Ints]


def _segment(start: Ints, end: Ints, reason: int, task: Ints, sync: Ints | None = None) -> _Segment:
    nothing = np.full(len(start), -1) if sync is None else sync
    return start, end, np.full(len(start), reason), task, nothing


def _split_before_launch(own: IntervalSet, task: Ints, host: HostSide) -> list[_Segment]:
    """Split the parts of gaps before launches by reason; parts may be empty."""
    parts = []
    # If a synchronizing call was open at the start of the gap, all host-bound time of the gap is
    # due to it.
    call = np.searchsorted(host.sync.start_ns, own.start_ns, side="right") - 1
    dry = (call >= 0) & (np.append(host.sync.end_ns, 0)[call] > own.start_ns)
    start, end, gap, _ = intervals.overlaps(own, host.input)
    parts.append(_segment(start, end, INPUT, task[gap]))
    rest_start, rest_end, gap = _subtract(own, start, end, gap)
    due = dry[gap]
    parts.append(
        _segment(rest_start[due], rest_end[due], SYNCHRONIZING, task[gap[due]], call[gap[due]])
    )
    left = IntervalSet(rest_start[~due], rest_end[~due])
    left_task = task[gap[~due]]
    start, end, which, sync = intervals.overlaps(left, host.sync)
    parts.append(_segment(start, end, SYNCHRONIZING, left_task[which], sync))
    start, end, which = _subtract(left, start, end, which)
    parts.append(_segment(start, end, HOST, left_task[which]))
    return parts


def _split_after_launch(
    ready: Ints, end: Ints, task: Ints, tasks: DeviceTasks, blocked: IntervalSet
) -> list[_Segment]:
    """Split the parts of gaps after launches by reason; parts may be empty."""
    kind = np.append(tasks.kind, -1)[task]
    awaits = np.append(tasks.awaits, False)[task]
    collective = kind == COMMUNICATION
    behind = awaits & ~collective
    parts = [
        _segment(ready[collective], end[collective], COLLECTIVE, task[collective]),
        _segment(ready[behind], end[behind], STREAM, task[behind]),
    ]
    others = ~collective & ~behind
    left, left_task = IntervalSet(ready[others], end[others]), task[others]
    start, stop, which, _ = intervals.overlaps(left, tasks.waits)
    parts.append(_segment(start, stop, STREAM, left_task[which]))
    start, stop, which = _subtract(left, start, stop, which)
    late = _is_blocked(start, stop, blocked)
    for reason, of_reason in ((LAUNCHED, ~late), (UNRECORDED, late)):
        parts.append(
            _segment(start[of_reason], stop[of_reason], reason, left_task[which[of_reason]])
        )
    return parts


def _is_blocked(start: Ints, stop: Ints, blocked: IntervalSet) -> Bools:
    """Return which long intervals the host is blocked in until they end."""
    covered = (BLOCKED_SHARE * (stop - start)).astype(np.int64)
    last = np.searchsorted(blocked.start_ns, stop - covered, side="right") - 1
    until = np.append(blocked.end_ns, 0)[last]
    result: Bools = (stop - start >= LATE_NS) & (last >= 0)
    return result & (until >= stop - _RETURN_NS) & (until - start >= covered)


def _subtract(one: IntervalSet, start: Ints, end: Ints, which: Ints) -> tuple[Ints, Ints, Ints]:
    """Subtract ordered intervals from the interval of `one` that contains them (`which`)."""
    index = np.arange(len(one))
    begins = np.concatenate((one.start_ns, end))
    owner = np.concatenate((index, which))
    order = np.lexsort((begins, owner))
    ends = np.concatenate((start, one.end_ns))
    end_owner = np.concatenate((which, index))
    end_order = np.lexsort((ends, end_owner))
    left_start, left_end, of = begins[order], ends[end_order], owner[order]
    filled = left_end > left_start
    return left_start[filled], left_end[filled], of[filled]


def totals(
    device: str, parts: Iterable[Segments], steps: Sequence[tuple[str, int, int]] | None
) -> list[IdleReasons]:
    """Return the idle time by reason, first in total, then for each step."""
    sums = np.zeros(len(REASONS), np.int64)
    by_step = np.zeros((len(steps or ()), len(REASONS)), np.int64)
    windows = IntervalSet(
        np.array([begin for _, begin, _ in steps or ()], np.int64),
        np.array([end for _, _, end in steps or ()], np.int64),
    )
    for segments in parts:
        np.add.at(sums, segments.reason, segments.end_ns - segments.start_ns)
        if steps:
            idle = IntervalSet(segments.start_ns, segments.end_ns)
            start, end, which, step = intervals.overlaps(idle, windows)
            np.add.at(by_step, (step, segments.reason[which]), end - start)
    rows = [IdleReasons(device, None, int(sums.sum()), *sums.tolist())]
    for (name, _, _), own in zip(steps or (), by_step.tolist(), strict=True):
        rows.append(IdleReasons(device, name, sum(own), *own))
    return rows
