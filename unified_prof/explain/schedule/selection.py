"""Selected parts of a recording: device tasks, host ranges and calls, and times on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.recording.names import Words
from unified_prof.recording.source import possible

if TYPE_CHECKING:
    from unified_prof.recording.recording import Recording

NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Parts of a recording that take less time."""

    # Selected share of each row of `Recording.work` (a mask, or 0 to 1; more than 1 includes idle
    # time before the task); None: no device tasks.
    work: NDArray[Any] | None = None
    # Rows of `Recording.framework` whose host time, nested calls included, is selected.
    ranges: Ints = field(default_factory=lambda: NO_ROWS)
    # Rows of `Recording.host_calls`, likewise. If a synchronizing call is removed, its thread does
    # not wait.
    calls: Ints = field(default_factory=lambda: NO_ROWS)
    # All host time except input within these intervals, between calls as well.
    host: IntervalSet = intervals.EMPTY
    # True: also the usual gaps between tasks that were launched in these intervals, as in a graph.
    gaps: bool = False

    def __or__(self, other: Selection) -> Selection:
        work = [one.work for one in (self, other) if one.work is not None]
        return Selection(
            np.maximum(*work) if len(work) > 1 else next(iter(work), None),
            np.union1d(self.ranges, other.ranges),
            np.union1d(self.calls, other.calls),
            intervals.union(self.host, other.host),
            self.gaps or other.gaps,
        )


def _host_parts(recording: Recording, selection: Selection) -> tuple[Ints, Ints, Ints]:
    """Return thread, start and end of the selected ranges and calls."""
    parts = [(NO_ROWS,) * 3]
    for table, rows in (
        (recording.host_calls, selection.calls),
        (recording.framework, selection.ranges),
    ):
        if table is not None and len(rows):
            parts.append((table.thread[rows], table.start_ns[rows], table.end_ns[rows]))
    thread, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return thread, start, end


def in_ranges_ns(
    recording: Recording, selection: Selection, thread: Ints, start_ns: Ints, end_ns: Ints
) -> Ints:
    """Return the time that intervals of threads overlap with the selected ranges and calls."""
    range_thread, start, end = _host_parts(recording, selection)
    result = np.zeros(len(thread), np.int64)
    for number in np.unique(range_thread).tolist():
        same = range_thread == number
        covered = intervals.merge(start[same], end[same])
        rows = np.flatnonzero(thread == number)
        result[rows] = intervals.covered(covered, start_ns[rows], end_ns[rows])
    return result


def share_before(recording: Recording, selection: Selection, until_ns: int) -> float:
    """Return the share of the selected time or calls that begins before a timestamp."""
    work, weights, starts = recording.work, [], []
    if selection.work is not None:
        weights.append(selection.work * work.duration_ns.to_array())
        starts.append(work.start_ns.to_array())
    if len(selection.host):
        weights.append(selection.host.end_ns - selection.host.start_ns)
        starts.append(selection.host.start_ns)
    if not weights:
        # Ranges may contain the calls.
        calls = Selection(calls=selection.calls) if len(selection.calls) else selection
        _, start, end = _host_parts(recording, calls)
        weights, starts = [end - start], [start]
    weight, start = np.concatenate(weights), np.concatenate(starts)
    total = float(weight.sum())
    return float(weight[start < until_ns].sum()) / total if total else 0.0


def host_ranges(recording: Recording, wanted: Words) -> tuple[Ints, Ints, Ints, list[str], Ints]:
    """Return start, end and name of the runtime calls and framework ranges with given words.

    The name is an index into the texts that follow. The last value is when the program enqueued
    what runs in the range: the thread that launches may be behind the program.
    """
    calls = recording.host_calls
    ids, number = calls.names
    texts = [text or "" for text in recording.strings.texts(ids)]
    rows = np.flatnonzero(calls.matching(recording.strings, wanted))
    start, end, name = calls.start_ns[rows], calls.end_ns[rows], number[rows]
    enqueued = recording.program_ns(rows, start)
    framework = recording.framework
    if framework is not None:
        ranges = framework.matching(wanted)
        range_texts, range_name = framework.names(ranges)
        start = np.concatenate((start, framework.start_ns[ranges]))
        end = np.concatenate((end, framework.end_ns[ranges]))
        name = np.concatenate((name, range_name + len(texts)))
        texts = [*texts, *range_texts]
        enqueued = np.concatenate((enqueued, framework.start_ns[ranges]))
    with np.errstate(over="ignore"):
        good = possible(start, end - start)
    return start[good], end[good], name[good].astype(np.int64), texts, enqueued[good]
